package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// judge knows every lease and says what is wrong.
type judge struct {
	w      *World
	s      scenario
	forgot [][]time.Duration // by server: when it has lost its data; the run's own goroutine only

	loaded  sync.Once
	scripts map[string]string // set by loaded

	mu    sync.Mutex // guards the rest; never held while waiting
	locks map[string]*verdicts
	holds map[*rlock.Lease][]*openHold // of each lease, also when they are over
	wrong []string
	log   []string

	acquired, refused, unreachable, nested, extended, lost, released int
	handedOver, combined, given                                      int
	doubles, disorders                                               int // violations: two holders; tokens
	excused                                                          excuses
}

// excuses count what is no violation because the servers have lost their data.
type excuses struct {
	holds  int // that were held while another owner held the lock
	losses int // before the deadline
	left   int // holds that a late copy has left
}

func (e *excuses) add(o excuses) {
	e.holds, e.losses, e.left = e.holds+o.holds, e.losses+o.losses, e.left+o.left
}

// verdicts are what the judge knows about one lock.
type verdicts struct {
	open     []*openHold
	newest   int64 // greatest token handed out
	newestBy string
	gone     map[hold]int // those that have left, and the data losses by then
}

// openHold is what the judge knows about one hold: its open leases.
type openHold struct {
	hold
	token  int64
	who    string
	leases []*rlock.Lease
	shares bool // it is counted in excuses

	losses  int           // data losses before it was asked for
	until   time.Time     // its first deadline
	longest time.Duration // of the leases that were asked for
}

func (j *judge) sayLocked(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%v %s", j.w.Elapsed(), fmt.Sprintf(format, args...)))
}

func (j *judge) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked(format, args...)
}

func (j *judge) accuseLocked(format string, args ...any) {
	j.sayLocked("VIOLATION: "+format, args...)
	j.wrong = append(j.wrong, j.log[len(j.log)-1])
}

func (j *judge) accuse(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.accuseLocked(format, args...)
}

func (j *judge) count(n *int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*n++
}

// question is what is known when a worker asks for a lock.
type question struct {
	who    string
	lock   string
	shared bool
	losses int
	newest int64
	within *rlock.Lease     // a re-entry into this hold
	parts  map[string]int64 // newest of each lock: that of members too
}

func (j *judge) asks(who, lock string, shared bool, within *rlock.Lease) question {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s asks for %s (to share: %v, re-entry: %v)", who, lock, shared, within != nil)
	j.ghostsLocked(lock, losses)
	q := question{who, lock, shared, losses, j.locks[lock].newest, within, map[string]int64{}}
	for part, v := range j.locks {
		q.parts[part] = v.newest
	}
	return q
}

// losses are those of data that can have been the end of a hold. A clock that jumps ahead ends
// the leases on its server too.
func (j *judge) losses() int {
	if j.s.kind.sturdy {
		return 0
	}
	st := j.w.Stats()
	return st.Losses + st.Leaps
}

// ghostsLocked looks for an owner in Redis that has left the lock, and was told
// so. A late copy may not bring it back, unless its tombstone was lost.
func (j *judge) ghostsLocked(lock string, losses int) {
	for h := range j.s.kind.holdsIn(j.w, lock) {
		if before, ok := j.locks[lock].gone[h]; ok && before == losses {
			j.accuseLocked("%s is held by nobody: %v has left", lock, h)
		}
	}
	if f := j.s.kind.ghost; f != nil {
		if g := f(j.w, lock); g != "" {
			j.accuseLocked("%s is held by nobody: %s", lock, g)
		}
	}
}

// left is called when the last Unlock of a hold has returned nil. A hold that is still in
// Redis then was handed over, and another owner has it now or soon.
func (j *judge) left(lock string, l grip) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.locks[lock]
	if !slices.ContainsFunc(v.open, func(s *openHold) bool { return s.hold == l.hold() }) {
		holds := j.s.kind.holdsIn(j.w, lock)
		leaves := func(h hold) bool {
			_, still := holds[h]
			return !still || !j.s.kind.handsOver && !j.s.kind.membersHandOver
		}
		all := []hold{l.hold()}
		for _, m := range l.Members() {
			all = append(all, hold{m.HoldID(), false})
		}
		if !leaves(all[0]) {
			j.handedOver++
		}
		for _, h := range all {
			if leaves(h) {
				v.gone[h] = losses
			}
		}
		j.ghostsLocked(lock, losses)
	}
}

// handed is called in the instant in which a lease is handed out.
func (j *judge) handed(q question, l *rlock.Lease) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s has %s as %s, token %d, until %v", q.who, q.lock, l.HoldID(), l.Token(), l.Deadline().Sub(j.w.Start()))
	if err := l.Err(); err != nil {
		j.accuseLocked("%s was handed a lease that is over: %v", q.who, err)
	}
	if q.within != nil {
		j.nested++
		if l.HoldID() != q.within.HoldID() || l.Token() != q.within.Token() {
			j.accuseLocked("%s entered again and got another hold: %s with token %d", q.who, l.HoldID(), l.Token())
		}
		for _, s := range j.openHoldsLocked(q.within) {
			s.leases = append(s.leases, l)
			j.holds[l] = append(j.holds[l], s)
		}
		return
	}
	j.acquired++
	starts := func(lock string, h hold, token int64) {
		s := &openHold{
			hold: h, token: token, who: q.who, leases: []*rlock.Lease{l},
			losses: q.losses, until: l.Deadline(), longest: max(lockLease, time.Until(l.Deadline())),
		}
		j.holds[l] = append(j.holds[l], s)
		j.startsLocked(q, lock, s, losses)
	}
	starts(q.lock, hold{l.HoldID(), q.shared}, l.Token())
	for _, m := range l.Members() {
		part := member(m)
		if j.locks[part] == nil {
			j.locks[part] = &verdicts{gone: map[hold]int{}}
		}
		starts(part, hold{m.HoldID(), false}, m.Token())
	}
}

// member is what the judge calls the lock of a member of a MultiLock: locks of
// one name may be on several servers.
func member(m *rlock.Lease) string {
	client, _, _ := strings.Cut(m.HoldID(), ":")
	return m.Name() + "@" + client[len(client)-1:]
}

// openHoldsLocked are those of which a lease is one.
func (j *judge) openHoldsLocked(l *rlock.Lease) (open []*openHold) {
	for _, v := range j.locks {
		for _, s := range v.open {
			if slices.Contains(s.leases, l) {
				open = append(open, s)
			}
		}
	}
	return open
}

// startsLocked looks at a new hold.
func (j *judge) startsLocked(q question, lock string, s *openHold, losses int) {
	v := j.locks[lock]
	j.excludeLocked(lock, s, losses)
	wrong := len(j.wrong)
	switch newest := q.parts[lock]; {
	case s.shared || j.s.kind.permits:
		if s.token != 0 {
			j.accuseLocked("%s shares %s and has token %d", q.who, lock, s.token)
		}
	case j.s.kind.forgets && j.w.Stats().Losses > 0:
	case s.token <= newest:
		j.accuseLocked("%s has token %d of %s, not above %d, which was there when it asked", q.who, s.token, lock, newest)
	case s.token <= v.newest && q.losses == losses:
		// With a loss in between, two grants may be under way at once.
		j.accuseLocked("%s has token %d of %s, not above %d of %s", q.who, s.token, lock, v.newest, v.newestBy)
	}
	j.disorders += len(j.wrong) - wrong
	if s.token > v.newest {
		v.newest, v.newestBy = s.token, q.who
	}
	v.open = append(v.open, s)
}

// longer is called before a lease is to be lengthened to d, or to any length if d is 0.
func (j *judge) longer(l *rlock.Lease, d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.holds[l] {
		s.longest = max(s.longest, cmp.Or(d, longestFix))
	}
}

// excusedLocked reports whether a loss of the data can be why there is another holder, or why the
// hold is lost: it has lived through the loss, and no renewal can have been confirmed since. One
// that was sent before the loss counts from then; one that was sent after it finds nothing.
func (j *judge) excusedLocked(s *openHold, losses int) bool {
	if s.losses == losses {
		return false
	}
	now := time.Now()
	return now.Before(s.until) || now.Before(j.w.LastLoss().Add(s.longest))
}

// excludeLocked looks for others who believe to hold what s holds. A loss of
// the data that one of the two has lived through can have caused that.
func (j *judge) excludeLocked(lock string, s *openHold, losses int) {
	if j.s.kind.permits {
		j.roomLocked(lock, s, losses)
		return
	}
	wrong := len(j.wrong)
	defer func() { j.doubles += len(j.wrong) - wrong }()
	for _, other := range j.locks[lock].open {
		if other == s || s.shared && other.shared || s.shared != other.shared && s.who == other.who {
			continue // itself; readers; a writer that reads
		}
		excused := j.excusedLocked(other, losses) || j.excusedLocked(s, losses)
		for _, l := range other.leases {
			switch {
			case !j.believes(l):
			case !excused:
				j.accuseLocked("%s holds %s with token %d, and so does %s with token %d, until %v", s.who, lock, s.token, other.who, other.token, l.Deadline().Sub(j.w.Start()))
			case !s.shares:
				s.shares = true
				j.excused.holds++
			}
		}
	}
}

// believes is a holder's own opinion.
func (j *judge) believes(l *rlock.Lease) bool {
	return j.s.heedless || l.Err() == nil
}

// works is called when a holder does what the lock is for.
func (j *judge) works(lock string, l grip) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.believes(l.Lease) {
		return
	}
	for lock, v := range j.locks {
		for _, s := range v.open {
			if slices.Contains(s.leases, l.Lease) {
				j.excludeLocked(lock, s, losses)
			}
		}
	}
}

// unlocks is called just before Unlock, and reports whether the lease is valid.
func (j *judge) unlocks(lock string, l *rlock.Lease) bool {
	valid := l.Err() == nil
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.locks {
		for i, s := range v.open {
			if k := slices.Index(s.leases, l); k >= 0 {
				s.leases = slices.Delete(s.leases, k, k+1)
				if len(s.leases) == 0 {
					v.open = slices.Delete(v.open, i, i+1)
				}
				break
			}
		}
	}
	return valid
}

var causes = []error{rlock.ErrExpired, rlock.ErrTakenOver, rlock.ErrRemoved, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrMaxHold}

// loss checks that an error that matches ErrLeaseLost has one cause, and that
// the loss was due: without a loss of data, only time ends a hold.
func (j *judge) loss(who string, l *rlock.Lease, err error) {
	n := 0
	for _, c := range causes {
		if errors.Is(err, c) {
			n++
		}
	}
	if n != 1 {
		j.accuse("%s: a loss with %d causes: %v", who, n, err)
	}
	st := j.w.Stats()
	losses := st.Losses + st.Leaps
	j.mu.Lock()
	excused := j.s.kind.sturdy && st.Jumps > 0 || slices.ContainsFunc(j.holds[l], func(s *openHold) bool { return j.excusedLocked(s, losses) })
	early := time.Now().Before(l.Deadline())
	if excused && early {
		j.excused.losses++
	}
	j.mu.Unlock()
	if !excused && early {
		j.accuse("%s: lost before the deadline %v: %v", who, l.Deadline().Sub(j.w.Start()), err)
	}
}

// watch sees to it that a lease ends no later than it says.
func (j *judge) watch(h *Host, who string, l *rlock.Lease) {
	for {
		end := l.Deadline()
		t := time.NewTimer(time.Until(end) + 2*spread) // the watchdog passes a gate
		select {
		case <-l.Done():
			t.Stop()
			if err := l.Err(); errors.Is(err, rlock.ErrLeaseLost) {
				j.count(&j.lost)
				j.say("%s lost %s: %v", who, l.HoldID(), err)
				j.loss(who, l, err)
			}
			return
		case <-t.C:
		}
		if l.Deadline().After(end) {
			continue
		}
		// A process that is stopped closes nothing. It does when it goes on.
		for resume := h.resumesAt(); time.Now().Before(resume.Add(2 * spread)); resume = h.resumesAt() {
			time.Sleep(time.Until(resume.Add(2 * spread)))
		}
		select {
		case <-l.Done():
		default:
			if l.Deadline().After(end) {
				j.accuse("%s: the lease came back after its deadline %v", who, end.Sub(j.w.Start()))
				continue
			}
			j.accuse("%s: Done is open after the deadline %v", who, end.Sub(j.w.Start()))
			return
		}
	}
}
