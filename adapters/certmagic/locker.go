// Package rlockcertmagic has for certmagic, and for what embeds it, a [Locker] on rlock, and a [Storage] in Redis whose
// writes carry the fencing token of the lock that they are made under.
package rlockcertmagic

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/go-rlock/rlock"
)

// Locker implements certmagic.Locker, TryLocker and LockLeaseRenewer, for a storage of your own.
//
// Locks are renewed until Unlock. If the process dies they are free at the end of the lease, 30 s by default. certmagic
// cannot be notified of a loss while it works: RenewLockLease, before each further try, and Unlock report it.
type Locker struct {
	client *rlock.Client
	prefix string

	mu     sync.Mutex // guards leases; not held while Redis is asked
	leases map[string][]*rlock.Lease
}

var (
	_ certmagic.Locker           = (*Locker)(nil)
	_ certmagic.TryLocker        = (*Locker)(nil)
	_ certmagic.LockLeaseRenewer = (*Locker)(nil)
)

// NewLocker returns a Locker whose locks are named prefix + name. All processes of the cluster give the same prefix. The
// error matches rlock.ErrInvalidArgument if the client is nil.
func NewLocker(client *rlock.Client, prefix string) (*Locker, error) {
	if client == nil {
		return nil, fmt.Errorf("rlockcertmagic: %w: the client is nil", rlock.ErrInvalidArgument)
	}
	return &Locker{client: client, prefix: prefix, leases: map[string][]*rlock.Lease{}}, nil
}

func (l *Locker) lock(name string) *rlock.Lock {
	escaped := url.QueryEscape(name)
	if len(escaped) > 200 {
		sum := sha256.Sum256([]byte(name))
		escaped = "sha256:" + hex.EncodeToString(sum[:])
	}
	return l.client.NewLock(l.prefix + escaped)
}

// Lock waits until it has the lock. It returns the errors of rlock.Locker's Lock. Two calls of one process for a name
// exclude each other too.
func (l *Locker) Lock(ctx context.Context, name string) error {
	_, err := l.acquire(ctx, name, true)
	return err
}

// TryLock takes the lock if nobody has it. While another has it, it returns false and no error.
func (l *Locker) TryLock(ctx context.Context, name string) (bool, error) {
	lease, err := l.try(ctx, name)
	return lease != nil, err
}

// try is TryLock; without a lease and an error, another has it.
func (l *Locker) try(ctx context.Context, name string) (*rlock.Lease, error) {
	lease, err := l.acquire(ctx, name, false)
	if errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
		return nil, nil
	}
	return lease, err
}

func (l *Locker) acquire(ctx context.Context, name string, wait bool) (lease *rlock.Lease, err error) {
	if wait {
		lease, err = l.lock(name).Lock(rlock.WithoutOwner(ctx))
	} else {
		lease, err = l.lock(name).TryLock(rlock.WithoutOwner(ctx))
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases[name] = append(l.leases[name], lease)
	return lease, nil
}

// Unlock releases the lock, also if ctx has ended. It reports rlock.ErrLeaseLost if another may have had the lock at the
// same time, and rlock.ErrNotHeld if this process does not have it.
//
// If a hold was lost, and another goroutine has the lock since, the first Unlock counts for the hold that was lost. So
// none is released before its own Unlock.
func (l *Locker) Unlock(ctx context.Context, name string) error {
	l.mu.Lock()
	var lease *rlock.Lease // nil: not held
	if all := l.leases[name]; len(all) > 1 {
		lease, l.leases[name] = all[0], all[1:]
	} else if len(all) == 1 {
		lease = all[0]
		delete(l.leases, name)
	}
	l.mu.Unlock()
	return lease.Unlock(ctx)
}

// RenewLockLease asks Redis whether the lock is still held, and returns rlock.ErrLeaseLost or rlock.ErrNotHeld if it is
// not. A lock is renewed anyway, so the duration, which may be hours, need not be the length of its lease: if the process dies,
// others would have to wait for as long.
func (l *Locker) RenewLockLease(ctx context.Context, name string, d time.Duration) error {
	l.mu.Lock()
	var lease *rlock.Lease
	if all := l.leases[name]; len(all) > 0 {
		lease = all[0]
	}
	l.mu.Unlock()
	if d < rlock.MinLease {
		return fmt.Errorf("rlockcertmagic: %w: a lease of %v", rlock.ErrInvalidArgument, d)
	}
	return lease.Extend(ctx, min(d, rlock.DefaultWatchdogLease).Truncate(time.Millisecond))
}

// token returns the token under which this process has a lock, or 0 if it does not have it. A hold that was lost, and
// not yet unlocked, is an error: the writer may be its holder.
func (l *Locker) token(name string) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	token := int64(0)
	for _, lease := range l.leases[name] {
		if err := lease.Err(); err != nil {
			return 0, err
		}
		token = max(token, lease.Token())
	}
	return token, nil
}
