package rlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

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

// looks notes that a look begins.
func (a *attempt) looks() {
	a.seen.asked = a.core.c.clock.Now()
	a.show()
}

// lead notes that the attempt is the head of a line, and shows the others what it
// sees.
func (a *attempt) lead(w *waiter) {
	a.place, a.leads = w, true
	a.show()
}

func (a *attempt) show() {
	if a.place != nil {
		a.core.c.queues.saw(a.place, a.seen)
	}
}

// see notes the answer to a look, and what the reply begins with.
func (a *attempt) see(r *request, ans answer, code int64) {
	defer a.show()
	asked, now := a.seen.asked, a.core.c.clock.Now()
	stopped := errors.Is(ans.err, context.Canceled) || errors.Is(ans.err, context.DeadlineExceeded)
	switch {
	case worthRepeating(ans.err):
		a.seen = sight{err: ans.err}
	case ans.err == nil && code == 0:
		a.seen = ans.refusal(now)
	case !stopped:
		a.seen = sight{}
	case ans.last != nil && !cutOff(ans.last):
		if !worthRepeating(ans.last) {
			ans.last = because(ErrUnreachable, ans.last)
		}
		a.seen = sight{err: ans.last}
	case r.do != nil:
		// Some of the servers may have answered: not to have heard of all says nothing.
		a.seen.asked = time.Time{}
	default:
		a.seen.asked = asked.Add(r.within) // that time is given to replicas
	}
}

// cutOff reports whether an error may come of the end of a context, and so says
// nothing about Redis.
func cutOff(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// refusal is the sight of a lock whose enter replied {0, rest, holder, others}.
func (a answer) refusal(now time.Time) sight {
	list, _ := a.val.([]any)
	if len(list) < 2 {
		return sight{}
	}
	s := sight{held: true}
	if rest, ok := list[1].(int64); ok && rest >= 0 {
		s.until = now.Add(time.Duration(min(rest, farAway.Milliseconds())) * time.Millisecond)
	}
	if len(list) >= 4 {
		s.known = true
		s.holder, _ = list[2].(string)
		s.others, _ = list[3].(int64)
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

// interrupted makes the error of an acquire out of what stopped it: a context that
// ended, the caller's or that of the wait, or that the lock was not free at the one
// look. What was seen last is part of it.
func (a *attempt) interrupted(caller context.Context, err error) error {
	stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	separator := "; "
	switch {
	case caller.Err() != nil && (stopped || worthRepeating(err)):
		if !stopped {
			a.seen.err = err
		}
		err = ended(caller)
	case stopped && !worthRepeating(err):
		err = fmt.Errorf("%w: timed out after %v", ErrNotAcquired, a.opts.wait)
	case err == ErrNotAcquired:
		separator = ": "
	default:
		return err
	}
	switch {
	case a.seen.err != nil && !errors.Is(err, ErrLeaseLost): // else that is why it ended
		return fmt.Errorf("%w%s%w", err, separator, a.seen.err)
	case a.seen.held:
		return fmt.Errorf("%w%s%s", err, separator, a.seen.text(a.core.c.clock.Now()))
	}
	return err
}

// error is the error of an acquire.
func (a *attempt) error(err error) *Error {
	e := &Error{Lock: a.core.name, Err: err}
	if s := &a.seen; errors.Is(err, ErrNotAcquired) && s.err == nil && s.held {
		e.Holder, e.Left = s.holder, s.left(a.core.c.clock.Now())
	}
	return e
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
