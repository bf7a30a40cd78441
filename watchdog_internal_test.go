package rlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/notify"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// unserved is a client of a server that is not there.
func unserved(t testing.TB, opts ...Option) *Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	c, err := New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// standIn is a hold that is due at a time, and not renewed.
func standIn(c *Client, l *core, n int, at clock.Instant) *hold {
	h := &hold{core: l, number: int64(n), token: int64(n)}
	h.deadline = c.now().Add(time.Hour)
	h.Task = h
	c.watchdog.watch(h, at)
	return h
}

// The token of a hold is known until it ends; then no room is kept for very many. Holds of several locks, and of both
// sides of one, may have one number.
func TestWatchdogListsItsHolds(t *testing.T) {
	for name, most := range map[string]int{"a number each": 2 * spareHolds, "few numbers": 500, "one number": 1} {
		t.Run(name, func(t *testing.T) {
			c := unserved(t)
			defer c.watchdog.Close()
			token := func(h *hold) int64 { return c.watchdog.tokenOf(h.core.id(), h.core.side, h.number) }
			var all []*hold
			for i := range 2 * spareHolds {
				h := standIn(c, c.NewLock(fmt.Sprint("lock ", i/most)).core, i%most, c.now().Add(seam.FarAway))
				h.token = int64(i + 1)
				all = append(all, h)
			}
			for _, h := range all {
				if got := token(h); got != h.token {
					t.Fatalf("token %d, want %d", got, h.token)
				}
			}
			if got, n := c.watchdog.all(), c.watchdog.held(); len(got) != len(all) || n != len(all) {
				t.Errorf("%d holds are listed and %d counted, want %d", len(got), n, len(all))
			}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for _, h := range all {
				c.watchdog.forget(h)
				c.watchdog.forget(h)
				if got := token(h); got != 0 {
					t.Fatalf("token %d of a hold that has ended", got)
				}
			}
			if w := c.watchdog; w.held() != 0 || len(w.holds) > 0 || w.most > spareHolds {
				t.Error("room for holds that have ended is kept")
			}
		})
	}
}

// ignoring is an Observer that ignores what it is told.
type ignoring struct{}

func (ignoring) AcquireStart(ctx context.Context, _ StartEvent) context.Context { return ctx }
func (ignoring) AcquireEnd(context.Context, AcquireEvent)                       {}
func (ignoring) Lost(context.Context, LossEvent)                                {}
func (ignoring) Unlocked(context.Context, UnlockEvent)                          {}

// blockedObserver does not return from its first Renewed.
type blockedObserver struct {
	ignoring
	entered, leave         chan struct{}
	renewed, lost, dropped atomic.Int64
}

func (o *blockedObserver) Renewed(context.Context, RenewalEvent) {
	if o.renewed.Add(1) == 1 {
		close(o.entered)
		<-o.leave
	}
}
func (o *blockedObserver) Lost(context.Context, LossEvent) { o.lost.Add(1) }
func (o *blockedObserver) Dropped(n int)                   { o.dropped.Add(int64(n)) }

// What waits for an observer that blocks has a bound, and losses are not left out.
func TestObserverThatBlocksHasABoundedQueue(t *testing.T) {
	o := &blockedObserver{entered: make(chan struct{}), leave: make(chan struct{})}
	c := unserved(t, WithObserver(o))
	const events, losses = 10 * notify.Most, 50
	c.events.Later(func() { c.events.renewed(t.Context(), RenewalEvent{}) })
	<-o.entered
	for i := range events - 1 {
		c.events.Later(func() { c.events.renewed(t.Context(), RenewalEvent{}) })
		if i%(events/losses) == 0 {
			(&hold{core: c.NewLock("a").core, observed: &observed{acquireEnded: true}}).reportLoss(c.now(), ErrExpired)
		}
	}
	close(o.leave)
	if err := c.Close(); err != nil { // waits for it
		t.Error(err)
	}
	if n := o.lost.Load(); n != losses {
		t.Errorf("%d of %d losses were told", n, losses)
	}
	if told, dropped := o.renewed.Load(), o.dropped.Load(); told+dropped != events || told > notify.Most+1 {
		t.Errorf("of %d events %d were told and %d counted as dropped", events, told, dropped)
	}
}

// Shutdown does not wait for ever for an observer that does.
func TestShutdownWithAnObserverThatNeverReturns(t *testing.T) {
	o := &blockedObserver{entered: make(chan struct{}), leave: make(chan struct{})}
	c := unserved(t, WithObserver(o), WithUnlockTimeout(100*time.Millisecond))
	c.events.Later(func() { c.events.renewed(t.Context(), RenewalEvent{}) })
	<-o.entered
	if err := c.Shutdown(t.Context()); err == nil {
		t.Error("Shutdown does not say that the Observer has not returned")
	}
	close(o.leave)
}

// A hold with a short fixed lease is entered again without one, and replicas have to
// confirm leases: what they know ends with the fixed lease, so a renewal is due at once.
func TestReentryThatReplicasDoNotKnowIsRenewedInTime(t *testing.T) {
	c := unserved(t, WithReplicaAck(1, time.Second))
	defer c.watchdog.Close()
	l := grantingLock(c, "a")
	h := &hold{core: l, number: 1, token: 1}
	short := h.start(c.now(), c.now(), acquireConfig{lease: 2 * time.Second, hasLease: true})
	kept := protocol.Result[protocol.Kept]{Outcome: protocol.Done}
	if _, err := h.reentered(&kept, c.now(), acquireConfig{lease: c.cfg.watchdogLease}); err != nil {
		t.Fatal(err)
	}
	for l.proto.(*granting).renewals.Load() == 0 {
		if err := short.Err(); err != nil {
			t.Fatalf("%v, and no renewal was sent", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// tellingClock is a clock that a test sets.
type tellingClock struct {
	seam.SystemClock
	ahead atomic.Int64
}

func (c *tellingClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// An outage that no renewal has seen the end of is over when there are none for a lease: the next one is
// logged, and does not count from the first.
func TestOutageEndsWithItsRenewals(t *testing.T) {
	var clock tellingClock
	var log bytes.Buffer
	lines := func(c *Client) string {
		done := make(chan struct{})
		c.events.Always(func() { close(done) })
		<-done
		defer log.Reset()
		return log.String()
	}
	c := unserved(t, seam.Option(seam.Env{Clock: &clock}).(Option), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	defer c.watchdog.Close()
	w := c.watchdog
	standIn(c, c.NewLock("a").core, 1, c.now().Add(100*time.Hour)) // of another node
	lines(c)
	pass := func(d time.Duration) { clock.ahead.Add(int64(d)) }
	for _, step := range []struct {
		pass    time.Duration
		renewed bool
		want    string
	}{
		{0, false, "renewals fail"},
		{20 * time.Second, false, ""},
		{20 * time.Second, false, ""}, // another hold
		{6 * time.Hour, false, "renewals fail"},
		{3 * time.Second, true, "after=3s"},
		{10 * time.Second, true, ""},
		{10 * time.Second, false, "renewals fail"},
		{6 * time.Hour, true, ""}, // the hold of that outage was lost
		{10 * time.Second, false, "renewals fail"},
	} {
		pass(step.pass)
		var failed error
		if !step.renewed {
			failed = ErrUnreachable
		}
		w.renewals("node", nil, step.renewed, failed)
		if got := lines(c); !strings.Contains(got, step.want) || (got == "") != (step.want == "") {
			t.Errorf("%+v: %q", step, got)
		}
	}
}

// The losses of the last second have their line also if the client is closed in it, and each of them is counted once.
func TestLossesOfTheLastSecondAreLoggedAtClose(t *testing.T) {
	for name, settled := range map[string]bool{"when all are counted": true, "while they wait for the logger": false} {
		t.Run(name, func(t *testing.T) {
			var clock tellingClock // which stands still
			var log bytes.Buffer
			c := unserved(t, seam.Option(seam.Env{Clock: &clock}).(Option), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			goOn := make(chan struct{})
			c.events.Always(func() { <-goOn })
			lose := func(holds int) {
				for range holds {
					(&hold{core: c.NewLock("a").core, observed: &observed{acquireEnded: true}}).reportLoss(c.now(), ErrExpired)
				}
			}
			lose(mostLossLines + 16)
			if settled {
				close(goOn)
				done := make(chan struct{})
				c.events.Always(func() { close(done) })
				<-done
			} else {
				defer time.AfterFunc(100*time.Millisecond, func() { close(goOn) }).Stop() // while Close waits
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if n, more := strings.Count(log.String(), "lease lost"), strings.Count(log.String(), "more leases lost\" holds=16"); n != mostLossLines || more != 1 || strings.Count(log.String(), "WARN") != n+more {
				t.Errorf("%d and %d lines:\n%s", n, more, log.String())
			}
		})
	}
}
