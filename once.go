package rlock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Once runs a function once among all processes that use its key, and lets everybody have
// the result for as long as it is kept: for jobs that many processes start at the same
// time, or requests that may come twice (with the idempotency key in the key).
//
// One caller of Do runs the function, under a lease that is renewed; the others wait. If the
// function fails, those that wait then fail too (ErrFailed), and those that come later run
// their own. If it panics, or fails because the context of its caller has ended or the lease
// is lost, the next one that waits runs its own. If the process that runs it dies, the next
// one begins at the end of the lease; if it only lost its lease, as after a long stop, its
// result is not written, so that of its successor stays. A function may therefore have run in part, or to its end, before it is run again:
// have what it does check the token ([LeaseFrom]), or make it harmless to repeat.
//
// While the result is kept, Do costs one command. It is written, and the lock is freed, by
// one script, which waits for no replicas (WithReplicaAck). If Redis loses its data, the
// function runs again. [Inspector] methods see a Once as a lock that is held while the
// function runs; the result is not part of it.
//
// Redisson has no such type. Its keys are rlock's own, and a lock of the same name has
// nothing to do with it.
type Once struct{ inspected }

// maxFailure is how much of the text of an error others hear, in bytes.
const maxFailure = 1 << 10

// NewOnce returns the Once of a key, which is like the name of a lock: see
// [Client.NewLock]. A result is kept for so long after the function has returned, between
// [MinKeep] and [MaxKeep], rounded up to whole milliseconds. A waiter that cannot look
// within that time, because it is cut off, runs its own function.
//
// A function that hangs keeps the others waiting, as long as its process renews the lease.
// [WithMaxHold] bounds that: then its context ends, its result is not kept any more, and another
// runs as soon as it has returned, or its lease is over.
func (c *Client) NewOnce(key string, keep time.Duration, opts ...OnceOption) *Once {
	cfg, err := lockOptions(opts, OnceOption.once)
	if keep < MinKeep || keep > MaxKeep {
		err = invalid("a result is kept between %v and %v, not %v", MinKeep, MaxKeep, keep)
	}
	cfg.nonReentrant = true
	l, names := newCore(c, onceFamily, key, cfg, err)
	l.asks = protocol.NewOnce(&l.c.site, names, wholeMillis(keep))
	return &Once{inspected{l}}
}

func (o *Once) core() *core {
	if o == nil {
		return nil
	}
	return o.inspected.core
}

// Do returns the result that is kept, or waits while another caller runs, or calls fn and
// reports that it ran. fn gets the context of the lease ([Lease.Context]), which ends with
// ctx and when the lease is lost; [LeaseFrom] returns the lease.
//
// A result that is kept is shared with other callers: do not change it.
//
// If fn ran and returned an error, Do returns that, and keeps nothing; Redis has its text, up to
// 1 KiB, for a minute, for those that wait in other processes. A loss of the lease comes first,
// as in [Do] of a lock, and a context that it has canceled is not told. If fn returned a
// result, Do returns it too, and the error
//   - is nil if the result was written; a nil result is kept as an empty one;
//   - matches ErrLeaseLost if the lease was lost before: the result of another caller
//     counts, if there is one;
//   - matches ErrUnconfirmed if Redis did not confirm the write, and ErrUnreachable if there
//     was no answer: it is repeated in the background until the lease has run out. Until
//     then nobody else runs. (If the answer comes later than half of the time to keep a
//     result, by a resend, the write may be done: it may have been forgotten since);
//   - matches ErrInvalidArgument if the result is longer than MaxResultLength; it is not
//     kept.
//
// If fn did not run, the error matches ErrFailed if that of another caller failed while this one
// waited, and its error too if both are of one Client. Other errors are those of Lock ([Locker]):
// ErrNotAcquired if WithWait was over, and with ctx.Err() if ctx ended first; ErrReentrant if ctx
// descends from the fn of this key; and so on.
func (o *Once) Do(ctx context.Context, fn func(ctx context.Context) ([]byte, error), opts ...WaitOption) (result []byte, ran bool, err error) {
	return o.do(ctx, fn, true, opts)
}

// TryDo is Do that waits for nobody. While another caller runs, the error matches ErrNotAcquired; if one
// has run, it returns the result that is kept, and ran is false.
func (o *Once) TryDo(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) (result []byte, ran bool, err error) {
	return o.do(ctx, fn, false, nil)
}

func (o *Once) do(ctx context.Context, fn func(ctx context.Context) ([]byte, error), wait bool, opts []WaitOption) (result []byte, ran bool, err error) {
	l := o.core()
	if err := l.check(ctx); err != nil {
		return nil, false, err
	}
	if fn == nil {
		return nil, false, l.error(invalid("Do needs a function"))
	}
	lease, err := lock(ctx, l, wait, opts)
	if err != nil {
		var s *settled
		switch {
		case !errors.As(err, &s):
		case s.failed != nil:
			return nil, false, l.error(because(ErrFailed, s.failed))
		default:
			return s.result, false, nil
		}
		return nil, false, err
	}
	result, err = o.run(ctx, lease, fn)
	return result, true, err
}

// Peek returns the result that is kept, if there is one. It waits for nobody, and runs nothing.
// Bounds and errors are those of an [Inspector].
func (o *Once) Peek(ctx context.Context) (result []byte, kept bool, err error) {
	l := o.core()
	if err := l.check(ctx); err != nil {
		return nil, false, err
	}
	r, err := ask(ctx, l, l.asks.(*protocol.Once).Peek())
	if err != nil || !r.Outcome.Kept {
		return nil, false, err
	}
	return []byte(r.Outcome.Result), true, nil
}

// Forget deletes the result that is kept, so that the next Do runs its function, and reports
// whether there was one. A function that runs now is not affected: its result will be kept.
// The request is sent once only. Bounds and errors are those of an [Inspector]; after
// ErrUnreachable it may have been done.
func (o *Once) Forget(ctx context.Context) (was bool, err error) {
	l := o.core()
	if err := l.check(ctx); err != nil {
		return false, err
	}
	r, err := ask(ctx, l, l.asks.(*protocol.Once).Forget())
	return r.Outcome, err
}

// run calls fn under a lease, and ends the lease.
func (o *Once) run(ctx context.Context, lease *Lease, fn func(ctx context.Context) ([]byte, error)) (result []byte, err error) {
	returned := false
	defer func() {
		if !returned { // a panic
			_ = lease.Unlock(ctx)
		}
	}()
	inside := lease.Context(ctx)
	result, err = fn(inside)
	returned = true
	cut := cutOffOf(ctx, inside)
	if err == nil && len(result) > MaxResultLength {
		err = o.core().error(invalid("the result is %d bytes long, longer than %d", len(result), MaxResultLength))
	}
	h, asks := lease.of.(*hold), o.core().asks.(*protocol.Once)
	if err != nil {
		unlock := lease.Unlock
		if ctx.Err() == nil && lease.Err() == nil { // else it may have failed because of that
			// Before the lock is free: all who wait now waited for this run. Who comes from now on
			// does not hear of it.
			o.core().c.lines.failAll(o.core().line(""), &settled{failed: err})
			unlock = func(ctx context.Context) error { return o.fail(ctx, lease, err) }
		}
		return result, cut.result(err, unlock(ctx))
	}
	written := string(result) // perhaps later, when the caller uses the slice for something else
	return result, lease.end(ctx, func(ctx context.Context, l *Lease, called instant) error {
		return h.leave(ctx, l, called, &finish{
			task: func(id string, late bool) protocol.Task { return asks.Finish(id, h.token, written, late) },
			// Half of it, lest the clock of the server be quicker.
			shows: asks.Keep() / 2,
		})
	})
}

// fail is Unlock by a script that tells those who wait elsewhere why the function has failed.
func (o *Once) fail(ctx context.Context, lease *Lease, err error) error {
	text := err.Error()
	if len(text) > maxFailure {
		text = strings.ToValidUTF8(text[:maxFailure], "")
	}
	return lease.end(ctx, func(ctx context.Context, l *Lease, called instant) error {
		return l.of.(*hold).leave(ctx, l, called, &finish{task: func(id string, late bool) protocol.Task {
			return o.core().asks.(*protocol.Once).Fail(id, text, late)
		}})
	})
}
