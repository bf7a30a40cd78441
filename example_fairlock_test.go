package rlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"
)

// Three jobs line up while a fourth is at work. They are served in the order in
// which they came, wherever they run.
func ExampleClient_NewFairLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	printer := client.NewFairLock("printer")
	first, err := printer.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	var jobs sync.WaitGroup
	for i := 1; i <= 3; i++ {
		jobs.Go(func() {
			lease, err := printer.Lock(ctx)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("job", i)
			if err := lease.Unlock(ctx); err != nil {
				log.Fatal(err)
			}
		})
		for waiting := 0; waiting < i; time.Sleep(time.Millisecond) {
			state, err := printer.State(ctx)
			if err != nil {
				log.Fatal(err)
			}
			waiting = state.Waiters
		}
	}

	if err := first.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	jobs.Wait()
	// Output:
	// job 1
	// job 2
	// job 3
}
