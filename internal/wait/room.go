package wait

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/seam"
)

// room is what a waiter that was given permits of a semaphore has left there. Those behind
// it in line enter beside it as far as the permits go, all at once.
//
// Why no waiter sleeps while there is room for it: the next in line becomes the head. It looks if
// the room is enough, or if there was news, such as a release, after the look that found the room.
// Otherwise it sleeps until there is news. A new head that has not learned of the room yet looks too
// if there was news since.
type room struct {
	timeline *clock.Timeline
	until    clock.Instant // none of those that others hold expires before
}

// Alive implements passed.
func (r *room) Alive() bool { return r.timeline.Now().Before(r.until) }

// RestOfLease implements passed.
func (r *room) RestOfLease() time.Duration { return max(r.until.Sub(r.timeline.Now()), 1) }

// admitLocked wakes those waiters for whom there is room. What is left to others that look
// already is counted, as they may not have been given it yet. w is the head that leaves.
func (q *Lines[S]) admitLocked(line *line[S], w *Waiter[S], got *Left[S]) {
	left := got.Permits
	first := line.head()
	if first == nil {
		return
	}
	if left < first.room.need && w.room.saw == line.news {
		first.learns.behind = &room{q.cfg.Timeline, got.Until}
	}
	first.poke()
	for e := line.waiters.Front(); e != nil; e = e.Next() {
		next := e.Value.(*Waiter[S])
		if left -= next.room.need; left < 0 {
			return
		}
		if next != first && !next.room.looking {
			next.learns.admitted, next.room.looking = true, true
			next.poke()
		}
	}
}

// needs notes how much room a waiter needs.
func (q *Lines[S]) needs(w *Waiter[S], n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.room.need = n
}

// sees notes that a look begins, in answer to all news so far.
func (q *Lines[S]) sees(w *Waiter[S]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.room.saw = w.line.news
}

// refused notes that a look was in vain.
func (q *Lines[S]) refused(w *Waiter[S]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.room.looking = false
}

// serveLocked is called when a waiter leaves with something that is no hold: others have it too, or look for it, as
// many as there is room for. The new head is poked in any case: a wake-up is never lost with a waiter that leaves.
func (q *Lines[S]) serveLocked(l *line[S], got *Left[S]) (ends []func()) {
	for w := l.head(); w != nil && w.number <= got.UpTo; w = l.head() {
		w.learns.served = true
		ends = append(ends, q.takeOutLocked(w, true)...)
		w.poke()
	}
	// What others have taken since that look may be a part of the room that it saw: a waiter
	// that it is too small for must not be overtaken.
	room := got.Room - (l.taken - got.Taken)
	for e := l.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*Waiter[S])
		if room -= max(w.room.need, 1); room < 0 {
			break
		}
		w.learns.admitted = true
		w.poke()
	}
	return ends
}

// SoFar is the number of the latest waiter in the line of w, and how much was taken there.
func (q *Lines[S]) SoFar(w *Waiter[S]) (joined, taken int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.joined, w.line.taken
}

// freed is called with a message that n permits are free: see crowd.
func (q *Lines[S]) freed(l *line[S], n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.head() == nil || n < 1 { // 0: the semaphore was deleted
		q.newsLocked(l)
		return
	}
	if l.crowd == nil {
		l.crowd = &crowd{}
	}
	later := l.crowd.putsOff(n, q.cfg.Seed)
	if later <= 0 {
		l.crowd.turns(false)
		q.newsLocked(l)
		return
	}
	l.crowd.begin(later, func(put int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.crowd.due != nil && l.crowd.put == put {
			l.crowd.turns(true)
			q.newsLocked(l)
		}
	})
}

// taken is called with a message that somebody has taken permits, and so many are left.
func (q *Lines[S]) taken(l *line[S], left int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if head := l.head(); head == nil || left < max(head.room.need, 1) {
		l.crowd.stop()
	}
}

// CrowdAt reports whether others may wait for the permits of a line, and are told what is left.
func (q *Lines[S]) CrowdAt(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	return l != nil && l.crowd != nil && l.turns != nil
}

// answers is called by the head of a line before a look. It reports whether a message is why.
func (q *Lines[S]) answers(w *Waiter[S]) (woken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.line.crowd.answers()
}

// learns notes what came of a look of the head of a line. It reports whether the line has to hear
// what is left of permits, and does not yet.
func (q *Lines[S]) learns(w *Waiter[S], woken, vain bool, took time.Duration) (listen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := w.line
	if l.crowd == nil {
		return false
	}
	l.crowd.learns(woken, vain, took)
	return woken && vain && l.turns == nil && l.unsub != nil
}

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
