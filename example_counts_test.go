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
