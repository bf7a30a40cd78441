package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// giveUpGrace is how long a caller whose wait is over waits to see its acquire undone.
// Redis answers within it unless something is wrong.
const giveUpGrace = 100 * time.Millisecond

// sight is what an acquire has seen of a lock: the outcome of its last look. Who
// stands in line behind others takes that of the head of the line.
type sight struct {
	held   bool      // by another, or kept for one who goes first
	known  bool      // who holds it: nobody, if there is no holder and there are no others
	holder string    // one of those who held it; empty: not known
	others int64     // how many more there were
	until  time.Time // when the lease ends, by our clock; zero: there is no telling
	err    error     // Redis, or a quorum, gave no answer

	// asked is when a look was sent that has not been answered; zero: none. The rest
	// is then the outcome of the look before it.
	asked time.Time
}

// answered notes the outcome of a look. within is the time that was given to replicas.
func (s *sight) answered(r *protocol.Result[protocol.Entered], now time.Time, within time.Duration) {
	stopped := wire.Ended(r.Err)
	switch {
	case worthRepeating(r.Err):
		*s = sight{err: r.Err}
	case r.Err == nil && r.Outcome.Verdict == protocol.Busy:
		*s = refusal(&r.Outcome, now)
	case !stopped:
		*s = sight{}
	case r.Last != nil && !wire.CutOff(r.Last):
		last := r.Last
		if !worthRepeating(last) {
			last = because(ErrUnreachable, last)
		}
		*s = sight{err: last}
	case r.OfQuorum:
		// Some of the servers may have answered: not to have heard of all says nothing.
		s.asked = time.Time{}
	default:
		s.asked = s.asked.Add(within)
	}
}

// refusal is the sight of a lock that was busy.
func refusal(e *protocol.Entered, now time.Time) sight {
	s := sight{held: true, known: e.Known, holder: e.Holder, others: e.Others}
	if e.Rest >= 0 {
		s.until = now.Add(min(e.Rest, seam.FarAway))
	}
	return s
}

// settle decides about a look that was not answered. A server that answers nothing
// for giveUpGrace counts as unreachable. That a look was cut off earlier means
// nothing; nor does a look without an answer if the give-up that followed had one.
func (s *sight) settle(now time.Time, answered bool) {
	if silent := now.Sub(s.asked); !s.asked.IsZero() && !answered && silent >= giveUpGrace {
		s.err = fmt.Errorf("%w for %v", ErrUnreachable, silent.Round(time.Millisecond))
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

// text says who held the lock.
func (s *sight) text(now time.Time) string {
	who := "held by another"
	switch {
	case s.holder != "" && s.others > 0:
		who = fmt.Sprintf("held by %s and %d more", s.holder, s.others)
	case s.holder != "":
		who = "held by " + s.holder
	case s.others > 0:
		who = fmt.Sprintf("held by %d", s.others)
	case s.known:
		who = "kept for one who waits"
	}
	if left := s.left(now); left > 10*time.Second {
		return fmt.Sprintf("%s, %v left", who, left.Round(time.Second))
	} else if left > 0 {
		return fmt.Sprintf("%s, %v left", who, left.Round(time.Millisecond))
	}
	return who
}

// explain adds what was seen last to the error of an acquire.
func (s *sight) explain(err error, separator string, now time.Time) error {
	switch {
	case s.err != nil && !errors.Is(err, ErrLeaseLost): // else that is why it ended
		return fmt.Errorf("%w%s%w", err, separator, s.err)
	case s.held:
		return fmt.Errorf("%w%s%s", err, separator, s.text(now))
	}
	return err
}

// ended is the error of an acquire whose context has ended, with the cause if
// the context has one of its own.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return because(ErrNotAcquired, cause)
	}
	return fmt.Errorf("%w: %w: %w", ErrNotAcquired, err, cause)
}

// worthRepeating reports whether Lock goes on after err: Redis may come back,
// and does within a failover. It bears that for as long as a watchdog lease.
func worthRepeating(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNoQuorum) || errors.Is(err, errShortLease)
}

var errShortLease = errors.New("the lease was over before Redis answered")
