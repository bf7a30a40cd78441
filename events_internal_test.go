package rlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

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
		e.Surely(func() { e.lost(ctx, LossEvent{}) })
		e.Later(func() { e.renewed(ctx, RenewalEvent{}) })
		e.Surely(func() { e.leadership(ctx, LeadershipEvent{}) })
		e.Later(func() { e.retry(ctx, RetryEvent{}) })
		e.Later(func() { e.subscription("a", false) })
	}
	e.Unpublished(errors.New("not permitted"))
	e.Surely(func() { e.droppedSome(3) })
	last := make(chan struct{})
	e.Surely(func() { close(last) })
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

// Only what an Observer implements is called, which is found out once.
func TestObserverNeedsNoOptionalMethod(t *testing.T) {
	t.Parallel()
	c := unserved(t, WithObserver(ignoring{}))
	e, ctx := c.events, t.Context()
	if all := (observers{observer: ignoring{}}); e.observers != all {
		t.Errorf("%+v", e.observers)
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
	if none := unserved(t).events; none.observers != (observers{}) || none.Listens {
		t.Errorf("%+v", none.observers)
	}
	if _, err := New(nil, WithObserver(nil)); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}
