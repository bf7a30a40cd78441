package rlock

import (
	"context"
	"errors"
)

// What a function that ran under a lease has returned, and what has become of the lease, make one error:
// that of Do, Lease.Do, Once.Do, CronJob.Do and Election.Run. Such calls nest, and whoever gets the error
// of the outer one must not take what it says of an inner lock for what happened to the outer one.

// Do calls fn with the context of the lease, and unlocks the lease when fn has returned or panicked: for
// leases that [Do] does not acquire, as of Adopt or Enter. The error is that of [Do]. If the lease has
// ended before, fn is not called, and the error matches ErrNotRun and what has ended it.
func (l *Lease) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return notRun{l.error(invalid("Do needs a function"))}
	case ctx == nil:
		return notRun{l.error(errNoContext)}
	}
	if err := l.Err(); err != nil {
		return notRun{joined(err, onlyUnconfirmed(l.Unlock(ctx)))}
	}
	cut, err, unlock := l.under(ctx, fn)
	return cut.result(err, unlock)
}

// under calls fn under the lease, and unlocks it.
func (l *Lease) under(ctx context.Context, fn func(ctx context.Context) error) (cut cutOff, err, unlock error) {
	returned := false
	defer func() {
		if !returned { // a panic
			_ = l.Unlock(ctx)
		}
	}()
	inside := l.Context(ctx)
	err = fn(inside)
	returned = true
	cut = cutOffOf(ctx, inside)
	return cut, err, l.Unlock(ctx)
}

// notRun is the error of a call whose function was not called.
type notRun struct{ error }

func (e notRun) Unwrap() error        { return e.error }
func (e notRun) Is(target error) bool { return target == ErrNotRun }

// failed is the error of a function that ran: that of a call inside it, which has not run its own or
// whose release is not confirmed, does not look like that of the call of the function itself.
type failed struct{ err error }

func (e failed) Error() string { return e.err.Error() }
func (e failed) Is(target error) bool {
	return target != ErrNotRun && target != ErrUnconfirmed && errors.Is(e.err, target)
}
func (e failed) As(target any) bool { return errors.As(e.err, target) }

// asFailed leaves an error as it is that cannot be mistaken.
func asFailed(err error) error {
	if errors.Is(err, ErrNotRun) || errors.Is(err, ErrUnconfirmed) {
		return failed{err}
	}
	return err
}

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
	well := err == nil
	switch {
	case errors.Is(unlock, ErrLeaseLost), errors.Is(unlock, ErrUnlocked), errors.Is(unlock, ErrNotHeld):
		end, unlock = unlock, nil
	case errors.Is(err, context.Canceled):
		end = c.lease // the client shuts down; the lock was held until Unlock
	}
	if end != nil && !c.caller {
		err = withoutCancel(err, end)
	}
	if well {
		return joined(end, unlock)
	}
	return asFailed(joined(end, err, unlock))
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

// onlyUnconfirmed is what the Unlock of a lease says beside that the lease had ended.
func onlyUnconfirmed(err error) error {
	if errors.Is(err, ErrUnconfirmed) {
		return err
	}
	return nil
}

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
