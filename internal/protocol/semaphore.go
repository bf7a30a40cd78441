package protocol

import (
	"strconv"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// Semaphore is the protocol of a Semaphore. Its state is a number, the free permits.
type Semaphore struct {
	numeric
	channel string
	to      any // channel, boxed once
	initial int // permits to set if no number is set, or 0
}

// NewSemaphore returns the protocol of a Semaphore. initial is the number of permits to set if the number was never
// set, or 0.
func NewSemaphore(site *Site, names *Names, initial int) *Semaphore {
	channel := prefixed("redisson_sc", names.Lock)
	return &Semaphore{newNumber(site, names), channel, channel, initial}
}

// numeric is embedded by Semaphore and CountDownLatch. Their state is a number at the key with their name, and each
// operation changes it once. Scripts that change the number use other keys to distinguish the two types. Scripts that
// only read do not need these keys.
type numeric struct {
	located
	key any // boxed once

	mu        sync.Mutex // guards otherKeys
	otherKeys [2]any     // the mark and the held permits, boxed once
}

func newNumber(site *Site, names *Names) numeric {
	return numeric{located: located{site, names}, key: names.Lock}
}

// more returns the other keys.
func (c *numeric) more() [2]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.otherKeys[0] == nil {
		c.otherKeys = [2]any{c.names.all(), c.names.held()}
	}
	return c.otherKeys
}

// change makes the request of a script that changes the number.
func (c *numeric) change(script string, op Op, args ...any) *task {
	t := c.site.newTask(script, nil, nil)
	putWords(&t.r, c.key, c.names, op, c.more(), args...)
	return t
}

// changing is change with an outcome.
func changing[T any](c *numeric, script string, op Op, read func(wire.Answer) (T, error), args ...any) Request[T] {
	q := newRequest(c.site, script, nil, nil, read)
	putWords(&q.r, c.key, c.names, op, c.more(), args...)
	return q
}

// all returns the key with the number of all permits of a Semaphore, free or not, or with the mark of another type
// that uses the name.
func (n *Names) all() string { return n.Derived("rlock:all") }

// held returns the key with the held permits of a PermitSemaphore.
func (n *Names) held() string { return n.Derived("timeout") }

// Taken is the outcome of an acquire of permits.
type Taken struct {
	Verdict Verdict // Granted, Busy, Withdrawn or NotSet
	Supply
}

// Permitted is the state of a Semaphore.
type Permitted struct {
	Set bool // the number of permits was set
	Supply
}

// Acquire takes n permits. If reportsLeft is true, it publishes for other waiters how many are left.
func (s *Semaphore) Acquire(op Op, n int64, reportsLeft bool) Request[Taken] {
	others := "" // channel of other waiters
	if reportsLeft {
		others = s.channel + taken
	}
	switch {
	case s.initial > 0:
		return changing(&s.numeric, "semaphore/acquire", op, readTaken, n, others, s.site.howOrBoth(), s.initial, s.to)
	case reportsLeft:
		return changing(&s.numeric, "semaphore/acquire", op, readTaken, n, others, s.site.howOrBoth())
	}
	return changing(&s.numeric, "semaphore/acquire", op, readTaken, n)
}

// Release puts n permits back.
func (s *Semaphore) Release(op Op, n int64) Task {
	t := s.change("semaphore/release", op, n, s.to, s.site.howOrBoth())
	if s.initial > 0 {
		t.r.Args = append(t.r.Args, s.initial)
	}
	return t
}

// Change changes the number of all permits, free or not. It reports whether the number was changed: SetPermits requires
// that Redis has the current number.
func (s *Semaphore) Change(op Op, how PermitChange, n int) Request[bool] {
	return changing(&s.numeric, "semaphore"+string(how), op, readSet, n, s.to, s.site.howOrBoth())
}

// Drain takes all free permits, and returns their number.
func (s *Semaphore) Drain(op Op) Request[int64] {
	return changing(&s.numeric, "semaphore/drain", op, readDrained)
}

// Undo undoes an Acquire, Add or Drain.
func (s *Semaphore) Undo(op Op) Task {
	t := s.site.newTask("semaphore/undo", nil, nil)
	putWords(&t.r, s.key, s.names, op, [2]any{s.names.all()}, s.to, s.site.howOrBoth())
	return t
}

// Available requests the number of free permits.
func (s *Semaphore) Available() Request[int64] {
	return newRequest(s.site, "semaphore/available", []string{s.names.Lock}, nil, readCount)
}

// Inspect requests the number of permits.
func (s *Semaphore) Inspect() Request[Permitted] {
	q, more := newRequest(s.site, "semaphore/inspect", nil, nil, readPermitted), s.more()
	q.r.Put(3, s.key, more[0], more[1])
	return q
}

// Delete deletes the semaphore. It reports whether the semaphore existed.
func (s *Semaphore) Delete(op Op) Request[bool] {
	return changing(&s.numeric, "semaphore/delete", op, readBool, s.to, s.site.howOrBoth())
}

// SubscribeToFreed implements Crowded.
func (s *Semaphore) SubscribeToFreed(notify func(), freed func(n int64)) (end func()) {
	return s.site.listenForNumbers(s.channel, notify, freed)
}

// SubscribeToTaken implements Crowded.
func (s *Semaphore) SubscribeToTaken(taken func(left int64)) (end func()) {
	return s.site.listenForTaken(s.channel, taken)
}

// taken is the suffix of the channel on which an acquire publishes how many permits are left. The rest of the name is
// the channel on which releases of permits are announced.
const taken = ":rlock:taken"

// listenForNumbers subscribes to a channel whose messages are numbers: see Crowded.
func (s *Site) listenForNumbers(channel string, notify func(), number func(n int64)) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.ListenTo(channel, notify, func(message string) {
		n, _ := strconv.ParseInt(message, 10, 64) // a message without a number counts as 0
		number(n)
	})
}

// listenForTaken subscribes to the number of permits left after an acquire. channel announces the releases.
func (s *Site) listenForTaken(channel string, left func(n int64)) (end func()) {
	return s.listenForNumbers(channel+taken, nil, left)
}

// supply returns the Supply with the free permits. The number of all permits is in rest, unless rest is empty.
func supply(free int64, rest []any) (s Supply) {
	s.Free = free
	if len(rest) > 0 {
		s.All, s.Counted = rest[0].(int64)
	}
	return s
}

func readTaken(a wire.Answer) (Taken, error) {
	if left, ok := a.Val.(int64); ok && a.Err == nil {
		return Taken{Granted, Supply{Free: left}}, nil
	}
	code, n, more, err := a.Pair()
	if err != nil {
		return Taken{}, err
	}
	switch code {
	case codeBusy:
		return Taken{Busy, supply(n, more)}, nil
	case codeWithdrawn:
		return Taken{Verdict: Withdrawn}, nil
	case codeNotSet:
		return Taken{Verdict: NotSet}, nil
	}
	return Taken{}, wire.ErrReply(a.Val)
}

func readSet(a wire.Answer) (bool, error) {
	n, err := a.Int()
	return n == 1, overflown(err)
}

func readPermitted(a wire.Answer) (Permitted, error) {
	set, free, more, err := a.Pair()
	return Permitted{set == 1, supply(free, more)}, err
}

func readDrained(a wire.Answer) (int64, error) {
	code, n, _, err := a.Pair()
	if err == nil && code != codeGranted {
		err = wire.ErrReply(a.Val)
	}
	return n, err
}
