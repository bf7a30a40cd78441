package unlock

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

type server struct {
	lease  *rlock.Lease
	client *rlock.Client
}

func (s *server) dropped(ctx context.Context, lease *rlock.Lease, handle string) {
	lease.Unlock(ctx)            // want `error of Unlock is dropped`
	s.lease.Unlock(ctx)          // want `error of Unlock is dropped`
	s.client.Unlock(ctx, handle) // want `error of Unlock is dropped`
	go lease.Unlock(ctx)         // want `error of Unlock is dropped`
	defer lease.Unlock(ctx)      // want `error of Unlock is dropped`
	defer func() {
		lease.Unlock(ctx) // want `error of Unlock is dropped`
	}()
}

// What follows is right.

func kept(ctx context.Context, lease *rlock.Lease) (err error) {
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return nil
}

func onPurpose(ctx context.Context, lease *rlock.Lease) {
	_ = lease.Unlock(ctx)
	defer func() { _ = lease.Unlock(ctx) }()
}

func asked(ctx context.Context, lease *rlock.Lease) error {
	defer lease.Unlock(ctx)
	return lease.Err()
}

type other struct{}

func (other) Unlock(context.Context) error { return nil }

func ofAnother(ctx context.Context) {
	other{}.Unlock(ctx)
}
