package rlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/quorum"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// sight is what an acquire has seen of a lock: the outcome of its last look. A waiter
// behind others uses that of the head of its line.
type sight struct {
	held   bool      // by another owner, or reserved for a waiter
	known  bool      // it is known who holds it: nobody, without a holder and others
	holder string    // one of the holders; empty: not known
	others int64     // how many other holders there were
	until  time.Time // when the lease ends, by our clock; zero: not known
	seen   time.Time // when the answer came
	err    error     // Redis, or a quorum, gave no answer
	said   said      // what was found where there is no lock, in place of all this
	room   permits   // of a semaphore
	who    *Process  // the process of the holder; nil: not known
	own    bool      // the holder is of the client that gets the error
	advice string    // to that client, if so

	// asked is when an unanswered look was sent; zero: none. The rest is then the
	// outcome of the look before it.
	asked time.Time
}

// said is what was found where there is no lock: a text, and the number for its #.
type said struct {
	what string
	n    int64
}

// permits are those of a semaphore that had too few.
type permits struct {
	protocol.Supply
	known  bool
	wanted int64
}

func (p permits) String() string {
	if !p.Counted {
		return fmt.Sprintf("permits free: %d, wanted: %d", p.Free, p.wanted)
	}
	return fmt.Sprintf("permits free: %d of %d, wanted: %d", p.Free, p.All, p.wanted)
}

// wants notes what the asker itself needs: what it has seen may be from another.
func (s *sight) wants(permits int64) { s.room.wanted = permits }

// toldTo completes what was seen for the caller that gets the error: another waiter of its client may have seen it.
// permits are what the caller wants; advice is what to do if a hold of its own client, maybe one of several, keeps it out.
func (s *sight) toldTo(client string, permits int64, advice func(several bool) string) {
	s.wants(permits)
	s.own, s.advice = strings.HasPrefix(s.holder, client+":"), ""
	if s.own {
		s.advice = advice(s.others > 0)
	}
}

// membersInside is what a member of a DoubleBarrier waits for that wants to leave, or to enter
// with the next generation.
const membersInside = "members that are still in: #"

// answered notes the outcome of a look. within is the time that was given to replicas.
func (s *sight) answered(r *protocol.Result[protocol.Entered], now time.Time, within time.Duration) {
	if r.Err == nil && r.Outcome.Verdict == protocol.Busy {
		*s = refusal(&r.Outcome, now)
		return
	}
	if r.Err == nil && r.Outcome.Verdict == protocol.Quarantined {
		*s = sight{said: said{what: protocol.InQuarantine{Left: r.Outcome.Rest}.Error()}}
		return
	}
	s.failed(r.Err, r.Last, r.OfQuorum, within)
}

// failed notes a look without an outcome, or whose outcome needs no explanation.
func (s *sight) failed(err, last error, ofQuorum bool, within time.Duration) {
	switch {
	case noAnswer(err):
		*s = sight{err: err}
	case !wire.Ended(err):
		*s = sight{}
	case last != nil && !wire.CutOff(last):
		if !worthRepeating(last) {
			last = wire.Failure(last)
		}
		*s = sight{err: last}
	case ofQuorum:
		// Some of the servers may have answered: this look says nothing.
		s.asked = time.Time{}
	default:
		s.asked = s.asked.Add(within)
	}
}

// refusal is the sight of a lock that was busy.
func refusal(e *protocol.Entered, now time.Time) sight {
	if e.Split {
		return sight{said: said{what: "no holder was seen, but others try at the same time"}}
	}
	s := sight{held: true, seen: now, known: e.Known, holder: e.Holder, others: e.Others}
	switch {
	case e.Votes != "":
		s.said.what = e.Votes
	case e.Missing > 0:
		s.said = said{"members that are still to come: #", e.Missing}
	case e.Inside > 0:
		s.said = said{membersInside, e.Inside}
	}
	if e.Counted {
		s.room = permits{Supply: e.Supply, known: true}
	}
	if e.Rest >= 0 {
		s.until = now.Add(min(e.Rest, seam.FarAway))
	}
	return s
}

// recent is how long ago a server may have answered that is not taken for unreachable: a busy machine
// is silent for part of a second.
const recent = time.Second

// settle decides about an unanswered look. A server that has not answered for protocol.GiveUpGrace
// counts as unreachable, unless its answer to the look before is recent. A look that was cut off
// sooner proves nothing, nor does an unanswered look if the give-up after it was answered. An error
// of the look before says more, and stays.
func (s *sight) settle(now time.Time, answered bool) {
	unknown := s.err == nil || errors.Is(s.err, ErrRefused) // before
	silent := now.Sub(s.asked)
	if unknown && !s.asked.IsZero() && !answered && silent >= protocol.GiveUpGrace && now.Sub(s.seen) >= recent {
		s.err = fmt.Errorf("%w for %v", ErrUnreachable, wire.Rounded(silent))
	}
	s.asked = time.Time{}
}

// left is what is left of the holder's lease; 0 if that is not known.
func (s *sight) left(now time.Time) time.Duration {
	if s.until.IsZero() {
		return 0
	}
	return max(s.until.Sub(now), 0)
}

// text says why the lock was not to be had.
func (s *sight) text(now time.Time) string {
	switch {
	case s.said.what != "":
		return strings.Replace(s.said.what, "#", strconv.FormatInt(s.said.n, 10), 1)
	case !s.room.known:
		return s.holders(now)
	case !s.held || s.holder == "" && s.others == 0 && s.room.Free < s.room.wanted:
		return s.room.String() // nobody has the others, and nobody goes first
	}
	return s.room.String() + "; " + s.holders(now)
}

// holders says who held the lock.
func (s *sight) holders(now time.Time) string {
	who, holder := "held by another", s.holder
	switch {
	case s.own:
		holder = "this client (" + holder + ")"
		if s.who != nil {
			holder += ", " + s.who.String()
		}
	case s.who != nil:
		holder = s.who.String()
	}
	switch {
	case holder != "" && s.room.known && s.others > 0: // which are permits, perhaps of the same holder
		who = "the one that expires first is held by " + holder
	case holder != "" && s.others > 0:
		who = fmt.Sprintf("held by %s and %d more", holder, s.others)
	case holder != "":
		who = "held by " + holder
	case s.others > 0:
		who = fmt.Sprintf("held by %d", s.others)
	case s.known:
		who = "reserved for a waiter"
	}
	of := ""
	if holder != "" && s.others == 0 {
		of = " of its lease"
	}
	if left := s.left(now); left > 10*time.Second {
		who = fmt.Sprintf("%s, %v%s left", who, left.Round(time.Second), of)
	} else if left > 0 {
		who = fmt.Sprintf("%s, %v%s left", who, left.Round(time.Millisecond), of)
	}
	return who + s.advice
}

// told reports whether anybody was seen who has the lock, or goes first.
func (s *sight) told() bool { return s.held || s.said.what != "" || s.room.known }

// why is the error of an acquire that ended with what: with what was seen last, and nothing else.
// sentinel is what it matches too if somebody was seen who has the lock; nil: nothing.
func (s *sight) why(what, sentinel error, now time.Time) error {
	switch {
	case s.err != nil && !errors.Is(what, ErrLeaseLost): // else that is why it ended
		return fmt.Errorf("%w; %w", what, s.err)
	case s.told() && sentinel != nil:
		return fmt.Errorf("%w: %w; %s", sentinel, what, s.text(now))
	case s.told():
		return fmt.Errorf("%w; %s", what, s.text(now))
	}
	return what
}

// cutShort is the error of a request that has failed at a time, and is not repeated: if ctx has ended
// it, with what is known of Redis.
func cutShort(ctx context.Context, err, last error, ofQuorum bool, began, now time.Time) error {
	if ctx.Err() == nil || !wire.Ended(err) {
		return err
	}
	s := sight{asked: began}
	s.failed(err, last, ofQuorum, 0)
	s.settle(now, false)
	return s.why(endOf(ctx), nil, now)
}

// endOf is why a context has ended, with the cause if it has one of its own.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return because(err, cause)
}

// worthRepeating reports whether Lock continues after err: Redis may come back, as after
// a failover. Lock continues for as long as a watchdog lease.
func worthRepeating(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrRefused) && wire.Transient(err)
}

// noAnswer reports whether err says that Redis has not done what it was asked.
func noAnswer(err error) bool { return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrRefused) }

var errShortLease = fmt.Errorf("%w in time: the lease was over before it came", ErrUnreachable)

// interrupted makes the error of a call from what stopped it: the end of the caller's
// context or of the wait, limit, or a single look that found nothing. waited is what the call has had
// of that: of a MultiLock, its last member may have had little. It contains what was
// seen last. sentinel is what an error of the first kind matches too if somebody else was seen;
// nil: nothing.
func interrupted(caller context.Context, err, sentinel error, limit, waited time.Duration, seen *sight, now time.Time) error {
	stopped := wire.Ended(err)
	switch {
	case caller.Err() != nil && (stopped || worthRepeating(err)):
		if !stopped {
			seen.err = err
		}
		return seen.why(endOf(caller), sentinel, now)
	case stopped && !worthRepeating(err) && (sentinel != nil || limit > 0):
		if seen.err == nil && !seen.told() {
			return timedOut(limit, waited)
		}
		return seen.why(fmt.Errorf("timed out after %v", wire.Rounded(limit)), ErrNotAcquired, now)
	case err == ErrNotAcquired && seen.told():
		return fmt.Errorf("%w: %s", err, seen.text(now))
	}
	return err
}

// timedOut is the error of a wait, limit, that is over and has seen nothing. For waited Redis was silent
// then: only if that is long enough does it count as unreachable, as for the end of a context. See settle.
func timedOut(limit, waited time.Duration) error {
	limit = wire.Rounded(limit)
	if waited < protocol.GiveUpGrace {
		return fmt.Errorf("%w: timed out after %v, before Redis has answered", ErrNotAcquired, limit)
	}
	return fmt.Errorf("timed out after %v; %w", limit, ErrUnreachable)
}

// unanswered makes a failed call match ErrUnreachable, whatever ended it,
// unless Redis answered: with an error, then it matches ErrRefused, or with what leaves a doubt.
func unanswered(err error) error {
	if noAnswer(err) || errors.Is(err, quorum.ErrDoubtful) || !wire.Transient(err) {
		return err
	}
	return wire.Failure(err)
}

// untilOrSoon is the rest of a time-out, or a moment: a release is sent even if waiting for
// other operations has used the time-out up.
func untilOrSoon(limit time.Time) time.Duration { return max(time.Until(limit), time.Millisecond) }

// errGone is why a release is not confirmed that may have ended its hold: nothing is left of it.
var errGone = errors.New("a reply was lost, and the release that was sent again found the hold gone")

// What one caller of a Once finds out is true for all of its client who came before: that there is a
// result, or that the function of another has failed while they waited. So is what one caller of a
// CronJob finds out of a tick: whose run it is (the result), or that nobody may run it (a failure).

// settled is why an acquire has no hold: there is a result, or a run has failed.
type settled struct {
	result []byte
	failed error
	ago    time.Duration // since it failed, or a little more
}

func (s *settled) Error() string {
	if s.failed != nil {
		return "not acquired: the function of another caller has failed"
	}
	return "not acquired: there is a result"
}

func (s *settled) Is(target error) bool { return target == ErrNotAcquired }

// hasResult is for what an Observer is told: see observed.end.
func (s *settled) hasResult() bool { return s.failed == nil }

func settledBy(e *protocol.Entered) *settled {
	if e.Failed {
		// With the rest of a ms, which the reply leaves out.
		return &settled{failed: errors.New(e.Result), ago: e.Ago + time.Millisecond}
	}
	return &settled{result: []byte(e.Result)}
}
