package loop

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error { return nil }

func eachOf(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer lease.Unlock(ctx) // want `Unlock is deferred in a loop`
		if err := work(lease.Context(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func eachJoined(ctx context.Context, l rlock.Locker) (err error) {
	for range 3 {
		lease, lockErr := l.Lock(ctx)
		if lockErr != nil {
			return lockErr
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }() // want `Unlock is deferred in a loop`
		_ = work(lease.Context(ctx))
	}
	return nil
}

func byLabel(ctx context.Context, l rlock.Locker) error {
again:
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Unlock(ctx) }() // want `Unlock is deferred in a loop`
	if work(lease.Context(ctx)) != nil {
		goto again
	}
	return nil
}

func eachThatIsFree(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		lease, err := l.TryLock(ctx)
		if err == nil {
			defer func() { _ = lease.Unlock(ctx) }() // want `Unlock is deferred in a loop`
			if err := work(lease.Context(ctx)); err != nil {
				return err
			}
		}
		if !errors.Is(err, rlock.ErrNotAcquired) {
			defer func() { _ = lease.Unlock(ctx) }() // want `Unlock is deferred in a loop`
		}
		err = work(ctx)
	}
	return nil
}

func eachCounted(ctx context.Context, locks []rlock.Locker) (n int, err error) {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return 0, err
		}
		defer lease.Unlock(ctx) // want `Unlock is deferred in a loop`
		n += count(lease.Context(ctx))
	}
	return n, nil
}

func eachUnlockedOnFailure(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer lease.Unlock(ctx) // want `Unlock is deferred in a loop`
		if err := work(lease.Context(ctx)); err != nil {
			return errors.Join(err, lease.Unlock(ctx))
		}
	}
	return nil
}

func count(context.Context) int { return 1 }

func onceForAll(ctx context.Context, locks []rlock.Locker, done bool) (err error) {
	if !done {
		done = true
		for _, l := range locks {
			lease, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = lease.Unlock(ctx) }() // want `Unlock is deferred in a loop`
			if err := work(lease.Context(ctx)); err != nil {
				return err
			}
		}
	}
	return err
}

func whileItWorks(ctx context.Context, locks []rlock.Locker) (err error) {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err == nil {
			defer func() { _ = lease.Unlock(ctx) }() // want `Unlock is deferred in a loop`
			err = work(lease.Context(ctx))
		}
		if err != nil {
			return err
		}
	}
	return err
}

// What follows is right.

func collected(ctx context.Context, locks []rlock.Locker) error {
	var leases []*rlock.Lease
	byName := map[string]*rlock.Lease{}
	var names []string
	for i, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
		leases = append(leases, lease)
		byName[lease.Name()] = lease
		ctx = lease.Context(ctx)
		names = append(names, l.Name())
		i++
	}
	return work(ctx)
}

func deferredForPanics(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
		err = work(lease.Context(ctx))
		if err = errors.Join(err, lease.Unlock(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func allThatAreFree(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		if lease, err := l.TryLock(ctx); errors.Is(err, rlock.ErrNotAcquired) {
			continue
		} else if err == nil {
			defer func() { _ = lease.Unlock(ctx) }()
		}
	}
	return work(ctx)
}

func allTogether(ctx context.Context, locks []rlock.Locker) (err error) {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
	}
	return work(ctx)
}

func untilItHasIt(ctx context.Context, l rlock.Locker) (err error) {
	for {
		lease, err := l.TryLock(ctx)
		if errors.Is(err, rlock.ErrNotAcquired) {
			continue
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
		return work(lease.Context(ctx))
	}
}

func eachInAFunction(ctx context.Context, locks []rlock.Locker) error {
	for _, l := range locks {
		err := func() (err error) {
			lease, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
			return work(lease.Context(ctx))
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

func leader(ctx context.Context, l rlock.Locker, n int) error {
	var lease *rlock.Lease
	leads := false
	for range n {
		if !leads {
			var err error
			if lease, err = l.TryLock(ctx); err != nil {
				continue
			}
			defer func() { _ = lease.Unlock(ctx) }()
			leads = true
		}
		if err := work(lease.Context(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func ifItHasNone(ctx context.Context, l rlock.Locker, n int) (err error) {
	var lease *rlock.Lease
	for range n {
		if lease == nil {
			if lease, err = l.Lock(ctx); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
		}
		if err := work(lease.Context(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func ofATurn(ctx context.Context, l rlock.Locker, names []string) error {
	for _, name := range names {
		done := name == "x"
		if !done {
			lease, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = lease.Unlock(ctx) }() // want `deferred in a loop`
			if err := work(lease.Context(ctx)); err != nil {
				return err
			}
			done = true
		}
		_ = work(context.WithValue(ctx, name, done))
	}
	return nil
}
