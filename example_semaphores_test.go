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
