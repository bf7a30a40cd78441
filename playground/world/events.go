package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock"
)

// Kind is what has happened.
type Kind string

// What the library reports to its Observer.
const (
	Waiting     Kind = "waiting"     // an acquire begins to wait
	Held        Kind = "held"        // an acquire has the lock
	GaveUp      Kind = "gave-up"     // an acquire has ended without the lock
	Renewed     Kind = "renewed"     // the watchdog has renewed the lease
	NotRenewed  Kind = "not-renewed" // a renewal has failed
	Retried     Kind = "retried"     // a request has failed, and is sent again
	Lost        Kind = "lost"        // the lease was lost
	Released    Kind = "released"    // Redis has confirmed the release
	Unconfirmed Kind = "unconfirmed" // Redis has not confirmed the release
)

// What the resource reports.
const (
	Accepted   Kind = "accepted"    // a write took effect
	Refused    Kind = "refused"     // the fence refused a write, or a read before one
	LostUpdate Kind = "lost-update" // a write took effect, and another update is overwritten
)

// What is done to the world, and what it shows.
const (
	Paused    Kind = "paused"
	Resumed   Kind = "resumed"
	Cut       Kind = "cut"
	Healed    Kind = "healed"
	Killed    Kind = "killed"
	Started   Kind = "started"
	Flushed   Kind = "flushed"
	Fence     Kind = "fence"
	ReplyLost Kind = "reply-lost" // the next acquire's reply will be lost
	TwoOwners Kind = "two-owners" // two processes have a valid lease at the same time
	Stopped   Kind = "stopped"    // a client's program has ended its work, as its context has ended
	Shown     Kind = "shown"      // what Redis has of the lock
)

// Event is one thing that has happened.
type Event struct {
	At     time.Duration `json:"at"` // since the world began, in nanoseconds
	Kind   Kind          `json:"kind"`
	Client string        `json:"client,omitempty"` // empty for Redis and the resource
	Token  int64         `json:"token,omitempty"`
	Cause  error         `json:"-"`
	Name   string        `json:"name,omitempty"` // of the cause, as in the library
	Text   string        `json:"text"`           // a plain sentence
	Holds  int           `json:"holds"`
	On     bool          `json:"on,omitempty"` // of a fence
}

// observer makes events of what the library reports.
type observer struct{ p *process }

var (
	_ rlock.ContentionObserver = observer{}
	_ rlock.RenewalObserver    = observer{}
	_ rlock.RetryObserver      = observer{}
)

func (observer) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }

func (o observer) Contended(context.Context, rlock.ContentionEvent) {
	o.p.emit(Event{Kind: Waiting, Text: "waits for the lock."})
}

func (o observer) AcquireEnd(_ context.Context, e rlock.AcquireEvent) {
	switch {
	case e.Err == nil:
		o.p.emit(Event{Kind: Held, Token: e.Token, Text: fmt.Sprintf("holds the lock, with the token %s.", short(e.Token))})
	case errors.Is(e.Err, context.Canceled):
		o.p.emit(Event{Kind: GaveUp, Cause: e.Err, Text: "no longer waits."})
	default:
		o.p.emit(Event{Kind: GaveUp, Cause: e.Err, Text: "did not get the lock: " + because(e.Err) + "."})
	}
}

func (o observer) Renewed(_ context.Context, e rlock.RenewalEvent) {
	if e.Err == nil {
		o.p.emit(Event{Kind: Renewed, Token: e.Token, Text: "has renewed its lease."})
		return
	}
	o.p.emit(Event{Kind: NotRenewed, Token: e.Token, Cause: e.Err, Text: "could not renew its lease: " + because(e.Err) + "."})
}

func (o observer) Retry(_ context.Context, e rlock.RetryEvent) {
	o.p.emit(Event{Kind: Retried, Cause: e.Err, Text: fmt.Sprintf("got no answer (%s), and sends the request again.", e.Operation)})
}

func (o observer) Lost(_ context.Context, e rlock.LossEvent) {
	o.p.emit(Event{Kind: Lost, Token: e.Token, Cause: e.Cause, Text: "has lost the lock: " + because(e.Cause) + "."})
}

func (o observer) Unlocked(_ context.Context, e rlock.UnlockEvent) {
	switch {
	case e.Err == nil && e.Ends:
		o.p.emit(Event{Kind: Released, Token: e.Token, Text: "has released the lock."})
	case errors.Is(e.Err, rlock.ErrUnconfirmed):
		o.p.emit(Event{Kind: Unconfirmed, Token: e.Token, Cause: e.Err, Text: "got no answer to its release, which goes on in the background."})
	}
}

// causes have the name of an error, and what it means in plain words.
var causes = []struct {
	err        error
	name, text string
}{
	{rlock.ErrTakenOver, "ErrTakenOver", "Redis shows another owner"},
	{rlock.ErrRemoved, "ErrRemoved", "Redis no longer has the hold"},
	{rlock.ErrUnreachable, "ErrUnreachable", "Redis could not be reached in time"},
	{rlock.ErrExpired, "ErrExpired", "the lease ran out"},
	{rlock.ErrRefused, "ErrRefused", "Redis replied with an error"},
	{rlock.ErrNotAcquired, "ErrNotAcquired", "another owner has it"},
}

func nameOf(err error) string {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return ""
}

// because says in plain words why a lease was lost, or a request has failed.
func because(err error) string {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return fmt.Sprintf("%s (%s)", c.text, c.name)
		}
	}
	return "there was no answer"
}

// short is the end of a token, which is a time in microseconds: enough to compare tokens of one visit.
func short(token int64) string { return fmt.Sprintf("…%08d", token%1e8) }
