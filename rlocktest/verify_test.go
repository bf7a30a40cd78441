package rlocktest_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

// permits are a PermitSemaphore with one permit, which is an exclusive lock.
type permits struct{ *rlock.PermitSemaphore }

func (p permits) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	return p.Acquire(ctx, 1, opts...)
}

func (p permits) TryLock(ctx context.Context, opts ...rlock.TryOption) (*rlock.Lease, error) {
	return p.TryAcquire(ctx, 1, opts...)
}

// must returns a lock whose arguments are valid.
func must[L any](l L, err error) L {
	if err != nil {
		panic(err)
	}
	return l
}

func TestVerifyPassesOurTypes(t *testing.T) {
	t.Parallel()
	verify := func(name string, open func(c *rlock.Client, name string) rlock.Locker, without ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rlocktest.Verify(t, func(s *rlocktest.Server, name string) rlock.Locker { return open(s.NewClient(), name) }, without...)
		})
	}
	for _, k := range locktest.Types {
		var without []string
		if k.Name == "FencedLock" {
			without = []string{"tokens after a loss", "keys"} // Redisson's counter: it stays, and a flush sets it back
		}
		if !k.Shared {
			verify(k.Name, func(c *rlock.Client, name string) rlock.Locker { return k.Open(c, name) }, without...)
		}
	}
	verify("without re-entry", func(c *rlock.Client, name string) rlock.Locker {
		return c.NewLock(name, rlock.WithNonReentrant())
	})
	verify("Election", func(c *rlock.Client, name string) rlock.Locker {
		return locktest.Electing{Election: c.NewElection(name), Value: "me"}
	})
	// Permits have no owner and no token, and their number stays.
	for name, opts := range map[string][]rlock.PermitSemaphoreOption{
		"PermitSemaphore":               {rlock.WithPermits(1)},
		"PermitSemaphore with fairness": {rlock.WithPermits(1), rlock.WithFairness()},
	} {
		verify(name, func(c *rlock.Client, name string) rlock.Locker {
			return permits{c.NewPermitSemaphore(name, opts...)}
		}, "re-entry", "tokens", "tokens after a loss", "keys")
	}
	verify("MultiLock", func(c *rlock.Client, name string) rlock.Locker {
		return must(rlock.NewMultiLock([]rlock.Locker{c.NewLock(name + "a"), c.NewFairLock(name + "b")}))
	})
	verify("RedLock", func(c *rlock.Client, name string) rlock.Locker {
		return must(rlock.NewRedLock(name, []*rlock.Client{c}))
	}, "keys") // the counter of its tokens stays
}

func TestVerifyPassesOtherLocks(t *testing.T) {
	t.Parallel()
	t.Run("a wrapper", func(t *testing.T) {
		t.Parallel()
		var underWay atomic.Int64
		rlocktest.Verify(t, func(s *rlocktest.Server, name string) counted {
			return counted{s.NewClient(rlock.WithPrefix("app:")).NewFairLock(name), &underWay}
		})
	})
	t.Run("a lock of another library", func(t *testing.T) {
		t.Parallel()
		rlocktest.Verify(t, func(s *rlocktest.Server, name string) *plainLock { return newPlainLock(s, name) },
			"bounded wait", "wake-up", "re-entry", "tokens", "tokens after a loss", "renewal", "removal")
	})
	t.Run("a fake", func(t *testing.T) {
		t.Parallel()
		shared := &fakes{byName: map[string]chan struct{}{}}
		rlocktest.Verify(t, func(_ *rlocktest.Server, name string) fakeLock { return shared.lock(name) },
			"bounded wait", "re-entry", "tokens", "tokens after a loss", "removal", "outage", "pause", "late release", "keys")
	})
}

// plainLock is the usual lock of SET NX with a lease that is not renewed, behind an adapter.
type plainLock struct {
	srv  *rlocktest.Server
	name string
	id   string
}

const plainLease = 10 * time.Second

var plainIDs atomic.Int64

func newPlainLock(s *rlocktest.Server, name string) *plainLock {
	return &plainLock{s, name, strconv.FormatInt(plainIDs.Add(1), 10)}
}

func (l *plainLock) TryLock(ctx context.Context, _ ...rlock.TryOption) (*plainHold, error) {
	until := l.srv.Now().Add(plainLease * 9 / 10)
	id := l.id + ":" + strconv.FormatInt(plainIDs.Add(1), 10)
	err := l.srv.Redis().SetArgs(ctx, l.name, id, redis.SetArgs{Mode: "NX", TTL: plainLease}).Err()
	if errors.Is(err, redis.Nil) {
		return nil, rlock.ErrNotAcquired
	} else if err != nil {
		return nil, err
	}
	h := &plainHold{lock: l, id: id, until: until, done: make(chan struct{})}
	h.mu.Lock() // the timer may fire before it is assigned
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(plainLease*9/10, func() { h.end(rlock.ErrLeaseLost) })
	return h, nil
}

func (l *plainLock) Lock(ctx context.Context, _ ...rlock.AcquireOption) (*plainHold, error) {
	for {
		h, err := l.TryLock(ctx)
		if !errors.Is(err, rlock.ErrNotAcquired) {
			return h, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// plainHold is what its holder has.
type plainHold struct {
	lock  *plainLock
	id    string
	until time.Time
	timer *time.Timer
	done  chan struct{}

	mu  sync.Mutex // guards the rest
	err error
}

func (h *plainHold) end(why error) (ended error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ended = h.err; ended == nil {
		h.err = why
		h.timer.Stop()
		close(h.done)
	}
	return ended
}

// check ends a hold whose lease is over: timers do not run while the process is stopped.
func (h *plainHold) check() {
	if h.lock.srv.Now().After(h.until) {
		h.end(rlock.ErrLeaseLost)
	}
}

func (h *plainHold) Err() error {
	h.check()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *plainHold) Done() <-chan struct{} {
	h.check()
	return h.done
}

var deleteIf = redis.NewScript(`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`)

func (h *plainHold) Unlock(ctx context.Context) error {
	h.check()
	if ended := h.end(rlock.ErrUnlocked); ended != nil {
		return ended
	}
	n, err := deleteIf.Run(context.WithoutCancel(ctx), h.lock.srv.Redis(), []string{h.lock.name}, h.id).Int()
	if n == 0 && err == nil {
		err = rlock.ErrLeaseLost
	}
	return err
}

// fakes are locks in memory, for unit tests.
type fakes struct {
	mu     sync.Mutex // guards byName
	byName map[string]chan struct{}
}

type fakeLock chan struct{}

func (f *fakes) lock(name string) fakeLock {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byName[name] == nil {
		f.byName[name] = make(chan struct{}, 1)
	}
	return f.byName[name]
}

func (l fakeLock) Lock(ctx context.Context, _ ...rlock.AcquireOption) (*fakeHold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case l <- struct{}{}:
		ctx, cancel := context.WithCancel(context.Background())
		return &fakeHold{lock: l, Context: ctx, cancel: cancel}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l fakeLock) TryLock(context.Context, ...rlock.TryOption) (*fakeHold, error) {
	if len(l) > 0 { // good enough for a fake: Lock would wait
		return nil, rlock.ErrNotAcquired
	}
	return l.Lock(context.Background())
}

type fakeHold struct {
	context.Context
	lock   fakeLock
	cancel func()
	once   sync.Once
}

func (h *fakeHold) Unlock(context.Context) error {
	err := rlock.ErrUnlocked
	h.once.Do(func() {
		h.cancel()
		<-h.lock
		err = nil
	})
	return err
}
