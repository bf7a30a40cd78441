// Package seam has what tests replace in the library: clocks, random numbers, the text of scripts, and
// the points at which a process may be stopped. Tests, the simulation and rlocktest use it; programs
// never need to. It imports no other package of the module.
package seam

import (
	"context"
	"io"
	"strconv"
	"time"
)

// Env replaces the clock, the seed and so on of a client. A zero field keeps the real one.
type Env struct {
	// Clock drives leases, renewals and the polling of waiters. The bounds of I/O and of
	// calls, such as contexts and WithWait, follow the real clock.
	Clock Clock
	// ClientID replaces the random UUID of the client.
	ClientID string
	// Seed replaces the random seed of jitter. Jitter is a function of the seed and of the
	// caller, never of the order of calls.
	Seed uint64
	// Random is the source of secrets.
	Random io.Reader
	// Gate is called where a real process could be stopped for a while: after a reply was
	// read, after a timer fired, before a hold is returned to its caller. It may block.
	Gate func(point string)
	// Work is called when a goroutine begins work that belongs to the current time of the
	// clock: a command and the handling of its reply, or serving what is due. The returned
	// function is called at the end. A test that moves the clock waits for such work first.
	Work func() (end func())
	// Attach is called once, with a function that makes the client check its holds of a lock in
	// Redis immediately, so that it notices a loss before the next renewal.
	Attach func(check func(lock string))
	// Anonymous: the client neither introduces itself nor finds out the processes of others.
	Anonymous bool
	// Alone is how many requests may be under way to one server before others are combined
	// in pipelines.
	Alone int
	// Keep replaces how long lines without waiters are kept, by the real clock.
	Keep time.Duration
	// Scripts replaces the text of scripts by name ("lock/enter"), so that a test can prove that
	// it notices a mistake in a script.
	Scripts map[string]string
}

// Begin calls Work, unless nil.
func (e *Env) Begin() (end func()) {
	if e.Work == nil {
		return func() {}
	}
	return e.Work()
}

// Stop calls Gate, unless nil.
func (e *Env) Stop(point string) {
	if e.Gate != nil {
		e.Gate(point)
	}
}

// StopOf is Stop for one of many goroutines that may be at a point in the same instant.
func (e *Env) StopOf(point string, who int64) {
	if e.Gate != nil {
		e.Gate(point + " " + strconv.FormatInt(who, 10))
	}
}

// Clock is the clock of leases.
type Clock interface {
	Now() time.Time
	NewTimer(d time.Duration) Timer
}

// Timer is a time.Timer, or one of a test's Clock.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// Option makes an rlock.Option from an Env. Package rlock sets it when it is initialized. The
// result is an any because this package cannot import that one.
var Option func(Env) any

// Script returns the text of a script, as it is sent to a server, and its SHA-1. Package rlock sets it
// when it is initialized.
var Script func(name string) (text, sha string)

// Waiters returns how many calls wait for a lock, of any type, in its client. Package rlock sets it when
// it is initialized.
var Waiters func(lock any) int

type ofGroup struct{}

// InGroup returns ctx for the acquires that a MultiLock makes of its members.
func InGroup(ctx context.Context) context.Context { return context.WithValue(ctx, ofGroup{}, true) }

// OfGroup reports whether a MultiLock acquires one of its members.
func OfGroup(ctx context.Context) bool { return ctx.Value(ofGroup{}) != nil }
