package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wait"
)

// What an owner does at one lock costs the same however many others it holds.
func TestLookupOfAnOwnersLockTakesConstantTime(t *testing.T) {
	c := &Client{cfg: defaults()}
	look := func(holding int) time.Duration {
		own := &owner{}
		for i := range holding {
			l, _ := newCore(c, protocol.HashFamily, strconv.Itoa(i), lockConfig{}, nil)
			own.at(l) // in use, and so kept
		}
		l, _ := newCore(c, protocol.HashFamily, strconv.Itoa(holding-1), lockConfig{}, nil)
		least := time.Hour
		for range 20 {
			start := time.Now()
			for range 1000 {
				own.at(l).doneUsing()
			}
			least = min(least, time.Since(start)/1000)
		}
		return least
	}
	few, many := look(1), look(16_000)
	t.Logf("holding 1 lock: %v, 16,000: %v", few, many)
	if many > 20*few {
		t.Errorf("a look takes %v for one who holds 16,000 locks, %v for one who holds 1", many, few)
	}
}

// rude is an Observer that panics in each of the methods that the queue calls.
type rude struct {
	ignoring
	mu   sync.Mutex // guards seen
	seen []string
}

func (o *rude) is(method string) {
	o.mu.Lock()
	o.seen = append(o.seen, method)
	o.mu.Unlock()
	panic("rude")
}

func (o *rude) Lost(context.Context, LossEvent)             { o.is("Lost") }
func (o *rude) Renewed(context.Context, RenewalEvent)       { o.is("Renewed") }
func (o *rude) Leadership(context.Context, LeadershipEvent) { o.is("Leadership") }
func (o *rude) Retry(context.Context, RetryEvent)           { o.is("Retry") }
func (o *rude) Subscription(SubscriptionEvent)              { o.is("Subscription") }
func (o *rude) Unpublished(error)                           { o.is("Unpublished") }
func (o *rude) Dropped(int)                                 { o.is("Dropped") }

type text struct {
	mu sync.Mutex // guards the rest
	strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(b)
}

// A method that panics keeps no other event back.
func TestEventsOutlastARudeObserver(t *testing.T) {
	t.Parallel()
	o, log := &rude{}, &text{}
	c := unserved(t, WithObserver(o), WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	e, ctx := c.events, t.Context()
	for range 2 {
		e.Always(func() { e.lost(ctx, LossEvent{}) })
		e.Later(func() { e.renewed(ctx, RenewalEvent{}) })
		e.Always(func() { e.leadership(ctx, LeadershipEvent{}) })
		e.Later(func() { e.retry(ctx, RetryEvent{}) })
		e.Later(func() { e.subscription("a", false) })
	}
	e.Unpublished(errors.New("not permitted"))
	e.Always(func() { e.droppedSome(3) })
	last := make(chan struct{})
	e.Always(func() { close(last) })
	<-last
	if err := c.Close(); err != nil { // waits for the queue
		t.Error(err)
	}
	slices.Sort(o.seen)
	want := []string{"Dropped", "Leadership", "Leadership", "Lost", "Lost", "Renewed", "Renewed", "Retry", "Retry", "Subscription", "Subscription", "Unpublished"}
	if !slices.Equal(o.seen, want) {
		t.Errorf("%q, want %q", o.seen, want)
	}
	for _, method := range want {
		if n := strings.Count(log.String(), "where=Observer."+method+" "); n != 1 {
			t.Errorf("%d log lines about %s", n, method)
		}
	}
}

// Only what an Observer implements is called.
func TestObserverNeedsNoOptionalMethod(t *testing.T) {
	t.Parallel()
	c := unserved(t, WithObserver(ignoring{}))
	e, ctx := c.events, t.Context()
	if !observes[Observer](e) || observes[ContentionObserver](e) || observes[RenewalObserver](e) || observes[LeadershipObserver](e) ||
		observes[RetryObserver](e) || observes[SubscriptionObserver](e) || observes[PublishObserver](e) || observes[DropObserver](e) {
		t.Error("what it implements is not known")
	}
	e.contended(ctx, ContentionEvent{})
	e.retry(ctx, RetryEvent{})
	e.Retried(ctx, "lock/enter", ErrUnreachable)
	e.subscription("a", true)
	e.Unpublished(ErrUnreachable)
	e.droppedSome(1)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if none := unserved(t).events; observes[Observer](none) || none.HasReceiver {
		t.Errorf("%+v", none.observer)
	}
	if _, err := New(nil, WithObserver(nil)); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

// What the last look has found out about the servers says more than that the next is not answered.
func TestUnansweredRequestKeepsThePreviousError(t *testing.T) {
	sent := time.Now()
	before := fmt.Errorf("%w; node 3: no answer", quorum.ErrNoQuorum)
	s := snapshot{Status: wait.Status{Err: before, Pending: sent}}
	s.settle(sent.Add(time.Minute), false, protocol.GiveUpGrace)
	if s.Err != before {
		t.Errorf("%v", s.Err)
	}
	s = snapshot{Status: wait.Status{Held: true, Pending: sent}}
	s.settle(sent.Add(time.Minute), false, protocol.GiveUpGrace)
	if !errors.Is(s.Err, ErrUnreachable) {
		t.Errorf("%v", s.Err)
	}
}

// A server that has just said who holds the lock is not taken for unreachable because its next answer takes
// part of a second. What was seen long ago, in another wait, says nothing about the server. A server that is far away
// has longer to answer.
func TestSilenceThatSaysThatTheServerIsAway(t *testing.T) {
	sent := time.Now()
	for _, c := range []struct {
		name   string
		seen   wait.Status
		silent time.Duration
		away   bool
		grace  time.Duration // if not protocol.GiveUpGrace
	}{
		{"nothing was seen, short", wait.Status{}, 99 * time.Millisecond, false, 0},
		{"nothing was seen, long", wait.Status{}, 100 * time.Millisecond, true, 0},
		{"seen just before, short", wait.Status{Held: true, At: sent}, 999 * time.Millisecond, false, 0},
		{"seen just before, long", wait.Status{Held: true, At: sent}, time.Second, true, 0},
		{"seen long ago", wait.Status{Held: true, At: sent.Add(-time.Second), Until: sent.Add(time.Hour)}, 100 * time.Millisecond, true, 0},
		{"nothing was seen, far away, short", wait.Status{}, 319 * time.Millisecond, false, 320 * time.Millisecond},
		{"nothing was seen, far away, long", wait.Status{}, 320 * time.Millisecond, true, 320 * time.Millisecond},
	} {
		last := snapshot{Status: c.seen}
		last.Pending = sent
		last.settle(sent.Add(c.silent), false, cmp.Or(c.grace, protocol.GiveUpGrace))
		if got := errors.Is(last.Err, ErrUnreachable); got != c.away {
			t.Errorf("%s: unreachable: %v", c.name, got)
		}
	}
}

// A wait that is over says that Redis gives no answer only if it was silent for a while: the last member of a
// MultiLock may have had a moment of the wait.
func TestWaitThatIsOverBeforeAnAnswer(t *testing.T) {
	for _, c := range []struct {
		waited time.Duration
		want   string
		away   bool
		grace  time.Duration // if more than protocol.GiveUpGrace
	}{
		{99 * time.Millisecond, "not acquired: timed out after 5s, before Redis has answered", false, 0},
		{319 * time.Millisecond, "not acquired: timed out after 5s, before Redis has answered", false, 320 * time.Millisecond},
		{320 * time.Millisecond, "timed out after 5s; no answer from Redis", true, 320 * time.Millisecond},
		{100 * time.Millisecond, "timed out after 5s; no answer from Redis", true, 0},
	} {
		err := timedOut(5*time.Second, c.waited, c.grace)
		if err.Error() != c.want || errors.Is(err, ErrUnreachable) != c.away || errors.Is(err, ErrNotAcquired) == c.away {
			t.Error(err)
		}
		seen := snapshot{grace: c.grace}
		caller := interrupted(t.Context(), context.DeadlineExceeded, ErrNotAcquired, 5*time.Second, c.waited, &seen, time.Now())
		if caller.Error() != c.want {
			t.Error(caller)
		}
	}
}

// granting is the protocol of a lock that is always free, whose requests cost nothing.
type granting struct {
	others
	c       *Client
	entered *answer[protocol.Entered]
	kept    protocol.Task

	renewals atomic.Int32 // sent
}

// others are the methods that are not called.
type others struct{ protocol.Protocol }

type answer[T any] struct {
	protocol.Task
	r protocol.Result[T]
}

func (a *answer[T]) Do(context.Context, time.Duration) protocol.Result[T] { return a.r }
func (a *answer[T]) Send(protocol.Dispatch)                               {}

func (g *granting) NewID() protocol.HoldID                    { return g.c.newID() }
func (g *granting) Ready(context.Context) error               { return nil }
func (g *granting) Prepare()                                  {}
func (g *granting) Release(string, int) protocol.Task         { return g.kept }
func (g *granting) Renew(string, time.Duration) protocol.Task { g.renewals.Add(1); return g.kept }

func (g *granting) Enter(*protocol.Acquire) protocol.Request[protocol.Entered] {
	g.entered.r.Outcome.Token++
	return g.entered
}

func grantingLock(c *Client, name string) *core {
	l := c.NewLock(name).core
	l.proto = &granting{
		c:       c,
		entered: &answer[protocol.Entered]{r: protocol.Result[protocol.Entered]{Outcome: protocol.Entered{Verdict: protocol.Granted, Token: 1}}},
		kept:    &answer[protocol.Kept]{},
	}
	return l
}

// What a pair allocates above the requests: the attempt, the hold with its lease, and the id of
// the hold, for each request.
func TestAllocationsOfAPairAboveTheRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	c := unserved(t)
	defer c.watchdog.Close()
	l := newLocker(grantingLock(c, "a"))
	for _, test := range []struct {
		name string
		ctx  context.Context
		most float64
	}{
		{"a context that never ends", context.Background(), 4},
		{"a context that may end", t.Context(), 5}, // Unlock outlives it
	} {
		pair := func() {
			lease, err := l.Lock(test.ctx)
			if err == nil {
				err = lease.Unlock(test.ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(1000, pair); n > test.most {
			t.Errorf("%s: a pair allocates %v times, want %v", test.name, n, test.most)
		}
	}
}

// A hold keeps its number only: the number must tell its id, whatever its type.
func TestNumberOfAHoldDeterminesItsID(t *testing.T) {
	c := unserved(t)
	defer c.watchdog.Close()
	for _, l := range []*core{c.NewLock("a").core, c.NewFencedLock("a").core, c.NewReadWriteLock("b").Reader.core, c.NewPriorityLock("c").core} {
		id := l.proto.NewID()
		if h := (&hold{core: l, number: id.Number}); h.id() != id.ID || c.numberOf(id.ID) != id.Number {
			t.Errorf("%T: the number of %s is %d, whose id is %s", l.proto, id.ID, c.numberOf(id.ID), h.id())
		}
	}
	if n := c.numberOf("another:1"); n != 0 {
		t.Errorf("the hold of another client has the number %d here", n)
	}
}

// The answer to a renewal allocates nothing if nobody is told of it.
func TestAllocationsOfAConfirmedRenewal(t *testing.T) {
	if testing.Short() {
		t.Skip("counts allocations")
	}
	c := unserved(t)
	defer c.watchdog.Close()
	h := &hold{core: grantingLock(c, "a"), number: 1, token: 1}
	lease := h.start(c.now(), c.now(), acquireConfig{lease: c.cfg.watchdogLease})
	kept := protocol.Result[protocol.Kept]{Outcome: protocol.Done}
	n := testing.AllocsPerRun(1000, func() { h.Answered(timers.Do{}, c.now(), kept) })
	if n > 0 {
		t.Errorf("a confirmed renewal allocates %v times", n)
	}
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
}
