package rlock_test

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
)

// multiLoad lets a server know the script that takes all members, so that the
// first EVALSHA is the one that counts.
func multiLoad(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	mustUnlock(t, mustLock(t, multiOf(t, newClientOn(t, rdb), "{warm-up}1", "{warm-up}2")))
}

// What is told of an acquire of all members at once, and what stands in Redis
// after it, is right though its reply is lost.
func TestMultiLockAcquireOfAllWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, "acquire_all", func(t *testing.T, b *backend, action faultproxy.Action) {
		// Half of it is for the second copy, on a busy machine.
		c, proxy, rdb := b.faulty(t, rlock.WithCommandTimeout(3*time.Second), rlock.WithUnlockTimeout(20*time.Second))
		multiLoad(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		m := multiOf(t, c, names...)
		var last int64
		for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){m.Lock, m.TryLock} {
			seen := onNth(t, proxy, "acquire_all", 1, action)
			lease, err := acquire(bg)
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			for _, n := range names {
				if n := count(t, rdb, n, lease.Owner()); n != "1" {
					t.Fatalf("count %q", n)
				}
			}
			if lease.Token() <= last {
				t.Fatalf("token %d after %d", lease.Token(), last)
			}
			last = lease.Token()
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
			next := mustLock(t, multiOf(t, newClientOn(t, rdb), names...))
			if next.Token() <= last {
				t.Fatalf("token %d after %d", next.Token(), last)
			}
			last = next.Token()
			mustUnlock(t, next)
		}
	})
}

// The release of a member whose reply is lost is a release all the same.
func TestMultiLockUnlockWithLostReplyReportsSuccess(t *testing.T) {
	t.Parallel()
	eachLoss(t, "release", func(t *testing.T, b *backend, action faultproxy.Action) {
		// So that no acquire is sent twice, after which the release is another; and
		// that a second release is answered in time on a busy machine.
		c, proxy, rdb := b.faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(3*time.Second))
		lease := mustLock(t, multiOf(t, c, "a", "b"))
		onNth(t, proxy, "release", 1, action)
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

// multiLate holds the first copy of an acquire of all members back, for Release.
func multiLate(t testing.TB, proxy *faultproxy.Proxy) {
	onNth(t, proxy, "acquire_all", 1, faultproxy.Hold)
}

// A copy of an acquire that comes when its stay has ended takes nothing, however
// it has ended, and whatever has become of the single members.
func TestLateCopyOfAnAcquireOfAllTakesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		names := []string{"{m}a", "{m}b", "{m}c"}
		for name, scenario := range map[string]func(t *testing.T, c *rlock.Client, m *rlock.MultiLock, rdb redis.UniversalClient, late func()){
			"after Unlock": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				mustUnlock(t, mustLock(t, m))
				late()
			},
			"while held": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, rdb redis.UniversalClient, late func()) {
				lease := mustLock(t, m)
				late()
				for _, n := range names {
					if n := count(t, rdb, n, lease.Owner()); n != "1" {
						t.Fatalf("count %q", n)
					}
				}
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				mustUnlock(t, lease)
				mustUnlock(t, mustLock(t, m)) // its token is higher: Lock would wait for a hold left
			},
			"after a member was removed": func(t *testing.T, c *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				lease := mustLock(t, m)
				if done, err := c.NewLock(names[1]).ForceUnlock(bg); !done || err != nil {
					t.Fatal(done, err)
				}
				late()
				if locked, err := c.NewLock(names[1]).IsLocked(bg); locked || err != nil {
					t.Fatal(locked, err)
				}
				wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			},
			"after a member was unlocked": func(t *testing.T, _ *rlock.Client, m *rlock.MultiLock, _ redis.UniversalClient, late func()) {
				lease := mustLock(t, m)
				mustUnlock(t, lease.Members()[2])
				late()
				<-lease.Done()
				late()
			},
		} {
			t.Run(name, func(t *testing.T) {
				c, proxy, rdb := b.faulty(t, rlock.WithUnlockTimeout(20*time.Second))
				multiLoad(t, rdb)
				multiLate(t, proxy)
				released := 0
				scenario(t, c, multiOf(t, c, names...), rdb, func() { released += proxy.Release() })
				if released != 1 {
					t.Fatalf("%d late copies", released)
				}
				proxy.ResetAll() // ends what waits for the held copy's reply
				multiForgotten(t, rdb)
			})
		}
	})
}

// An acquire of all that is given up leaves nothing, though it has or may yet run.
func TestGivenUpAcquireOfAllLeavesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "runs late": faultproxy.Hold} {
			for how, acquire := range map[string]func(m *rlock.MultiLock) ([]error, error){
				"cancelled": func(m *rlock.MultiLock) ([]error, error) {
					ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
					defer cancel()
					_, err := m.Lock(ctx)
					return []error{rlock.ErrNotAcquired, context.DeadlineExceeded}, err
				},
				"wait over": func(m *rlock.MultiLock) ([]error, error) {
					_, err := m.Lock(bg, rlock.WithWait(100*time.Millisecond))
					return []error{rlock.ErrNotAcquired, nil, context.DeadlineExceeded}, err
				},
				"no answer": func(m *rlock.MultiLock) ([]error, error) {
					_, err := m.TryLock(bg)
					return []error{rlock.ErrUnreachable, nil, context.DeadlineExceeded}, err
				},
			} {
				t.Run(how+", "+name, func(t *testing.T) {
					t.Parallel()
					// So long a time-out that only the wait can have ended it.
					timeout := rlock.WithCommandTimeout(20 * time.Second)
					if how == "no answer" {
						timeout = rlock.WithCommandTimeout(300 * time.Millisecond)
					}
					prefix := strings.ReplaceAll(t.Name(), "/", "_")
					c, proxy, rdb := b.faulty(t, timeout)
					multiLoad(t, rdb)
					id := sha("acquire_all")
					proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if cmd.IsScript(id) {
							return action
						}
						return faultproxy.Pass
					})
					names := []string{"{" + prefix + "}a", "{" + prefix + "}b"}
					want, err := acquire(multiOf(t, c, names...))
					wantErr(t, err, want...)
					if proxy.Release() == 0 && action == faultproxy.Hold {
						t.Fatal("no late copy")
					}
					proxy.ResetAll() // ends what waits for replies
					for _, n := range names {
						eventually(t, "it is free", func() bool { return rdb.Exists(bg, n).Val() == 0 })
					}
				})
			}
		}
	})
}

// An outage that a Lock bears, a MultiLock of locks in one slot bears too.
func TestMultiLockBearsAnOutage(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"one slot": {"{m}a", "{m}b"}, "several": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			b := onMiniredis(t)
			c, proxy, rdb := b.faulty(t, rlock.WithCommandTimeout(200*time.Millisecond), rlock.WithUnlockTimeout(20*time.Second))
			multiLoad(t, rdb)
			m := multiOf(t, c, names...)
			proxy.Blackhole(true)
			_, err := m.TryLock(bg)
			wantErr(t, err, rlock.ErrUnreachable)
			got := make(chan grant, 1)
			go func() {
				lease, err := m.Lock(bg, rlock.WithWait(time.Minute))
				got <- grant{lease, err, time.Now()}
			}()
			select { // for more than one command time-out
			case g := <-got:
				t.Fatal(g.lease, g.err)
			case <-time.After(450 * time.Millisecond):
			}
			proxy.Blackhole(false)
			g := <-got
			if g.err != nil {
				t.Fatal(g.err)
			}
			mustUnlock(t, g.lease)
			multiForgotten(t, rdb)
		})
	}
}

// A member whose server is away fails the whole, with its error, no later than its
// own Lock would, but for one round; and the others are not kept meanwhile.
func TestMultiLockTellsThatAMemberIsUnreachable(t *testing.T) {
	t.Parallel()
	const patience = 4 * time.Second // of a Lock with a server that is away; longer than a round
	near, far := onServer(t), onServer(t)
	rdb := near.client(t)
	c, other := newClientOn(t, rdb), newClientOn(t, rdb)
	d := far.newClient(t, rlock.WithCommandTimeout(200*time.Millisecond), rlock.WithWatchdogLease(patience))
	far.real.Pause()
	m := multi(t, c.NewLock("a"), d.NewLock("b"))
	start := time.Now()
	_, err := m.TryLock(bg)
	wantErr(t, err, rlock.ErrUnreachable)
	multiForgotten(t, rdb)
	_, err = m.Lock(bg)
	wantErr(t, err, rlock.ErrUnreachable)
	// The rest is for a busy machine.
	if took := time.Since(start); took < patience || took > 2*rlock.DefaultMultiLockRound+patience+10*time.Second {
		t.Errorf("told after %v", took)
	}
	multiFree(t, other.NewLock("a"))
	far.real.Resume()
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
			servers := make([]*backend, 3)
			for i := range servers {
				servers[i] = onServer(t)
				rdbs = append(rdbs, servers[i].client(t))
				// The time-outs of commands are far above what is asserted.
				c := servers[i].newClient(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
			}
			reached := make(chan struct{}, 10)
			pause := false
			locks[hung] = multiWatched{Locker: locks[hung], before: func(context.Context) {
				if pause {
					servers[hung].real.Pause()
					reached <- struct{}{}
				}
			}}
			m := multi(t, locks...)
			mustUnlock(t, mustLock(t, m)) // makes the connections
			pause = true
			for how, acquire := range map[string]func(time.Duration) ([]error, error){
				"wait over": func(wait time.Duration) ([]error, error) {
					_, err := m.Lock(bg, rlock.WithWait(wait))
					return []error{rlock.ErrNotAcquired, nil, context.DeadlineExceeded}, err
				},
				"cancelled": func(wait time.Duration) ([]error, error) {
					ctx, cancel := context.WithCancel(bg)
					time.AfterFunc(wait, cancel)
					_, err := m.Lock(ctx)
					return []error{rlock.ErrNotAcquired, context.Canceled}, err
				},
			} {
				// On a busy machine the wait may be over before the server is reached,
				// which it has to be to hang: then once more, for longer.
				var start time.Time
				var want []error
				var err error
				for wait, met := 500*time.Millisecond, false; !met; wait *= 2 {
					if wait > 8*time.Second {
						t.Fatalf("%s: the server was not reached: %v", how, err)
					}
					start = time.Now()
					want, err = acquire(wait)
					select {
					case <-reached:
						met = true
					default:
					}
				}
				wantErr(t, err, want...)
				// Far below the command time-out.
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("%s: took %v", how, took)
				}
				for i, rdb := range rdbs {
					if i != hung {
						multiForgotten(t, rdb)
					}
				}
				servers[hung].real.Resume()
				multiForgotten(t, rdbs...)
			}
		})
	}
}

// A member that Redis refuses fails the whole, at whichever step.
func TestMultiLockGivesBackWhenAMemberIsRefused(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		c := newClientOn(t, rdb)
		for _, names := range [][]string{{"{m}a", "{m}b", "{m}c"}, {"a", "b", "c"}} {
			for _, bad := range names {
				if err := rdb.Set(bg, bad, "not a lock", 0).Err(); err != nil {
					t.Fatal(err)
				}
				m := multiOf(t, c, names...)
				for _, acquire := range []func(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error){m.Lock, m.TryLock} {
					lease, err := acquire(bg)
					if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
						t.Fatal(lease, err)
					}
					wantErr(t, err, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
				}
				if err := rdb.Del(bg, bad).Err(); err != nil {
					t.Fatal(err)
				}
				multiForgotten(t, rdb)
			}
		}
	})
}

// Cancelled at whichever step, with the request of that step on its way, it leaves
// nothing, also when the request comes late.
func TestMultiLockCancelledHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for step := range int64(3) {
			for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "runs late": faultproxy.Hold} {
				t.Run(fmt.Sprint(step, " ", name), func(t *testing.T) {
					c, proxy, rdb := b.faulty(t, rlock.WithCommandTimeout(20*time.Second))
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					id := sha("acquire")
					var seen atomic.Int64
					proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if cmd.IsScript(id) && seen.Add(1) == step+1 {
							// The client is not to hear of it before its end.
							time.AfterFunc(10*time.Millisecond, cancel)
							return action
						}
						return faultproxy.Pass
					})
					_, err := multi(t, c.NewLock("a"), c.NewFencedLock("b"), c.NewSpinLock("c")).Lock(ctx)
					wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
					if got := proxy.Release(); action == faultproxy.Hold && got != 1 {
						t.Fatalf("%d late copies", got)
					}
					proxy.ResetAll() // ends what waits for the reply
					multiForgotten(t, rdb)
				})
			}
		}
	})
}

// One cancelled context on a new client of a cluster, which does not know yet how
// releases are announced: the error is that of every acquire.
func TestMultiLockOfACancelledContext(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		for _, names := range [][]string{{"{m}a", "{m}b"}, {"a", "b"}} {
			c := b.newClient(t)
			m := multiOf(t, c, names...)
			_, err := m.Lock(ctx)
			wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
			_, err = m.TryLock(ctx)
			wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
			_, err = m.Lock(ctx, rlock.WithWait(time.Second))
			wantErr(t, err, rlock.ErrNotAcquired, context.Canceled)
		}
		mustBeEmpty(t, b.client(t))
	})
}

// When a member's server is away, Unlock says so, the others are released at
// once, and that one when the server is back.
func TestMultiLockUnlockWithAnUnreachableMember(t *testing.T) {
	t.Parallel()
	for _, away := range []int{0, 1} {
		t.Run(fmt.Sprint("member ", away), func(t *testing.T) {
			t.Parallel()
			servers := []*backend{onServer(t), onServer(t)}
			var locks []rlock.Locker
			var rdbs []redis.UniversalClient
			for i, b := range servers {
				c := b.newClient(t, rlock.WithUnlockTimeout(2*time.Second), rlock.WithCommandTimeout(2*time.Second))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
				rdbs = append(rdbs, b.client(t))
			}
			lease := mustLock(t, multi(t, locks...))
			servers[away].real.Pause()
			unlocked := make(chan error, 1)
			go func() { unlocked <- lease.Unlock(bg) }()
			multiForgotten(t, rdbs[1-away])
			wantErr(t, <-unlocked, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
			wantErr(t, lease.Err(), rlock.ErrUnlocked)
			servers[away].real.Resume()
			multiForgotten(t, rdbs...)
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
			servers := []*backend{onServer(t), onServer(t)}
			var locks []rlock.Locker
			var rdbs []redis.UniversalClient
			for i, b := range servers {
				c := b.newClient(t, rlock.WithWatchdogLease(3*time.Second), rlock.WithCommandTimeout(300*time.Millisecond))
				locks = append(locks, c.NewLock(fmt.Sprint(i)))
				rdbs = append(rdbs, b.client(t))
			}
			lease := mustLock(t, multi(t, locks...))
			ctx := lease.Context(bg)
			servers[away].real.Pause()
			wantErr(t, lease.Extend(bg, time.Second), rlock.ErrUnreachable)
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			now := time.Now()
			wantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrUnreachable)
			// The bound is for a busy machine: the timer has to run, and two
			// goroutines.
			if late := now.Sub(lease.Members()[away].Deadline()); late < 0 || late > 2*time.Second {
				t.Errorf("told %v after the deadline", late)
			}
			multiForgotten(t, rdbs[1-away])
			servers[away].real.Resume()
			wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrUnreachable)
			multiForgotten(t, rdbs...)
		})
	}
}

// Shutdown of one member's client ends the whole, and waits for nobody else's.
func TestMultiLockWaitingWhenAMembersClientIsShutDown(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		rdb := b.client(t)
		other := newClientOn(t, rdb)
		for closing := range 2 {
			clients := []*rlock.Client{newClientOn(t, rdb), newClientOn(t, rdb)}
			taken := mustLock(t, other.NewLock("b"))
			waits := make(chan struct{})
			m := multi(t, clients[0].NewLock("a"), multiWatched{
				Locker: clients[1].NewLock("b"),
				before: func(context.Context) { close(waits) },
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
			wantErr(t, <-got, rlock.ErrClosed)
			mustUnlock(t, taken)
			multiForgotten(t, rdb)
		}
	})
}

// Nothing hangs, and nothing is left, whatever is done to a lease from many
// goroutines at once, while its members are lost.
func TestMultiLockUnderStress(t *testing.T) {
	t.Parallel()
	const actors, sections = 6, 25
	one, two := onMiniredis(t), onMiniredis(t)
	rdb1, rdb2 := one.client(t), two.client(t)
	thief1, thief2 := newClientOn(t, rdb1), newClientOn(t, rdb2)
	ctx, cancel := context.WithTimeout(bg, 90*time.Second)
	defer cancel()
	var held, lost atomic.Int32
	var wg sync.WaitGroup
	for range actors {
		c, d := newClientOn(t, rdb1, rlock.WithWatchdogLease(2*time.Second)), newClientOn(t, rdb2, rlock.WithWatchdogLease(2*time.Second))
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
				m := multi(t, locks...)
				var opts []rlock.AcquireOption
				if rand.N(3) == 0 {
					opts = append(opts, rlock.WithLease(rlock.MinLease+time.Duration(rand.N(int64(time.Second)))+50*time.Millisecond))
				}
				within, stop := context.WithTimeout(ctx, rand.N(2*time.Second))
				lease, err := m.Lock(within, opts...)
				stop()
				if err != nil {
					if !errors.Is(err, rlock.ErrNotAcquired) {
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
						_ = lease.Unlock(ctx) // see below
						if errors.Is(lease.Err(), rlock.ErrLeaseLost) {
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
	multiForgotten(t, rdb1, rdb2)
}
