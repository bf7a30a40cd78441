//go:build linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// use is what a worker does with a name of a type. It makes the lock anew each time, as programs do, and leaves nothing
// behind. Most uses have a counterpart: a client of another member.
type use struct {
	kind string
	do   func(ctx context.Context, w *worker, name string, node int) error
}

var errOfFunction = errors.New("the function fails")

var uses = []use{
	{"Lock", func(ctx context.Context, w *worker, name string, node int) error {
		return w.adopted(ctx, w.client(node).NewLock(name), node)
	}},
	{"FencedLock", func(ctx context.Context, w *worker, name string, node int) error {
		return w.adopted(ctx, w.client(node).NewFencedLock(name), node)
	}},
	{"FairLock", func(ctx context.Context, w *worker, name string, node int) error {
		return w.adopted(ctx, w.client(node).NewFairLock(name), node)
	}},
	{"SpinLock", func(ctx context.Context, w *worker, name string, node int) error {
		return w.hold(ctx, w.client(node).NewSpinLock(name))
	}},
	{"ReadWriteLock", func(ctx context.Context, w *worker, name string, node int) error {
		l := w.client(node).NewReadWriteLock(name)
		if w.rnd.IntN(3) > 0 {
			return w.hold(ctx, l.Reader)
		}
		return w.hold(ctx, l.Writer)
	}},
	{"FairReadWriteLock", func(ctx context.Context, w *worker, name string, node int) error {
		l := w.client(node).NewFairReadWriteLock(name)
		if w.rnd.IntN(3) > 0 {
			return w.hold(ctx, l.Reader)
		}
		return w.hold(ctx, l.Writer)
	}},
	{"PriorityLock", func(ctx context.Context, w *worker, name string, node int) error {
		return w.hold(ctx, prioritized{w.client(node).NewPriorityLock(name), 1 + w.rnd.IntN(rlock.MaxPriority)})
	}},
	{"PermitSemaphore", func(ctx context.Context, w *worker, name string, node int) error {
		return w.permits(ctx, w.client(node).NewPermitSemaphore(name, rlock.WithPermits(3)))
	}},
	{"FairPermits", func(ctx context.Context, w *worker, name string, node int) error {
		return w.permits(ctx, w.client(node).NewPermitSemaphore(name, rlock.WithPermits(3), rlock.WithFairness()))
	}},
	{"Semaphore", useSemaphore},
	{"CountDownLatch", useLatch},
	{"Barrier", useBarrier},
	{"DoubleBarrier", useDoubleBarrier},
	{"Election", useElection},
	{"Once", useOnce},
	{"CronJob", useCronJob},
	{"MultiLock", func(ctx context.Context, w *worker, name string, _ int) error {
		var locks []*rlock.Lock
		for node, part := range []string{"MultiLock-a", "MultiLock-b", "MultiLock-c"} {
			locks = append(locks, w.client(node).NewLock(part+name[len("MultiLock"):]))
		}
		l, err := rlock.NewMultiLock(locks)
		if err != nil {
			return err
		}
		return w.hold(ctx, l)
	}},
	{"RedLock", func(ctx context.Context, w *worker, name string, _ int) error {
		l, err := rlock.NewRedLock(name, w.members[w.member].clients, rlock.WithNodeTimeout(lease/6))
		if err != nil {
			return err
		}
		return w.hold(ctx, l)
	}},
}

// asked is a lock that others can ask for.
type asked interface {
	rlock.Locker
	rlock.ReleaseRequester
}

// prioritized is a PriorityLock for callers of a priority.
type prioritized struct {
	*rlock.PriorityLock
	at int
}

func (p prioritized) Lock(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
	return p.At(p.at).Lock(ctx, opts...)
}

// hold has a lock for a while, in one of the ways in which programs do.
func (w *worker) hold(ctx context.Context, l asked) error {
	held, err := l.Lock(ctx, rlock.WithWait(wait))
	if err != nil {
		return err
	}
	return errors.Join(w.linger(ctx, l, held), ended(held))
}

// ended unlocks. A hold that was lost, or that another has adopted, needs no release.
func ended(held *rlock.Lease) error {
	if err := held.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrUnlocked) {
		return err
	}
	return nil
}

// linger does something with a lease.
func (w *worker) linger(ctx context.Context, l asked, held *rlock.Lease) error {
	switch w.rnd.IntN(24) {
	case 0: // renewed
		select {
		case <-held.Done():
		case <-time.After(lease / 2):
		}
		return held.Err()
	case 1:
		return held.Extend(ctx, lease)
	case 2: // asked for
		requested := held.ReleaseRequested()
		if _, err := l.RequestRelease(ctx); err != nil {
			return err
		}
		select {
		case <-requested:
		case <-time.After(lease / 10):
		}
	case 3:
		return watch(ctx, l)
	case 4: // entered again
		again, err := l.Lock(held.Context(ctx), rlock.WithWait(wait))
		if err != nil {
			return err
		}
		return again.Unlock(bg)
	case 5, 6, 7, 8:
		time.Sleep(time.Duration(w.rnd.IntN(20)) * time.Millisecond)
	}
	return nil
}

// watch gets a state of a lock; a MultiLock cannot be watched.
func watch(ctx context.Context, l asked) error {
	watched, ok := l.(interface {
		Watch(context.Context) (<-chan rlock.State, error)
	})
	if !ok {
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	states, err := watched.Watch(watching)
	if err != nil {
		return err
	}
	select {
	case <-states:
	case <-time.After(lease / 10):
	}
	return nil
}

// adopted is hold for a lock whose hold another client may adopt.
func (w *worker) adopted(ctx context.Context, l asked, node int) error {
	if w.rnd.IntN(16) > 0 {
		return w.hold(ctx, l)
	}
	held, err := l.Lock(ctx, rlock.WithWait(wait), rlock.WithLease(lease))
	if err != nil {
		return err
	}
	handle, err := held.Detach(ctx)
	if err != nil {
		return errors.Join(err, ended(held))
	}
	next, err := w.other(node).Adopt(ctx, handle)
	if err != nil {
		return err
	}
	return next.Unlock(bg)
}

func (w *worker) permits(ctx context.Context, s *rlock.PermitSemaphore) error {
	held, err := s.Acquire(ctx, 1+w.rnd.IntN(2), rlock.WithWait(wait))
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(w.rnd.IntN(10)) * time.Millisecond)
	return held.Unlock(bg)
}

// useSemaphore sets the permits after each failure: a Semaphore does not say which permits a fault has cost.
func useSemaphore(ctx context.Context, w *worker, name string, node int) error {
	s := w.client(node).NewSemaphore(name, rlock.WithPermits(3))
	if err := s.Acquire(ctx, 1, rlock.WithWait(wait)); err != nil {
		if _, failed := s.Delete(ctx); failed != nil {
			return failed
		}
		return err
	}
	return s.Release(bg, 1)
}

// together runs the parts of a use in goroutines of their own.
func together(parts ...func() error) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() { errs[i] = part() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func useLatch(ctx context.Context, w *worker, name string, node int) error {
	l, other := w.client(node).NewCountDownLatch(name), w.other(node).NewCountDownLatch(name)
	if _, err := l.TrySetCount(ctx, 1); err != nil {
		return err
	}
	return together(
		func() error { return other.Wait(ctx, rlock.WithWait(wait)) },
		func() error { return l.CountDown(ctx) },
	)
}

func useBarrier(ctx context.Context, w *worker, name string, node int) error {
	b, other := w.client(node).NewBarrier(name), w.other(node).NewBarrier(name)
	if err := b.Set(ctx); err != nil {
		return err
	}
	return together(
		func() error { return other.Wait(ctx, rlock.WithWait(wait)) },
		func() error { return b.Lift(ctx) },
	)
}

func useDoubleBarrier(ctx context.Context, w *worker, name string, node int) error {
	member := func(b *rlock.DoubleBarrier) func() error {
		return func() error {
			held, err := b.Enter(ctx, rlock.WithWait(wait))
			if err != nil {
				return err
			}
			return b.Leave(ctx, held, rlock.WithWait(wait))
		}
	}
	return together(member(w.client(node).NewDoubleBarrier(name, 2)), member(w.other(node).NewDoubleBarrier(name, 2)))
}

func useElection(ctx context.Context, w *worker, name string, node int) error {
	observing, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.rnd.IntN(4) == 0 {
		if _, err := w.other(node).NewElection(name).Observe(observing); err != nil {
			return err
		}
	}
	e := w.client(node).NewElection(name)
	held, err := e.Campaign(ctx, "first", rlock.WithWait(wait))
	if err != nil {
		return err
	}
	return errors.Join(e.Proclaim(ctx, held, "second"), held.Unlock(bg))
}

// useOnce keeps results for so short a time that most callers run the function.
func useOnce(ctx context.Context, w *worker, name string, node int) error {
	fails := w.rnd.IntN(50) == 0
	o := w.client(node).NewOnce(name, 50*time.Millisecond)
	_, _, err := o.Do(ctx, func(context.Context) ([]byte, error) {
		if fails {
			return nil, errOfFunction
		}
		return []byte("done"), nil
	}, rlock.WithWait(wait))
	return err
}

// useCronJob runs one of the last ticks of a job, which another may have run.
func useCronJob(ctx context.Context, w *worker, name string, node int) error {
	j := w.client(node).NewCronJob(name, rlock.WithRetention(rlock.MinRetention))
	tick := time.Now().Truncate(100 * time.Millisecond).Add(-time.Duration(w.rnd.IntN(5)) * 100 * time.Millisecond)
	_, err := j.Do(ctx, tick, func(context.Context) error { return nil })
	if err != nil {
		return fmt.Errorf("tick %v: %w", tick, err)
	}
	return nil
}
