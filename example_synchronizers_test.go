package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// A report that needs the whole pool is not starved by small jobs: those that come after it
// wait for it.
func ExampleWithFairness() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	pool := client.NewPermitSemaphore("pool", rlock.WithFairness())
	if _, err := pool.TrySetPermits(ctx, 4); err != nil {
		log.Fatal(err)
	}
	job, err := pool.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err := pool.Acquire(ctx, 4)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("the report runs")
		_ = report.Unlock(ctx)
	}()
	for {
		state, err := pool.State(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if state.Waiters == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_, err = pool.TryAcquire(ctx, 1)
	fmt.Println("three are free, and the next job waits:", errors.Is(err, rlock.ErrNotAcquired))
	_ = job.Unlock(ctx)
	<-done
	// Output:
	// three are free, and the next job waits: true
	// the report runs
}

// At most three requests to a partner's API are under way, in all processes together. The
// permits of a process that dies come back when their leases are over.
func ExamplePermitSemaphore() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	partner := client.NewPermitSemaphore("partner", rlock.WithPermits(3))

	request := func(weight int) error {
		permits, err := partner.Acquire(ctx, weight)
		if err != nil {
			return err
		}
		defer permits.Unlock(ctx)
		return permits.Err() // the request is sent with permits.Context(ctx)
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if err := request(1 + i%2); err != nil {
				log.Print(err)
			}
		})
	}
	all.Wait()

	bulk, err := partner.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	_, err = partner.TryAcquire(ctx, 1)
	fmt.Println("another beside it:", err != nil)
	if err := bulk.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	free, err := partner.Available(ctx)
	fmt.Println(free, "permits are free", err)

	_, err = client.NewPermitSemaphore("nobody set it").TryAcquire(ctx, 1)
	fmt.Println(errors.Is(err, rlock.ErrNotSet))
	// Output:
	// another beside it: true
	// 3 permits are free <nil>
	// true
}

// At most two of the processes that share Redis convert images at a time.
func ExampleSemaphore() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	converters := client.NewSemaphore("converters")
	if _, err := converters.TrySetPermits(ctx, 2); err != nil { // the first process sets them
		log.Fatal(err)
	}

	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := converters.Acquire(ctx, 1); err != nil {
				log.Fatal(err)
			}
			defer converters.Release(ctx, 1)
			time.Sleep(time.Millisecond) // convert
		})
	}
	all.Wait()

	free, err := converters.Available(ctx)
	fmt.Println("free:", free, err)
	fmt.Println("three:", errors.Is(converters.TryAcquire(ctx, 3), rlock.ErrNotAcquired))
	// Output:
	// free: 2 <nil>
	// three: true
}

// A new version of a program wants three at a time. Those of the old one go on.
func ExampleSemaphore_SetPermits() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	converters := client.NewSemaphore("converters")
	if _, err := converters.TrySetPermits(ctx, 2); err != nil { // the old version
		log.Fatal(err)
	}
	if err := converters.Acquire(ctx, 1); err != nil {
		log.Fatal(err)
	}

	if set, err := converters.TrySetPermits(ctx, 3); err != nil {
		log.Fatal(err)
	} else if !set {
		state, err := converters.State(ctx)
		fmt.Println("there are", state.Permits, err)
		fmt.Println("set:", converters.SetPermits(ctx, 3))
	}
	state, err := converters.State(ctx)
	fmt.Println("free:", state.Available, "of", state.Permits, err)
	// Output:
	// there are 2 <nil>
	// set: <nil>
	// free: 2 of 3 <nil>
}

// A report is written when all its parts are there, whichever processes made them.
func ExampleCountDownLatch() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	parts := client.NewCountDownLatch("report:2026:parts")
	if _, err := parts.TrySetCount(ctx, 3); err != nil {
		log.Fatal(err)
	}

	for range 3 {
		go func() {
			time.Sleep(time.Millisecond) // make the part
			if err := parts.CountDown(ctx); err != nil {
				log.Print(err)
			}
		}()
	}
	fmt.Println("wait:", parts.Wait(ctx))
	left, err := parts.Count(ctx)
	fmt.Println("left:", left, err)
	// Output:
	// wait: <nil>
	// left: 0 <nil>
}

// Workers pause while the database is migrated.
func ExampleBarrier() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	migration := client.NewBarrier("migration")
	if err := migration.Set(ctx); err != nil {
		log.Fatal(err)
	}
	go func() {
		time.Sleep(time.Millisecond) // migrate
		if err := migration.Lift(ctx); err != nil {
			log.Print(err)
		}
	}()
	fmt.Println("wait:", migration.Wait(ctx))
	// Output:
	// wait: <nil>
}

// A nightly report is made by one of the processes that start at midnight, and all have it.
func ExampleOnce() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	var archive store // refuses a run that goes on after it has lost its lease
	report := client.NewOnce("report:2026-11-22", 24*time.Hour)
	for range 2 {
		result, ran, err := report.Do(ctx, func(ctx context.Context) ([]byte, error) { // ctx ends if the lease is lost
			lease, _ := rlock.LeaseFrom(ctx)
			if err := archive.write(lease.Token(), "42 invoices"); err != nil {
				return nil, err // a later run has written it
			}
			return []byte("42 invoices"), nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, made here: %v\n", result, ran)
	}
	// Output:
	// written: 42 invoices
	// 42 invoices, made here: true
	// 42 invoices, made here: false
}

// Three workers of a load test, in any processes, begin together and end together.
func ExampleDoubleBarrier() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	test := client.NewDoubleBarrier("load-test", 3)

	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			lease, err := test.Enter(ctx) // waits for the others
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("begins")
			if err := test.Leave(ctx, lease); err != nil { // waits until all are done
				log.Fatal(err)
			}
			fmt.Println("goes home")
		})
	}
	workers.Wait()
	// Unordered output:
	// begins
	// begins
	// begins
	// goes home
	// goes home
	// goes home
}

// Each of three instances has the same schedule, and calls Do for each tick.
func ExampleCronJob() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	tick := time.Now().Truncate(time.Minute) // the scheduled time
	for range 3 {
		job := client.NewCronJob("report") // in a process of its own
		run, err := job.Do(ctx, tick, func(ctx context.Context) error {
			fmt.Println("writing the report") // ctx ends if the lease is lost
			return nil
		})
		switch {
		case errors.Is(err, rlock.ErrUnreachable):
			log.Fatal("nobody knows who runs it, so this instance does not")
		case err != nil:
			log.Fatal("it has failed: ", err)
		}
		fmt.Println("here:", run.Here)
	}
	// Output:
	// writing the report
	// here: true
	// here: false
	// here: false
}

// A job makes up for the ticks of an outage, when Redis is back.
func ExampleCronJob_Missed() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	schedule := rlock.Every(24 * time.Hour) // or a cron.Schedule
	job := client.NewCronJob("report")
	report := func(ago int) {
		tick := time.Now().Truncate(24 * time.Hour).Add(-24 * time.Hour * time.Duration(ago))
		run, err := job.Do(ctx, tick, func(context.Context) error { return nil })
		fmt.Println("the tick of", ago, "days ago ran here:", run.Here, err)
	}

	report(5)
	// For four days Do returns ErrUnreachable. Then it succeeds again:
	report(0)
	missed, err := job.Missed(ctx, schedule.Next, rlock.MaxRuns)
	if err != nil {
		log.Fatal(err)
	}
	for _, tick := range missed {
		report(int(time.Since(tick).Hours() / 24))
	}
	// Output:
	// the tick of 5 days ago ran here: true <nil>
	// the tick of 0 days ago ran here: true <nil>
	// the tick of 4 days ago ran here: true <nil>
	// the tick of 3 days ago ran here: true <nil>
	// the tick of 2 days ago ran here: true <nil>
	// the tick of 1 days ago ran here: true <nil>
}

// One process leads, the others know where it can be reached.
func ExampleElection() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	scheduler := client.NewElection("scheduler")

	leaders, err := scheduler.Observe(ctx) // in any process
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("at first %q\n", (<-leaders).Value)

	lease, err := scheduler.Campaign(ctx, "10.0.0.7:9000") // waits until it leads
	if err != nil {
		log.Fatal(err)
	}
	leader := <-leaders
	fmt.Printf("then %q, with the token of the lease: %v\n", leader.Value, leader.Token == lease.Token())

	if err := scheduler.Proclaim(ctx, lease, "10.0.0.7:9001"); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("then %q\n", (<-leaders).Value)

	_ = lease.Unlock(ctx) // resigns
	fmt.Printf("in the end %q\n", (<-leaders).Value)
	// Output:
	// at first ""
	// then "10.0.0.7:9000", with the token of the lease: true
	// then "10.0.0.7:9001"
	// in the end ""
}

func ExampleElection_Run() {
	client, stop := exampleClient()
	defer stop()

	scheduler := client.NewElection("scheduler")
	var jobs store // refuses who was the leader before
	err := scheduler.Run(context.Background(), "10.0.0.7:9000", func(ctx context.Context) error {
		fmt.Println("leads:", ctx.Err() == nil) // ctx ends if the leadership is lost; Run campaigns again then
		lease, _ := rlock.LeaseFrom(ctx)
		if err := jobs.write(lease.Token(), "clean up at noon"); err != nil {
			return err
		}
		return scheduler.Proclaim(ctx, lease, "10.0.0.7:9001")
	})
	fmt.Println(err)
	// Output:
	// leads: true
	// written: clean up at noon
	// <nil>
}
