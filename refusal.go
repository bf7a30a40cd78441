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
	"github.com/go-rlock/rlock/internal/visible"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// snapshot is the latest status that an acquire has, from its own request or from the head of its line, and further data
// for its error.
type snapshot struct {
	wait.Status
	wanted      int64         // permits that the caller needs
	process     *Process      // process of the holder; nil if not known
	isOwnHolder bool          // the holder belongs to the client that gets the error
	advice      string        // advice if isOwnHolder; see forCaller
	grace       time.Duration // see core.grace
}

// permits returns a text with the number of permits of a semaphore.
func (s *snapshot) permits() string {
	if !s.Counted {
		return fmt.Sprintf("permits free: %d, wanted: %d", s.Free, s.wanted)
	}
	return fmt.Sprintf("permits free: %d of %d, wanted: %d", s.Free, s.All, s.wanted)
}

// wants records how many permits the caller needs: the snapshot may come from another waiter.
func (s *snapshot) wants(permits int64) { s.wanted = permits }

// forCaller completes the snapshot, which may come from another waiter, for the caller that gets the error. permits is the
// number that the caller needs. advice returns a text for a caller whose own client has the hold, or one of several.
func (s *snapshot) forCaller(client string, permits int64, advice func(several bool) string) {
	s.wants(permits)
	s.isOwnHolder, s.advice = strings.HasPrefix(s.Holder, client+":"), ""
	if s.isOwnHolder {
		s.advice = advice(s.Others > 0)
	}
}

// membersInside is the note of a member of a DoubleBarrier that waits to leave, or to enter with the next generation.
const membersInside = "members that are still in: #"

// noteAnswer records the outcome of a request. within is the time that replicas had to confirm it.
func (s *snapshot) noteAnswer(r *protocol.Result[protocol.Entered], ofQuorum bool, now time.Time, within time.Duration) {
	if r.Err == nil && r.Outcome.Verdict == protocol.Busy {
		*s = snapshot{Status: statusOf(&r.Outcome, now)}
		return
	}
	if r.Err == nil && r.Outcome.Verdict == protocol.Quarantined {
		*s = snapshot{Status: wait.Status{Note: wait.Note{Text: protocol.InQuarantine{Left: r.Outcome.Rest}.Error()}}}
		return
	}
	s.noteFailure(r.Err, ofQuorum, within)
}

// noteFailure records the failure of a request. It clears the snapshot if err is nil, or explains itself.
func (s *snapshot) noteFailure(err error, ofQuorum bool, within time.Duration) {
	last := wire.LastFailure(err)
	switch {
	case noAnswer(err):
		*s = failed(err)
	case !wire.Ended(err):
		*s = snapshot{}
	case last != nil && !wire.CutOff(last):
		if !errors.Is(last, ErrNoQuorum) && !worthRepeating(last) { // ErrNoQuorum has what the nodes replied
			last = wire.Failure(last)
		}
		*s = failed(last)
	case ofQuorum:
		// Some of the servers may have answered, so the quorum does not count as silent.
		s.Pending = time.Time{}
	default:
		s.Pending = s.Pending.Add(within)
	}
}

// failed returns the snapshot of a request that has failed with err.
func failed(err error) snapshot { return snapshot{Status: wait.Status{Err: err}} }

// statusOf returns the status in a reply about a lock that another owner holds.
func statusOf(e *protocol.Entered, now time.Time) wait.Status {
	if e.Split {
		return wait.Status{Note: wait.Note{Text: "no holder was seen, but others try at the same time"}}
	}
	s := wait.Status{Held: true, At: now, HolderKnown: e.Known, Holder: e.Holder, Others: e.Others}
	switch {
	case e.Votes != "":
		s.Note.Text = e.Votes
	case e.Missing > 0:
		s.Note = wait.Note{Text: "members that are still to come: #", N: e.Missing}
	case e.Inside > 0:
		s.Note = wait.Note{Text: membersInside, N: e.Inside}
	}
	if e.Counted {
		s.Semaphore, s.Supply = true, e.Supply
	}
	if e.Rest >= 0 {
		s.Until = now.Add(min(e.Rest, seam.FarAway))
	}
	return s
}

// ownStatus returns the status of a lock that this client holds.
func ownStatus(id string, until time.Time) wait.Status {
	return wait.Status{Held: true, HolderKnown: true, Holder: id, Until: until}
}

// recent is how long after an answer a silent server does not count as unreachable: a busy machine is silent for part
// of a second.
const recent = time.Second

// settle marks Redis as unreachable if a request was unanswered for the grace, the last answer is not recent, and the
// request that gives the acquire up was not answered either. The error of an earlier request is kept, because it
// says more, unless it matches ErrRefused.
func (s *snapshot) settle(now time.Time, answered bool, grace time.Duration) {
	s.grace = grace
	unknown := s.Err == nil || errors.Is(s.Err, ErrRefused)
	silent := now.Sub(s.Pending)
	if unknown && !s.Pending.IsZero() && !answered && silent >= grace && now.Sub(s.At) >= recent {
		s.Err = fmt.Errorf("%w for %v", ErrUnreachable, wire.Rounded(silent))
	}
	s.Pending = time.Time{}
}

// leaseLeft returns the rest of the holder's lease; 0 if not known.
func (s *snapshot) leaseLeft(now time.Time) time.Duration {
	if s.Until.IsZero() {
		return 0
	}
	return max(s.Until.Sub(now), 0)
}

// text returns why the lock could not be acquired.
func (s *snapshot) text(now time.Time) string {
	switch {
	case s.Note.Text != "":
		return strings.Replace(s.Note.Text, "#", strconv.FormatInt(s.Note.N, 10), 1)
	case !s.Semaphore:
		return s.holders(now)
	case !s.Held || s.Holder == "" && s.Others == 0 && s.Free < s.wanted:
		return s.permits() // no holder is known, and no waiter goes first
	}
	return s.permits() + "; " + s.holders(now)
}

// holders returns a text that names who held the lock.
func (s *snapshot) holders(now time.Time) string {
	who, holder := "held by another", visible.Text(s.Holder)
	switch {
	case s.isOwnHolder:
		holder = "this client (" + holder + ")"
		if s.process != nil {
			holder += ", " + s.process.String()
		}
	case s.process != nil:
		holder = s.process.String()
	}
	switch {
	case holder != "" && s.Semaphore && s.Others > 0: // the others are permits, perhaps of the same holder
		who = "the one that expires first is held by " + holder
	case holder != "" && s.Others > 0:
		who = fmt.Sprintf("held by %s and %d more", holder, s.Others)
	case holder != "":
		who = "held by " + holder
	case s.Others > 0:
		who = fmt.Sprintf("held by %d", s.Others)
	case s.HolderKnown:
		who = "reserved for a waiter"
	}
	ofLease := ""
	if holder != "" && s.Others == 0 {
		ofLease = " of its lease"
	}
	if left := s.leaseLeft(now); left > 10*time.Second {
		who = fmt.Sprintf("%s, %v%s left", who, left.Round(time.Second), ofLease)
	} else if left > 0 {
		who = fmt.Sprintf("%s, %v%s left", who, left.Round(time.Millisecond), ofLease)
	}
	return who + s.advice
}

// explains reports whether the snapshot says why the lock could not be acquired: who holds it, or goes first.
func (s *snapshot) explains() bool { return explains(&s.Status) }

func explains(s *wait.Status) bool { return s.Held || s.Note.Text != "" || s.Semaphore }

// why returns the error of an acquire that ended with what, and the explanation of the snapshot. If the snapshot explains
// the end, the error also matches sentinel, unless that is nil.
func (s *snapshot) why(what, sentinel error, now time.Time) error {
	switch {
	case s.Err != nil && !errors.Is(what, ErrLeaseLost): // a lost lease is the reason, not s.Err
		return fmt.Errorf("%w; %w", what, s.Err)
	case s.explains() && sentinel != nil:
		return fmt.Errorf("%w: %w; %s", sentinel, what, s.text(now))
	case s.explains():
		return fmt.Errorf("%w; %s", what, s.text(now))
	}
	return what
}

// endOf returns why a context has ended, with its cause if that differs.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return because(err, cause)
}

// endedSince returns when a context ended: its deadline if that has passed, otherwise delay before now, because a call
// may return up to delay after a cancellation.
func endedSince(ctx context.Context, delay time.Duration) time.Time {
	now := time.Now()
	if at, has := ctx.Deadline(); has && at.Before(now) {
		return at
	}
	return now.Add(-delay)
}

// worthRepeating reports whether Lock continues after err, for a watchdog lease at most: Redis may come back, as after a
// failover, and so may the nodes of a quorum, even if some of them refuse for good.
func worthRepeating(err error) bool {
	if errors.Is(err, ErrNoQuorum) {
		return errors.Is(err, ErrUnreachable)
	}
	return noAnswer(err) && wire.Transient(err)
}

// noAnswer reports whether err says that Redis could not be reached, or has refused the request.
func noAnswer(err error) bool { return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrRefused) }

var errShortLease = fmt.Errorf("%w in time: the lease was over before it came", ErrUnreachable)

// interrupted makes the error of a call from err, which stopped the call: the end of the caller's context, the end of a
// wait of at most limit, or the refusal of a single request. The error contains the text of the last snapshot. waited is
// how long the call itself has waited: the last member of a MultiLock may have had little of the limit. If the snapshot
// explains the end of the caller's context, the error also matches sentinel, unless that is nil.
func interrupted(caller context.Context, err, sentinel error, limit, waited time.Duration, last *snapshot, now time.Time) error {
	stopped := wire.Ended(err)
	switch {
	case caller.Err() != nil && (stopped || worthRepeating(err)):
		if !stopped {
			last.Err = err
		}
		return last.why(endOf(caller), sentinel, now)
	case stopped && !worthRepeating(err) && (sentinel != nil || limit > 0):
		if last.Err == nil && !last.explains() {
			return timedOut(limit, waited, last.grace)
		}
		return last.why(fmt.Errorf("timed out after %v", wire.Rounded(limit)), ErrNotAcquired, now)
	case err == ErrNotAcquired && last.explains():
		return fmt.Errorf("%w: %s", err, last.text(now))
	}
	return err
}

// timedOut returns the error of a wait of at most limit in which Redis did not answer. Redis counts as unreachable only if
// the call has waited for the grace, as in settle.
func timedOut(limit, waited, grace time.Duration) error {
	limit = wire.Rounded(limit)
	if waited < max(grace, protocol.GiveUpGrace) {
		return fmt.Errorf("%w: timed out after %v, before Redis has answered", ErrNotAcquired, limit)
	}
	return fmt.Errorf("timed out after %v; %w", limit, ErrUnreachable)
}

// unanswered makes the error of a failed call match ErrUnreachable, unless Redis has answered: with an error
// (ErrRefused), or with a vote that leaves a doubt.
func unanswered(err error) error {
	if noAnswer(err) || errors.Is(err, quorum.ErrDoubtful) || !wire.Transient(err) {
		return err
	}
	return wire.Failure(err)
}

// untilOrSoon returns the time until limit, but at least a moment: a release is sent even if the wait for other operations
// has used up its timeout.
func untilOrSoon(limit time.Time) time.Duration { return max(time.Until(limit), time.Millisecond) }

// errGone is the cause of an unconfirmed release that may have ended the hold: a later copy found no hold.
var errGone = errors.New("a reply was lost, and the release that was sent again found the hold gone")
