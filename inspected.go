package rlock

import "context"

// inspected has the methods of an [Inspector], and the others that all locks have beside Lock and
// TryLock, for types that are acquired in other ways. The interfaces and the package comment say what
// they promise.
type inspected struct{ core *core }

var (
	_ Inspector        = inspected{}
	_ ReleaseRequester = inspected{}
)

// Name is the name, with the prefix of its client.
func (i inspected) Name() string { return i.core.Name() }

// State shows it as a lock, with its holders and waiters: see [Inspector].
func (i inspected) State(ctx context.Context) (State, error) { return i.core.State(ctx) }

// IsLocked reports whether anybody holds it: see [Inspector].
func (i inspected) IsLocked(ctx context.Context) (bool, error) { return i.core.IsLocked(ctx) }

// HoldCount returns how often the owner of ctx has entered: see [Inspector].
func (i inspected) HoldCount(ctx context.Context) (int, error) { return i.core.HoldCount(ctx) }

// ForceUnlock ends all holds of it, whoever has them: see [Inspector].
func (i inspected) ForceUnlock(ctx context.Context) (bool, error) { return i.core.ForceUnlock(ctx) }

// ForceUnlockIf ends the hold with this id: see [Inspector].
func (i inspected) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	return i.core.ForceUnlockIf(ctx, holdID)
}

// RequestRelease asks its holder to release it: see [ReleaseRequester].
func (i inspected) RequestRelease(ctx context.Context) (asked bool, err error) {
	return i.core.RequestRelease(ctx)
}

// Watch sends the State, now and after each change that it sees: see [State].
func (i inspected) Watch(ctx context.Context) (<-chan State, error) { return i.core.Watch(ctx) }
