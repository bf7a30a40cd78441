package protocol

import (
	"strconv"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// Semaphore is the protocol of a Semaphore, whose state is a number: the free permits.
type Semaphore struct {
	number
	channel string
	to      any // channel, boxed once
	initial int // permits that are set if none were; 0: none are
}

// NewSemaphore returns the protocol of a Semaphore, of which so many permits are set if none were; 0: none
// are.
func NewSemaphore(site *Site, names *Names, initial int) *Semaphore {
	channel := prefixed("redisson_sc", names.Lock)
	return &Semaphore{newNumber(site, names), channel, channel, initial}
}

// number is what the types have in common whose state is a number at the key with their name, and each operation changes
// it once: Semaphore and CountDownLatch. Scripts that change one tell it from the other by further keys, which who only looks
// or waits does not need.
type number struct {
	located
	key any // boxed once

	mu     sync.Mutex // guards beside
	beside [2]any     // the mark and the held permits, boxed once
}

func newNumber(site *Site, names *Names) number {
	return number{located: located{site, names}, key: names.Lock}
}

// more are the other keys.
func (c *number) more() [2]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.beside[0] == nil {
		c.beside = [2]any{c.names.all(), c.names.held()}
	}
	return c.beside
}

// change makes the request of a script that changes the number.
func (c *number) change(script string, op Op, args ...any) *task {
	t := c.site.about(script, nil, nil)
	putWords(&t.r, c.key, c.names, op, c.more(), args...)
	return t
}

// changing is change with an outcome.
func changing[T any](c *number, script string, op Op, read func(wire.Answer) (T, error), args ...any) Request[T] {
	q := looking(c.site, script, nil, nil, read)
	putWords(&q.r, c.key, c.names, op, c.more(), args...)
	return q
}

// all is the key with how many permits a Semaphore has, free or not, or the mark of another type
// that has the name.
func (n *Names) all() string { return n.Derived("rlock:all") }

// held is the key with the held permits of a PermitSemaphore.
func (n *Names) held() string { return n.Derived("timeout") }

// Taken is the outcome of an acquire of permits.
type Taken struct {
	Verdict Verdict // Granted, Busy, Withdrawn or NotSet
	Supply
}

// Permitted is the state of a Semaphore.
type Permitted struct {
	Set bool // permits were set
	Supply
}

// Acquire takes n permits. If it tells, it publishes for other waiters how many are left.
func (s *Semaphore) Acquire(op Op, n int64, tells bool) Request[Taken] {
	others := "" // their channel
	if tells {
		others = s.channel + taken
	}
	switch {
	case s.initial > 0:
		return changing(&s.number, "semaphore/acquire", op, readTaken, n, others, s.site.counting(), s.initial, s.to)
	case tells:
		return changing(&s.number, "semaphore/acquire", op, readTaken, n, others, s.site.counting())
	}
	return changing(&s.number, "semaphore/acquire", op, readTaken, n)
}

// Release puts n permits back.
func (s *Semaphore) Release(op Op, n int64) Task {
	t := s.change("semaphore/release", op, n, s.to, s.site.counting())
	if s.initial > 0 {
		t.r.Args = append(t.r.Args, s.initial)
	}
	return t
}

// Change changes the number of permits, free or not. It reports whether it did: for SetPermits it must be known how many
// there are.
func (s *Semaphore) Change(op Op, how PermitChange, n int) Request[bool] {
	return changing(&s.number, "semaphore"+string(how), op, readSet, n, s.to, s.site.counting())
}

// Drain takes all free permits, and returns their number.
func (s *Semaphore) Drain(op Op) Request[int64] {
	return changing(&s.number, "semaphore/drain", op, readDrained)
}

// Undo undoes an Acquire, Add or Drain.
func (s *Semaphore) Undo(op Op) Task {
	t := s.site.about("semaphore/undo", nil, nil)
	putWords(&t.r, s.key, s.names, op, [2]any{s.names.all()}, s.to, s.site.counting())
	return t
}

// Available asks how many permits are free.
func (s *Semaphore) Available() Request[int64] {
	return looking(s.site, "semaphore/available", []string{s.names.Lock}, nil, readCount)
}

// Inspect asks how many permits there are.
func (s *Semaphore) Inspect() Request[Permitted] {
	q, more := looking(s.site, "semaphore/inspect", nil, nil, readPermitted), s.more()
	q.r.Put(3, s.key, more[0], more[1])
	return q
}

// Delete deletes the semaphore. It reports whether there was one.
func (s *Semaphore) Delete(op Op) Request[bool] {
	return changing(&s.number, "semaphore/delete", op, readBool, s.to, s.site.counting())
}

// Hear implements Crowded.
func (s *Semaphore) Hear(notify func(), freed func(n int64)) (end func()) {
	return s.site.hear(s.channel, notify, freed)
}

// HearTaken implements Crowded.
func (s *Semaphore) HearTaken(taken func(left int64)) (end func()) {
	return s.site.hearTaken(s.channel, taken)
}

// taken is added to the channel on which releases of permits are announced, for the one on which
// an acquire publishes how many it has left.
const taken = ":rlock:taken"

// hear subscribes to numbers on a channel: see Crowded.
func (s *Site) hear(channel string, notify func(), number func(n int64)) (end func()) {
	if !s.Wire.PublishKnown() {
		return nil
	}
	return s.ListenTo(channel, notify, func(message string) {
		n, _ := strconv.ParseInt(message, 10, 64) // a message that says nothing is a 0
		number(n)
	})
}

// hearTaken listens for what is left of permits whose releases are announced on a channel.
func (s *Site) hearTaken(channel string, left func(n int64)) (end func()) {
	return s.hear(channel+taken, nil, left)
}

// supply reads how many permits there are, which may follow how many are free.
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
