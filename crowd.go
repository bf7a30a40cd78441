package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// crowd is when a client looks after a message that permits of a semaphore came back. All clients
// that wait hear it, and few of them can enter. So each looks at a random time, the later the more
// clients seem to wait, and not at all if it hears before that too few are left: who takes permits
// from a crowd tells the others what is left. Nobody knows how many clients wait. Each takes them for
// twice as many after a look in vain, and for half as many after one that was put off and was not. One
// that was not put off, and not in vain, says nothing: else who has got permits would go first again.
//
// A look that was put off is sent in any case unless a later message says that there is nothing to
// look for. Whatever becomes of messages, the head of a line looks at the longest poll.
type crowd struct {
	size  int           // so many clients seem to wait, a power of 2
	spell time.Duration // what a look takes
	turn  int           // of the messages
	due   *time.Timer   // of the look that was put off; nil: none was
	at    time.Time     // when it is due
	put   int           // how often one was put off
	woken bool          // the next look is the answer to a message,
	late  bool          // which was put off
}

// mostCrowd and longestSpell bound for how long a look is put off.
const (
	mostCrowd    = 128
	longestSpell = 10 * time.Millisecond
)

// putsOff is for how long a look is put off after a message that n permits are free; 0 or less: not
// at all.
func (c *crowd) putsOff(n int64, seed uint64) time.Duration {
	c.turn++
	return seam.Jitter(seed, 0, c.turn, time.Duration(c.size)*c.spell) - time.Duration(n+1)*c.spell
}

// begin puts a look off for so long: look is called then, unless that was ended, or another is put off, by then.
func (c *crowd) begin(later time.Duration, look func(put int)) {
	at := time.Now().Add(later)
	if c.due != nil && c.at.Before(at) {
		return // it is put off already, for less
	}
	c.stop()
	c.put++
	put := c.put
	c.due, c.at = time.AfterFunc(later, func() { look(put) }), at
}

// stop ends what was put off.
func (c *crowd) stop() {
	if c != nil && c.due != nil {
		c.due.Stop()
		c.due = nil
	}
}

// turns notes that the next look is the answer to a message, put off or not.
func (c *crowd) turns(late bool) {
	c.stop()
	c.woken, c.late = true, late
}

// answers notes that a look begins, in answer to all messages so far. It reports whether there was one.
func (c *crowd) answers() (woken bool) {
	if c == nil {
		return false
	}
	c.stop()
	woken, c.woken = c.woken, false
	return woken
}

// learns notes what came of a look that took so long.
func (c *crowd) learns(woken, vain bool, took time.Duration) {
	c.spell = min(max(took, time.Millisecond), longestSpell)
	switch {
	case !woken:
	case vain:
		c.size = min(max(2*c.size, 2), mostCrowd)
	case c.late:
		c.size /= 2
	}
}
