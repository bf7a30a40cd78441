package named

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// retry is the pause after an error that may pass.
const retry = 100 * time.Millisecond

// Mutex is a sync.Locker on a lock of rlock, for code that wants one.
//
// What it gives up, since Lock of a sync.Locker has neither a context nor an error:
//   - Lock waits for as long as it takes, through every outage of Redis, and cannot be canceled. What can never succeed
//     (a closed client, invalid arguments, a key of another type) is a panic.
//   - A loss is not reported in time: the section runs on. Its end calls the function of [NewMutex].
//   - There is no fencing token.
//
// As with a sync.Mutex, any goroutine may unlock, an Unlock without Lock panics, and there is no re-entry.
type Mutex struct {
	lock   rlock.Locker
	report func(err error)

	mu     sync.Mutex // guards leases; not held while Redis is asked
	leases []*rlock.Lease
}

var _ sync.Locker = (*Mutex)(nil)

// NewMutex returns a sync.Locker on a lock. report gets the errors that Lock outlasts, such as rlock.ErrUnreachable, and of
// what Unlock has found: rlock.ErrLeaseLost, if another may have been in the section at the same time, or
// rlock.ErrUnconfirmed. The error matches rlock.ErrInvalidArgument if one of both is nil.
func NewMutex(lock rlock.Locker, report func(err error)) (*Mutex, error) {
	if lock == nil || report == nil {
		return nil, fmt.Errorf("named: %w: the lock and the function must not be nil", rlock.ErrInvalidArgument)
	}
	return &Mutex{lock: lock, report: report}, nil
}

// Lock returns when it has the lock.
func (m *Mutex) Lock() {
	for {
		lease, err := m.lock.Lock(context.Background())
		switch {
		case err == nil:
			m.mu.Lock()
			defer m.mu.Unlock()
			m.leases = append(m.leases, lease)
			return
		case errors.Is(err, rlock.ErrClosed), errors.Is(err, rlock.ErrInvalidArgument), errors.Is(err, rlock.ErrForeignKey):
			panic(err)
		}
		m.report(err)
		time.Sleep(retry)
	}
}

// Unlock releases the lock. If a hold was lost, and the Mutex was locked again since, the first Unlock counts for the hold
// that was lost.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	if len(m.leases) == 0 {
		m.mu.Unlock()
		panic("named: unlock of a Mutex that is not locked: " + m.lock.Name())
	}
	lease := m.leases[0]
	m.leases = m.leases[1:]
	m.mu.Unlock()
	if err := lease.Unlock(context.Background()); err != nil {
		m.report(err)
	}
}
