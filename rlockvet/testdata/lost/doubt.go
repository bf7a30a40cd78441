package lost

import (
	"context"
	"errors"
	"log"
	"sync/atomic"

	"github.com/go-rlock/rlock"
)

// A condition that is also reached without the lease may be about whether there is one. Each function is right, except
// those with a want: in these, the condition is only reached with the lease.

func flagAfterContinue(ctx context.Context, a, b *rlock.Lock) error {
	var lease *rlock.Lease
	var err error
	got := false
	for range 3 {
		lease, err = a.TryLock(ctx)
		if err != nil {
			continue
		}
		got = true
		break
	}
	if !got {
		lease, err = b.Lock(ctx)
		if err != nil {
			return err
		}
	}
	return lease.Unlock(ctx)
}

func flagAfterContinueReturns(ctx context.Context, a *rlock.Lock) error {
	var lease *rlock.Lease
	var err error
	got := false
	for range 3 {
		lease, err = a.TryLock(ctx)
		if err != nil {
			continue
		}
		got = true
		break
	}
	if !got {
		return err
	}
	return lease.Unlock(ctx)
}

func winner(ctx context.Context, locks []*rlock.Lock, b *rlock.Lock) error {
	var lease *rlock.Lease
	var err error
	winner := -1
	for i, l := range locks {
		lease, err = l.TryLock(ctx)
		if err != nil {
			continue
		}
		winner = i
		break
	}
	if winner < 0 {
		lease, err = b.Lock(ctx)
	}
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func winnerReturns(ctx context.Context, locks []*rlock.Lock) error {
	var lease *rlock.Lease
	var err error
	winner := -1
	for i, l := range locks {
		lease, err = l.TryLock(ctx)
		if err != nil {
			continue
		}
		winner = i
		break
	}
	none := winner < 0
	if none {
		return err
	}
	return lease.Unlock(ctx)
}

func counted(ctx context.Context, a, b *rlock.Lock) error {
	n := 0
	lease, err := a.TryLock(ctx)
	if err == nil {
		n++
	}
	if n == 0 {
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func countedReturns(ctx context.Context, a *rlock.Lock) error {
	n := 0
	lease, err := a.TryLock(ctx)
	if err == nil {
		n++
	}
	if n == 0 {
		return err
	}
	return lease.Unlock(ctx)
}

func held(ctx context.Context, a, b *rlock.Lock) error {
	lease, err := a.TryLock(ctx)
	held := lease != nil
	if !held {
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func heldReturns(ctx context.Context, a *rlock.Lock) error {
	lease, err := a.TryLock(ctx)
	held := lease != nil
	if !held {
		return err
	}
	return lease.Unlock(ctx)
}

func heldElsewhere(ctx context.Context, a *rlock.Lock) error {
	var held atomic.Bool
	lease, err := a.TryLock(ctx)
	held.Store(lease != nil)
	if !held.Load() {
		return err
	}
	return lease.Unlock(ctx)
}

func cases(ctx context.Context, a, b *rlock.Lock) error {
	got := false
	lease, err := a.TryLock(ctx)
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
	case err != nil:
		return err
	default:
		got = true
	}
	if !got {
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func casesReturn(ctx context.Context, a *rlock.Lock) error {
	state := "free"
	lease, err := a.TryLock(ctx)
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
	case err != nil:
		return err
	default:
		state = "held"
	}
	switch state {
	case "free":
		return nil
	}
	return lease.Unlock(ctx)
}

func inAMap(ctx context.Context, a, b *rlock.Lock, name string) error {
	got := map[string]bool{}
	lease, err := a.TryLock(ctx)
	if err == nil {
		got[name] = true
	}
	if !got[name] {
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func inAMapReturns(ctx context.Context, a *rlock.Lock, name string) error {
	got := map[string]bool{}
	lease, err := a.TryLock(ctx)
	if err == nil {
		got[name] = true
	}
	if !got[name] {
		return err
	}
	return lease.Unlock(ctx)
}

func exclusive() bool { return true }

func byMode(ctx context.Context, a, b *rlock.Lock) (err error) {
	var lease *rlock.Lease
	mode := "shared"
	if exclusive() {
		mode = "exclusive"
		lease, err = a.Lock(ctx)
	}
	if mode == "shared" {
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func byModeReturns(ctx context.Context, a *rlock.Lock) (err error) {
	var lease *rlock.Lease
	mode := "shared"
	if exclusive() {
		mode = "exclusive"
		if lease, err = a.Lock(ctx); err != nil {
			return err
		}
	}
	if mode == "shared" {
		return nil
	}
	return lease.Unlock(ctx)
}

func releasedBefore(ctx context.Context, l *rlock.Lock, early bool) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	released := false
	if early {
		err = lease.Unlock(ctx)
		released = true
	}
	if !released {
		err = lease.Unlock(ctx)
	}
	return err
}

func againAfterALoss(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	err = work(lease.Context(ctx))
	for errors.Is(err, rlock.ErrLeaseLost) {
		if lease, err = l.Lock(ctx); err != nil {
			return err
		}
		err = work(lease.Context(ctx))
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func onceAgainAfterALoss(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	err = work(lease.Context(ctx))
	if errors.Is(err, rlock.ErrLeaseLost) {
		if lease, err = l.Lock(ctx); err != nil {
			return err
		}
		err = work(lease.Context(ctx))
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func serve(context.Context) {}

func leads(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for {
		work := lease.Context(ctx)
		serve(work)
		<-work.Done()
		if ctx.Err() != nil {
			return lease.Unlock(context.WithoutCancel(ctx))
		}
		lease, err = l.Lock(ctx)
		if err != nil {
			return err
		}
	}
}

func leadsTwice(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	inside := lease.Context(ctx)
	serve(inside)
	<-inside.Done()
	lease, err = l.Lock(ctx)
	return errors.Join(err, lease.Unlock(ctx))
}

func againIfGone(ctx context.Context, l *rlock.Lock, gone func() bool) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if gone() {
		lease, err = l.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func overwrittenWhereNeeded(ctx context.Context, a, b *rlock.Lock, needed bool) (err error) {
	var lease *rlock.Lease
	if needed {
		lease, err = a.Lock(ctx) // want `which overwrites it`
		if err != nil {
			return err
		}
		lease, err = b.Lock(ctx)
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func overwrittenInALoop(ctx context.Context, locks []*rlock.Lock, b *rlock.Lock) error {
	for _, l := range locks {
		lease, err := l.TryLock(ctx) // want `which overwrites it`
		if err != nil {
			continue
		}
		lease, err = b.Lock(ctx)
		if err := errors.Join(err, lease.Unlock(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func askedOnlyWithTheLease(ctx context.Context, l *rlock.Lock) error {
	for {
		lease, err := l.TryLock(ctx) // want `not unlocked on a path to the end of the function`
		if err != nil {
			continue
		}
		done := false
		if work(lease.Context(ctx)) == nil {
			done = true
		}
		if done {
			return nil
		}
		return lease.Unlock(ctx)
	}
}

func errorWithTheLease(ctx context.Context, l *rlock.Lock) error {
	n := 0
	lease, err := l.TryLock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	for range 3 {
		if err = work(lease.Context(ctx)); err != nil {
			return err
		}
		n++
	}
	if n == 0 {
		return nil
	}
	return lease.Unlock(ctx)
}

func heldByError(ctx context.Context, a *rlock.Lock) error {
	var held atomic.Bool
	lease, err := a.TryLock(ctx)
	held.Store(err == nil)
	if !held.Load() {
		return err
	}
	return lease.Unlock(ctx)
}

type failures struct{ list []error }

func (f *failures) add(err error) {
	if err != nil {
		f.list = append(f.list, err)
	}
}

func heldByCollector(ctx context.Context, a *rlock.Lock) error {
	var failed failures
	lease, err := a.TryLock(ctx)
	failed.add(err)
	if len(failed.list) > 0 {
		return errors.Join(failed.list...)
	}
	return lease.Unlock(ctx)
}

func collectorOfAnother(ctx context.Context, a *rlock.Lock) error {
	var failed failures
	lease, err := a.TryLock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	failed.add(work(lease.Context(ctx)))
	if len(failed.list) > 0 {
		return errors.Join(failed.list...)
	}
	return lease.Unlock(ctx)
}

// The error of the work says nothing about the lease, so the path on which it fails is followed.

func optional(ctx context.Context, l *rlock.Lock, needed bool) (err error) {
	var lease *rlock.Lease
	if needed {
		if lease, err = l.Lock(ctx); err != nil { // want `not unlocked on a path to the end of the function`
			return err
		}
	}
	if err := work(ctx); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func afterRetries(ctx context.Context, l *rlock.Lock) (err error) {
	var lease *rlock.Lease
	for i := 0; i < 3; i++ {
		if lease, err = l.TryLock(ctx); err == nil { // want `not unlocked on a path to the end of the function`
			break
		}
	}
	if err != nil {
		return err
	}
	if err := work(lease.Context(ctx)); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func check(int) error { return nil }

func checkedByAnother(ctx context.Context, locks []*rlock.Lock) (err error) {
	var lease *rlock.Lease
	winner := -1
	for i, l := range locks {
		if lease, err = l.TryLock(ctx); err == nil {
			winner = i
			break
		}
	}
	if err := check(winner); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func joined(ctx context.Context, l *rlock.Lock) error {
	var errs []error
	lease, err := l.TryLock(ctx)
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func inASelect(ctx context.Context, l *rlock.Lock, tick <-chan int) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			lease, err := l.TryLock(ctx) // want `not unlocked on a path to the end of the function`
			if err != nil || work(lease.Context(ctx)) != nil {
				continue
			}
			if err := lease.Unlock(ctx); err != nil {
				return err
			}
		}
	}
}

func inTheLastTurn(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for i := range 3 {
		_ = work(ctx)
		if i == 2 {
			return lease.Unlock(ctx)
		}
	}
	return nil
}

func breaksInTheLastTurn(ctx context.Context, l *rlock.Lock, n int) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for i := 0; i < n; i++ {
		_ = work(ctx)
		if i+1 == n {
			err = lease.Unlock(ctx)
			break
		}
	}
	return err
}

func inAnyTurnButTheLast(ctx context.Context, l *rlock.Lock, names []string) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	for i := range names {
		if i < len(names)-1 {
			_ = work(ctx)
			continue
		}
		return lease.Unlock(ctx)
	}
	return nil
}

func onlyInATurnThatFails(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	for i := range 3 {
		if err := work(context.WithValue(ctx, key{}, i)); err != nil {
			return errors.Join(err, lease.Unlock(ctx))
		}
	}
	return nil
}

func countsItsTurns(ctx context.Context, l *rlock.Lock, verbose bool) error {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	for i := range 3 {
		if i < 2 {
			_ = work(ctx)
		}
	}
	if verbose {
		return nil
	}
	return lease.Unlock(ctx)
}

type key struct{}

func inATurnThatAcquires(ctx context.Context, l *rlock.Lock) error {
	for i := range 3 {
		lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
		if err != nil {
			return err
		}
		if i == 2 {
			return lease.Unlock(ctx)
		}
	}
	return nil
}

func namesItsTurn(ctx context.Context, l *rlock.Lock, items []string) error {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	for i, item := range items {
		if i > 0 {
			_ = work(ctx)
		}
		if err := work(context.WithValue(ctx, key{}, item)); err != nil {
			return errors.Join(err, context.Cause(context.WithValue(ctx, key{}, i+1)), lease.Unlock(ctx))
		}
	}
	return nil
}

// The lock is taken to see that it is not free: each path on which it was ends the program. What follows is right.
func mustFailOnEachPath(ctx context.Context, l *rlock.Lock) {
	if _, err := l.TryLock(ctx); err == nil {
		if err := work(ctx); err != nil {
			log.Print(err)
		}
		log.Fatal("the lock was free")
	}
	if _, err := l.TryLock(ctx); err == nil {
		for i := range 3 {
			if err := work(ctx); err != nil {
				log.Print(i, err)
			}
		}
		log.Fatal("the lock was free")
	}
	_, err := l.TryLock(ctx)
	if err == nil {
		switch err := work(ctx); {
		case err != nil:
			log.Fatal(err)
		default:
			panic("the lock was free")
		}
	}
}

func mustFailOnSomePaths(ctx context.Context, l *rlock.Lock) {
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		if err := work(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		if err := work(ctx); err != nil {
			return
		}
		log.Fatal("the lock was free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		for range 3 {
			if err := work(ctx); err != nil {
				return
			}
		}
		log.Fatal("the lock was free")
	}
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		for {
			if err := work(ctx); err != nil {
				log.Fatal(err)
			}
		}
	}
}
