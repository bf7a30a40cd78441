package documents

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// calls are the calls on the pages of the types, whole, each in a function that is run.
var calls = map[string]func(ctx context.Context, client *rlock.Client, clients []*rlock.Client) error{
	"Lock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		order := client.NewLock("order:7")
		return rlock.Do(ctx, order, func(ctx context.Context) error {
			return work(ctx) // alone, for as long as ctx lasts
		})
	},
	"FairLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		printer := client.NewFairLock("printer")
		return rlock.Do(ctx, printer, func(ctx context.Context) error {
			return work(ctx) // ctx ends if the lock is lost
		})
	},
	"SpinLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		backoff := rlock.ExponentialBackoff(time.Millisecond, 20*time.Millisecond)
		stock := client.NewSpinLock("stock:4711", rlock.WithBackoff(backoff))
		return rlock.Do(ctx, stock, work)
	},
	"FencedLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		account := client.NewFencedLock("account:7")
		return rlock.Do(ctx, account, func(ctx context.Context) error {
			lease, _ := rlock.LeaseFrom(ctx)
			return deposit(ctx, 10, lease.Token()) // the account refuses a lower token
		})
	},
	"ReadWriteLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		prices := client.NewReadWriteLock("prices")
		// Together with other readers.
		if err := rlock.Do(ctx, prices.Reader, work); err != nil {
			return err
		}
		return rlock.Do(ctx, prices.Writer, work) // alone
	},
	"FairReadWriteLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		catalogue := client.NewFairReadWriteLock("catalogue")
		// After the readers that came before.
		return rlock.Do(ctx, catalogue.Writer, work)
	},
	"PriorityLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		press := client.NewPriorityLock("printing-press", rlock.WithAging(time.Minute))
		return rlock.Do(ctx, press.At(rlock.MaxPriority), work)
	},
	"MultiLock": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		a, b := client.NewLock("account:8"), client.NewLock("account:3")
		both, err := rlock.NewMultiLock([]rlock.Locker{a, b})
		if err != nil {
			return err
		}
		return rlock.Do(ctx, both, work) // all or none
	},
	"RedLock": func(ctx context.Context, _ *rlock.Client, clients []*rlock.Client) error {
		lock, err := rlock.NewRedLock("invoices", clients) // one for each master
		if err != nil {
			return err
		}
		return rlock.Do(ctx, lock, work) // ErrNoQuorum names the masters that are away
	},
	"Semaphore": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		queued := client.NewSemaphore("conversions", rlock.WithPermits(2))
		if err := queued.Acquire(ctx, 1); err != nil {
			return err
		}
		if err := push(ctx, "a.mov"); err != nil {
			return errors.Join(err, queued.Release(ctx, 1))
		}
		return nil // the worker calls Release when it has converted a.mov
	},
	"PermitSemaphore": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		partner := client.NewPermitSemaphore("partner", rlock.WithPermits(3))
		permit, err := partner.Acquire(ctx, 1)
		if err != nil {
			return err
		}
		// Do returns the permit after work. The context of work ends if it is lost.
		return permit.Do(ctx, work)
	},
	"CountDownLatch": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		go func() {
			latch := client.NewCountDownLatch("report:2026:parts")
			for done := 0; done < 3 && ctx.Err() == nil; {
				if left, err := latch.Count(ctx); err == nil && left > 0 && latch.CountDown(ctx) == nil {
					done++
				}
			}
		}()

		parts := client.NewCountDownLatch("report:2026:parts")
		if _, err := parts.TrySetCount(ctx, 3); err != nil {
			return err
		}
		// Waits for three calls of parts.CountDown(ctx), in any process.
		return parts.Wait(ctx)
	},
	"Barrier": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		migration := client.NewBarrier("migration")
		if err := migration.Set(ctx); err != nil {
			return err
		}
		defer migration.Lift(ctx)
		return work(ctx) // callers of migration.Wait(ctx) wait until then
	},
	"DoubleBarrier": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		member := func() error {
			test := client.NewDoubleBarrier("load-test", 3)
			lease, err := test.Enter(ctx) // waits for the others
			if err != nil {
				return err
			}
			err = work(lease.Context(ctx))
			return errors.Join(err, test.Leave(ctx, lease)) // waits until all are done
		}
		var all sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			all.Go(func() { errs[i] = member() })
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"Election": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		scheduler := client.NewElection("scheduler")
		return scheduler.Run(ctx, "10.0.0.7:9000", func(ctx context.Context) error {
			// Leads. If the leadership is lost, ctx ends, and Run campaigns again.
			return work(ctx)
		})
	},
	"Once": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		report := client.NewOnce("report:2026-11-22", 24*time.Hour)
		result, here, err := report.Do(ctx, func(ctx context.Context) ([]byte, error) {
			return []byte("42 invoices"), work(ctx) // ctx ends if the lease is lost
		})
		if err != nil {
			return err
		}
		fmt.Printf("%s, made here: %v\n", result, here)

		return nil
	},
	"CronJob": func(ctx context.Context, client *rlock.Client, _ []*rlock.Client) error {
		scheduled := time.Now().Truncate(time.Minute)

		job := client.NewCronJob("report")
		run, err := job.Do(ctx, scheduled, func(ctx context.Context) error {
			return work(ctx) // ctx ends if the lease is lost
		})
		switch {
		case err != nil:
			return err // not run by this call, or failed
		case !run.Here:
			fmt.Println("run by", run.Process) // billing@web-3 (pid 4121)
		}

		return nil
	},
}

func work(ctx context.Context) error { return ctx.Err() }

func push(ctx context.Context, _ string) error { return ctx.Err() }

func deposit(ctx context.Context, _, _ int64) error { return ctx.Err() }

func TestCallsOfThePages(t *testing.T) {
	t.Parallel()
	var clients []*rlock.Client
	for _, s := range rlocktest.NewServers(t, 5) {
		clients = append(clients, s.Client())
	}
	for name, call := range calls {
		if err := call(t.Context(), clients[0], clients); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
