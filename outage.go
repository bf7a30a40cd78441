package rlock

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// cleanUp has a task repeated in the background, between two times, until Redis has confirmed it: see
// timers.CleanUps.
func (c *Client) cleanUp(of any, t protocol.Task, from, until clock.Instant, then func()) (over <-chan struct{}) {
	over = c.cleanups.Add(of, t, from, until, then)
	c.presence.Use()
	return over
}

// forget ends an operation that has failed. If it may have had an effect, or may have one
// yet, undo is sent. It reports whether that was answered.
func (c *Client) forget(of protocol.LockID, p *protocol.Page, effect bool, undo func() protocol.Task) (answered bool) {
	give := func() { c.pages.Give(p) }
	if !effect {
		give()
		return false
	}
	return c.undoThen(of, undo(), c.now().Add(protocol.RecordTTL), give)
}

// undoThen is attempt.undo, for whatever has the id. It calls then, if that is not nil, when
// the task is not repeated any more.
func (c *Client) undoThen(of protocol.LockID, t protocol.Task, until clock.Instant, then func()) (answered bool) {
	over := c.cleanUp(of, t, c.now(), until, then)
	grace := time.NewTimer(protocol.GiveUpGrace)
	defer grace.Stop()
	select {
	case <-over:
		c.lines.wake(of)
		return true
	case <-grace.C:
		return false
	}
}

// outage is for how long Redis has given no answer to one call.
type outage struct {
	since    time.Time // when the first look began that was not answered; zero: the last one was
	failures int       // of the head of a line
}

// outlast is called by the head of a line after a look without an answer that began then. It
// returns the pause before the next; or, with how long it was, that the outage is too long, which
// it tells those behind it: longer than a watchdog lease, or than most.
func (c *Client) outlast(o *outage, most time.Duration, w *waiter, began time.Time, err error) (pause time.Duration, over error) {
	if o.since.IsZero() {
		o.since = began
	}
	if enough := c.env.Clock.Now().Add(-min(c.cfg.watchdogLease, most)); !o.since.After(enough) {
		err = wire.Tried(err, c.env.Clock.Now().Sub(o.since))
		c.lines.fail(w, enough, err)
		return 0, err
	}
	pause = min(50*time.Millisecond<<min(o.failures, 5), time.Second)
	o.failures++
	return pause, nil
}

// errAside is why a waiter leaves its line: see attempt.aside.
var errAside = errors.New("there are not so many permits")
