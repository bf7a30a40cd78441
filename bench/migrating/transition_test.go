package migrating

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/bench/migrating/transition"
	"github.com/go-rlock/rlock/internal/redistest"
)

const oldLease = patience

// olds are the locks before, as a process that has only them would use them, and under both locks.
var olds = []struct {
	name string
	key  string
	old  func(t *testing.T, p *process) job
	both func(t *testing.T, p *process) job
}{
	{"redsync", "both",
		func(_ *testing.T, p *process) job { return under(transition.Redsync{Mutex: mutex(p)}) },
		func(_ *testing.T, p *process) job {
			return underBoth(p, func() transition.Old { return transition.Redsync{Mutex: mutex(p)} })
		}},
	{"redislock", "both",
		func(_ *testing.T, p *process) job { return under(lockOf(p)) },
		func(_ *testing.T, p *process) job {
			return underBoth(p, func() transition.Old { return lockOf(p) })
		}},
	{"setnx", "both",
		func(_ *testing.T, p *process) job { return under(setnxOf(p)) },
		func(_ *testing.T, p *process) job {
			return underBoth(p, func() transition.Old { return setnxOf(p) })
		}},
	{"rueidislock", "rueidislock:0:both",
		func(t *testing.T, p *process) job {
			l := p.rueidislock(t)
			return again(func(ctx context.Context, work func(context.Context) error) (bool, error) {
				inside, cancel, err := l.WithContext(ctx, "both")
				if err != nil {
					return false, err
				}
				defer cancel()
				return true, work(inside)
			})
		},
		func(t *testing.T, p *process) job {
			l := p.rueidislock(t)
			return again(func(ctx context.Context, work func(context.Context) error) (bool, error) {
				return waiting(transition.Rueidislock(ctx, p.rlock.NewLock("lock:both"), l, "both", work))
			})
		}},
}

func mutex(p *process) *redsync.Mutex {
	return p.redsync.NewMutex("both", redsync.WithExpiry(oldLease), redsync.WithTries(1<<20), redsync.WithRetryDelay(time.Millisecond))
}

func lockOf(p *process) *transition.Redislock {
	poll := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)}
	return &transition.Redislock{Client: p.redislock, Key: "both", Lease: oldLease, Options: poll}
}

func setnxOf(p *process) *transition.SetNX {
	return &transition.SetNX{Redis: p.rdb, Key: "both", Lease: oldLease}
}

func under(old transition.Old) job {
	return func(ctx context.Context, work func(context.Context) error) (bool, error) {
		if err := old.Lock(ctx); err != nil {
			return false, err
		}
		return true, errors.Join(work(ctx), old.Unlock(ctx))
	}
}

func underBoth(p *process, old func() transition.Old) job {
	return func(ctx context.Context, work func(context.Context) error) (bool, error) {
		return waiting(transition.Do(ctx, p.rlock.NewLock("lock:both"), old(), oldLease, work))
	}
}

func underOurs(p *process) job {
	return func(ctx context.Context, work func(context.Context) error) (bool, error) {
		return waiting(rlock.Do(ctx, p.rlock.NewLock("lock:both"), work))
	}
}

// A process with both locks excludes those that have only the old one, and those that have only ours.
func TestTransitionExcludesOldAndNew(t *testing.T) {
	t.Parallel()
	for _, o := range olds {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			addr := redistest.Start(t).Addr()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			both := []job{o.both(t, newProcess(t, addr)), o.both(t, newProcess(t, addr))}
			exclude(t, ctx, append(both, o.old(t, newProcess(t, addr)), o.old(t, newProcess(t, addr))))
			exclude(t, ctx, append(both, underOurs(newProcess(t, addr)), underOurs(newProcess(t, addr))))

			// Without it they do not: two releases at once are never old and new.
			entered := false
			if _, err := o.old(t, newProcess(t, addr))(ctx, func(context.Context) error {
				_, err := underOurs(newProcess(t, addr))(ctx, func(context.Context) error { entered = true; return nil })
				return err
			}); err != nil || !entered {
				t.Error(entered, err)
			}
		})
	}
}

// While work runs under both locks, neither can be taken. If the old one goes away, the work hears of it,
// and Do reports it.
func TestTransitionHearsOfALossOfTheOldLock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := newProcess(t, server.Addr()), newProcess(t, server.Addr())
	const lease = 3 * time.Second
	lock := p.rlock.NewLock("lock:loss")
	for name, old := range map[string]transition.Old{
		"redsync":   transition.Redsync{Mutex: p.redsync.NewMutex("loss:redsync", redsync.WithExpiry(lease))},
		"redislock": &transition.Redislock{Client: p.redislock, Key: "loss:redislock", Lease: lease},
		"setnx":     &transition.SetNX{Redis: p.rdb, Key: "loss:setnx", Lease: lease},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, key := t.Context(), "loss:"+name
			err := transition.Do(ctx, lock, old, lease, func(inside context.Context) error {
				renewed := renewal(other.rdb, key)
				eventually(t, "the old lock is renewed", renewed)
				if _, err := other.rlock.NewLock("lock:loss").TryLock(ctx); !errors.Is(err, rlock.ErrNotAcquired) {
					t.Errorf("ours: %v", err)
				}
				if inside.Err() != nil {
					t.Error("ended early:", context.Cause(inside))
				}
				if n := other.rdb.Del(ctx, key).Val(); n != 1 {
					t.Error("the old lock was not held")
				}
				eventually(t, "the work hears of the loss", func() bool { return inside.Err() != nil })
				if cause := context.Cause(inside); !errors.Is(cause, transition.ErrLost) {
					t.Error(cause)
				}
				return nil
			})
			if !errors.Is(err, transition.ErrLost) {
				t.Error(err)
			}
			if held, err := other.rlock.NewLock("lock:loss").IsLocked(ctx); held || err != nil {
				t.Error("ours was left behind", held, err)
			}
		})
	}
}

// stuck is an old lock whose renewals get no answer from the second on.
type stuck struct {
	extends atomic.Int64
	locked  atomic.Bool
	answer  chan struct{}
}

func (s *stuck) Lock(context.Context) error   { s.locked.Store(true); return nil }
func (s *stuck) Unlock(context.Context) error { s.locked.Store(false); return nil }
func (s *stuck) Extend(context.Context) (bool, error) {
	if s.extends.Add(1) > 1 {
		<-s.answer
	}
	return true, nil
}

// A renewal that hangs does not keep the work from hearing that the lease is over, nor does a late answer
// of it bring the lock back.
func TestTransitionEndsWhenARenewalHangs(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Start(t).Addr())
	old := &stuck{answer: make(chan struct{})}
	err := transition.Do(t.Context(), p.rlock.NewLock("lock:stuck"), old, 300*time.Millisecond, func(inside context.Context) error {
		eventually(t, "the work hears of the end", func() bool { return inside.Err() != nil })
		close(old.answer)
		return inside.Err()
	})
	if !errors.Is(err, transition.ErrLost) || !errors.Is(err, context.Canceled) || old.locked.Load() {
		t.Error(err, old.locked.Load())
	}
}

// A panic of the work releases both.
func TestTransitionReleasesAfterAPanic(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Start(t).Addr())
	old, lock := &stuck{answer: make(chan struct{})}, p.rlock.NewLock("lock:panic")
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not come through")
			}
		}()
		_ = transition.Do(t.Context(), lock, old, oldLease, func(context.Context) error { panic("boom") })
	}()
	if held, err := lock.IsLocked(t.Context()); held || err != nil || old.locked.Load() {
		t.Error(held, err, old.locked.Load())
	}
}
