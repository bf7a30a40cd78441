// Package fence writes under the fencing token of an [rlock.Lease], so that a holder that was stopped for longer than
// its lease cannot write over its successor: to an SQL database ([InTx]), a Redis hash ([HSet]) and an object store
// with conditional writes ([Put]).
//
// A lock cannot stop a process that was paused between its last check of the lease and its write. The resource can: it
// keeps the highest token that it has seen, and refuses a lower one in the same atomic step. A refused write matches
// [ErrStale]: the work is no longer yours.
//
// The fence closes behind the first write of a hold, not when the lock is taken. A holder that reads first and writes
// later must therefore raise the token before it reads: read in an InTx too. Otherwise a late write of the holder
// before may fall between its read and its write.
//
// Use one lock type for one resource: tokens of a FencedLock and of a Lock cannot be compared.
package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock"
)

// ErrStale is matched by the error of a write whose token is lower than one that the resource has seen: another holder
// has been there since. Nothing was written. Do not repeat the write with a new token without reading again.
var ErrStale = errors.New("a later holder has been here")

// StaleError is the error of a refused write. It matches [ErrStale].
type StaleError struct {
	Resource string // the lock's name, the Redis key or the object
	Token    int64  // of the lease
	Seen     int64  // the highest that the resource has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: %q: token %d is stale, %d was seen: %v", e.Resource, e.Token, e.Seen, ErrStale)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

func invalid(format string, args ...any) error {
	return fmt.Errorf("fence: %w: "+format, append([]any{rlock.ErrInvalidArgument}, args...)...)
}

// token returns the token of a lease that lasts.
func token(lease *rlock.Lease) (int64, error) {
	if err := lease.Err(); err != nil {
		return 0, err
	}
	if lease.Token() <= 0 {
		return 0, invalid("%s has no token: only exclusive holds have one", lease.Name())
	}
	return lease.Token(), nil
}

// because adds to an error what has ended the work, if it was the lease or the context: drivers do not always say so.
func because(ctx context.Context, lease *rlock.Lease, err error) error {
	end := lease.Err()
	if end == nil {
		end = ctx.Err()
	}
	if end != nil && !errors.Is(err, end) {
		return errors.Join(end, err)
	}
	return err
}
