package rlock

import "context"

// inspected has the methods of an Inspector, and the others that all locks have beside Lock
// and TryLock, for types that are acquired in other ways.
type inspected struct{ core *core }

var (
	_ Inspector        = inspected{}
	_ ReleaseRequester = inspected{}
)

// Name is the name, with the prefix of the client.
func (i inspected) Name() string { return i.core.Name() }

// State is that of an [Inspector].
func (i inspected) State(ctx context.Context) (State, error) { return i.core.State(ctx) }

// IsLocked reports whether anybody has a lease: see [Inspector].
func (i inspected) IsLocked(ctx context.Context) (bool, error) { return i.core.IsLocked(ctx) }

// HoldCount is that of an [Inspector].
func (i inspected) HoldCount(ctx context.Context) (int, error) { return i.core.HoldCount(ctx) }

// ForceUnlock ends all leases: see [Inspector].
func (i inspected) ForceUnlock(ctx context.Context) (bool, error) { return i.core.ForceUnlock(ctx) }

// ForceUnlockIf ends one hold: see [Inspector].
func (i inspected) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	return i.core.ForceUnlockIf(ctx, holdID)
}

// RequestRelease asks those who have a lease to end it: see [ReleaseRequester]. The members of a
// [DoubleBarrier] cannot be asked: the error matches ErrInvalidArgument. Who runs the function
// of a [Once], or of [Election.Run], has no lease to hear it by.
func (i inspected) RequestRelease(ctx context.Context) (asked bool, err error) {
	return i.core.RequestRelease(ctx)
}

// Watch is that of every lock: see the documentation of the package.
func (i inspected) Watch(ctx context.Context) (<-chan State, error) { return i.core.Watch(ctx) }
