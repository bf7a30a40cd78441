package rlock_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestBackoffPausesGrowWithinTheirBounds(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		b    rlock.Backoff
		want []time.Duration // nominal; the last for all that follow
	}{
		"default":  {rlock.ExponentialBackoff(rlock.DefaultFirstBackoff, rlock.DefaultLongestBackoff), []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms}},
		"uneven":   {rlock.ExponentialBackoff(3*ms, 10*ms), []time.Duration{3 * ms, 6 * ms, 10 * ms}},
		"equal":    {rlock.ExponentialBackoff(5*ms, 5*ms), []time.Duration{5 * ms}},
		"constant": {rlock.ConstantBackoff(rlock.DefaultConstantBackoff), []time.Duration{64 * ms}},
		"longest":  {rlock.ExponentialBackoff(rlock.MinBackoff, rlock.MaxLease), []time.Duration{100 * time.Microsecond, 200 * time.Microsecond}},
	} {
		var seen [2]time.Duration // pauses of two waiters at one moment
		same := 0
		for turn := range 1000 {
			nominal := c.want[min(turn, len(c.want)-1)]
			if name == "longest" {
				nominal = rlock.MaxLease
				if turn < 30 {
					nominal = min(nominal, rlock.MinBackoff<<turn)
				}
			}
			for who := range seen {
				seen[who] = rlock.BackoffPause(c.b, 4711, int64(who), turn)
				if seen[who] > nominal || seen[who] <= nominal/2 {
					t.Fatalf("%s: pause %d is %v, want between half of %v and all of it", name, turn, seen[who], nominal)
				}
			}
			if seen[0] == seen[1] {
				same++
			}
		}
		if same > 10 {
			t.Errorf("%s: two waiters pause equally %d times in 1000", name, same)
		}
	}
}

func TestSpinLockRefusesBadArguments(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	hook := &locktest.CountHook{}
	rdb.AddHook(hook)
	c := locktest.NewClient(t, rdb)
	for name, backoff := range map[string]rlock.Backoff{
		"zero":         {},
		"too short":    rlock.ConstantBackoff(rlock.MinBackoff - 1),
		"negative":     rlock.ConstantBackoff(-1),
		"too long":     rlock.ConstantBackoff(rlock.MaxLease + 1),
		"shrinking":    rlock.ExponentialBackoff(time.Second, time.Millisecond),
		"no longest":   rlock.ExponentialBackoff(time.Second, 0),
		"no first":     rlock.ExponentialBackoff(0, time.Second),
		"far too long": rlock.ExponentialBackoff(time.Second, 1<<62),
	} {
		_, err := c.NewSpinLock("a", rlock.WithBackoff(backoff)).Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if !strings.Contains(err.Error(), "WithBackoff") {
			t.Errorf("%s: %v does not say what is wrong", name, err)
		}
	}
	_, err := c.NewSpinLock("").Lock(bg)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	if n := hook.N.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
}

// spinLooks counts the acquires that a client sends, and what has to do with
// messages.
type spinLooks struct {
	mu              sync.Mutex // guards the rest
	looks, messages int
}

func (h *spinLooks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *spinLooks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *spinLooks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *spinLooks) note(cmd redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case locktest.Runs(cmd, "lock/enter"):
		h.looks++
	case strings.Contains(cmd.Name(), "publish"), strings.Contains(cmd.Name(), "subscribe"), cmd.Name() == "pubsub":
		h.messages++
	}
}

func (h *spinLooks) count() (looks, messages int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looks, h.messages
}

func TestSpinWaiterOnlyPolls(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []rlock.SpinLockOption
		most int // looks within a second
	}{
		// Pauses are between half of their figure and all of it: 1 to 64 ms sum up to
		// 127, and the rest are of 128. On a busy machine they are longer, without a bound.
		"default":  {nil, 1 + 7 + (1000-64)/64 + 1},
		"constant": {[]rlock.SpinLockOption{rlock.WithBackoff(rlock.ConstantBackoff(50 * time.Millisecond))}, 1 + 1000/25 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
				rdb := b.Client(t)
				holder := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
				hook := &spinLooks{}
				rdb.AddHook(hook)
				l := locktest.NewClient(t, rdb).NewSpinLock("a", c.opts...)
				start := time.Now()
				e := locktest.Begin(t, bg, l)
				locktest.Eventually(t, "it has waited for a second, and looked", func() bool {
					looks, _ := hook.count()
					return looks >= 2 && time.Since(start) > time.Second
				})
				err := e.GiveUp()
				took := time.Since(start)
				locktest.WantEnded(t, err, context.Canceled)
				looks, messages := hook.count()
				// Should the end of the wait have come late, there is time for more.
				most := c.most * int(took/time.Millisecond) / 1000
				t.Logf("%d looks in %v", looks, took.Round(time.Millisecond))
				if looks < 2 || looks > most {
					t.Errorf("%d looks in %v, want from 2 to %d", looks, took, most)
				}
				if messages > 0 {
					t.Errorf("%d commands of pub/sub", messages)
				}
				locktest.MustUnlock(t, holder)
			})
		})
	}
}

// Twenty waiters of one client look no more often than one, and get the lock in
// order, at once, although the pauses are long: the releases are their own.
func TestSpinWaitersOfOneClientAreWokenByItsReleases(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient))
		l := c.NewSpinLock("a", rlock.WithBackoff(rlock.ConstantBackoff(locktest.Patient)))
		lease := locktest.MustLock(t, l, rlock.WithLease(2*time.Hour))
		const n = 20
		order := make(chan int, n)
		var wg sync.WaitGroup
		defer wg.Wait() // the last one unlocks after the test has heard of it
		for i := range n {
			wg.Go(func() {
				lease := locktest.MustLock(t, l, rlock.WithLease(2*time.Hour))
				order <- i
				locktest.MustUnlock(t, lease)
			})
			locktest.Eventually(t, "it stands in line", func() bool {
				s, err := l.State(bg)
				return err == nil && s.Waiters == i+1
			})
		}
		locktest.MustUnlock(t, lease)
		for i := range n {
			if got := <-order; got != i {
				t.Fatalf("waiter %d was served as number %d", got, i)
			}
		}
	})
}

// A pause is no longer than the rest of the holder's lease.
func TestSpinWaiterPollsAtTheEndOfADeadHoldersLease(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewSpinLock("a", rlock.WithBackoff(rlock.ConstantBackoff(locktest.Patient)))
		start := time.Now()
		rdb.HSet(bg, "a", redistest.HoldID("dead:1"), 1)
		rdb.PExpire(bg, "a", 300*time.Millisecond)
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		if took := time.Since(start); took < 250*time.Millisecond || took > locktest.Patience {
			t.Fatalf("waited %v for a lease of 300ms", took)
		}
	})
}

// The pauses of the one who was the head before do not go on.
func TestSpinBackoffRestartsForEachHead(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		hook := &spinLooks{}
		rdb.AddHook(hook)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewSpinLock("a", rlock.WithBackoff(rlock.ExponentialBackoff(time.Millisecond, locktest.Patient)))
		lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(2*time.Hour))
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		first, second := make(chan error), make(chan error)
		wait := func(ctx context.Context, done chan error) {
			_, err := l.Lock(ctx)
			done <- err
		}
		looked := func(n int) func() bool {
			return func() bool { got, _ := hook.count(); return got >= n }
		}
		go wait(ctx, first)
		// Ten looks: from now on a pause lasts for half a second and more.
		locktest.Eventually(t, "the first has looked", looked(10))
		ctx2, cancel2 := context.WithCancel(bg)
		defer cancel2()
		go wait(ctx2, second)
		locktest.Eventually(t, "the second stands in line", func() bool { s, err := l.State(bg); return err == nil && s.Waiters == 2 })
		cancel()
		locktest.WantEnded(t, <-first, context.Canceled)
		// With pauses that go on, ten more looks would take minutes.
		from, _ := hook.count()
		locktest.Eventually(t, "the second has looked", looked(from+10))
		cancel2()
		locktest.WantEnded(t, <-second, context.Canceled)
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestSpinWaiterLeavesNothingWhenCancelled(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		t.Run("asleep", func(t *testing.T) {
			rdb := b.Client(t)
			l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewSpinLock("a", rlock.WithBackoff(rlock.ConstantBackoff(locktest.Patient)))
			lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(2*time.Hour))
			ctx, cancel := context.WithCancel(bg)
			done := make(chan error)
			go func() { _, err := l.Lock(ctx); done <- err }()
			locktest.Eventually(t, "it waits", func() bool { s, err := l.State(bg); return err == nil && s.Waiters == 1 })
			cancel()
			locktest.WantEnded(t, <-done, context.Canceled)
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
		})
		for name, action := range map[string]faultproxy.Action{"granted": faultproxy.SwallowReply, "a look on its way": faultproxy.Hold} {
			t.Run(name, func(t *testing.T) {
				c, proxy, rdb := b.Faulty(t)
				lease := locktest.MustLock(t, locktest.NewClient(t, rdb).NewSpinLock("a"))
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				id := locktest.SHA("lock/enter")
				var looks atomic.Int64
				proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if !cmd.IsScript(id) {
						return faultproxy.Pass
					}
					n := looks.Add(1)
					if n < 4 {
						return faultproxy.Pass
					}
					if n == 4 {
						if err := lease.Unlock(bg); err != nil { // so this look takes the lock
							t.Error(err)
						}
						cancel()
					}
					return action
				})
				_, err := c.NewSpinLock("a").Lock(ctx)
				locktest.WantEnded(t, err, context.Canceled)
				proxy.Release()
				locktest.Eventually(t, "only a tombstone is left", func() bool {
					keys := locktest.Keys(t, rdb)
					return len(keys) > 0 && locktest.Tombstones(keys) == len(keys)
				})
				locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewClient(t, rdb).NewSpinLock("a")))
			})
		}
	})
}

func TestSpinAcquireAndReleaseWithLostReplies(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"lock/enter", "lock/release"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
				c, proxy, rdb := b.Faulty(t)
				locktest.OnNth(t, proxy, script, 1, action)
				lease := locktest.MustLock(t, c.NewSpinLock("a"))
				if n := locktest.HoldCount(t, rdb, "a", lease.HoldID()); n != "1" {
					t.Fatalf("count %q", n)
				}
				if script == "lock/enter" {
					locktest.MustUnlock(t, lease)
				} else {
					locktest.UnlockLossy(t, lease, action)
				}
				locktest.OnlyTombstones(t, rdb)
			})
		})
	}
}

// A spin lock is for those who may not publish or subscribe, too.
func TestSpinLockNeedsNoRightToPublish(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	if err := admin.Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "+@all", "-@pubsub", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	poor := func() *rlock.Client {
		return locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }))
	}
	l, other := poor().NewSpinLock("a"), poor().NewSpinLock("a")
	lease := locktest.MustLock(t, l)
	got := make(chan *rlock.Lease)
	go func() { got <- locktest.MustLock(t, other) }()
	locktest.Eventually(t, "it waits", func() bool { st, err := other.State(bg); return err == nil && st.Waiters == 1 })
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, <-got)
	locktest.MustLock(t, l)
	if was, err := other.ForceUnlock(bg); !was || err != nil {
		t.Fatal(was, err)
	}
	locktest.MustBeEmpty(t, admin)
}
