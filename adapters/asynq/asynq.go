// Package rlockasynq has for asynq a scheduler that runs on one process of a fleet ([RunScheduler]), and a middleware
// that handles one task for each key at a time ([PerKey]).
package rlockasynq

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/hibiken/asynq"

	"github.com/go-rlock/rlock"
)

// A Scheduler is what [RunScheduler] runs.
type Scheduler interface {
	*asynq.Scheduler | *asynq.PeriodicTaskManager
	Start() error
	Shutdown()
}

// RunScheduler campaigns in the election, and while this process leads it runs the scheduler that build returns. It
// returns when ctx ends, or with an error of build or of the scheduler's Start; other errors are those that Run returns of an
// rlock.Election. build is called for each term, since a Scheduler cannot be started again; it registers the tasks. The
// value is what others read of the leader, such as an address.
//
// When ctx ends, the scheduler shuts down, and another leads immediately. When the process dies, nothing is enqueued until
// its lease is over, up to 30 s. A process that was stopped may enqueue once more before it sees that it leads no
// longer, and clocks that differ may do that when the leader changes: register with asynq.Unique, or a handler that
// bears it. The README shows what has neither gap.
//
// A PeriodicTaskManager is a scheduler too, whose tasks its provider may change.
func RunScheduler[S Scheduler](ctx context.Context, election *rlock.Election, value string, build func() (S, error)) error {
	if election == nil || build == nil {
		return fmt.Errorf("rlockasynq: %w: the election and the function must not be nil", rlock.ErrInvalidArgument)
	}
	return election.Run(ctx, value, func(term context.Context) error {
		scheduler, err := build()
		if err != nil {
			return err
		}
		if scheduler == *new(S) {
			return fmt.Errorf("rlockasynq: %w: the function has returned no scheduler", rlock.ErrInvalidArgument)
		}
		if err := scheduler.Start(); err != nil {
			return err
		}
		defer scheduler.Shutdown()
		<-term.Done()
		return ctx.Err()
	})
}

// ErrBusy: another worker handles a task of this key.
var ErrBusy = errors.New("rlockasynq: a task of this key is being handled")

// PerKey returns a middleware that handles one task for each key at a time, in all processes. The lock of a key is
// named prefix + key; the key is escaped, so it may be anything. A task whose key is empty needs no lock.
//
// The context of the handler ends when the lease is lost; rlock.LeaseFrom has the lease, with its fencing token. The
// error of the handler is returned as by rlock.Do: after a loss it matches rlock.ErrLeaseLost, and asynq tries again.
//
// The middleware does not wait: while another task of the key is being handled, it returns an error that matches
// [ErrBusy] and rlock.ErrNotAcquired, and asynq tries the task again later. That counts as a failure, and uses up
// retries, unless IsFailure of asynq.Config is [IsFailure]; [RetryDelay] has it come back soon: asynq counts whole seconds. A task does not run
// without an answer of Redis. Tasks of a key have no order, as with asynq itself.
func PerKey(client *rlock.Client, prefix string, key func(t *asynq.Task) string) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			k := key(t)
			if k == "" {
				return next.ProcessTask(ctx, t)
			}
			err := rlock.Do(ctx, client.NewLock(name(prefix, k)), func(ctx context.Context) error {
				return next.ProcessTask(ctx, t)
			}, rlock.WithWait(0))
			switch {
			case errors.Is(err, rlock.ErrNotRun) && errors.Is(err, rlock.ErrNotAcquired):
				return errors.Join(ErrBusy, err)
			case errors.Is(err, rlock.ErrUnconfirmed):
				return nil // the task is done; the lock is free when its lease is over
			}
			return err
		})
	}
}

// name is the name of a lock for any key.
func name(prefix, key string) string {
	if escaped := url.QueryEscape(key); len(escaped) <= 200 {
		return prefix + escaped
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + "sha256:" + hex.EncodeToString(sum[:])
}

// IsFailure is for IsFailure of asynq.Config: a task that was not begun, because another of its key is being handled or
// Redis does not answer, uses up no retry.
func IsFailure(err error) bool { return err != nil && !errors.Is(err, rlock.ErrNotRun) }

// RetryDelay returns a function for RetryDelayFunc of asynq.Config: a task whose key is busy comes back after busy, and
// others as asynq has it.
func RetryDelay(busy time.Duration) asynq.RetryDelayFunc {
	return func(n int, err error, t *asynq.Task) time.Duration {
		if errors.Is(err, ErrBusy) {
			return busy
		}
		return asynq.DefaultRetryDelayFunc(n, err, t)
	}
}
