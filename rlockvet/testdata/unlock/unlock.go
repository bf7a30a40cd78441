package unlock

import (
	"context"
	"errors"
	"fmt"
	"log"

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

func onFailure(ctx context.Context, lease *rlock.Lease) error {
	err := work(ctx)
	if err != nil {
		lease.Unlock(ctx) // want `error of Unlock is dropped`
		return nil
	}
	if err == nil {
		lease.Unlock(ctx) // want `error of Unlock is dropped`
		return err
	}
	if err != nil {
		defer lease.Unlock(ctx) // want `error of Unlock is dropped`
		go lease.Unlock(ctx)    // want `error of Unlock is dropped`
	}
	if err != nil {
		err = nil
		lease.Unlock(ctx) // want `error of Unlock is dropped`
		return err
	}
	return nil
}

func leavesEarly(ctx context.Context, lease *rlock.Lease) {
	if lease.Token() == 0 {
		lease.Unlock(ctx) // want `error of Unlock is dropped`
		return
	}
	_ = lease.Unlock(ctx)
}

func triesEach(ctx context.Context, lease *rlock.Lease, n int) error {
	defer lease.Unlock(ctx) // want `error of Unlock is dropped`
	for range n {
		if work(ctx) == nil {
			return nil
		}
	}
	return errors.New("none")
}

// What follows is right.

// The caller learns of the failure: it does not take the work as done under the lock.
func failed(ctx context.Context, lease *rlock.Lease) (int, error) {
	if err := work(ctx); err != nil {
		lease.Unlock(ctx)
		return 0, err
	}
	err := work(ctx)
	if err != nil {
		log.Print(err)
		lease.Unlock(ctx)
		log.Print("unlocked")
		return 0, fmt.Errorf("work: %w", err)
	}
	if err = work(ctx); err != nil {
		lease.Unlock(ctx)
		log.Fatal(err)
	}
	return 0, lease.Unlock(ctx)
}

func failedWithoutAResult(ctx context.Context, lease *rlock.Lease) {
	if err := work(ctx); err != nil {
		log.Print(err)
		lease.Unlock(ctx)
		return
	}
	if err := work(ctx); err != nil {
		defer lease.Unlock(ctx)
		log.Print(err)
		return
	}
	_ = lease.Unlock(ctx)
}

func work(context.Context) error { return nil }

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

func ifItHasOne(ctx context.Context, lease *rlock.Lease) {
	if lease != nil {
		_ = work(lease.Context(ctx))
		lease.Unlock(ctx) // want `the error of Unlock is dropped`
		return
	}
	_ = work(ctx)
}
