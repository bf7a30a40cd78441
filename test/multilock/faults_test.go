package multilock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// loadScripts lets a server know the script that takes all members, so that the
// first EVALSHA is the one that counts.
func loadScripts(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.MultiLockOf(t, locktest.NewClient(t, rdb), "{warm-up}1", "{warm-up}2")))
}

// What is told of an acquire of all members at once, and what stands in Redis
// after it, is right though its reply is lost.
func TestMultiLockAcquireOfAllWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/enter_all", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		// Half of it is for the second copy, on a busy machine.
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(3*time.Second), rlock.WithUnlockTimeout(20*time.Second))
		loadScripts(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		m := locktest.MultiLockOf(t, c, names...)
		var last int64
		for _, acquire := range locktest.Acquires(m) {
			seen := locktest.OnNth(t, proxy, "lock/enter_all", 1, action)
			lease, err := acquire(bg)
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			for _, n := range names {
				if n := locktest.HoldCount(t, rdb, n, lease.HoldID()); n != "1" {
					t.Fatalf("count %q", n)
				}
			}
			if lease.Token() <= last {
				t.Fatalf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			locktest.MustUnlock(t, lease)
			locktest.OnlyTombstones(t, rdb)
			next := locktest.MustLock(t, locktest.MultiLockOf(t, locktest.NewClient(t, rdb), names...))
			if next.Token() <= last {
				t.Fatalf("token %d after %d", next.Token(), last)
			}
			last = next.Token()
			locktest.MustUnlock(t, next)
		}
	})
}

// The release of a member whose reply is lost is a release all the same.
func TestMultiLockUnlockWithLostReplyReleasesOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		// So that no acquire is sent twice, after which the release is another; and
		// that a second release is answered in time on a busy machine.
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(3*time.Second))
		lease := locktest.MustLock(t, locktest.MixedLockOf(t, c, "a", "b"))
		locktest.OnNth(t, proxy, "lock/release", 1, action)
		locktest.UnlockLossy(t, lease, action)
		locktest.OnlyTombstones(t, rdb)
	})
}

// lateCopy holds the first copy of an acquire of all members back, for Release.
func lateCopy(t testing.TB, proxy *faultproxy.Proxy) {
	locktest.OnNth(t, proxy, "lock/enter_all", 1, faultproxy.Hold)
}

// A copy of an acquire that comes when its hold has ended takes nothing, however
// it has ended, and whatever has become of the single members.
func TestLateCopyOfAnAcquireOfAllTakesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		names := []string{"{m}a", "{m}b", "{m}c"}
		for name, scenario := range map[string]func(t *testing.T, c *rlock.Client, m *rlock.MultiLock, rdb redis.UniversalClient, late func()){
			"after Unlock": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				locktest.MustUnlock(t, locktest.MustLock(t, m))
				late()
			},
			"while held": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, rdb redis.UniversalClient, late func()) {
				lease := locktest.MustLock(t, m)
				late()
				for _, n := range names {
					if n := locktest.HoldCount(t, rdb, n, lease.HoldID()); n != "1" {
						t.Fatalf("count %q", n)
					}
				}
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, locktest.MustLock(t, m)) // its token is higher: Lock would wait for a hold left
			},
			"after a member was removed": func(t *testing.T, c *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				lease := locktest.MustLock(t, m)
				if done, err := c.NewLock(names[1]).ForceUnlock(bg); !done || err != nil {
					t.Fatal(done, err)
				}
				late()
				if locked, err := c.NewLock(names[1]).IsLocked(bg); locked || err != nil {
					t.Fatal(locked, err)
				}
				locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			},
			"after a member was unlocked": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				lease := locktest.MustLock(t, m)
				locktest.MustUnlock(t, lease.Members()[2])
				late()
				<-lease.Done()
				late()
			},
		} {
			t.Run(name, func(t *testing.T) {
				c, proxy, rdb := b.Faulty(t, rlock.WithUnlockTimeout(20*time.Second))
				loadScripts(t, rdb)
				lateCopy(t, proxy)
				released := 0
				scenario(t, c, locktest.MultiLockOf(t, c, names...), rdb, func() { released += proxy.Release() })
				if released != 1 {
					t.Fatalf("%d late copies", released)
				}
				proxy.ResetAll() // ends what waits for the held copy's reply
				locktest.NothingLeft(t, rdb)
			})
		}
	})
}

// An acquire of all that is given up leaves nothing, though it has or may yet run.
func TestGivenUpAcquireOfAllLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "runs late": faultproxy.Hold} {
			for how, acquire := range map[string]func(m *rlock.MultiLock, wait time.Duration) ([]error, error){
				"cancelled": func(m *rlock.MultiLock, wait time.Duration) ([]error, error) {
					ctx, cancel := context.WithTimeout(bg, wait)
					defer cancel()
					_, err := m.Lock(ctx)
					return []error{context.DeadlineExceeded, nil, rlock.ErrNotAcquired}, err
				},
				"wait over": func(m *rlock.MultiLock, wait time.Duration) ([]error, error) {
					_, err := m.Lock(bg, rlock.WithWait(wait))
					return []error{rlock.ErrUnreachable, nil, rlock.ErrNotAcquired, context.DeadlineExceeded}, err
				},
				"no answer": func(m *rlock.MultiLock, _ time.Duration) ([]error, error) {
					_, err := m.TryLock(bg)
					return []error{rlock.ErrUnreachable, nil, context.DeadlineExceeded}, err
				},
			} {
				t.Run(how+", "+name, func(t *testing.T) {
					t.Parallel()
					prefix := strings.ReplaceAll(t.Name(), "/", "_")
					names := []string{"{" + prefix + "}a", "{" + prefix + "}b"}
					// On a busy machine the wait may be over before the request has reached the
					// server, or so soon after it that the server is not called unreachable: then
					// once more, for longer.
					var err error
					for wait, met := 200*time.Millisecond, false; !met; wait *= 2 {
						if wait > 10*time.Second {
							t.Fatal("the request has not reached the server, or was not waited for: ", err)
						}
						// So long a timeout that only the wait can have ended it.
						timeout := 20 * time.Second
						if how == "no answer" {
							timeout = 3 * wait
						}
						c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(timeout))
						loadScripts(t, rdb)
						id := locktest.SHA("lock/enter_all")
						proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
							if cmd.IsScript(id) {
								return action
							}
							return faultproxy.Pass
						})
						var want []error
						want, err = acquire(locktest.MultiLockOf(t, c, names...), wait)
						late := proxy.Release()
						met = late > 0 || action != faultproxy.Hold && proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(id) }) > 0
						if met = met && !strings.Contains(fmt.Sprint(err), "before Redis has answered"); met {
							locktest.WantErr(t, err, want...)
						}
						proxy.ResetAll() // ends what waits for replies
						for _, n := range names {
							locktest.Eventually(t, "it is free", func() bool { return rdb.Exists(bg, n).Val() == 0 })
						}
					}
				})
			}
		}
	})
}

// A server that turns out to be in cluster mode refuses the script for all, of which a copy without a reply may have run
// before, as on the server in whose place it is now: what that has taken is given back, and the members are taken one
// by one.
func TestMultiLockThatIsRefusedForItsSlotsLeavesNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(2*time.Second))
	loadScripts(t, rdb)
	m := locktest.MultiLockOf(t, c, "a", "b", "c")
	proxy.ErrorText = "-CROSSSLOT Keys in request don't hash to the same slot"
	id, asked := locktest.SHA("lock/enter_all"), new(atomic.Int32)
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		switch {
		case !cmd.IsScript(id):
			return faultproxy.Pass
		case asked.Add(1) == 1:
			return faultproxy.SwallowReply
		}
		return faultproxy.Error
	})
	lease := locktest.MustLock(t, m, rlock.WithWait(15*time.Second)) // half of the lease of what is left behind
	if asked.Load() < 2 {
		t.Error("it was not refused")
	}
	locktest.MustUnlock(t, lease)
	locktest.OnlyTombstones(t, rdb)
}

// An outage that a Lock bears, a MultiLock bears too.
func TestMultiLockBearsAnOutage(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.MultiLocks {
		t.Run(k.Name, func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(200*time.Millisecond), rlock.WithUnlockTimeout(20*time.Second))
			loadScripts(t, rdb)
			m := k.Of(t, c, k.Names...)
			proxy.Blackhole(true)
			_, err := m.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrUnreachable)
			got := make(chan locktest.Grant, 1)
			go func() {
				lease, err := m.Lock(bg, rlock.WithWait(time.Minute))
				got <- locktest.Grant{Lease: lease, Err: err, At: time.Now()}
			}()
			select { // for more than one command timeout
			case g := <-got:
				t.Fatal(g.Lease, g.Err)
			case <-time.After(450 * time.Millisecond):
			}
			proxy.Blackhole(false)
			g := <-got
			if g.Err != nil {
				t.Fatal(g.Err)
			}
			locktest.MustUnlock(t, g.Lease)
			locktest.NothingLeft(t, rdb)
		})
	}
}

// A member whose server is away fails the whole, with its error, no later than its
// own Lock would, but for one round; and the others are not kept meanwhile.
func TestMultiLockReportsAnUnreachableMember(t *testing.T) {
	t.Parallel()
	const patience = 4 * time.Second // of a Lock with a server that is away; longer than a round
	near, far := locktest.OnServer(t), locktest.OnServer(t)
	rdb := near.Client(t)
	c, other := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
	d := far.NewClient(t, rlock.WithCommandTimeout(200*time.Millisecond), rlock.WithWatchdogLease(patience))
	far.Real.Pause()
	m := locktest.NewMultiLock(t, c.NewLock("a"), d.NewLock("b"))
	start := time.Now()
	_, err := m.TryLock(bg)
	locktest.WantErr(t, err, rlock.ErrUnreachable)
	locktest.NothingLeft(t, rdb)
	_, err = m.Lock(bg)
	locktest.WantErr(t, err, rlock.ErrUnreachable)
	// The rest is for a busy machine.
	if took := time.Since(start); took < patience || took > 2*rlock.DefaultMultiLockRound+patience+10*time.Second {
		t.Errorf("told after %v", took)
	}
	locktest.MustBeFree(t, other.NewLock("a"))
	far.Real.Resume()
}

// WithWait, and the end of the context, hold although a server hangs in whichever
// step; what was taken before is given back.
func TestMultiLockDoesNotWaitForAHungServer(t *testing.T) {
	t.Parallel()
	for _, hung := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("member ", hung), func(t *testing.T) {
			t.Parallel()
			var locks []rlock.Locker
			var rdbs []redis.UniversalClient
			servers := make([]*locktest.Backend, 3)
			for i := range servers {
				servers[i] = locktest.OnServer(t)
				rdbs = append(rdbs, servers[i].Client(t))
				// The timeouts of commands are far above what is asserted.
				c := servers[i].NewClient(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
			}
			var reached atomic.Bool
			pause := false
			locks[hung] = locktest.WatchedLock{Locker: locks[hung], Before: func(context.Context) {
				if pause {
					servers[hung].Real.Pause()
					reached.Store(true)
				}
			}}
			m := locktest.NewMultiLock(t, locks...)
			locktest.MustUnlock(t, locktest.MustLock(t, m)) // makes the connections
			pause = true
			for how, acquire := range map[string]func(time.Duration) ([]error, error){
				"wait over": func(wait time.Duration) ([]error, error) {
					_, err := m.Lock(bg, rlock.WithWait(wait))
					return []error{rlock.ErrUnreachable, nil, rlock.ErrNotAcquired, context.DeadlineExceeded}, err
				},
				"cancelled": func(wait time.Duration) ([]error, error) {
					ctx, cancel := context.WithCancel(bg)
					time.AfterFunc(wait, cancel)
					_, err := m.Lock(ctx)
					return []error{rlock.ErrUnreachable, context.Canceled, nil, rlock.ErrNotAcquired}, err
				},
			} {
				// On a busy machine the wait may be over before the server is reached, which it has to
				// be to hang, or before it has been silent for longer than it usually is: then once more,
				// for longer.
				var start time.Time
				var want []error
				var err error
				for wait, met := 500*time.Millisecond, false; !met; wait *= 2 {
					if wait > 8*time.Second {
						t.Fatalf("%s: the server was not reached: %v", how, err)
					}
					reached.Store(false)
					start = time.Now()
					want, err = acquire(wait)
					if met = reached.Load() && errors.Is(err, rlock.ErrUnreachable); !met {
						servers[hung].Real.Resume()
					}
				}
				locktest.WantErr(t, err, want...)
				// Far below the command timeout.
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("%s: took %v", how, took)
				}
				for i, rdb := range rdbs {
					if i != hung {
						locktest.NothingLeft(t, rdb)
					}
				}
				servers[hung].Real.Resume()
				locktest.NothingLeft(t, rdbs...)
			}
		})
	}
}

// A member that Redis refuses fails the whole, at whichever step.
func TestMultiLockGivesBackWhenAMemberIsRefused(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		for _, k := range locktest.MultiLocks {
			names := k.Names
			for _, bad := range names {
				m := k.Of(t, c, names...)
				for _, acquire := range locktest.Acquires(m) {
					if err := rdb.Set(bg, bad, "not a lock", 0).Err(); err != nil {
						t.Fatal(err)
					}
					lease, err := acquire(bg)
					if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
						t.Fatal(lease, err)
					}
					locktest.WantErr(t, err, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
					if err := rdb.Del(bg, bad).Err(); err != nil {
						t.Fatal(err)
					}
					locktest.NothingLeft(t, rdb) // which may take longer than the call has waited for it
				}
			}
		}
	})
}

// Cancelled at whichever step, with the request of that step on its way, it leaves
// nothing, also when the request comes late.
func TestMultiLockCancelledHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for step := range int64(3) {
			for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "runs late": faultproxy.Hold} {
				t.Run(fmt.Sprint(step, " ", name), func(t *testing.T) {
					c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second))
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					id := locktest.SHA("lock/enter")
					var seen atomic.Int64
					proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if cmd.IsScript(id) && seen.Add(1) == step+1 {
							// The client is not to hear of it before its end.
							time.AfterFunc(10*time.Millisecond, cancel)
							return action
						}
						return faultproxy.Pass
					})
					_, err := locktest.NewMultiLock(t, c.NewLock("a"), c.NewFencedLock("b"), c.NewSpinLock("c")).Lock(ctx)
					locktest.WantEnded(t, err, context.Canceled)
					if got := proxy.Release(); action == faultproxy.Hold && got != 1 {
						t.Fatalf("%d late copies", got)
					}
					proxy.ResetAll() // ends what waits for the reply
					locktest.NothingLeft(t, rdb)
				})
			}
		}
	})
}

// One cancelled context on a new client of a cluster, which does not know yet how
// releases are announced: the error is that of every acquire.
func TestMultiLockOfACancelledContext(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		for _, k := range locktest.MultiLocks {
			c := b.NewClient(t)
			m := k.Of(t, c, k.Names...)
			_, err := m.Lock(ctx)
			locktest.WantEnded(t, err, context.Canceled)
			_, err = m.TryLock(ctx)
			locktest.WantEnded(t, err, context.Canceled)
			_, err = m.Lock(ctx, rlock.WithWait(time.Second))
			locktest.WantEnded(t, err, context.Canceled)
		}
		locktest.MustBeEmpty(t, b.Client(t))
	})
}

// When a member's server is away, Unlock says so, the others are released at
// once, and that one when the server is back.
func TestMultiLockUnlockWithAnUnreachableMember(t *testing.T) {
	t.Parallel()
	for _, away := range []int{0, 1} {
		t.Run(fmt.Sprint("member ", away), func(t *testing.T) {
			t.Parallel()
			servers := []*locktest.Backend{locktest.OnServer(t), locktest.OnServer(t)}
			var locks []rlock.Locker
			var rdbs []redis.UniversalClient
			for i, b := range servers {
				c := b.NewClient(t, rlock.WithUnlockTimeout(2*time.Second), rlock.WithCommandTimeout(2*time.Second))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
				rdbs = append(rdbs, b.Client(t))
			}
			lease := locktest.MustLock(t, locktest.NewMultiLock(t, locks...))
			servers[away].Real.Pause()
			unlocked := make(chan error, 1)
			go func() { unlocked <- lease.Unlock(bg) }()
			locktest.NothingLeft(t, rdbs[1-away])
			locktest.WantErr(t, <-unlocked, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
			locktest.WantErr(t, lease.Err(), rlock.ErrUnlocked)
			servers[away].Real.Resume()
			locktest.NothingLeft(t, rdbs...)
		})
	}
}

// When no renewal gets through to one member's server, all is lost by its
// deadline, and an Extend says that there is no answer.
func TestMultiLockIsLostWithAnUnreachableMember(t *testing.T) {
	t.Parallel()
	for _, away := range []int{0, 1} {
		t.Run(fmt.Sprint("member ", away), func(t *testing.T) {
			t.Parallel()
			servers := []*locktest.Backend{locktest.OnServer(t), locktest.OnServer(t)}
			var locks []rlock.Locker
			var rdbs []redis.UniversalClient
			for i, b := range servers {
				c := b.NewClient(t, rlock.WithWatchdogLease(3*time.Second), rlock.WithCommandTimeout(300*time.Millisecond))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
				rdbs = append(rdbs, b.Client(t))
			}
			lease := locktest.MustLock(t, locktest.NewMultiLock(t, locks...), rlock.WithWait(locktest.Patience)) // a busy machine takes longer
			ctx := lease.Context(bg)
			servers[away].Real.Pause()
			locktest.WantErr(t, lease.Extend(bg, time.Second), rlock.ErrUnreachable)
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			now := time.Now()
			locktest.WantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrUnreachable)
			// The bound is for a busy machine: the timer has to run, and two
			// goroutines.
			if late := now.Sub(lease.Members()[away].Deadline()); late < 0 || late > 2*time.Second {
				t.Errorf("told %v after the deadline", late)
			}
			locktest.NothingLeft(t, rdbs[1-away])
			servers[away].Real.Resume()
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrUnreachable)
			locktest.NothingLeft(t, rdbs...)
		})
	}
}

// Shutdown of one member's client ends the whole, and waits for nobody else's.
func TestMultiLockWaitingWhenAMembersClientIsShutDown(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		other := locktest.NewClient(t, rdb)
		for closing := range 2 {
			clients := []*rlock.Client{locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)}
			taken := locktest.MustLock(t, other.NewLock("b"))
			waits := make(chan struct{})
			m := locktest.NewMultiLock(t, clients[0].NewLock("a"), locktest.WatchedLock{
				Locker: clients[1].NewLock("b"),
				Before: func(context.Context) { close(waits) },
			})
			got := make(chan error, 1)
			go func() {
				_, err := m.Lock(bg, rlock.WithWait(time.Minute))
				got <- err
			}()
			<-waits
			if err := clients[closing].Close(); err != nil {
				t.Fatal(err)
			}
			locktest.WantErr(t, <-got, rlock.ErrClosed)
			locktest.MustUnlock(t, taken)
			locktest.NothingLeft(t, rdb)
		}
	})
}

// Nothing hangs, and nothing is left, whatever is done to a lease from many
// goroutines at once, while its members are lost.
func TestMultiLockUnderStress(t *testing.T) {
	t.Parallel()
	const actors, sections = 6, 25
	one, two := locktest.OnMiniredis(t), locktest.OnMiniredis(t)
	rdb1, rdb2 := one.Client(t), two.Client(t)
	thief1, thief2 := locktest.NewClient(t, rdb1), locktest.NewClient(t, rdb2)
	ctx, cancel := context.WithTimeout(bg, 90*time.Second)
	defer cancel()
	var held, lost atomic.Int32
	var wg sync.WaitGroup
	for range actors {
		c, d := locktest.NewClient(t, rdb1, rlock.WithWatchdogLease(2*time.Second)), locktest.NewClient(t, rdb2, rlock.WithWatchdogLease(2*time.Second))
		wg.Go(func() {
			for range sections {
				locks := []rlock.Locker{
					c.NewLock("{m}a"), c.NewLock("{m}b"), c.NewFairLock("fair"), d.NewLock("{m}a"),
					d.NewReadWriteLock("rw").Writer, d.NewFencedLock("fenced"),
				}
				if rand.N(2) == 0 {
					locks = locks[:2]
				}
				rand.Shuffle(len(locks), func(i, j int) { locks[i], locks[j] = locks[j], locks[i] })
				m := locktest.NewMultiLock(t, locks...)
				var opts []rlock.AcquireOption
				if rand.N(3) == 0 {
					opts = append(opts, rlock.WithLease(rlock.MinLease+time.Duration(rand.N(int64(time.Second)))+50*time.Millisecond))
				}
				within, stop := context.WithTimeout(ctx, rand.N(2*time.Second))
				lease, err := m.Lock(within, opts...)
				stop()
				if err != nil {
					if !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable) && within.Err() == nil {
						t.Error(err)
					}
					continue
				}
				held.Add(1)
				var users sync.WaitGroup
				for _, use := range []func(){
					func() { _ = lease.Err() },
					func() { _ = lease.Deadline() },
					func() { _ = lease.Extend(ctx, time.Second) }, // it may be lost
					func() { <-lease.Done() },
					func() { <-lease.Context(ctx).Done() },
					func() { _ = lease.Members()[0].Err() },
					func() {
						if inner, err := m.TryLock(lease.Context(ctx)); err == nil {
							_ = inner.Unlock(ctx) // it may be lost
						}
					},
					func() {
						switch rand.N(4) {
						case 0:
							_, _ = thief1.NewLock("{m}a").ForceUnlock(ctx)
						case 1:
							_, _ = thief2.NewFencedLock("fenced").ForceUnlock(ctx)
						case 2:
							_ = lease.Members()[1].Unlock(ctx) // which ends all
						}
						// The release may be the first to find out.
						err := lease.Unlock(ctx)
						if errors.Is(err, rlock.ErrLeaseLost) || errors.Is(lease.Err(), rlock.ErrLeaseLost) {
							lost.Add(1)
						}
						if err := lease.Unlock(ctx); !errors.Is(err, rlock.ErrUnlocked) {
							t.Error(err)
						}
					},
				} {
					users.Go(use)
				}
				users.Wait()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatal("something hangs")
	}
	t.Logf("%d held, %d of them lost", held.Load(), lost.Load())
	if held.Load() < actors*sections/10 || lost.Load() == 0 {
		t.Errorf("%d held, %d lost: too few to show anything", held.Load(), lost.Load())
	}
	locktest.NothingLeft(t, rdb1, rdb2)
}
