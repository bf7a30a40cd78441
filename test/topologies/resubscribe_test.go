package topologies

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// A waiter may come while the subscribe and unsubscribe of one before it are
// still on their way. The late answer to that unsubscribe is not taken for the
// node's, which would cost the whole connection, and the late confirmation of
// that subscribe not for the new one's, which would miss a release.
func TestWaiterAfterUnansweredUnsubscribe(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	p := faultproxy.New(t, b.Addr)
	slow := 20 * time.Millisecond
	p.Delay(func(c faultproxy.Command) time.Duration {
		if strings.HasSuffix(c.Name, "subscribe") {
			return slow
		}
		return 0
	})
	log := &locktest.LogLines{}
	c := locktest.NewClient(t, locktest.Dialer(p.Addr())(t, nil), rlock.WithLongestPoll(time.Minute), rlock.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	lease := locktest.MustLock(t, b.NewClient(t).NewLock("resubscribe"))
	l := c.NewLock("resubscribe")
	subscribes := func(c faultproxy.Command) bool { return c.Name == "subscribe" }
	for end := time.Now().Add(locktest.Patience); p.Count(subscribes) < 10; {
		if time.Now().After(end) {
			t.Fatal("no overlap of subscribes on this machine")
		}
		_, err := l.Lock(context.Background(), rlock.WithWait(3*time.Millisecond))
		locktest.WantEnded(t, err, nil)
	}
	got := make(chan error, 1)
	go func() {
		lease, err := l.Lock(context.Background())
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		got <- err
	}()
	locktest.Eventually(t, "the last waits", func() bool {
		s, err := l.State(context.Background())
		return err == nil && s.Waiters == 1
	})
	locktest.MustUnlock(t, lease)
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the release was missed")
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "rlock: client") {
		t.Errorf("logged:\n%s", s)
	}
}

// A client may subscribe, unsubscribe and subscribe before the first of the three is
// answered. The confirmation of the first says nothing about the last: between the
// two nobody is subscribed, and what is announced then is missed.
func TestConfirmationOfARevokedSubscribeCountsForNothing(t *testing.T) {
	t.Parallel()
	for range 10 {
		if subscribeTwice(t) {
			return
		}
	}
	t.Fatal("in ten attempts the machine was too slow for the connection")
}

// subscribeTwice reports false if the client gave its subscribed connection up
// meanwhile: a connection that is silent for some seconds is replaced.
func subscribeTwice(t *testing.T) bool {
	const name = "resubscribe"
	b := locktest.OnServer(t)
	p := faultproxy.New(t, b.Addr)
	next := make(chan struct{}) // one item for each command of the subscribed connection
	var conn atomic.Int64
	var replaced atomic.Bool
	over := make(chan struct{})
	p.Handle(func(c faultproxy.Command) faultproxy.Action {
		if !strings.HasSuffix(c.Name, "subscribe") {
			return faultproxy.Pass
		}
		if !conn.CompareAndSwap(0, int64(c.Conn)) && conn.Load() != int64(c.Conn) {
			replaced.Store(true)
			return faultproxy.Pass
		}
		select {
		case <-next:
		case <-over:
		}
		return faultproxy.Pass
	})
	var heard atomic.Int64 // events of the subscribed connection
	env := seam.Option(seam.Env{Gate: func(point string) {
		if point == "message" {
			heard.Add(1)
		}
	}}).(rlock.Option)
	e := &locktest.Events{}
	c := locktest.NewClient(t, locktest.Dialer(p.Addr())(t, nil), rlock.WithLongestPoll(locktest.Patient), rlock.WithObserver(e), env)
	t.Cleanup(func() { close(over) }) // before the client is closed
	lease := locktest.MustLock(t, b.NewClient(t).NewLock(name), rlock.WithLease(2*time.Hour))
	l := c.NewLock(name)
	sent := func(command string) int {
		return p.Count(func(c faultproxy.Command) bool { return c.Name == command })
	}
	reaches := func(what string, ok func() bool) bool {
		locktest.Eventually(t, what, func() bool { return replaced.Load() || ok() })
		return !replaced.Load()
	}
	pass := func() bool {
		before := heard.Load()
		select {
		case next <- struct{}{}:
		case <-time.After(10 * time.Second):
			return false
		}
		return reaches("it is answered", func() bool { return heard.Load() > before })
	}

	ctx, leave := context.WithCancel(bg)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if _, err := l.Lock(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	ok := reaches("the first subscribes", func() bool { return sent("subscribe") == 1 })
	leave()
	<-left
	ctx, stop := context.WithCancel(bg)
	defer stop()
	got := make(chan error, 1)
	go func() {
		lease, err := l.Lock(ctx)
		if err == nil {
			err = lease.Unlock(bg)
		}
		got <- err
	}()
	defer func() {
		stop()
		if err, more := <-got; more && err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	if !ok || !reaches("the second subscribes", func() bool { return sent("unsubscribe") == 1 && sent("subscribe") == 2 }) {
		return false
	}
	if answered := pass(); !answered || !pass() {
		return false
	}
	// What came before the answer to the unsubscribe has been dealt with.
	if n := e.Confirmations("redisson_lock__channel:{" + name + "}"); n != 0 {
		t.Errorf("%d confirmations of a subscription that was revoked", n)
	}
	locktest.MustUnlock(t, lease) // nobody is subscribed
	if !pass() {
		return false
	}
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
		close(got)
	case <-time.After(20 * time.Second):
		t.Error("it did not look after its subscription was confirmed")
	}
	return true
}
