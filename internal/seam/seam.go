// Package seam is where the library meets the world outside: clocks, random
// numbers, the text of its scripts, and the points at which a process may be
// stopped. Tests, the simulation and rlocktest put their own in; programs
// never need to.
package seam

import "time"

// Env is one world. A nil field means the real thing.
type Env struct {
	// Clock drives leases, renewals and the polling of waiters. What bounds I/O
	// and calls, contexts and WithWait among them, is left to the real clock.
	Clock Clock
	// ClientID replaces the random UUID of the client.
	ClientID string
	// Seed replaces the random seed of jitter. Jitter is a function of the
	// seed and of who asks, never of the order of asking.
	Seed uint64
	// Gate is called wherever a real process could be stopped for a while:
	// after a reply was read, after a timer fired, before a hold is handed to
	// its caller. It may block.
	Gate func(point string)
	// Work is called when a goroutine begins something that belongs to this
	// moment: a command and what follows from its answer, or a look at what is
	// due. It returns what is called at the end. A test that moves the clock
	// waits for what is under way first.
	Work func() (end func())
	// Attach is given, once, what has a client ask Redis at once about its holds of a
	// lock, so that it learns of a loss without the time until its next renewal.
	Attach func(check func(lock string))
	// Scripts replaces the text of scripts by name ("lock/enter"), so that a test
	// can show that it notices a wrong one.
	Scripts map[string]string
}

// Begin calls Work, if there is one.
func (e *Env) Begin() (end func()) {
	if e.Work == nil {
		return func() {}
	}
	return e.Work()
}

// Stop calls Gate, if there is one.
func (e *Env) Stop(point string) {
	if e.Gate != nil {
		e.Gate(point)
	}
}

// Clock is the time as a lease sees it.
type Clock interface {
	Now() time.Time
	NewTimer(d time.Duration) Timer
}

// Timer is a time.Timer that may belong to a Clock of a test.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// Option makes an rlock.Option of an Env. Package rlock sets it when it is
// initialised; the result is an any only because this package cannot import
// that one.
var Option func(Env) any

// Script is the text of a script as a server is sent it, and the hash under which the
// server knows it. Package rlock sets it when it is initialized.
var Script func(name string) (text, sha string)
