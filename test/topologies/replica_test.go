package topologies

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestReplicaAck(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	p := &mirrored{Replicated: r, replica: r.Replicas[0], atMaster: r.Master.Client(), atReplica: r.Replicas[0].Client()}
	t.Run("ComesBeforeTheAcquireReturns", p.confirmed)
	t.Run("IsAskedForOnTheConnectionOfTheAcquire", p.sameConnection)
	t.Run("OfTooFewReplicasReleasesTheLockAndFails", p.tooFew)
	t.Run("ThatIsSlowIsNotTakenForALostReply", p.slow)
	t.Run("ThatIsMissingLeavesNothingWhenRepliesAreLost", p.lostReplies)
	t.Run("IsNotWaitedForOnReentry", p.reentry)
	t.Run("IsWaitedForByTheNextHolder", p.handedOver)
}

// mirrored is a master and its replica.
type mirrored struct {
	*redistest.Replicated
	replica             *redistest.Server
	atMaster, atReplica *redis.Client
}

// proxied is a client that reaches the master through a proxy.
func (p *mirrored) proxied(t *testing.T, opts ...rlock.Option) (*locktest.Member, *faultproxy.Proxy) {
	proxy := faultproxy.New(t, p.Master.Addr())
	longer := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second } // than replicas are given
	return locktest.Join(t, locktest.Dialer(proxy.Addr())(t, longer), opts...), proxy
}

// pause stops the replica until the test ends.
func (p *mirrored) pause(t *testing.T) {
	p.replica.Pause()
	t.Cleanup(func() {
		p.replica.Resume()
		p.Settle()
	})
}

func (p *mirrored) confirmed(t *testing.T) {
	a := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(1, 4*time.Second))
	for _, acquire := range locktest.Acquires(a.NewLock("confirmed")) {
		for range 20 {
			lease, err := acquire(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if !holds(t, p.atReplica, "confirmed") {
				t.Error("acquired, and the replica has nothing")
			}
			locktest.MustUnlock(t, lease)
		}
	}
}

func (p *mirrored) sameConnection(t *testing.T) {
	a, proxy := p.proxied(t, rlock.WithReplicaAck(1, 4*time.Second))
	if err := p.atMaster.ScriptFlush(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	// From several goroutines, so that there are several connections.
	done := make(chan error)
	for _, name := range []string{"c1", "c2", "c3", "c4"} {
		go func() {
			var err error
			for range 10 {
				var lease *rlock.Lease
				if lease, err = a.NewLock(name).Lock(context.Background()); err != nil {
					break
				}
				if err = lease.Unlock(context.Background()); err != nil {
					break
				}
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	sha := locktest.SHA("lock/enter")
	last := map[int]faultproxy.Command{} // by connection
	acquires, waits := 0, 0
	for _, cmd := range proxy.Commands() {
		switch {
		case cmd.IsScript(sha):
			acquires++
		case cmd.Name == "wait":
			waits++
			if !last[cmd.Conn].IsScript(sha) {
				t.Errorf("%v comes after %v", cmd, last[cmd.Conn])
			}
			if !slices.Equal(cmd.Args, []string{"1", "4000"}) {
				t.Errorf("%v", cmd)
			}
		}
		last[cmd.Conn] = cmd
	}
	// At least, because of those that did not find the script.
	if acquires < 40 || acquires != waits {
		t.Errorf("%d acquires and %d WAIT", acquires, waits)
	}
}

// listener is subscribed to the channel of a lock.
func (p *mirrored) listener(t *testing.T, name string) *redis.PubSub {
	ps := p.atMaster.Subscribe(context.Background(), "redisson_lock__channel:{"+name+"}")
	t.Cleanup(func() { _ = ps.Close() })
	if _, err := ps.ReceiveTimeout(context.Background(), locktest.Patience); err != nil {
		t.Fatal(err)
	}
	return ps
}

func hears(t *testing.T, ps *redis.PubSub) {
	t.Helper()
	m, err := ps.ReceiveTimeout(context.Background(), locktest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	if m.(*redis.Message).Payload != "0" {
		t.Errorf("heard %v", m)
	}
}

func (p *mirrored) tooFew(t *testing.T) {
	two := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(2, 100*time.Millisecond))
	one := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(1, 100*time.Millisecond))
	stranger := locktest.Join(t, p.Master.Client())
	ps := p.listener(t, "few")
	refused := func(m *locktest.Member, counts string) {
		t.Helper()
		l := m.NewLock("few")
		for _, acquire := range locktest.Acquires(l) {
			began := time.Now()
			_, err := acquire(context.Background())
			if d := time.Since(began); d > locktest.ByMessage {
				t.Errorf("took %v", d)
			}
			if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), counts) {
				t.Errorf("%v, want ErrNotAcquired with %q", err, counts)
			}
			// Whoever heard of the lock hears that it is free again.
			hears(t, ps)
			lease, err := stranger.NewLock("few").TryLock(context.Background())
			if err != nil {
				t.Fatalf("not free: %v", err)
			}
			locktest.MustUnlock(t, lease)
			hears(t, ps)
		}
	}
	refused(two, "1 of 2 replicas")
	p.pause(t)
	refused(one, "0 of 1 replicas")
	refused(two, "0 of 2 replicas")
}

func (p *mirrored) slow(t *testing.T) {
	proxy := faultproxy.New(t, p.Master.Addr())
	// go-redis's read timeout must be longer than the replicas'.
	rdb := locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = 20 * time.Second })
	a := locktest.Join(t, rdb, rlock.WithReplicaAck(1, 2*time.Second), rlock.WithCommandTimeout(3*time.Second))
	locktest.MustUnlock(t, locktest.MustLock(t, a.NewLock("slow")))
	p.pause(t)
	proxy.ResetLog()
	if _, err := a.NewLock("slow").TryLock(context.Background()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("%v, want ErrNotAcquired", err)
	}
	sha := locktest.SHA("lock/enter")
	if n := proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha) }); n != 1 {
		t.Errorf("sent %d times: %q", n, a.Events.Retries)
	}
}

func (p *mirrored) lostReplies(t *testing.T) {
	p.pause(t)
	sha := locktest.SHA("lock/enter")
	// In full the first time, lest NOSCRIPT is the reply that is lost.
	if err := p.atMaster.ScriptLoad(context.Background(), locktest.ScriptText("lock/enter")).Err(); err != nil {
		t.Fatal(err)
	}
	for what, fault := range map[string]struct {
		match  func(faultproxy.Command) bool
		action faultproxy.Action
	}{
		"reset after the acquire": {func(c faultproxy.Command) bool { return c.IsScript(sha) }, faultproxy.ResetAfter},
		"reset after WAIT":        {func(c faultproxy.Command) bool { return c.Name == "wait" }, faultproxy.ResetAfter},
		"reply of WAIT lost":      {func(c faultproxy.Command) bool { return c.Name == "wait" }, faultproxy.SwallowReply},
		"acquire repeated":        {func(c faultproxy.Command) bool { return c.IsScript(sha) }, faultproxy.Duplicate},
		"WAIT lost":               {func(c faultproxy.Command) bool { return c.Name == "wait" }, faultproxy.ResetBefore},
	} {
		t.Run(what, func(t *testing.T) {
			name := "replies:" + what
			a, proxy := p.proxied(t, rlock.WithReplicaAck(1, 100*time.Millisecond), rlock.WithCommandTimeout(2*time.Second))
			once := make(chan struct{}, 1)
			once <- struct{}{}
			proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
				if fault.match(c) {
					select {
					case <-once:
						return fault.action
					default:
					}
				}
				return faultproxy.Pass
			})
			_, err := a.NewLock(name).Lock(context.Background())
			if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "0 of 1 replicas") {
				t.Errorf("%v, want ErrNotAcquired", err)
			}
			if len(once) > 0 {
				t.Error("the fault was not met")
			}
			locktest.Eventually(t, "the lock is free", func() bool { return !holds(t, p.atMaster, name) })
			// Late copies of all that was sent change nothing.
			for _, c := range proxy.Commands() {
				if c.IsScript(sha) {
					if err := proxy.Replay(c); err != nil {
						t.Fatal(err)
					}
				}
			}
			if holds(t, p.atMaster, name) {
				t.Error("a late copy has taken the lock")
			}
		})
	}
}

func (p *mirrored) reentry(t *testing.T) {
	a, proxy := p.proxied(t, rlock.WithReplicaAck(1, 4*time.Second))
	l := a.NewLock("reentry")
	outer := locktest.MustLock(t, l)
	p.pause(t)
	proxy.ResetLog()
	inner := locktest.MustLockCtx(t, outer.Context(context.Background()), l)
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, outer)
	if n := proxy.Count(func(c faultproxy.Command) bool { return c.Name == "wait" }); n != 0 {
		t.Errorf("%d WAIT on re-entry and release", n)
	}
}

func (p *mirrored) handedOver(t *testing.T) {
	a := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(1, 4*time.Second))
	b := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(1, 4*time.Second))
	impatient := locktest.Join(t, p.Master.Client(), rlock.WithReplicaAck(1, 100*time.Millisecond))
	first := locktest.MustLock(t, a.NewLock("over"))
	// Acquires of b go through pipelines, which looks do not show.
	w := b.Line(t, "over")
	locktest.Eventually(t, "the waiter is subscribed", func() bool {
		return b.Events.Confirmations("redisson_lock__channel:{over}") == 1
	})
	released := time.Now()
	locktest.MustUnlock(t, first)
	second, d := w.WokenByMessage(t, released)
	t.Logf("woken and confirmed after %v", d)
	if !holds(t, p.atReplica, "over") {
		t.Error("acquired, and the replica has nothing")
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}

	third := impatient.Line(t, "over")
	locktest.Eventually(t, "the waiter is subscribed", func() bool {
		return impatient.Events.Confirmations("redisson_lock__channel:{over}") == 1
	})
	p.pause(t)
	locktest.MustUnlock(t, second)
	g := <-third.Got
	if !errors.Is(g.Err, rlock.ErrNotAcquired) || !strings.Contains(g.Err.Error(), "0 of 1 replicas") {
		t.Errorf("%v, want ErrNotAcquired", g.Err)
	}
	locktest.Eventually(t, "the lock is free", func() bool { return !holds(t, p.atMaster, "over") })
}

// While a client's master is a replica, it is told READONLY.
func TestReadOnlyServerIsWaitedOut(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := redistest.StartReplicated(t, 1)
	was, other := r.Master, r.Replicas[0]
	swap := func(from, to *redistest.Server) {
		t.Helper()
		if err := to.Client().ReplicaOf(ctx, "no", "one").Err(); err != nil {
			t.Fatal(err)
		}
		if err := from.Client().ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(to.Port())).Err(); err != nil {
			t.Fatal(err)
		}
		(&redistest.Replicated{Master: to, Replicas: []*redistest.Server{from}}).Settle()
	}
	a := locktest.Join(t, was.Client(), rlock.WithWatchdogLease(24*time.Second), rlock.WithCommandTimeout(3*time.Second), rlock.WithReplicaAck(1, 4*time.Second))
	b := locktest.Join(t, was.Client(), rlock.WithCommandTimeout(time.Second))
	held, released := locktest.MustLock(t, a.NewLock("held")), locktest.MustLock(t, b.NewLock("released"))

	swap(was, other)
	_, err := b.NewLock("free").TryLock(ctx)
	if !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("TryLock at a replica: %v", err)
	}
	if err := held.Extend(ctx, 25*time.Second); !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Extend at a replica: %v", err)
	}
	w := b.Line(t, "free")
	looked := b.Events.Retried("lock/enter", "READONLY")
	locktest.Eventually(t, "Lock was refused", func() bool { return b.Events.Retried("lock/enter", "READONLY") > looked+2 })
	locktest.Eventually(t, "a renewal was refused", func() bool { return a.Events.Retried("lock/renew", "READONLY") > 0 })
	unlock := make(chan error, 1)
	go func() { unlock <- released.Unlock(ctx) }()
	locktest.Eventually(t, "Unlock was refused", func() bool { return b.Events.Retried("lock/release", "READONLY") > 0 })

	swap(other, was)
	back := time.Now()
	if err := <-unlock; err != nil && !errors.Is(err, rlock.ErrUnreachable) {
		t.Error(err)
	}
	lease, d := w.Lease(t, back)
	t.Logf("acquired %v after the server was a master again", d)
	locktest.MustUnlock(t, lease)
	locktest.Eventually(t, "the refused release went on alone", func() bool { return !holds(t, was.Client(), "released") })
	a.RenewedAgain(t, "held", 1)
	locktest.MustUnlock(t, held)
}
