// Package right has programs that make no mistake.
package right

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error { return nil }

// retryWithBackoff tries a few times, and then waits.
func retryWithBackoff(ctx context.Context, l *rlock.Lock) (err error) {
	var lease *rlock.Lease
	pause := time.Millisecond
	for attempt := 1; ; attempt++ {
		lease, err = l.TryLock(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, rlock.ErrNotAcquired) || attempt == 5 {
			return fmt.Errorf("attempt %d: %w", attempt, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return work(lease.Context(ctx))
}

// firstFree takes the first lock that is free, or waits for the last one.
func firstFree(ctx context.Context, locks []*rlock.Lock) error {
	var lease *rlock.Lease
	for _, l := range locks {
		var err error
		if lease, err = l.TryLock(ctx); err == nil {
			log.Print("has ", lease.Name())
			break
		}
	}
	if lease == nil {
		var err error
		if lease, err = locks[len(locks)-1].Lock(ctx); err != nil {
			return err
		}
	}
	err := work(lease.Context(ctx))
	return errors.Join(err, lease.Unlock(ctx))
}

// all takes each lock, and gives back what it has if one fails.
func all(ctx context.Context, locks map[string]*rlock.Lock) (_ map[string]*rlock.Lease, err error) {
	held := map[string]*rlock.Lease{}
	defer func() {
		if err != nil {
			for _, lease := range held {
				err = errors.Join(err, lease.Unlock(ctx))
			}
		}
	}()
	for name, l := range maps.All(locks) {
		lease, err := l.Lock(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		held[name] = lease
	}
	return held, nil
}

// worker has its lease in a field, from start to stop.
type worker struct {
	lock  *rlock.Lock
	lease *rlock.Lease
	group sync.WaitGroup
}

func (w *worker) start(ctx context.Context) error {
	lease, err := w.lock.TryLock(ctx)
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		log.Print("another works")
		return nil
	case err != nil:
		return err
	}
	w.lease = lease
	w.group.Go(func() {
		if err := work(lease.Context(ctx)); err != nil {
			log.Print(err)
		}
	})
	return nil
}

func (w *worker) stop(ctx context.Context) error {
	w.group.Wait()
	if w.lease == nil {
		return nil
	}
	return w.lease.Unlock(ctx)
}

// ticks works at each tick, if the lock is free.
func ticks(ctx context.Context, l *rlock.Lock, tick <-chan time.Time) error {
	skipped := 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
		}
		lease, err := l.TryLock(ctx)
		if errors.Is(err, rlock.ErrNotAcquired) {
			skipped++
			continue
		} else if err != nil {
			return err
		}
		err = work(lease.Context(ctx))
		if unlockErr := lease.Unlock(ctx); unlockErr != nil {
			return errors.Join(err, unlockErr)
		}
		if err != nil {
			log.Print(err, " after ", skipped)
		}
		skipped = 0
	}
}

// with is Do with a result.
func with[T any](ctx context.Context, l rlock.Locker, fn func(context.Context) (T, error)) (result T, err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return result, err
	}
	defer func() {
		if failure := lease.Unlock(ctx); failure != nil && err == nil {
			err = failure
		}
	}()
	return fn(lease.Context(ctx))
}

// handedOver unlocks in the goroutine that works.
func handedOver(ctx context.Context, l *rlock.Lock) (<-chan error, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		err := work(lease.Context(ctx))
		done <- errors.Join(err, lease.Unlock(context.WithoutCancel(ctx)))
	}()
	return done, nil
}

// optional locks only if it is to, and also unlocks before it fails.
func optional(ctx context.Context, l *rlock.Lock, alone bool) error {
	unlock := func(context.Context) error { return nil }
	if !alone {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		ctx, unlock = lease.Context(ctx), lease.Unlock
	}
	if err := work(ctx); err != nil {
		return errors.Join(err, unlock(ctx))
	}
	return unlock(ctx)
}

// optionalByPolicy has a lease only for one kind of work.
func optionalByPolicy(ctx context.Context, l *rlock.Lock, kinds []string) (err error) {
	var lease *rlock.Lease
	locked := 0
	for _, kind := range kinds {
		switch {
		case kind == "write" && locked == 0:
			if lease, err = l.Lock(ctx); err != nil {
				return err
			}
			locked++
		case kind == "read":
		}
	}
	if locked > 0 {
		return lease.Unlock(ctx)
	}
	return work(ctx)
}

// shared falls back from writing to reading.
func shared(ctx context.Context, rw *rlock.ReadWriteLock) (written bool, err error) {
	lease, err := rw.Writer.TryLock(ctx)
	writes := err == nil
	if errors.Is(err, rlock.ErrNotAcquired) {
		lease, err = rw.Reader.Lock(ctx)
	}
	if err != nil {
		return false, err
	}
	inside := lease.Context(ctx)
	if writes {
		err = work(inside)
	}
	return writes && err == nil, errors.Join(err, lease.Unlock(ctx))
}

// again takes the lock again if it is lost during the work.
func again(ctx context.Context, l *rlock.Lock) error {
	for lost := 0; lost < 3; {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		err = work(lease.Context(ctx))
		unlock := lease.Unlock(ctx)
		if errors.Is(unlock, rlock.ErrLeaseLost) {
			lost++
			continue
		}
		return errors.Join(err, unlock)
	}
	return rlock.ErrLeaseLost
}

// steps unlocks early if there is nothing to do.
func steps(ctx context.Context, l *rlock.Lock, todo func(context.Context) (int, error)) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	inside := lease.Context(ctx)
	n, err := todo(inside)
	if err != nil || n == 0 {
		return errors.Join(err, lease.Unlock(ctx))
	}
	for range n {
		if err = work(inside); err != nil {
			break
		}
	}
	return errors.Join(err, lease.Unlock(ctx))
}

// twice keeps the second lease only while the first one is there, by goto.
func twice(ctx context.Context, a, b *rlock.Lock) (err error) {
	var first, second *rlock.Lease
	if first, err = a.Lock(ctx); err != nil {
		return err
	}
	if second, err = b.TryLock(ctx); err != nil {
		goto unlock
	}
	err = work(second.Context(first.Context(ctx)))
	err = errors.Join(err, second.Unlock(ctx))
unlock:
	return errors.Join(err, first.Unlock(ctx))
}

// leader works until it has lost the lock, and then competes again.
func leader(ctx context.Context, l *rlock.Lock) error {
	for ctx.Err() == nil {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		term, cancel := context.WithCancel(lease.Context(ctx))
		errs := make(chan error, 1)
		go func() { errs <- work(term) }()
		select {
		case <-lease.Done():
			log.Print(lease.Err())
		case <-ctx.Done():
		case err = <-errs:
		}
		cancel()
		if err := errors.Join(err, lease.Unlock(context.WithoutCancel(ctx))); err != nil {
			log.Print(err)
		}
	}
	return ctx.Err()
}

// pool takes one of several leases for each job from a channel.
func pool(ctx context.Context, locks []*rlock.Lock, jobs <-chan string) error {
	leases := make(chan *rlock.Lease, len(locks))
	taken := 0
	for _, l := range locks {
		lease, err := l.TryLock(ctx)
		if err != nil {
			log.Print(err)
			continue
		}
		taken++
		leases <- lease
	}
	if taken == 0 {
		return rlock.ErrNotAcquired
	}
	for range jobs {
		lease := <-leases
		if err := work(lease.Context(ctx)); err != nil {
			log.Print(err)
		}
		leases <- lease
	}
	close(leases)
	var errs []error
	for lease := range leases {
		errs = append(errs, lease.Unlock(ctx))
	}
	return errors.Join(errs...)
}

// anyOf says by a label which lock it has.
func anyOf(ctx context.Context, locks []*rlock.Lock) (name string, err error) {
	var (
		lease *rlock.Lease
		index int
	)
search:
	for index = 0; index < len(locks); index++ {
		switch lease, err = locks[index].TryLock(ctx); {
		case err == nil:
			break search
		case errors.Is(err, rlock.ErrNotAcquired):
		default:
			return "", err
		}
	}
	if index == len(locks) {
		return "", err
	}
	err = work(lease.Context(ctx))
	return locks[index].Name(), errors.Join(err, lease.Unlock(ctx))
}

type status int

const (
	idle status = iota
	busy
)

// byStatus has a state machine.
func byStatus(ctx context.Context, l *rlock.Lock, events <-chan string) error {
	var lease *rlock.Lease
	now := idle
	for event := range events {
		switch {
		case event == "start" && now == idle:
			got, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			lease, now = got, busy
		case event == "stop" && now == busy:
			if err := lease.Unlock(ctx); err != nil {
				return err
			}
			now = idle
		}
	}
	if now == busy {
		return lease.Unlock(ctx)
	}
	return nil
}

// byStatusWithoutACopy assigns the lease in its place.
func byStatusWithoutACopy(ctx context.Context, l *rlock.Lock, events <-chan string) (err error) {
	var lease *rlock.Lease
	now := idle
	for event := range events {
		switch now {
		case idle:
			if event != "start" {
				continue
			}
			if lease, err = l.Lock(ctx); err != nil {
				return err
			}
			now = busy
		case busy:
			if event != "stop" {
				continue
			}
			if err = lease.Unlock(ctx); err != nil {
				return err
			}
			now = idle
		}
	}
	if now == idle {
		return nil
	}
	return lease.Unlock(ctx)
}

// renewed has the lock for some turns, and takes it anew when it has been asked for.
func renewed(ctx context.Context, l *rlock.Lock, turns int) (err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for turn := 0; turn < turns; turn++ {
		if err = work(lease.Context(ctx)); err != nil {
			break
		}
		select {
		case <-lease.ReleaseRequested():
			if err = lease.Unlock(ctx); err != nil {
				return err
			}
			if lease, err = l.Lock(ctx); err != nil {
				return err
			}
		default:
		}
	}
	return errors.Join(err, lease.Unlock(ctx))
}

// reported unlocks by a defer that also reports, with a flag.
func reported(ctx context.Context, l *rlock.Lock, metric func(bool)) (err error) {
	acquired := false
	defer func() { metric(acquired) }()
	lease, err := l.TryLock(ctx)
	if err == nil {
		acquired = true
	} else if !errors.Is(err, rlock.ErrNotAcquired) {
		return err
	}
	if !acquired {
		return nil
	}
	err = work(lease.Context(ctx))
	return errors.Join(err, lease.Unlock(ctx))
}

// guarded has the unlock in a struct of a function.
type guard struct{ release func(context.Context) error }

func guarded(ctx context.Context, l *rlock.Lock) (*guard, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return &guard{release: lease.Unlock}, nil
}

type result struct {
	lease *rlock.Lease
	err   error
}

// race takes the lock that is had first, and gives back the others.
func race(ctx context.Context, locks ...rlock.Locker) (*rlock.Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	for _, l := range locks {
		go func() {
			lease, err := l.Lock(ctx)
			results <- result{lease, err}
		}()
	}
	var first *rlock.Lease
	var errs []error
	for range locks {
		r := <-results
		switch {
		case r.err != nil:
			errs = append(errs, r.err)
		case first == nil:
			first = r.lease
			cancel()
		default:
			errs = append(errs, r.lease.Unlock(context.WithoutCancel(ctx)))
		}
	}
	if first == nil {
		return nil, errors.Join(errs...)
	}
	return first, nil
}

// phases has two locks in one variable, each unlocked before the next.
func phases(ctx context.Context, a, b *rlock.Lock, second bool) error {
	lease, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	if err = errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx)); err != nil || !second {
		return err
	}
	lease, err = b.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx))
}

// cached works only once, and unlocks on each path.
func cached(ctx context.Context, l *rlock.Lock, cache map[string][]byte, key string) (value []byte, err error) {
	lease, lockErr := l.TryLock(ctx)
	if lockErr != nil {
		log.Print("without a lock: ", lockErr)
	}
	value, found := cache[key]
	if !found {
		if err = work(ctx); err == nil {
			value = []byte(key)
		}
	}
	if lockErr == nil {
		err = errors.Join(err, lease.Unlock(ctx))
	}
	return value, err
}

// locked is nil if the lock is not free, by a set of names.
func locked(ctx context.Context, locks map[string]*rlock.Lock) (err error) {
	mine := map[string]struct{}{}
	for name, l := range locks {
		lease, err := l.TryLock(ctx)
		if err == nil {
			mine[name] = struct{}{}
		}
		if _, ok := mine[name]; !ok {
			continue
		}
		if err := errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx)); err != nil {
			return err
		}
	}
	if len(mine) == 0 {
		return rlock.ErrNotAcquired
	}
	return nil
}

// checked looks into an error by its type.
func checked(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	switch err := err.(type) {
	case nil:
	case *rlock.Error:
		return fmt.Errorf("refused: %w", err)
	default:
		return err
	}
	return errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx))
}

// released unlocks early on one path, and later on the other.
func released(ctx context.Context, l *rlock.Lock, small bool) (err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	open := true
	if small {
		err, open = lease.Unlock(ctx), false
	}
	if err == nil && open {
		err = work(lease.Context(ctx))
	}
	if open {
		err = errors.Join(err, lease.Unlock(ctx))
	}
	return err
}

// lockErr keeps the error of the acquire elsewhere.
func lockErr(ctx context.Context, l *rlock.Lock, to chan<- error) error {
	lease, err := l.TryLock(ctx)
	failed := err
	if errors.Is(failed, rlock.ErrNotAcquired) {
		return nil
	} else if failed != nil {
		to <- failed
		return failed
	}
	return errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx))
}

// attempts ends in its last turn.
func attempts(ctx context.Context, l *rlock.Lock) error {
	const most = 3
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		if err = work(lease.Context(ctx)); err == nil || n == most {
			return errors.Join(err, lease.Unlock(ctx))
		}
	}
}
