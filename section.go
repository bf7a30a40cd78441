package rlock

import (
	"context"
	"errors"
)

// What a function that ran under a lease has returned, and what has become of the lease, make one error:
// that of Do, of Once.Do and of Election.Run.

// cutOff is what had ended the context of such a function when it returned. Unlock ends it too.
type cutOff struct {
	lease  error // the end of the lease, which came first; nil: it did not
	caller bool  // the end of the caller's context, which came first
}

// cutOffOf tells why the context of a function has ended that was called under a lease. Its cause is
// that of the first of the two ends.
func cutOffOf(caller, inside context.Context) cutOff {
	why, _ := context.Cause(inside).(*Error)
	theirs, _ := context.Cause(caller).(*Error) // of a lease further out, for example
	if why != nil && why != theirs {
		return cutOff{lease: why}
	}
	return cutOff{caller: caller.Err() != nil}
}

// result joins the error of the function and that of the Unlock after it. If the lease had ended, that
// comes first. And unless the caller's context ended before, the error does not match context.Canceled
// then: who asks for that wants to know whether the caller has gone away.
func (c cutOff) result(err, unlock error) error {
	var end error
	switch {
	case errors.Is(unlock, ErrLeaseLost), errors.Is(unlock, ErrUnlocked), errors.Is(unlock, ErrNotHeld):
		end, unlock = unlock, nil
	case errors.Is(err, context.Canceled):
		end = c.lease // the client shuts down; the lock was held until Unlock
	}
	if end != nil && !c.caller {
		err = withoutCancel(err, end)
	}
	return joined(end, err, unlock)
}

// withoutCancel is what an error says besides that the end of the lease has canceled something; nil:
// nothing.
func withoutCancel(err, end error) error {
	said, _ := err.(*Error) // from context.Cause or Lease.Err
	told, _ := end.(*Error)
	switch {
	case err == context.Canceled, said != nil && told != nil && *said == *told:
		return nil
	case errors.Is(err, context.Canceled):
		return notCanceled{err}
	}
	return err
}

// notCanceled is an error that matches all that it did, but context.Canceled.
type notCanceled struct{ err error }

func (e notCanceled) Error() string { return e.err.Error() }
func (e notCanceled) Is(target error) bool {
	return target != context.Canceled && errors.Is(e.err, target)
}
func (e notCanceled) As(target any) bool { return errors.As(e.err, target) }

// joined is errors.Join that leaves a single error as it is.
func joined(errs ...error) (one error) {
	n := 0
	for _, err := range errs {
		if err != nil {
			one = err
			n++
		}
	}
	if n > 1 {
		return errors.Join(errs...)
	}
	return one
}
