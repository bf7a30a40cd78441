package rlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/visible"
)

// Once runs a function once among all processes that use its key, and gives all callers the result while it
// is kept: for jobs that many processes start, or requests that may come twice. One caller runs it under a
// renewed lease; the others wait. If that lease or the data of Redis are lost, another caller runs it anew:
// let the resource check its token ([LeaseFrom]), or make it harmless to repeat. Other methods: [Inspection].
// Details: https://go-rlock.github.io/rlock/latest/synchronizers/#once
type Once struct{ inspected }

// failureText returns the part of an error's text that other callers get.
func failureText(text string) string {
	const most = 1 << 10 // bytes
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// NewOnce returns the Once of a key: a name as in [Client.NewLock]. A result is kept for that time after
// the function has returned, from MinKeep to MaxKeep.
func (c *Client) NewOnce(key string, keep time.Duration, opts ...HoldOption) *Once {
	cfg, err := lockOptions(lockConfig{}, opts, HoldOption.optionOfAnyHold)
	if keep < MinKeep || keep > MaxKeep {
		err = invalid("a result is kept between %v and %v, not %v", MinKeep, MaxKeep, keep)
	}
	cfg.nonReentrant = true
	l, names := newCore(c, protocol.OnceFamily, key, cfg, err)
	l.proto = protocol.NewOnce(&l.c.site, names, wholeMillis(keep))
	return &Once{newInspected(l)}
}

// Do returns the kept result. Without one it waits while another caller runs, or calls fn with the context
// of a lease, and reports that fn ran. Do not change a result: others share it. An error of fn is
// returned as by [Do], and no result is kept. A result of fn is returned also with an error, which is nil
// if it was written, or matches ErrLeaseLost if the lease was lost, ErrUnconfirmed if Redis did not
// confirm the write, which is repeated, or ErrInvalidArgument if it exceeds MaxResultLength. If fn did
// not run, the error matches ErrNotRun, and ErrFailed if another caller's function failed while this one
// waited; else it is one of [Locker].
func (o *Once) Do(ctx context.Context, fn func(ctx context.Context) ([]byte, error), opts ...WaitOption) (result []byte, ran bool, err error) {
	return o.do(ctx, fn, true, opts)
}

// TryDo is Do without waiting: ErrNotAcquired while another caller runs.
func (o *Once) TryDo(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) (result []byte, ran bool, err error) {
	return o.do(ctx, fn, false, nil)
}

func (o *Once) do(ctx context.Context, fn func(ctx context.Context) ([]byte, error), wait bool, opts []WaitOption) (result []byte, ran bool, err error) {
	defer func() {
		if err != nil && !ran {
			err = notRun{err}
		}
	}()
	l := coreOf(o)
	if err := l.check(ctx); err != nil {
		return nil, false, err
	}
	if fn == nil {
		return nil, false, l.error(invalid("Do needs a function"))
	}
	began := l.c.env.Clock.Now()
	outcome := beforeOption(func(ctx context.Context) error { return o.outcomeFor(ctx, began) })
	lease, err := lock(ctx, l, wait, append(slices.Clip(opts), outcome))
	if err == nil {
		if err = o.mayRun(ctx, lease, outcome); err == nil {
			result, err = o.run(ctx, lease, fn)
			return result, true, err
		}
		_ = lease.Unlock(ctx)
	}
	var s *settled
	switch {
	case !errors.As(err, &s):
		return nil, false, err
	case s.failed != nil:
		return nil, false, l.error(because(ErrFailed, asFailed(s.failed)))
	}
	return s.result, false, nil
}

// mayRun returns why the function does not run under a lease that was granted, or nil: the previous holder may have
// written an outcome after the last request for it.
func (o *Once) mayRun(ctx context.Context, lease *Lease, outcome beforeOption) error {
	l := coreOf(o)
	requestedAt := l.c.env.Clock.Now()
	if err := outcome(l.c.events.withSubject(ctx, l)); err != nil {
		return l.error(l.cutShort(ctx, err, requestedAt))
	}
	return lease.Err()
}

// settled is the error of a Do that does not run its function, because a result exists or a run has failed.
type settled struct {
	result []byte
	failed error
}

func (s *settled) Error() string {
	if s.failed != nil {
		return "not acquired: the function of another caller has failed"
	}
	return "not acquired: there is a result"
}

func (s *settled) Is(target error) bool { return target == ErrNotAcquired }

// Found reports whether there is what the caller wants: see observed.end.
func (s *settled) Found() bool { return s.failed == nil }

// outcomeFor requests the outcome of the last run. The error is a *settled if there is a result, or if the run has failed
// since the call began. Callers of this client that were waiting by then get the same error.
func (o *Once) outcomeFor(ctx context.Context, began time.Time) error {
	l := coreOf(o)
	at := l.c.env.Clock.Now()
	r := l.proto.(*protocol.Once).Peek().Do(ctx, l.c.cfg.commandTimeout)
	s := &settled{}
	switch found := &r.Outcome; {
	case r.Err != nil:
		return r.Err
	case found.Kept:
		s.result = []byte(found.Text)
	case found.Failed:
		if at = at.Add(-found.Ago - time.Millisecond); began.After(at) {
			return nil
		}
		s.failed = errors.New(visible.Text(found.Text))
	default:
		return nil
	}
	l.c.lines.Fail(l.line(""), at, s)
	return s
}

// Peek returns the kept result, and runs no function.
func (o *Once) Peek(ctx context.Context) (result []byte, kept bool, err error) {
	l := coreOf(o)
	r, err := ask(ctx, l, func() protocol.Request[protocol.Outcome] { return l.proto.(*protocol.Once).Peek() })
	if err != nil || !r.Outcome.Kept {
		return nil, false, err
	}
	return []byte(r.Outcome.Text), true, nil
}

// Forget deletes the result that is kept, and reports whether there was one. It does not affect a
// function that runs now.
func (o *Once) Forget(ctx context.Context) (was bool, err error) {
	l := coreOf(o)
	r, err := ask(ctx, l, func() protocol.Request[bool] { return l.proto.(*protocol.Once).Forget() })
	return r.Outcome, err
}

// run calls fn under a lease, and ends the lease.
func (o *Once) run(ctx context.Context, lease *Lease, fn func(ctx context.Context) ([]byte, error)) (result []byte, err error) {
	cut := lease.call(ctx, func(ctx context.Context) { result, err = fn(ctx) }, func() { _ = lease.Unlock(ctx) })
	if err == nil && len(result) > MaxResultLength {
		err = coreOf(o).error(invalid("the result is %d bytes long, longer than %d", len(result), MaxResultLength))
	}
	l := coreOf(o)
	if err != nil {
		unlock := lease.Unlock
		if ctx.Err() == nil && lease.Err() == nil { // otherwise the function may have failed because of that
			// All callers that wait now, before the lock is free, have waited for this run. Later callers do not get
			// its error.
			l.c.lines.Fail(l.line(""), l.c.env.Clock.Now(), &settled{failed: err})
			unlock = func(ctx context.Context) error { return o.fail(ctx, lease, err) }
		}
		return result, cut.result(err, unlock(ctx))
	}
	written := string(result) // a copy: a retry may write it later, when the caller has changed the slice
	return result, lease.end(ctx, &finish{
		task: func(id string, lateCopies bool) protocol.Task {
			return l.proto.(*protocol.Once).Finish(id, lease.Token(), written, lateCopies)
		},
		// Half of it, because the clock of the server may be faster.
		traceTime: l.proto.(*protocol.Once).Keep() / 2,
	})
}

// fail is Unlock by a script that also publishes the error of the function, for waiters of other clients.
func (o *Once) fail(ctx context.Context, lease *Lease, err error) error {
	text := failureText(err.Error())
	return lease.end(ctx, &finish{task: func(id string, lateCopies bool) protocol.Task {
		return coreOf(o).proto.(*protocol.Once).Fail(id, text, lateCopies)
	}})
}
