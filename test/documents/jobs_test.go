package documents

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// jobs are the lines of the table of README.md, each in a function that is run.
var jobs = []func(ctx context.Context, client *rlock.Client, clients []*rlock.Client) error{
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		id, pay := "7:a", func(ctx context.Context) error { return ctx.Err() }

		order := client.NewLock("order:" + url.QueryEscape(id))
		err := rlock.Do(ctx, order, pay, rlock.WithWait(2*time.Second))
		// ErrNotAcquired: 409; ErrUnreachable, ErrRefused: 503

		return err
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		scheduled := time.Now().Truncate(time.Minute)
		write := func(ctx context.Context) error { return ctx.Err() }
		for _, here := range []bool{true, false} { // the second process does not run it

			job := client.NewCronJob("report")
			run, err := job.Do(ctx, scheduled, write) // scheduled: when it is due
			// no error, !run.Here: another process ran it (run.Process)

			if err != nil || run.Here != here {
				return errors.Join(errors.New("the tick"), err)
			}
		}
		return nil
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		migrate := func(ctx context.Context) error { return ctx.Err() }

		schema := client.NewLock("migrate:shop")
		err := rlock.Do(ctx, schema, migrate) // waits for another
		// migrate looks first whether it is still to do

		return err
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		lead := func(ctx context.Context) error { return ctx.Err() }

		scheduler := client.NewElection("scheduler")
		err := scheduler.Run(ctx, "10.0.0.7:9000", lead)
		// lead's ctx ends with the leadership; Run campaigns again

		return err
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		partner := client.NewPermitSemaphore("partner", rlock.WithPermits(10))
		lease, err := partner.Acquire(ctx, 1)
		if err != nil {
			return err
		}
		// its permits come back with lease.Unlock, or when the process dies
		return lease.Unlock(ctx)
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		parts := client.NewCountDownLatch("report:7:parts")
		_, err := parts.TrySetCount(ctx, 3)
		if err != nil {
			return err
		}
		for range 3 {
			go func() { _ = parts.CountDown(ctx) }()
		}
		err = parts.Wait(ctx) // for 3 calls of parts.CountDown(ctx)
		return err
	},
	func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		a, b := client.NewLock("account:3"), client.NewLock("account:8")
		both, err := rlock.NewMultiLock([]rlock.Locker{a, b})
		if err != nil {
			return err
		}
		lease, err := both.Lock(ctx) // all or none, without deadlock
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	},
	func(ctx context.Context, _ *rlock.Client, clients []*rlock.Client) error {
		lock, err := rlock.NewRedLock("invoices", clients) // one for each master
		if err != nil {
			return err
		}
		lease, err := lock.Lock(ctx)
		if err != nil {
			return err
		}
		// ErrNoQuorum: too many masters are away
		return lease.Unlock(ctx)
	},
}

func TestJobsOfTheReadme(t *testing.T) {
	t.Parallel()
	servers := rlocktest.NewServers(t, 5)
	var clients []*rlock.Client
	for _, s := range servers {
		clients = append(clients, s.Client())
	}
	for i, job := range jobs {
		if err := job(t.Context(), clients[0], clients); err != nil {
			t.Errorf("job %d: %v", i+1, err)
		}
	}

	compiled := map[string]bool{}
	for _, line := range strings.Split(read(t, "test/documents/jobs_test.go"), "\n") {
		compiled[strings.TrimSpace(line)] = true
	}
	rows := 0
	_, table, _ := strings.Cut(read(t, "README.md"), "\n| job | type |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[2:] {
		rows++
		cells := strings.Split(row, " | ")
		lines := strings.Split(strings.TrimSuffix(cells[len(cells)-1], " |"), "<br>")
		if len(lines) != 3 {
			t.Errorf("%s has %d lines; want 3", cells[0], len(lines))
		}
		for _, line := range lines {
			if !compiled[strings.Trim(line, "`")] {
				t.Errorf("%s: this is no line of test/documents/jobs_test.go: %s", cells[0], line)
			}
		}
	}
	if rows != len(jobs) {
		t.Errorf("%d rows; want %d", rows, len(jobs))
	}
}
