package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/go-rlock/rlock/internal/seam"
)

// crowd is a client whose goroutines stand in line for one lock, behind a rival's hold.
// The first of them is granted the lock when the rival unlocks; the others can have it
// handed over.
type crowd struct {
	rdb   redis.UniversalClient
	c     *rlock.Client
	l     *rlock.Lock
	sent  *locktest.CountHook // by the client of the crowd
	rival *rlock.Lease
	got   []chan *rlock.Lease // one for each
	leave []context.CancelFunc
}

// long is a bound of time that is not the subject of a test.
const long = time.Hour

func newCrowd(t *testing.T, b *locktest.Backend, n int, bound rlock.LockOption, opts ...rlock.Option) *crowd {
	t.Helper()
	k := &crowd{rdb: b.Client(t), sent: &locktest.CountHook{}}
	k.c = locktest.NewClient(t, k.rdb, append([]rlock.Option{rlock.WithLongestPoll(locktest.Patient)}, opts...)...)
	k.l = k.c.NewLock("a", bound)
	k.rival = locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	var looks atomic.Int64
	k.rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
		err := next()
		if err == nil && locktest.Runs(cmd, "lock/enter") {
			looks.Add(1)
		}
		return err
	}})
	for i := range n {
		k.join(t, k.l)
		if i == 0 {
			// It hears the release of the rival, and nothing later that would wake who has
			// become the head then.
			locktest.Eventually(t, "the head of the line has looked after its subscription", func() bool {
				return looks.Load() >= locktest.LooksBeforeSleep
			})
		}
	}
	k.rdb.AddHook(k.sent)
	return k
}

// join adds a waiter.
func (k *crowd) join(t *testing.T, l rlock.Locker, opts ...rlock.AcquireOption) {
	t.Helper()
	before := locktest.Waiters(t, k.l)
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	t.Cleanup(cancel)
	got := make(chan *rlock.Lease, 1)
	go func() {
		defer close(got)
		if lease, err := l.Lock(ctx, opts...); err == nil {
			got <- lease
		}
	}()
	k.got, k.leave = append(k.got, got), append(k.leave, cancel)
	locktest.Eventually(t, "it stands in line", func() bool { return locktest.Waiters(t, k.l) == before+1 })
}

// settle waits until the head of the line sleeps, and nothing wakes it soon.
func (k *crowd) settle(t *testing.T) {
	t.Helper()
	locktest.Eventually(t, "the head of the line sleeps", func() bool { return rlock.HeadSleeps(k.l) && k.sent.UnderWay.Load() == 0 })
}

// lease is that of a waiter, which must have the lock now or soon.
func (k *crowd) lease(t *testing.T, i int) *rlock.Lease {
	t.Helper()
	select {
	case lease := <-k.got[i]:
		if lease == nil {
			t.Fatalf("waiter %d was refused", i)
		}
		return lease
	case <-time.After(20 * time.Second):
		t.Fatalf("waiter %d does not have the lock", i)
		return nil
	}
}

func TestHoldIsHandedOverInsideAClient(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const n = 5
		k := newCrowd(t, b, n, rlock.WithHandOver(n, long))
		locktest.MustUnlock(t, k.rival)
		first := k.lease(t, 0)
		last := first
		for i := 1; i < n; i++ {
			k.settle(t)
			done, deadline := last.Done(), last.Deadline()
			if n := k.commands(func() { locktest.MustUnlock(t, last) }); n > 0 {
				t.Errorf("%d commands for a hand-over", n)
			}
			next := k.lease(t, i)
			select {
			case <-done:
			default:
				t.Fatal("the lease before has not ended")
			}
			if next.Token() <= last.Token() {
				t.Fatalf("token %d after %d", next.Token(), last.Token())
			}
			if next.HoldID() != first.HoldID() || !next.Deadline().Equal(deadline) {
				t.Fatalf("hold %s until %v was handed over as %s until %v", first.HoldID(), deadline, next.HoldID(), next.Deadline())
			}
			if held, err := k.l.HoldCount(last.Context(bg)); err != nil || held != 0 {
				t.Fatalf("the owner before holds it %d times, %v", held, err)
			}
			last = next
		}
		if held := locktest.HoldCount(t, k.rdb, "a", first.HoldID()); held != "1" {
			t.Errorf("the count in Redis is %q", held)
		}
		// The owner's own context enters again, that of the owners before does not.
		if _, err := k.l.TryLock(first.Context(bg)); err == nil {
			t.Error("who has unlocked it enters again")
		}
		again := locktest.MustLockCtx(t, last.Context(bg), k.l)
		locktest.MustUnlock(t, again)
		locktest.MustUnlock(t, last)
		other := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		if other.Token() <= last.Token() {
			t.Errorf("token %d of another client after %d", other.Token(), last.Token())
		}
		locktest.MustUnlock(t, other)
		locktest.NothingLeft(t, k.rdb)
	})
}

// commands counts what the client of the crowd sends until f returns.
func (k *crowd) commands(f func()) int64 {
	before := k.sent.N.Load()
	f()
	return k.sent.N.Load() - before
}

func TestHandOverIsBounded(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	for name, bound := range map[string]rlock.LockOption{
		"passes": rlock.WithHandOver(2, long),
		"none":   rlock.WithHandOver(0, long),
		"time":   rlock.WithHandOver(10, 0),
	} {
		t.Run(name, func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			k := newCrowd(t, b, 4, bound)
			locktest.MustUnlock(t, k.rival)
			for i := range 4 {
				lease := k.lease(t, i)
				if name == "passes" {
					k.settle(t)
				}
				inRedis := k.commands(func() { locktest.MustUnlock(t, lease) }) > 0
				if want := name != "passes" || i >= 2; inRedis != want {
					t.Errorf("Unlock %d goes to Redis: %v, want %v", i, inRedis, want)
				}
			}
		})
	}
	for name, opts := range map[string][]rlock.LockOption{
		"negative passes": {rlock.WithHandOver(-1, time.Second)},
		"too many passes": {rlock.WithHandOver(rlock.MaxHandOverPasses+1, time.Second)},
		"negative time":   {rlock.WithHandOver(1, -1)},
	} {
		_, err := b.NewClient(t).NewLock("x", opts...).TryLock(bg)
		t.Run(name, func(t *testing.T) { locktest.WantErr(t, err, rlock.ErrInvalidArgument) })
	}
}

// A hold that cannot be handed over, or a waiter that needs its own, goes through Redis.
func TestHandOverIsForRenewedHoldsOnly(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(t *testing.T, k *crowd, held *rlock.Lease){
		"a waiter with a lease of its own": func(t *testing.T, k *crowd, held *rlock.Lease) {
			k.join(t, k.l, rlock.WithLease(time.Minute))
			k.leave[1]()
			k.got[1] = k.got[2]
			locktest.Eventually(t, "it is first in line", func() bool { return locktest.Waiters(t, k.l) == 1 })
		},
		"a waiter of another type": func(t *testing.T, k *crowd, held *rlock.Lease) {
			k.join(t, k.c.NewFencedLock("a"))
			k.leave[1]()
			k.got[1] = k.got[2]
			locktest.Eventually(t, "it is first in line", func() bool { return locktest.Waiters(t, k.l) == 1 })
		},
		"a count that may be wrong": func(t *testing.T, k *crowd, held *rlock.Lease) {
			again := locktest.MustLockCtx(t, held.Context(bg), k.l)
			k.settle(t)
			k.rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
				if locktest.Runs(cmd, "lock/release") && fmt.Sprint(cmd.Args()[5]) == "1" {
					return fmt.Errorf("NOPERM this is a test")
				}
				return next()
			}})
			if err := again.Unlock(bg); err == nil {
				t.Fatal("a partial release that failed returned nil")
			}
		},
		// The next owner would have what is left of it, and if it died others would wait as long.
		"a lease that Extend made longer": func(t *testing.T, k *crowd, held *rlock.Lease) {
			if err := held.Extend(bg, time.Hour); err != nil {
				t.Fatal(err)
			}
		},
		"a lease that a re-entry made longer": func(t *testing.T, k *crowd, held *rlock.Lease) {
			locktest.MustUnlock(t, locktest.MustLockCtx(t, held.Context(bg), k.l, rlock.WithLease(time.Hour)))
		},
		"a lease that an Extend without an answer may have made longer": func(t *testing.T, k *crowd, held *rlock.Lease) {
			locktest.LoadScripts(t, k.rdb, "lock/renew")
			ctx, cancel := context.WithCancel(bg)
			over := make(chan struct{})
			defer close(over)
			k.rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
				err := next()
				if locktest.Runs(cmd, "lock/renew") && err == nil {
					cancel()
					<-over // the reply comes too late
				}
				return err
			}})
			if held.Extend(ctx, time.Hour) == nil {
				t.Fatal("an Extend without an answer returned nil")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newCrowd(t, locktest.OnMiniredis(t), 2, rlock.WithHandOver(10, long), rlock.WithUnlockTimeout(locktest.Ample(4*time.Second)))
			locktest.MustUnlock(t, k.rival)
			held := k.lease(t, 0)
			play(t, k, held)
			locktest.Eventually(t, "nothing is sent any more", func() bool {
				before := k.sent.N.Load()
				time.Sleep(100 * time.Millisecond) // longer than the alarm
				return k.sent.N.Load() == before && k.sent.UnderWay.Load() == 0
			})
			if k.commands(func() { locktest.MustUnlock(t, held) }) == 0 {
				t.Error("Unlock did not go to Redis")
			}
			next := k.lease(t, 1)
			if next.HoldID() == held.HoldID() {
				t.Error("the hold was handed over")
			}
			if ttl, most := k.rdb.PTTL(bg, "a").Val(), locktest.Lease; ttl > most || time.Until(next.Deadline()) > most {
				t.Errorf("the next owner has a lease of %v, until %v", ttl, next.Deadline())
			}
			locktest.MustUnlock(t, next)
		})
	}
}

// A copy of the acquire that began a batch comes when the batch is over: the last owner has left a
// tombstone.
func TestLateCopyOfAnAcquireAfterABatch(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const n = 3
		k := newCrowd(t, b, n, rlock.WithHandOver(n, long), rlock.WithWatchdogLease(long)) // no renewal comes in between
		var late atomic.Pointer[[]any]
		k.rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			if args := cmd.Args(); locktest.Runs(cmd, "lock/enter") && late.CompareAndSwap(nil, &args) {
				return io.ErrUnexpectedEOF // it is under way, and is sent again
			}
			return next()
		}})
		locktest.MustUnlock(t, k.rival)
		first := k.lease(t, 0)
		for i, last := 1, first; i <= n; i++ {
			if last.HoldID() != first.HoldID() {
				t.Fatal("the hold was not handed over")
			}
			if i < n {
				k.settle(t)
			}
			locktest.MustUnlock(t, last)
			if i < n {
				last = k.lease(t, i)
			}
		}
		plain := b.Client(t)
		if reply, err := plain.Do(bg, *late.Load()...).Slice(); err != nil || len(reply) != 2 || reply[0] != int64(-1) {
			t.Errorf("the late copy: %v, %v", reply, err)
		}
		locktest.OnlyTombstones(t, plain)
	})
}

// The waiter is canceled when the lock was handed over to it already: the next one has
// it, or nobody.
func TestCanceledWaiterHandsTheHoldOn(t *testing.T) {
	t.Parallel()
	for _, waiters := range []int{2, 3} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				var armed atomic.Bool
				woken, goOn := make(chan struct{}), make(chan struct{})
				gate := seam.Option(seam.Env{Gate: func(point string) {
					if point == "passed" && armed.CompareAndSwap(true, false) {
						close(woken)
						<-goOn
					}
				}}).(rlock.Option)
				// The third may be looking at the lock in that moment: then it gets it from Redis.
				for handedOn := false; !handedOn; {
					k := newCrowd(t, b, waiters, rlock.WithHandOver(10, long), gate)
					locktest.MustUnlock(t, k.rival)
					held := k.lease(t, 0)
					k.settle(t)
					armed.Store(true)
					woken, goOn = make(chan struct{}), make(chan struct{})
					locktest.MustUnlock(t, held)
					<-woken
					k.leave[1]()
					close(goOn)
					if lease := <-k.got[1]; lease != nil {
						t.Error("a canceled waiter has the lock")
					}
					if waiters == 2 {
						handedOn = true
					} else {
						next := k.lease(t, 2)
						handedOn = next.HoldID() == held.HoldID()
						locktest.MustUnlock(t, next)
					}
					// Others get it at once.
					locktest.MustUnlock(t, locktest.MustLock(t, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")))
					locktest.NothingLeft(t, k.rdb)
				}
			})
		})
	}
}

// A client with a crowd that comes back for ever lets the waiter of another client in
// after each batch.
func TestWaitersOfOtherClientsComeInBetweenBatches(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		var held, passes, longest atomic.Int64
		stop := make(chan struct{})
		var crowd sync.WaitGroup
		l := b.NewClient(t).NewLock("a", rlock.WithHandOver(20, long))
		for range 6 {
			crowd.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					lease := locktest.MustLock(t, l)
					if held.Add(1) != 1 {
						t.Error("two hold the lock")
					}
					passes.Add(1)
					held.Add(-1)
					locktest.MustUnlock(t, lease)
				}
			})
		}
		rival := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
		const rounds = 30
		for range rounds {
			before := passes.Load()
			lease := locktest.MustLock(t, rival)
			if held.Add(1) != 1 {
				t.Error("two hold the lock")
			}
			longest.Store(max(longest.Load(), passes.Load()-before))
			held.Add(-1)
			locktest.MustUnlock(t, lease)
		}
		close(stop)
		crowd.Wait()
		// A busy machine may keep the rival from the pause that is made for it.
		if all := passes.Load(); all > rounds*21*20 {
			t.Errorf("%d holds of the crowd beside %d of the rival, %d at most between two of them", all, rounds, longest.Load())
		}
		locktest.NothingLeft(t, b.Client(t))
	})
}

// After a batch the client yields to others, if any listen: its next waiter does not look for
// as long as they need to hear the release and to ask. By a clock that stands still nobody depends
// on who is quicker.
func TestClientMakesWayAfterABatch(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]bool{"others listen": true, "nobody else does": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				clock := &locktest.Clock{}
				proxy := faultproxy.New(t, b.Addr)
				b = b.Behind(proxy)
				k := newCrowd(t, b, 3, rlock.WithHandOver(1, long), rlock.WithWatchdogLease(long), clock.Option())
				rdb := b.Client(t)
				if others {
					heard := rdb.Subscribe(bg, "redisson_lock__channel:{a}")
					defer func() { _ = heard.Close() }()
					if _, err := heard.Receive(bg); err != nil {
						t.Fatal(err)
					}
				}
				locktest.MustUnlock(t, k.rival)
				first := k.lease(t, 0)
				k.settle(t)
				locktest.MustUnlock(t, first)
				second := k.lease(t, 1)
				if second.HoldID() != first.HoldID() {
					t.Fatal("the hold was not handed over")
				}
				const took = time.Minute // by the clock of the client
				k.rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
					err := next()
					if locktest.Runs(cmd, "lock/release") || locktest.Runs(cmd, "lock/release_next") {
						clock.Forward(took)
					}
					return err
				}})
				locktest.LoadScripts(t, rdb, "lock/release", "lock/release_next")
				k.settle(t)
				proxy.DropMessages(true) // one could wake the next waiter before the reply says that others listen
				locktest.MustUnlock(t, second)
				if others {
					other := b.NewClient(t).NewLock("a")
					locktest.MustBeFree(t, other, other)
					clock.Forward(2 * took)
				}
				locktest.MustUnlock(t, k.lease(t, 2))
			})
		})
	}
}

// A hold that was removed by force is handed over at most until its batch ends, and the
// one that has it then is told. A head that sleeps no longer takes the lock by itself.
func TestHoldThatWasRemovedIsNotHandedOverForEver(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for seen := false; !seen; {
			k := newCrowd(t, b, 3, rlock.WithHandOver(1, long))
			locktest.MustUnlock(t, k.rival)
			held := k.lease(t, 0)
			if freed, err := b.NewClient(t).NewLock("a").ForceUnlock(bg); err != nil || !freed {
				t.Fatal(freed, err)
			}
			err := held.Unlock(bg)
			second := k.lease(t, 1)
			if err == nil && second.HoldID() != held.HoldID() {
				// The second one had found the lock free before that, so the third was given
				// the hold that was removed.
				third := k.lease(t, 2)
				if third.HoldID() != held.HoldID() {
					t.Errorf("who was %s handed over to?", held.HoldID())
				}
				locktest.WantErr(t, third.Unlock(bg), rlock.ErrLeaseLost)
				locktest.MustUnlock(t, second)
				continue
			}
			if second.HoldID() == held.HoldID() {
				seen = true
				if err != nil {
					t.Fatal(err) // it has handed the lock over, and asked nobody
				}
				locktest.WantErr(t, second.Unlock(bg), rlock.ErrLeaseLost)
			} else {
				locktest.WantErr(t, err, rlock.ErrLeaseLost)
				locktest.MustUnlock(t, second)
			}
			third := k.lease(t, 2)
			if third.HoldID() == held.HoldID() {
				t.Error("the hold that was removed was handed over once more")
			}
			locktest.MustUnlock(t, third)
			locktest.Eventually(t, "nobody is subscribed", func() bool { return locktest.Subscribers(t, k.rdb, "a") == 0 })
		}
	})
}

// While the head of the line sleeps behind a holder of its own client, the lock is freed
// by force: the head finds it free without a poll.
func TestHeadBehindAHandedOverHoldHearsOfAForceUnlock(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, soon := range []bool{true, false} {
			k := newCrowd(t, b, 3, rlock.WithHandOver(5, long))
			locktest.MustUnlock(t, k.rival)
			first := k.lease(t, 0)
			k.settle(t)
			locktest.MustUnlock(t, first)
			second := k.lease(t, 1)
			if !soon {
				k.settle(t)
			} // else the message comes before the alarm, on a quick machine
			if freed, err := b.NewClient(t).NewLock("a").ForceUnlock(bg); err != nil || !freed {
				t.Fatal(freed, err)
			}
			third := k.lease(t, 2)
			if third.HoldID() == second.HoldID() || third.Token() <= second.Token() {
				t.Errorf("%s with token %d after %s with %d", third.HoldID(), third.Token(), second.HoldID(), second.Token())
			}
			locktest.MustUnlock(t, third)
			locktest.WantErr(t, second.Unlock(bg), rlock.ErrLeaseLost)
		}
	})
}

// Near the end of its lease a hold is not handed over, and its deadline is not moved by
// it: a renewal is due, and its answer is for the holder.
func TestHoldIsNotHandedOverWhenARenewalIsDue(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	var renewals atomic.Int64
	rdb.AddHook(&locktest.ScriptHook{Pipe: func(cmds []redis.Cmder, next func() error) error {
		for _, cmd := range cmds {
			if locktest.Runs(cmd, "lock/renew") {
				renewals.Add(1)
				return errors.New("NOPERM this is a test")
			}
		}
		return next()
	}})
	var clock locktest.Clock
	c := locktest.NewClient(t, rdb, clock.Option(), rlock.WithLongestPoll(locktest.Patient))
	k := &crowd{rdb: rdb, c: c, l: c.NewLock("a", rlock.WithHandOver(10, long))}
	k.rival = locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	for range 2 {
		k.join(t, k.l)
	}
	locktest.MustUnlock(t, k.rival)
	first := k.lease(t, 0)
	clock.Forward(locktest.Lease / 3)
	locktest.Eventually(t, "a renewal has failed", func() bool { return renewals.Load() > 0 })
	locktest.MustUnlock(t, first)
	second := k.lease(t, 1)
	if second.HoldID() == first.HoldID() {
		t.Error("a hold was handed over whose renewal fails")
	}
	locktest.MustUnlock(t, second)
}

// The process is stopped with a hold on its way to the next owner, until its lease is over.
// The waiter does not get that one.
func TestHoldThatRanOutOnItsWayIsNotHandedOut(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		var armed atomic.Bool
		woken, goOn := make(chan struct{}), make(chan struct{})
		gate := seam.Option(seam.Env{Gate: func(point string) {
			if strings.HasPrefix(point, "woken") && armed.CompareAndSwap(true, false) {
				close(woken)
				<-goOn
			}
		}}).(rlock.Option)
		const lease = 2 * time.Second
		k := newCrowd(t, b, 2, rlock.WithHandOver(10, long), gate, rlock.WithWatchdogLease(lease))
		locktest.MustUnlock(t, k.rival)
		first := k.lease(t, 0)
		k.settle(t)
		armed.Store(true)
		locktest.MustUnlock(t, first)
		<-woken
		time.Sleep(lease) // the lease is over, also in Redis
		between := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		close(goOn)
		locktest.Eventually(t, "it waits again", func() bool { return locktest.Waiters(t, k.l) == 1 })
		locktest.MustUnlock(t, between)
		second := k.lease(t, 1)
		if second.HoldID() == first.HoldID() || second.Token() <= between.Token() {
			t.Errorf("it has %s with token %d after %d", second.HoldID(), second.Token(), between.Token())
		}
		locktest.MustUnlock(t, second)
	})
}

// Shutdown while holds are handed over: every waiter is told, and nothing is left.
func TestShutdownDuringHandOvers(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for range 5 {
			c, err := rlock.New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			l := c.NewLock("a")
			var crowd sync.WaitGroup
			var holds atomic.Int64
			for range 8 {
				crowd.Go(func() {
					for {
						lease, err := l.Lock(bg)
						if err != nil {
							locktest.WantErr(t, err, rlock.ErrClosed)
							return
						}
						holds.Add(1)
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			locktest.Eventually(t, "the lock changes hands", func() bool { return holds.Load() > 200 })
			if err := c.Shutdown(bg); err != nil {
				t.Fatal(err)
			}
			crowd.Wait()
			locktest.NothingLeft(t, rdb)
		}
	})
}

// The same, but another client has the lock by then, as an operator has ended the hold, and the waiter
// stands by behind that one. What ends its standing by comes late, and does not end the hold that it
// has by then.
func TestHoldThatRanOutOnItsWayToAWaiterThatStandsBy(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	direct := b.Client(t)
	locktest.LoadScripts(t, direct, "lock/abandon")
	proxy := faultproxy.New(t, b.Addr)
	rdb := locktest.Dialer(proxy.Addr())(t, nil)
	looks, sent := &runs{}, &locktest.CountHook{}
	rdb.AddHook(looks.hook())
	rdb.AddHook(sent)
	var clock locktest.Clock
	var armed atomic.Bool
	passed, goOn := make(chan struct{}), make(chan struct{})
	c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), seam.Option(seam.Env{Clock: &clock, Gate: func(point string) {
		if point == "passed" && armed.CompareAndSwap(true, false) {
			close(passed)
			<-goOn
		}
	}}).(rlock.Option))
	l, theirs := c.NewLock("a", rlock.WithHandOver(10, long)), b.NewClient(t).NewLock("a")
	waits := func(n int) *locktest.Attempt {
		t.Helper()
		next := locktest.Begin(t, bg, l)
		locktest.Eventually(t, "it waits, and its client listens", func() bool { return locktest.Waiters(t, l) == n && rlock.Listens(l) })
		return next
	}
	sleeps := func() {
		t.Helper()
		locktest.Eventually(t, "the head of the line sleeps", func() bool {
			return locktest.Waiters(t, l) == 1 && rlock.HeadSleeps(l) && sent.UnderWay.Load() == 0
		})
	}
	for !rlock.SubscribedToGrants(l) {
		rival := locktest.MustLock(t, theirs)
		next := waits(1)
		time.Sleep(10 * time.Millisecond) // it sleeps, most likely: then its client is subscribed to grants too
		locktest.MustUnlock(t, rival)
		locktest.MustUnlock(t, next.Held())
	}
	rival := locktest.MustLock(t, theirs)
	first, second := waits(1), waits(2)
	locktest.MustUnlock(t, rival)
	held := first.Held()
	sleeps()

	// goesTo has the lock go to a hold, and tells the waiters.
	goesTo := func(id string) {
		t.Helper()
		_, err := direct.TxPipelined(bg, func(p redis.Pipeliner) error {
			p.Del(bg, "a")
			if id != "" {
				p.HSet(bg, "a", id, 1)
			}
			p.Publish(bg, "redisson_lock__channel:{a}", "0")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	before := looks.standBy.Load()
	goesTo(redistest.HoldID("another:1"))
	locktest.Eventually(t, "the waiter has looked", func() bool { return looks.standBy.Load() > before })
	sleeps()
	if who := direct.Get(bg, "{a}:rlock:next").Val(); !strings.HasPrefix(who, c.ID()) {
		t.Fatalf("%q stands by", who)
	}
	armed.Store(true)
	locktest.MustUnlock(t, held) // nobody has noticed yet
	<-passed
	clock.Forward(locktest.Lease)
	abandon := locktest.SHA("lock/abandon")
	var late atomic.Int64
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.IsScript(abandon) {
			late.Add(1)
			return faultproxy.ResetBefore
		}
		return faultproxy.Pass
	})
	before = looks.standBy.Load() + looks.enter.Load()
	close(goOn)
	locktest.Eventually(t, "it waits again, and is to end what it was", func() bool { return looks.standBy.Load()+looks.enter.Load() > before && late.Load() > 0 })
	sleeps()
	goesTo("")
	own := second.Held()
	ended := proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(abandon) })
	proxy.Handle(nil)
	locktest.Eventually(t, "what it was is ended", func() bool {
		clock.Forward(100 * time.Millisecond)
		return proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(abandon) }) > ended
	})
	if own.HoldID() == held.HoldID() {
		t.Error("it has the hold that had run out")
	}
	if err := own.Extend(bg, time.Minute); err != nil {
		t.Error(err)
	}
	locktest.MustUnlock(t, own)
}
