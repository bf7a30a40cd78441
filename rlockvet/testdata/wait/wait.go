package wait

import (
	"context"
	"time"

	"github.com/go-rlock/rlock"
)

const period = time.Second

func work(context.Context) error { return nil }

func ticks(ctx context.Context, l *rlock.Lock) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			if err := rlock.Do(ctx, l, work, rlock.WithWait(5*time.Second)); err != nil { // want `a wait of 5s in the loop of a ticker of 1s`
				return err
			}
		}
	}
}

func ranges(ctx context.Context, l *rlock.Lock) {
	for range time.Tick(time.Minute) {
		lease, err := l.Lock(ctx, rlock.WithWait(2*time.Minute)) // want `a wait of 2m0s in the loop of a ticker of 1m0s`
		if err != nil {
			continue
		}
		_ = lease.Unlock(ctx)
	}
}

// What follows is right, or may be.

func shorter(ctx context.Context, l *rlock.Lock, wait time.Duration) {
	t := time.NewTicker(time.Minute)
	for range t.C {
		_ = rlock.Do(ctx, l, work, rlock.WithWait(5*time.Second))
		_ = rlock.Do(ctx, l, work, rlock.WithWait(time.Minute))
		_ = rlock.Do(ctx, l, work, rlock.WithWait(wait))
		go func() { _ = rlock.Do(ctx, l, work, rlock.WithWait(time.Hour)) }()
	}
}

func unknownPeriod(ctx context.Context, l *rlock.Lock, d time.Duration, other *time.Ticker) {
	for range time.Tick(d) {
		_ = rlock.Do(ctx, l, work, rlock.WithWait(time.Hour))
	}
	for range other.C {
		_ = rlock.Do(ctx, l, work, rlock.WithWait(time.Hour))
	}
	reset := time.NewTicker(time.Second)
	reset.Reset(2 * time.Hour)
	for range reset.C {
		_ = rlock.Do(ctx, l, work, rlock.WithWait(time.Hour))
	}
}

func noLoop(ctx context.Context, l *rlock.Lock) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		return rlock.Do(ctx, l, work, rlock.WithWait(time.Minute))
	case <-ctx.Done():
		return ctx.Err()
	}
}
