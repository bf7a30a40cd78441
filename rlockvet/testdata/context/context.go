package outer

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-rlock/rlock"
)

func work(context.Context) error                           { return nil }
func count(context.Context)                                {}
func derived(ctx context.Context) (context.Context, error) { return ctx, nil }
func fenced(ctx context.Context, token int64) error        { return nil }

func unasked(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return errors.Join(err, work(ctx))
	}
	err = work(ctx) // want `work continues if the lock is lost: ctx is the context from outside`
	err = errors.Join(err, work(ctx))
	return errors.Join(err, lease.Unlock(ctx), work(ctx))
}

func deferred(ctx context.Context, l *rlock.Lock) (err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return work(ctx) // want `work continues`
}

func callback(ctx context.Context, l *rlock.Lock) error {
	return rlock.Do(ctx, l, func(context.Context) error {
		return work(ctx) // want `work continues`
	})
}

func callbackOfOnce(ctx context.Context, o *rlock.Once) error {
	_, _, err := o.Do(ctx, func(_ context.Context) ([]byte, error) {
		return nil, work(ctx) // want `work continues`
	})
	return err
}

func callbackOfElection(ctx context.Context, e *rlock.Election) error {
	return e.Run(ctx, "a", func(unused context.Context) error {
		return work(ctx) // want `work continues`
	})
}

func callbackOfCron(ctx context.Context, j *rlock.CronJob, at time.Time) error {
	_, err := j.Do(ctx, at, func(context.Context) error {
		return work(ctx) // want `work continues`
	})
	return err
}

// What follows is right, or may be.

func inside(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(work(lease.Context(ctx)), lease.Unlock(ctx))
}

func replaced(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	ctx = lease.Context(ctx)
	return errors.Join(work(ctx), lease.Unlock(ctx))
}

func both(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := work(lease.Context(ctx)); err != nil {
		_ = work(ctx) // says so, also after a loss
	}
	return lease.Unlock(ctx)
}

func byToken(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fenced(ctx, lease.Token()), lease.Unlock(ctx))
}

func watched(ctx context.Context, l *rlock.Lock, stop func()) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	go func() { <-lease.Done(); stop() }()
	return errors.Join(work(ctx), lease.Unlock(ctx))
}

func noWork(ctx context.Context, l, other *rlock.Lock) error {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "held")
	count(ctx)
	_, _ = derived(ctx)
	_, _ = context.WithTimeout(ctx, time.Second)
	_, _ = other.State(ctx)
	return lease.Unlock(ctx)
}

func boundedWait(ctx context.Context, l *rlock.Lock) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	lease, err := l.Lock(wait)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx), lease.Unlock(ctx))
}

func goodCallbacks(ctx context.Context, l *rlock.Lock) error {
	return errors.Join(
		rlock.Do(ctx, l, work),
		rlock.Do(ctx, l, func(ctx context.Context) error { return work(ctx) }),
		rlock.Do(ctx, l, func(inner context.Context) error { return errors.Join(work(inner), work(ctx)) }),
		rlock.Do(ctx, l, func(context.Context) error { count(ctx); return nil }),
	)
}

// The context of a request is from outside, too.

func handler(w http.ResponseWriter, r *http.Request, l *rlock.Lock, db *sql.DB) {
	err := rlock.Do(r.Context(), l, func(ctx context.Context) error {
		_, err := db.ExecContext(r.Context(), "x") // want `ExecContext continues if the lock is lost: r.Context\(\) is the context from outside`
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func handlerWithLease(r *http.Request, l *rlock.Lock) (err error) {
	lease, err := l.Lock(r.Context())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(r.Context())) }()
	return work(r.Context()) // want `work continues if the lock is lost`
}

func handlerOfAnother(r, other *http.Request, l *rlock.Lock) error {
	return rlock.Do(r.Context(), l, func(ctx context.Context) error { return work(other.Context()) })
}

func handlerWithANewRequest(r *http.Request, l *rlock.Lock) (err error) {
	lease, err := l.Lock(r.Context())
	if err != nil {
		return err
	}
	r = r.WithContext(lease.Context(r.Context()))
	return errors.Join(work(r.Context()), lease.Unlock(r.Context()))
}

func deferredWithItsError(ctx context.Context, l *rlock.Lock) (err error) {
	lease, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			count(ctx)
		}
		err = errors.Join(err, lease.Unlock(ctx))
	}()
	return work(ctx) // want `work continues`
}

func withoutTheLockToo(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	if err == nil {
		defer func() { _ = lease.Unlock(ctx) }()
	}
	return work(ctx)
}

func sometimesLocked(ctx context.Context, l *rlock.Lock, shared bool) error {
	if shared {
		lease, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
	}
	return work(ctx)
}

func triesThenWaits(ctx context.Context, l *rlock.Lock) error {
	lease, err := l.TryLock(ctx)
	if errors.Is(err, rlock.ErrNotAcquired) {
		lease, err = l.Lock(ctx)
	}
	if err != nil {
		return err
	}
	err = work(ctx) // want `work continues`
	return errors.Join(err, lease.Unlock(ctx))
}

func logsAndGoesOn(ctx context.Context, l *rlock.Lock) {
	lease, err := l.Lock(ctx)
	if err != nil {
		_ = err.Error()
	}
	_ = work(ctx) // want `work continues`
	_ = lease.Unlock(ctx)
}
