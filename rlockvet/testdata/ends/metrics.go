package ends

import (
	"context"

	"github.com/go-rlock/rlock"
)

type counter struct{}

func (counter) Inc() {}

type metrics struct{}

func (metrics) Panics() counter { return counter{} }
func (metrics) Fatals() counter { return counter{} }

func counts(ctx context.Context, l *rlock.Lock, m metrics) error {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	if lease.Token() == 0 {
		m.Panics().Inc()
		return nil
	}
	return lease.Unlock(ctx)
}

func countsFatals(ctx context.Context, l *rlock.Lock, m metrics) {
	if _, err := l.TryLock(ctx); err == nil { // want `lease of TryLock is dropped`
		m.Fatals().Inc()
	}
}

func (metrics) Panicked()     {}
func (metrics) ExitCode() int { return 0 }

func countsAlone(ctx context.Context, l *rlock.Lock, m metrics) error {
	lease, err := l.Lock(ctx) // want `not unlocked on a path to the end of the function`
	if err != nil {
		return err
	}
	if lease.Token() == 0 {
		m.Panics()
		m.Panicked()
		m.ExitCode()
		return nil
	}
	return lease.Unlock(ctx)
}
