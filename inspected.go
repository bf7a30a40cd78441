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

func (i inspected) Name() string { return i.core.Name() }

func (i inspected) State(ctx context.Context) (State, error) { return i.core.State(ctx) }

func (i inspected) IsLocked(ctx context.Context) (bool, error) { return i.core.IsLocked(ctx) }

func (i inspected) HoldCount(ctx context.Context) (int, error) { return i.core.HoldCount(ctx) }

func (i inspected) ForceUnlock(ctx context.Context) (bool, error) { return i.core.ForceUnlock(ctx) }

func (i inspected) ForceUnlockIf(ctx context.Context, holdID string) (bool, error) {
	return i.core.ForceUnlockIf(ctx, holdID)
}

func (i inspected) RequestRelease(ctx context.Context) (asked bool, err error) {
	return i.core.RequestRelease(ctx)
}

func (i inspected) Watch(ctx context.Context) (<-chan State, error) { return i.core.Watch(ctx) }
