package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
)

// fairFaulty is faulty, with the scripts of fair locks loaded.
func (b *backend) fairFaulty(t testing.TB, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	c, proxy, rdb := b.faulty(t, opts...)
	l := newClientOn(t, rdb).NewFairLock("warm-up:" + t.Name())
	lease := mustLock(t, l)
	if _, err := l.Lock(bg, rlock.WithWait(20*time.Millisecond)); err == nil {
		t.Fatal("the lock is held")
	}
	mustUnlock(t, lease)
	if _, err := l.ForceUnlock(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its waiter has left", func() bool { return len(fairLook(rdb, l.Name()).queue) == 0 })
	rdb.FlushDB(bg)
	return c, proxy, rdb
}

// fairBehind is a client behind a proxy whose looks are counted when they were
// answered.
func fairBehind(t testing.TB, proxy *faultproxy.Proxy) *member {
	t.Helper()
	// Its goroutines that wait for a lost reply end soon, and the test with them.
	rdb := dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	return join(t, rdb, rlock.WithCommandTimeout(ample(2*time.Second)))
}

// fairOrder checks who stands in line, in all places.
func fairOrder(t testing.TB, rdb redis.UniversalClient, name string, stays ...string) {
	t.Helper()
	v := fairLook(rdb, name)
	if !slices.Equal(v.queue, stays) || len(v.deadlines) != len(stays) || len(v.alive) != len(stays) {
		t.Fatalf("%+v, want %q in line", v, stays)
	}
}

func TestFairAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachLoss(t, "fair_enter", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.fairFaulty(t)
		for _, acquire := range []func(*rlock.FairLock) (*rlock.Lease, error){
			func(l *rlock.FairLock) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l *rlock.FairLock) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			onNth(t, proxy, "fair_enter", 1, action)
			lease, err := acquire(c.NewFairLock("a"))
			if err != nil {
				t.Fatal(err)
			}
			if n := count(t, rdb, "a", lease.Owner()); n != "1" {
				t.Fatalf("count %q", n)
			}
			fairOrder(t, rdb, "a")
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
		}
	})
}

// The first look puts the waiter into the line, the second comes after the
// confirmation of its subscription, the third takes the lock.
func TestFairWaiterWithLostReplyHasOnePlace(t *testing.T) {
	t.Parallel()
	for _, look := range []int64{1, 2, 3} {
		t.Run(fmt.Sprint("look ", look), func(t *testing.T) {
			eachLoss(t, "fair_enter", func(t *testing.T, b *backend, action faultproxy.Action) {
				_, proxy, rdb := b.fairFaulty(t)
				m := fairBehind(t, proxy)
				other := newClientOn(t, rdb).NewFairLock("a")
				lease := mustLock(t, other)
				first := fairMustLine(t, rdb, other)
				onNth(t, proxy, "fair_enter", look, action)
				w := fairMustLine(t, rdb, m.NewFairLock("a"))
				last := fairMustLine(t, rdb, other)
				m.parked(t, "a", 2)
				fairOrder(t, rdb, "a", first.stay, w.stay, last.stay)
				for _, next := range []*fairTurn{first, w, last} {
					mustUnlock(t, lease)
					lease = next.wait(t)
					if lease.Owner() != next.stay || count(t, rdb, "a", next.stay) != "1" {
						t.Fatalf("%s has the lock, as %v", lease.Owner(), fairLook(rdb, "a"))
					}
				}
				mustUnlock(t, lease)
				onlyTombstones(t, rdb)
			})
		})
	}
}

func TestFairWaiterThatLeavesWithLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	eachLoss(t, "fair_abandon", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.fairFaulty(t)
		other := newClientOn(t, rdb).NewFairLock("a")
		lease := mustLock(t, other)
		w, next := fairMustLine(t, rdb, c.NewFairLock("a")), fairMustLine(t, rdb, other)
		ends := fairLook(rdb, "a").deadlines[next.stay]
		onNth(t, proxy, "fair_abandon", 1, action)
		w.cancel()
		w.left(t)
		eventually(t, "it has left", func() bool { return len(fairLook(rdb, "a").queue) == 1 })
		if action != faultproxy.Duplicate {
			eventually(t, "it was repeated", func() bool {
				return proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha("fair_abandon")) }) >= 2
			})
		}
		fairOrder(t, rdb, "a", next.stay)
		// Ours add no time to the deadlines behind them, and take none away.
		if gone := ends - fairLook(rdb, "a").deadlines[next.stay]; gone > 0 {
			t.Errorf("the deadline of the next was shortened by %v ms", gone)
		}
		mustUnlock(t, lease)
		mustUnlock(t, next.wait(t))
		onlyTombstones(t, rdb)
	})
}

func TestFairUnlockWithLostReplyReportsSuccess(t *testing.T) {
	t.Parallel()
	eachLoss(t, "fair_release", func(t *testing.T, b *backend, action faultproxy.Action) {
		c, proxy, rdb := b.fairFaulty(t)
		outer := mustLock(t, c.NewFairLock("a"))
		inner := mustLockCtx(t, outer.Context(bg), c.NewFairLock("a"))
		w := fairMustLine(t, rdb, newClientOn(t, rdb).NewFairLock("a"))
		onNth(t, proxy, "fair_release", 1, action)
		mustUnlock(t, inner)
		if n := count(t, rdb, "a", outer.Owner()); n != "1" {
			t.Fatalf("count %q after the inner unlock", n)
		}
		onNth(t, proxy, "fair_release", 1, action)
		mustUnlock(t, outer) // a resend may find the next one there
		next := w.wait(t)
		if err := next.Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, next)
		onlyTombstones(t, rdb)
	})
}

// A copy of a waiter's request that was held up on its way arrives when the stay
// is over. It must not stand in line for nobody.
func TestFairLateCopyMeetsATombstone(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		hold := func(t *testing.T, proxy *faultproxy.Proxy) {
			t.Helper()
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(sha("fair_enter")) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
		}
		t.Run("of one that never came in", func(t *testing.T) {
			c, proxy, rdb := b.fairFaulty(t)
			lease := mustLock(t, newClientOn(t, rdb).NewFairLock("a"))
			hold(t, proxy)
			_, err := c.NewFairLock("a").Lock(bg, rlock.WithWait(ample(1800*time.Millisecond)))
			wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
			eventually(t, "it is given up", func() bool { return tombstones(keysOf(t, rdb)) == 1 })
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			fairOrder(t, rdb, "a")
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
		})
		t.Run("of one that stood in line", func(t *testing.T) {
			c, proxy, rdb := b.fairFaulty(t)
			lease := mustLock(t, newClientOn(t, rdb).NewFairLock("a"))
			onNth(t, proxy, "fair_enter", 1, faultproxy.Hold)
			w := fairMustLine(t, rdb, c.NewFairLock("a")) // by the resend
			w.cancel()
			w.left(t)
			eventually(t, "it has left", func() bool { return tombstones(keysOf(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			fairOrder(t, rdb, "a")
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
		})
		t.Run("of one that had the lock", func(t *testing.T) {
			c, proxy, rdb := b.fairFaulty(t)
			lease := mustLock(t, newClientOn(t, rdb).NewFairLock("a"))
			onNth(t, proxy, "fair_enter", 1, faultproxy.Hold)
			w := fairMustLine(t, rdb, c.NewFairLock("a"))
			mustUnlock(t, lease)
			mustUnlock(t, w.wait(t))
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
		})
		// All its requests were answered: there is no late copy, and no tombstone.
		t.Run("none", func(t *testing.T) {
			c, _, rdb := b.fairFaulty(t)
			m := join(t, b.client(t))
			lease := mustLock(t, c.NewFairLock("a"))
			w := fairParked(t, rdb, m, "a")
			w.cancel()
			w.left(t)
			eventually(t, "it has left", func() bool { return len(fairLook(rdb, "a").queue) == 0 })
			mustUnlock(t, lease)
			mustBeEmpty(t, rdb)
		})
	})
}

// A cancel may meet any request of the waiter. Afterwards nothing of it is left,
// and the next one has the lock.
func TestFairCancelWithALookUnderWay(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		for _, look := range []int64{1, 2, 3} {
			for what, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "on its way": faultproxy.Hold} {
				t.Run(fmt.Sprint("look ", look, " ", what), func(t *testing.T) {
					_, proxy, rdb := b.fairFaulty(t)
					m := fairBehind(t, proxy)
					name := t.Name()
					other := newClientOn(t, rdb).NewFairLock(name)
					lease := mustLock(t, other)
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					var seen atomic.Int64
					reached := make(chan struct{})
					proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if !cmd.IsScript(sha("fair_enter")) {
							return faultproxy.Pass
						}
						switch n := seen.Add(1); {
						case n < look:
							return faultproxy.Pass
						case n == look:
							close(reached)
						}
						return action
					})
					done := make(chan error, 1)
					go func() { _, err := m.NewFairLock(name).Lock(ctx); done <- err }()
					var next *fairTurn
					if look == 3 {
						m.parked(t, name, 2)
						next = fairMustLine(t, rdb, other)
						mustUnlock(t, lease)
					}
					<-reached
					cancel()
					wantErr(t, <-done, rlock.ErrNotAcquired, context.Canceled)
					proxy.Release()
					if look < 3 {
						eventually(t, "its place is gone, and it has left a tombstone", func() bool {
							return len(fairLook(rdb, name).queue) == 0 && tombstones(keysOf(t, rdb)) >= 1
						})
						mustUnlock(t, lease)
					} else {
						mustUnlock(t, next.wait(t))
					}
					v := fairLook(rdb, name)
					if len(v.hold)+len(v.queue)+len(v.deadlines)+len(v.alive) > 0 {
						t.Fatalf("%+v", v)
					}
				})
			}
		}
	})
}

// Waiters of a client that is cut off from Redis for longer than a waiter lease
// make way for others, and go on when it is back.
func TestFairWaiterThatIsCutOff(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, b *backend) {
		const term = time.Second
		c, proxy, rdb := b.fairFaulty(t, rlock.WithWaiterLease(term))
		here := newClientOn(t, rdb, rlock.WithWaiterLease(term)).NewFairLock("a")
		lease := mustLock(t, here)
		// A look of its may be on its way when the connection is reset, and take the lock:
		// near waits for the end of that lease then.
		away := fairMustLine(t, rdb, c.NewFairLock("a"), rlock.WithLease(5*term))
		near := fairMustLine(t, rdb, here)
		proxy.Refuse(true)
		start := time.Now()
		mustUnlock(t, lease)
		lease = near.wait(t)
		if took := time.Since(start); took < term/2 || took > 10*time.Second {
			t.Errorf("passed over after %v, the waiter lease is %v", took, term)
		}
		behind := fairMustLine(t, rdb, here)
		proxy.Refuse(false)
		eventually(t, "it waits at the end", func() bool {
			return slices.Equal(fairLook(rdb, "a").queue, []string{behind.stay, away.stay})
		})
		for _, w := range []*fairTurn{behind, away} {
			mustUnlock(t, lease)
			lease = w.wait(t)
		}
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

// When Redis hangs for longer than a waiter lease, everybody keeps his place.
func TestFairLineSurvivesAHungServer(t *testing.T) {
	t.Parallel()
	const term = time.Second
	b := onServer(t)
	rdb := b.client(t)
	lock := func() *rlock.FairLock {
		return newClientOn(t, b.client(t), rlock.WithWaiterLease(term), rlock.WithCommandTimeout(500*time.Millisecond)).NewFairLock("a")
	}
	lease := mustLock(t, lock(), rlock.WithLease(time.Minute))
	var turns []*fairTurn
	var want []string
	for range 4 {
		w := fairMustLine(t, rdb, lock())
		turns, want = append(turns, w), append(want, w.stay)
	}
	b.real.Pause()
	time.Sleep(3 * term) // the subject of the test
	b.real.Resume()
	seen := fairNow(rdb)
	eventually(t, "all have given a sign of life", func() bool {
		v := fairLook(rdb, "a")
		for _, stay := range want {
			if v.alive[stay] < seen+float64(term.Milliseconds()) {
				return false
			}
		}
		return true
	})
	if v := fairLook(rdb, "a"); !slices.Equal(v.queue, want) {
		t.Fatalf("queue %q, before the outage %q", v.queue, want)
	}
	for _, w := range turns {
		mustUnlock(t, lease)
		lease = w.wait(t)
	}
	mustUnlock(t, lease)
	onlyTombstones(t, rdb)
}
