package lost

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/go-rlock/rlock"
)

type holder struct{ lease *rlock.Lease }

func work(context.Context) error { return nil }

func dropped(ctx context.Context, l *rlock.Lock, s *rlock.PermitSemaphore, e *rlock.Election) {
	l.Lock(ctx)                   // want `lease of Lock is dropped`
	_, _ = l.TryLock(ctx)         // want `lease of TryLock is dropped`
	_, err := s.Acquire(ctx, 1)   // want `lease of Acquire is dropped`
	_, err = e.Campaign(ctx, "a") // want `lease of Campaign is dropped`
	defer l.Lock(ctx)             // want `lease of Lock is dropped`
	_ = err
}

func throughInterface(ctx context.Context, l rlock.Locker) error {
	_, err := l.Lock(ctx) // want `lease of Lock is dropped`
	return err
}

func probe(ctx context.Context, l *rlock.Lock) bool {
	if _, err := l.TryLock(ctx); errors.Is(err, rlock.ErrNotAcquired) { // want `lease of TryLock is dropped`
		return true
	}
	return false
}

// Once a minute: the lease is meant to run out.
func onceAMinute(ctx context.Context, l *rlock.Lock) error {
	if _, err := l.TryLock(ctx, rlock.WithLease(time.Minute)); err != nil {
		return err
	}
	return work(ctx)
}

func optionsFromElsewhere(ctx context.Context, l *rlock.Lock, option rlock.TryOption, options []rlock.AcquireOption) {
	_, _ = l.TryLock(ctx, option)
	_, _ = l.Lock(ctx, options...)
}

func neverUnlocked(ctx context.Context, l *rlock.Lock) (int64, error) {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function in line 57`
	if err != nil {
		return 0, err
	}
	if err := work(lease.Context(ctx)); err != nil {
		return 0, err
	}
	return lease.Token(), nil
}

func notAfterAnError(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx) // want `in line 69`
	if err != nil {
		return err
	}
	inside := lease.Context(ctx)
	if err := work(inside); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func fallsOff(ctx context.Context, l *rlock.Lock) {
	if lease, err := l.TryLock(ctx); err == nil { // want `in line 79`
		log.Print(lease.Name())
		_ = work(lease.Context(ctx))
	}
}

func inASwitch(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx) // want `in line 90`
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		return nil
	case err != nil:
		return err
	}
	if lease.Token() == 0 {
		return nil
	}
	return lease.Unlock(ctx)
}

// What follows is right.

func straight(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx))
}

func deferred(ctx context.Context, l *rlock.Lock) (err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return work(lease.Context(ctx))
}

func retried(ctx context.Context, l *rlock.Lock) error {
	for {
		lease, err := l.TryLock(ctx)
		if errors.Is(err, rlock.ErrNotAcquired) {
			continue
		}
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	}
}

func onlyIfNeeded(ctx context.Context, l *rlock.Lock, needed bool) error {
	var lease *rlock.Lease
	var err error
	if needed {
		if lease, err = l.Lock(ctx); err != nil {
			return err
		}
	}
	err = work(ctx)
	if needed {
		return errors.Join(err, lease.Unlock(ctx))
	}
	return err
}

func ifThereIsOne(ctx context.Context, l *rlock.Lock) error {
	lease, _ := l.TryLock(ctx)
	err := work(ctx)
	if lease != nil {
		return errors.Join(err, lease.Unlock(ctx))
	}
	return err
}

func byAFlag(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	held := err == nil
	if !held {
		return nil
	}
	return lease.Unlock(ctx)
}

func byTag(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	switch err {
	case nil:
		return lease.Unlock(ctx)
	}
	return nil
}

func byType(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	var refused *rlock.Error
	if err != nil && !errors.As(err, &refused) || refused != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func endsTheProgram(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if work(ctx) != nil {
		os.Exit(1)
	}
	_ = lease.Unlock(ctx)
}

func returned(ctx context.Context, l *rlock.Lock) (*rlock.Lease, error) { return l.Lock(ctx) }

func returnedLater(ctx context.Context, l *rlock.Lock) (*rlock.Lease, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func namedResult(ctx context.Context, l *rlock.Lock) (lease *rlock.Lease, err error) {
	lease, err = l.Lock(ctx)
	return
}

func (h *holder) stored(ctx context.Context, l *rlock.Lock) (err error) {
	h.lease, err = l.Lock(ctx)
	return err
}

func storedLater(ctx context.Context, l *rlock.Lock, leases map[string]*rlock.Lease) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	leases[l.Name()] = lease
	return nil
}

func collected(ctx context.Context, locks []rlock.Locker) (leases []*rlock.Lease, err error) {
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err != nil {
			return leases, err
		}
		leases = append(leases, lease)
	}
	return leases, nil
}

func unlock(ctx context.Context, lease *rlock.Lease) error { return lease.Unlock(ctx) }

func passed(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return unlock(ctx, lease)
}

func sent(ctx context.Context, l *rlock.Lock, to chan<- *rlock.Lease) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	to <- lease
	return nil
}

func detached(ctx context.Context, l *rlock.Lock) (string, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return "", err
	}
	return lease.Detach(ctx)
}

func inAContext(ctx context.Context, l *rlock.Lock) (context.Context, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	ctx = lease.Context(ctx)
	return ctx, nil
}

func methodValue(ctx context.Context, l *rlock.Lock) (func(context.Context) error, error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return lease.Unlock, nil
}

func cleanup(ctx context.Context, l *rlock.Lock, later func(func())) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	later(func() { _ = lease.Unlock(ctx) })
	return nil
}

func untilLost(ctx context.Context, e *rlock.Election) error {
	lease, err := e.Campaign(ctx, "a")
	if err != nil {
		return err
	}
	<-lease.Done()
	return lease.Err()
}

func left(ctx context.Context, b *rlock.DoubleBarrier) error {
	lease, err := b.Enter(ctx)
	if err != nil {
		return err
	}
	return b.Leave(ctx, lease)
}

func must(err error) {
	if err == nil {
		return
	}
	give(up)
}

const up = 1

func give(code int) { os.Exit(code) }

func byHelpers(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx)
	must(err)
	switch lease.Token() {
	case 0:
		give(up)
	default:
		_ = lease.Unlock(ctx)
	}
}

func forever(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx)
	if err != nil {
		panic(err)
	}
	log.Print(lease.Name())
	forever(ctx, l)
	select {}
}

func isTaken(err error) bool { return errors.Is(err, rlock.ErrNotAcquired) }

func failsSometimes(ctx context.Context, l *rlock.Lock) error {
	if _, err := l.TryLock(ctx); isTaken(err) { // want `lease of TryLock is dropped`
		log.Fatal(err)
	}
	if _, err := l.TryLock(ctx); err != nil { // want `lease of TryLock is dropped`
		log.Fatal(err)
	}
	if _, err := l.TryLock(ctx); !isTaken(err) { // want `lease of TryLock is dropped`
		return errors.New("the lock was free")
	}
	_, err := l.TryLock(ctx) // want `lease of TryLock is dropped`
	err = errors.Join(err, work(ctx))
	if err == nil {
		log.Fatal("free")
	}
	return err
}

// The lock is taken to see that it is not free. What follows is right.
func mustFail(ctx context.Context, l *rlock.Lock) {
	if _, err := l.TryLock(ctx); !errors.Is(err, rlock.ErrNotAcquired) {
		log.Fatal("the lock was free")
	}
	if _, err := l.TryLock(ctx); !isTaken(err) {
		panic(err)
	}
	_, err := l.TryLock(ctx)
	if err == nil {
		log.Print("the lock was free")
		os.Exit(1)
	}
}

func overwritten(ctx context.Context, a, b *rlock.Lock) error {
	lease, err := a.Lock(ctx) // want `the lease of Lock is not unlocked on a path to line 371, which overwrites it`
	if err != nil {
		return err
	}
	lease, err = b.Lock(ctx)
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

// The second is only taken without the first.
func fallsBack(ctx context.Context, a, b *rlock.Lock) error {
	lease, err := a.TryLock(ctx)
	if err != nil {
		lease, err = b.Lock(ctx)
	}
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func inTurn(ctx context.Context, a, b *rlock.Lock) error {
	lease, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	if lease, err = b.Lock(ctx); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func untilDone(ctx context.Context, l *rlock.Lock) (err error) {
	var lease *rlock.Lease
	for done := false; !done; {
		lease, err = l.TryLock(ctx)
		if err == nil {
			done = true
		}
	}
	return lease.Unlock(ctx)
}

func flagged(ctx context.Context, a, b *rlock.Lock) error {
	var lease *rlock.Lease
	var err error
	got := false
	for range 3 {
		lease, err = a.TryLock(ctx)
		if err == nil {
			got = true
			break
		}
	}
	if !got {
		lease, err = b.Lock(ctx)
	}
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func flaggedReturn(ctx context.Context, a *rlock.Lock) error {
	got := false
	lease, err := a.TryLock(ctx)
	if err == nil {
		got = true
	}
	if got {
		return lease.Unlock(ctx)
	}
	return err
}

// The flag is about something else.
func flaggedOtherwise(ctx context.Context, a *rlock.Lock, verbose bool) error {
	lease, err := a.TryLock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	if verbose {
		return nil
	}
	return lease.Unlock(ctx)
}

func unlockedOnlyIfReady(ctx context.Context, l *rlock.Lock, ready bool) {
	if lease, err := l.TryLock(ctx); err == nil && ready { // want `not unlocked on a path to the end of the function`
		_ = lease.Unlock(ctx)
	}
}

func notUnlockedInALoop(ctx context.Context, l *rlock.Lock) {
	for i := 0; i < 3; i++ {
		lease, err := l.TryLock(ctx) // want `not unlocked on a path to the end of the function`
		if err != nil {
			continue
		}
		_ = work(lease.Context(ctx))
	}
}

func withoutItsError(ctx context.Context, l *rlock.Lock) error {
	lease, _ := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err := work(ctx); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func comparedWithAnError(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx) // want `not unlocked on a path to the end of the function`
	if err == rlock.ErrNotAcquired {
		return nil
	}
	if rlock.ErrUnreachable == err {
		return err
	}
	if err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}
