package documents

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// The functions between here and TestPatterns are the blocks of docs/patterns.md.

func newLocks(addr string) (*rlock.Client, func() error, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	locks, err := rlock.New(rdb, rlock.WithLabel("billing"))
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	stop := func() error { // the locks first, then their connections
		return errors.Join(locks.Close(), rdb.Close())
	}
	return locks, stop, nil
}

type save func(ctx context.Context, entry string) error

func pay(ctx context.Context, c *rlock.Client, id string, write save) error {
	order := c.NewLock("order:" + url.QueryEscape(id))
	return rlock.Do(ctx, order, func(ctx context.Context) error {
		if err := write(ctx, "debit"); err != nil { // with the inner ctx
			return err
		}
		return write(ctx, "credit")
	})
}

func statusOf(ctx context.Context, err error) int {
	switch notRun := errors.Is(err, rlock.ErrNotRun); {
	case err == nil:
		return http.StatusOK
	case notRun && errors.Is(err, rlock.ErrNotAcquired):
		return http.StatusConflict // another owner holds the lock
	case notRun && ctx.Err() != nil:
		return 499 // the caller has gone away
	case notRun:
		return http.StatusServiceUnavailable // no answer, or an error reply
	case errors.Is(err, rlock.ErrUnconfirmed):
		return http.StatusOK // the work is done; the lock is free later
	case errors.Is(err, rlock.ErrLeaseLost):
		return http.StatusInternalServerError // done, in part or not at all
	}
	return http.StatusInternalServerError // the error of the function
}

func report(ctx context.Context, c *rlock.Client, write save) (bool, error) {
	lock := c.NewLock("report", rlock.WithMaxHold(time.Hour))
	err := rlock.Do(ctx, lock, func(ctx context.Context) error {
		return write(ctx, "report") // renewed for as long as this takes
	}, rlock.WithWait(time.Second))
	notRun := errors.Is(err, rlock.ErrNotRun)
	if notRun && errors.Is(err, rlock.ErrNotAcquired) {
		return false, nil // another process writes it
	}
	return err == nil, err
}

func export(ctx context.Context, c *rlock.Client, write save) (err error) {
	lock := c.NewLock("export")
	lease, err := lock.Lock(ctx, rlock.WithWait(5*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

	inside := lease.Context(ctx)
	for _, part := range []string{"head", "rows"} {
		if err := write(inside, part); err != nil {
			return err
		}
	}
	return nil
}

func transfer(ctx context.Context, account rlock.Locker, write save) error {
	err := rlock.Do(ctx, account, func(ctx context.Context) error {
		if err := write(ctx, "debit"); err != nil {
			return err
		}
		return write(ctx, "credit")
	})
	switch {
	case err == nil, errors.Is(err, rlock.ErrNotRun),
		errors.Is(err, rlock.ErrUnconfirmed):
		return err // nothing to undo
	}
	// A new hold, also if the caller has gone away. Its ctx ends with the hold.
	undo := rlock.Do(context.WithoutCancel(ctx), account,
		func(ctx context.Context) error {
			return write(ctx, "undo what is there")
		}, rlock.WithWait(5*time.Second))
	return errors.Join(err, undo)
}

type task func(ctx context.Context) error

func settle(ctx context.Context, account rlock.Locker, add task) (err error) {
	for range 3 {
		err = rlock.Do(ctx, account, add) // a new lease, and add reads again
		if !errors.Is(err, rlock.ErrLeaseLost) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// statement is the ExecContext of a *sql.DB, *sql.Conn or *sql.Tx.
type statement func(ctx context.Context, query string,
	args ...any) (sql.Result, error)

func credit(ctx context.Context, account rlock.Locker, db statement) error {
	return rlock.Do(ctx, account, func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		done, err := db(ctx, `UPDATE account
			SET balance = balance + 10, token = $1
			WHERE id = 7 AND token <= $1`, lease.Token())
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errors.New("a newer holder has written"))
		}
		return nil
	})
}

func callPartner(ctx context.Context, c *rlock.Client, request task) error {
	partner := c.NewPermitSemaphore("partner", rlock.WithPermits(3))
	permit, err := partner.Acquire(ctx, 1, rlock.WithWait(5*time.Second))
	if err != nil {
		return err
	}
	return permit.Do(ctx, request) // and gives the permit back
}

func tick(
	ctx context.Context, job *rlock.CronJob, scheduled time.Time, run task,
) error {
	_, err := job.Do(ctx, scheduled, run)
	return err // nil also if another process has run this tick
}

func everyHour(ctx context.Context, c *rlock.Client, run task) error {
	job := c.NewCronJob("invoices")
	for {
		scheduled := rlock.Every(time.Hour).Next(time.Now())
		select {
		case <-time.After(time.Until(scheduled)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := tick(ctx, job, scheduled, run); err != nil {
			log.Print(err) // the next tick is another one
		}
	}
}

// refusing is a database that refuses lower tokens.
func refusing(r *rlocktest.Round) statement {
	return func(_ context.Context, _ string, args ...any) (sql.Result, error) {
		if r.WriteFenced(args[0].(int64)) != nil {
			return driver.RowsAffected(0), nil
		}
		return driver.RowsAffected(1), nil
	}
}

// No pattern writes after a loss. Each reports it, or has done its work again.
func TestPatterns(t *testing.T) {
	t.Parallel()
	patterns := map[string]struct {
		name string // of the lock
		run  func(ctx context.Context, c *rlock.Client, r *rlocktest.Round, write save) error
	}{
		"pay": {"order:7%2F8", func(ctx context.Context, c *rlock.Client, _ *rlocktest.Round, write save) error {
			return pay(ctx, c, "7/8", write)
		}},
		"report": {"report", func(ctx context.Context, c *rlock.Client, _ *rlocktest.Round, write save) error {
			_, err := report(ctx, c, write)
			return err
		}},
		"export": {"export", func(ctx context.Context, c *rlock.Client, _ *rlocktest.Round, write save) error {
			return export(ctx, c, write)
		}},
		"transfer": {"account:7", func(ctx context.Context, c *rlock.Client, _ *rlocktest.Round, write save) error {
			return transfer(ctx, c.NewLock("account:7"), write)
		}},
		"settle": {"account:7", func(ctx context.Context, c *rlock.Client, r *rlocktest.Round, _ save) error {
			return settle(ctx, c.NewLock("account:7"), r.Write)
		}},
		"credit": {"account:7", func(ctx context.Context, c *rlock.Client, r *rlocktest.Round, _ save) error {
			return credit(ctx, c.NewLock("account:7"), refusing(r))
		}},
		"callPartner": {"partner", func(ctx context.Context, c *rlock.Client, r *rlocktest.Round, _ save) error {
			return callPartner(ctx, c, r.Write)
		}},
		"tick": {"invoices", func(ctx context.Context, c *rlock.Client, r *rlocktest.Round, _ save) error {
			return tick(ctx, c.NewCronJob("invoices"), time.Now().Truncate(time.Minute), r.Write)
		}},
	}
	for title, p := range patterns {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			rlocktest.LoseAt(t, p.name, func(t *testing.T, r *rlocktest.Round) {
				synctest.Test(t, func(t *testing.T) { // no reply is late, however busy the machine is
					err := p.run(t.Context(), r.New(t).Client(), r, func(ctx context.Context, _ string) error { return r.Write(ctx) })
					if lost := r.Lost() && title != "settle"; lost != errors.Is(err, rlock.ErrLeaseLost) || !lost && err != nil {
						t.Errorf("lost: %v, returned: %v", r.Lost(), err)
					}
				})
			})
		})
	}
}

// What a caller answers, and what it has to close.
func TestPatternsOfErrorsAndClients(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	locks, stop, err := newLocks(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	order := locks.NewLock("order:7")
	noop := func(context.Context) error { return nil }
	inner := func(ctx context.Context) error { return rlock.Do(ctx, locks.NewLock("stock"), noop, rlock.WithWait(0)) }
	check := func(want int, ctx context.Context, err error) {
		t.Helper()
		if got := statusOf(ctx, err); got != want {
			t.Errorf("%d for %v, want %d", got, err, want)
		}
	}
	check(200, t.Context(), rlock.Do(t.Context(), order, noop))
	check(499, gone, rlock.Do(gone, order, noop))
	srv.Steal("stock")
	check(500, t.Context(), rlock.Do(t.Context(), order, inner)) // a lock inside is held: part of the work is done
	srv.Steal("order:7")
	check(409, t.Context(), rlock.Do(t.Context(), order, noop, rlock.WithWait(0)))
	srv.Steal("report")
	if done, err := report(t.Context(), srv.Client(), nil); done || err != nil {
		t.Errorf("report() = %v, %v where another process writes it", done, err)
	}
	srv.Fail("LOADING Redis is loading the dataset in memory")
	check(503, t.Context(), rlock.Do(t.Context(), order, noop, rlock.WithWait(0)))
	srv.Recover()
	if err := stop(); err != nil {
		t.Error(err)
	}
	check(503, t.Context(), rlock.Do(t.Context(), order, noop))
}

// The job runs at each full hour.
func TestPatternOfAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour-time.Minute)
		defer cancel()
		var at []time.Time
		err := everyHour(ctx, rlocktest.New(t).Client(), func(context.Context) error {
			at = append(at, time.Now())
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || len(at) < 2 || len(at) > 3 {
			t.Errorf("%v, runs at %v", err, at)
		}
		for _, at := range at {
			if late := at.Sub(at.Truncate(time.Hour)); late > time.Minute {
				t.Errorf("a run at %v", at)
			}
		}
	})
}
