package faults

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What an application passes to the library may end the goroutine that calls it, as t.FailNow does.

// leaver is an Observer that does so once, or in each call of Subscription.
type leaver struct {
	locktest.Ignoring
	end, retry   bool
	subscription bool
	losses       atomic.Int64
	left         atomic.Bool
}

func (o *leaver) AcquireEnd(context.Context, rlock.AcquireEvent) {
	if o.end && o.left.CompareAndSwap(false, true) {
		runtime.Goexit()
	}
}

func (o *leaver) Retry(context.Context, rlock.RetryEvent) {
	if o.retry && o.left.CompareAndSwap(false, true) {
		runtime.Goexit()
	}
}

func (o *leaver) Lost(context.Context, rlock.LossEvent) {
	if o.losses.Add(1) == 1 {
		runtime.Goexit()
	}
}

func (o *leaver) Subscription(e rlock.SubscriptionEvent) {
	if e.On && o.subscription {
		runtime.Goexit()
	}
}

// Nobody has the lease.
func TestGoexitInAcquireEnd(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			c := b.NewClient(t, rlock.WithObserver(&leaver{end: true}))
			l := k.Open(c, "of "+k.Name)
			gone := make(chan struct{})
			go func() { defer close(gone); _, _ = l.Lock(bg) }()
			<-gone
			locktest.MustUnlock(t, locktest.MustLock(t, k.Open(b.NewClient(t), "of "+k.Name)))
		})
	}
}

func TestGoexitInAcquireEndOfASemaphore(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := b.NewClient(t).NewSemaphore("s")
	if ok, err := s.TrySetPermits(bg, 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = b.NewClient(t, rlock.WithObserver(&leaver{end: true})).NewSemaphore("s").Acquire(bg, 1)
	}()
	<-gone
	if n, err := s.Available(bg); n != 1 || err != nil {
		t.Errorf("%d permits are free, %v", n, err)
	}
}

// The request may have run, or not: what it has taken is given back, and what it was to free is freed.
func TestGoexitInRetry(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]faultproxy.Action{"ran": faultproxy.ResetAfter, "did not run": faultproxy.ResetBefore} {
		begin := func(t *testing.T, script string) (b *locktest.Backend, c *rlock.Client) {
			t.Parallel()
			b = locktest.OnMiniredis(t)
			c, proxy, rdb := b.Faulty(t, rlock.WithObserver(&leaver{retry: true}))
			locktest.LoadScripts(t, rdb, script)
			locktest.OnNth(t, proxy, script, 1, action)
			return b, c
		}
		leave := func(f func()) {
			gone := make(chan struct{})
			go func() { defer close(gone); f() }()
			<-gone
		}
		t.Run("acquire "+name, func(t *testing.T) {
			b, c := begin(t, "lock/enter")
			leave(func() { _, _ = c.NewLock("a").TryLock(bg); t.Error("it has returned") })
			locktest.MustUnlock(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
		})
		t.Run("unlock "+name, func(t *testing.T) {
			b, c := begin(t, "lock/release")
			lease := locktest.MustLock(t, c.NewLock("a"))
			leave(func() { _ = lease.Unlock(bg); t.Error("it has returned") })
			locktest.MustUnlock(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
			if err := c.Close(); err != nil { // the call is over
				t.Error(err)
			}
		})
		t.Run("semaphore "+name, func(t *testing.T) {
			b, c := begin(t, "semaphore/acquire")
			s := b.NewClient(t).NewSemaphore("s")
			if ok, err := s.TrySetPermits(bg, 1); !ok || err != nil {
				t.Fatal(ok, err)
			}
			leave(func() { _ = c.NewSemaphore("s").TryAcquire(bg, 1); t.Error("it has returned") })
			locktest.Eventually(t, "the permit is back", func() bool { n, err := s.Available(bg); return n == 1 && err == nil })
		})
	}
}

// ending is an Observer that ends the goroutine in each call of one method, but keeps the gauges right.
type ending struct {
	*locktest.Gauges
	in string
	n  atomic.Int64
}

func (o *ending) leaves(method string) {
	if method == o.in {
		o.n.Add(1)
		runtime.Goexit()
	}
}

func (o *ending) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	o.leaves("AcquireStart")
	return o.Gauges.AcquireStart(ctx, e)
}

func (o *ending) Contended(ctx context.Context, e rlock.ContentionEvent) {
	o.Gauges.Contended(ctx, e)
	o.leaves("Contended")
}

func (o *ending) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	o.Gauges.AcquireEnd(ctx, e)
	o.leaves("AcquireEnd")
}

func (o *ending) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	o.Gauges.Unlocked(ctx, e)
	o.leaves("Unlocked")
}

// Whatever method ends the goroutine: nothing is held for longer, no call counts as under way, and
// each acquire and each hold has been told to its end.
func TestGoexitInEachMethodThatACallWaitsFor(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"AcquireStart", "Contended", "AcquireEnd", "Unlocked"} {
		for name, open := range map[string]func(c *rlock.Client) rlock.Locker{
			"Lock":     func(c *rlock.Client) rlock.Locker { return c.NewLock("{m}a") },
			"FairLock": func(c *rlock.Client) rlock.Locker { return c.NewFairLock("{m}a") },
			"one slot": func(c *rlock.Client) rlock.Locker {
				return locktest.NewMultiLock(t, c.NewLock("{m}a"), c.NewLock("{m}b"))
			},
			"one by one": func(c *rlock.Client) rlock.Locker {
				return locktest.NewMultiLock(t, c.NewLock("{m}a"), c.NewFencedLock("c"))
			},
			"Election":    func(c *rlock.Client) rlock.Locker { return locktest.Electing{Election: c.NewElection("e"), Value: "v"} },
			"WriteLock":   func(c *rlock.Client) rlock.Locker { return c.NewReadWriteLock("rw").Writer },
			"handed over": func(c *rlock.Client) rlock.Locker { return c.NewLock("{m}a", rlock.WithHandOver(10, time.Minute)) },
		} {
			t.Run(in+" of "+name, func(t *testing.T) {
				t.Parallel()
				b := locktest.OnMiniredis(t)
				o := &ending{Gauges: &locktest.Gauges{}, in: in}
				c, other := b.NewClient(t, rlock.WithObserver(o)), b.NewClient(t)
				theirs := locktest.MustLock(t, open(other))
				gone := make(chan struct{})
				for range 2 {
					go func() {
						defer func() { gone <- struct{}{} }()
						ctx, cancel := context.WithTimeout(bg, locktest.Patience)
						defer cancel()
						lease, err := open(c).Lock(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						_ = lease.Unlock(bg)
					}()
				}
				locktest.Eventually(t, "both wait, or have gone", func() bool { _, waiting, _, _ := o.Now(); return waiting == 2 || o.n.Load() >= 2 })
				locktest.MustUnlock(t, theirs)
				<-gone
				<-gone
				if o.n.Load() == 0 {
					t.Error("the Observer has ended no goroutine")
				}
				locktest.MustUnlock(t, locktest.MustLock(t, open(other)))
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				locktest.Eventually(t, "all is told to its end", func() bool {
					acquiring, waiting, held, leads := o.Now()
					return acquiring == 0 && waiting == 0 && held == 0 && leads == 0 || len(o.Faults()) > 0
				})
				if faults := o.Faults(); len(faults) > 0 {
					t.Error(faults)
				}
			})
		}
	}
}

func TestGoexitInLost(t *testing.T) {
	t.Parallel()
	o := &leaver{}
	c := locktest.OnMiniredis(t).NewClient(t, rlock.WithObserver(o))
	for i := range 3 {
		lease := locktest.MustLock(t, c.NewLock(fmt.Sprint(i)), rlock.WithLease(locktest.Ample(100*time.Millisecond)))
		<-lease.Done()
	}
	locktest.Eventually(t, "all losses are told", func() bool { return o.losses.Load() == 3 })
}

// dialing calls on for each connection that a client opens, with the stack of who does.
type dialing struct {
	locktest.ScriptHook
	on func(stack string)
}

func (h *dialing) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var stack [16 << 10]byte
		h.on(string(stack[:runtime.Stack(stack[:], false)]))
		return next(ctx, network, addr)
	}
}

// The client does not dial all the time.
func TestGoexitInSubscription(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	var dials atomic.Int64
	rdb.AddHook(&dialing{on: func(string) { dials.Add(1) }})
	c := locktest.NewClient(t, rdb, rlock.WithObserver(&leaver{subscription: true}))
	lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	next := locktest.Begin(t, bg, c.NewLock("a"))
	time.Sleep(2 * time.Second)
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
	if n := dials.Load(); n > 30 {
		t.Errorf("%d dials in two seconds", n)
	}
}

// A dialer ends, once, the goroutine that opens the connection for messages, or panics: when that
// begins, or when go-redis opens it anew by itself, with a mutex held. The client listens again.
func TestSubscriptionOutlastsADialThatEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		where string
		fail  func()
	}{
		"goexit at first":    {"PubSub", runtime.Goexit},
		"goexit in a redial": {"PubSub).reconnect", runtime.Goexit},
		"panic in a redial":  {"PubSub).reconnect", func() { panic("dialer") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb, admin := b.Client(t), b.Client(t)
			var left atomic.Bool
			rdb.AddHook(&dialing{on: func(stack string) {
				if strings.Contains(stack, c.where) && left.CompareAndSwap(false, true) {
					c.fail()
				}
			}})
			theirs := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
			for i := range 3 {
				name := fmt.Sprint(i)
				lease := locktest.MustLock(t, b.NewClient(t).NewLock(name))
				next := locktest.Begin(t, bg, theirs.NewLock(name))
				listens := func() bool { return locktest.Subscribers(t, admin, name) == 1 }
				locktest.Eventually(t, "it listens", listens)
				if i == 0 && c.where != "PubSub" {
					if err := admin.ClientKillByFilter(bg, "type", "pubsub").Err(); err != nil {
						t.Fatal(err)
					}
					locktest.Eventually(t, "it listens again", func() bool { return left.Load() && listens() })
				}
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, next.Held())
			}
			if !left.Load() {
				t.Error("no dial has ended")
			}
		})
	}
}
