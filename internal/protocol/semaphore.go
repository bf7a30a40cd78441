package protocol

import (
	"strconv"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// Semaphore is the protocol of a Semaphore, whose state is a number: the free permits.
type Semaphore struct {
	site    *Site
	names   *Names
	permits any // the key, boxed once
	channel string
	to      any // channel, boxed once
	beside  besideNumber
	initial int // permits that are set if none were; 0: none are
}

// NewSemaphore returns the protocol of a Semaphore, of which so many permits are set if none were; 0: none
// are.
func NewSemaphore(site *Site, names *Names, initial int) *Semaphore {
	channel := prefixed("redisson_sc", names.Lock)
	return &Semaphore{site: site, names: names, permits: names.Lock, channel: channel, to: channel, initial: initial}
}

// all is the key with how many permits a Semaphore has, free or not, or the mark of another type
// that has the name.
func (n *Names) all() string { return n.Derived("rlock:all") }

// held is the key with the held permits of a PermitSemaphore.
func (n *Names) held() string { return n.Derived("timeout") }

// Taken is the outcome of an acquire of permits.
type Taken struct {
	Verdict Verdict // Granted, Busy, Withdrawn or NotSet
	Free    int64   // how many are left, or free
	All     int64   // Busy: how many there are ...
	Counted bool    // ... if that is known
}

// Permitted is the state of a Semaphore.
type Permitted struct {
	Set     bool  // permits were set
	Free    int64 // may be negative
	All     int64 // how many there are ...
	Counted bool  // ... if that is known
}

// Acquire takes n permits. If it tells, others who wait are told how many are left.
func (s *Semaphore) Acquire(op Op, n int64, tells bool) Request[Taken] {
	q := looking(s.site, "semaphore/acquire", nil, nil, readTaken)
	others := "" // where they hear it
	if tells {
		others = s.channel + taken
	}
	switch {
	case s.initial > 0:
		putWords(&q.r, s.permits, s.names, op, s.told(), n, others, s.site.counting(), s.initial, s.to)
	case tells:
		putWords(&q.r, s.permits, s.names, op, s.told(), n, others, s.site.counting())
	default:
		putWords(&q.r, s.permits, s.names, op, s.told(), n)
	}
	return q
}

// Release puts n permits back.
func (s *Semaphore) Release(op Op, n int64) Task {
	t := s.site.about("semaphore/release", nil, nil)
	putWords(&t.r, s.permits, s.names, op, s.told(), n, s.to, s.site.counting())
	if s.initial > 0 {
		t.r.Args = append(t.r.Args, s.initial)
	}
	return t
}

// told are more keys of a script that tells other types from this.
func (s *Semaphore) told() [2]any { return s.beside.of(s.names) }

// besideNumber are the keys that tell types apart whose state is a number: the mark and the held permits.
type besideNumber struct {
	mu   sync.Mutex // guards keys
	keys [2]any     // boxed once
}

// of returns the keys beside the number with a name.
func (b *besideNumber) of(n *Names) [2]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keys[0] == nil {
		b.keys = [2]any{n.all(), n.held()}
	}
	return b.keys
}

// TrySet sets the number of permits if none was. It reports whether it did.
func (s *Semaphore) TrySet(op Op, n int64) Request[bool] {
	q := looking(s.site, "semaphore/try_set", nil, nil, readBool)
	putWords(&q.r, s.permits, s.names, op, s.told(), n, s.to, s.site.counting())
	return q
}

// Add changes the number of permits by n.
func (s *Semaphore) Add(op Op, n int64) Request[Kept] {
	t := s.site.about("semaphore/add", nil, nil)
	putWords(&t.r, s.permits, s.names, op, s.told(), n, s.to, s.site.counting())
	return t
}

// Set makes it n permits, free or not. It reports whether it did: it must be known how many
// there are.
func (s *Semaphore) Set(op Op, n int64) Request[bool] {
	q := looking(s.site, "semaphore/set", nil, nil, readSet)
	putWords(&q.r, s.permits, s.names, op, s.told(), n, s.to, s.site.counting())
	return q
}

// Drain takes all free permits, and returns their number.
func (s *Semaphore) Drain(op Op) Request[int64] {
	q := looking(s.site, "semaphore/drain", nil, nil, readDrained)
	putWords(&q.r, s.permits, s.names, op, s.told())
	return q
}

// Undo undoes an Acquire, Add or Drain.
func (s *Semaphore) Undo(op Op) Task {
	t := s.site.about("semaphore/undo", nil, nil)
	putWords(&t.r, s.permits, s.names, op, [2]any{s.names.all()}, s.to, s.site.counting())
	return t
}

// Seal stops late copies of an operation that nothing undoes.
func (s *Semaphore) Seal(op Op) Task { return s.site.seal(s.names, op) }

// Available asks how many permits are free.
func (s *Semaphore) Available() Request[int64] {
	return looking(s.site, "semaphore/available", []string{s.names.Lock}, nil, readCount)
}

// Inspect asks how many permits there are.
func (s *Semaphore) Inspect() Request[Permitted] {
	q, beside := looking(s.site, "semaphore/inspect", nil, nil, readPermitted), s.told()
	q.r.Put(3, s.permits, beside[0], beside[1])
	return q
}

// Delete deletes the semaphore. It reports whether there was one.
func (s *Semaphore) Delete(op Op) Request[bool] {
	q := looking(s.site, "semaphore/delete", nil, nil, readBool)
	putWords(&q.r, s.permits, s.names, op, s.told(), s.to, s.site.counting())
	return q
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
// an acquire tells how many it has left.
const taken = ":rlock:taken"

// hear listens to numbers on a channel: see Crowded.
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

func readTaken(a wire.Answer) (Taken, error) {
	if left, ok := a.Val.(int64); ok && a.Err == nil {
		return Taken{Verdict: Granted, Free: left}, nil
	}
	code, n, more, err := a.Pair()
	if err != nil {
		return Taken{}, err
	}
	switch code {
	case codeBusy:
		t := Taken{Verdict: Busy, Free: n}
		if len(more) > 0 {
			t.All, t.Counted = more[0].(int64)
		}
		return t, nil
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
	p := Permitted{Set: set == 1, Free: free}
	if len(more) > 0 {
		p.All, p.Counted = more[0].(int64)
	}
	return p, err
}

func readDrained(a wire.Answer) (int64, error) {
	code, n, _, err := a.Pair()
	if err == nil && code != codeGranted {
		err = wire.ErrReply(a.Val)
	}
	return n, err
}
