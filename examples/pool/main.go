// Command pool has workers in three processes, of which two at a time may call a partner's API. The permits of
// a process that dies come back when its lease is over.
//
//	go run ./examples/pool
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

const permits = 2

func main() {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	var processes sync.WaitGroup
	for i := range 3 { // each would be a process
		processes.Go(func() {
			rdb := newRedis()
			defer rdb.Close()
			client, err := rlock.New(rdb)
			if err != nil {
				log.Fatal(err)
			}
			defer client.Close()
			jobs := make(chan int, 4)
			for job := range cap(jobs) {
				jobs <- 10*i + job
			}
			close(jobs)
			if err := work(context.Background(), os.Stdout, client, jobs, call); err != nil {
				log.Fatal(err)
			}
		})
	}
	processes.Wait()
}

// work does the jobs by four goroutines, each with a permit of those that all processes share.
func work(ctx context.Context, w io.Writer, client *rlock.Client, jobs <-chan int, call func(ctx context.Context, job int) error) error {
	// WithFairness: the longest waiter of all processes is next, and a release wakes only that one.
	// WithPermits: the first that comes sets their number.
	partner := client.NewPermitSemaphore("partner-api", rlock.WithFairness(), rlock.WithPermits(permits))
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for job := range jobs {
				if err := do(ctx, partner, job, call); err != nil {
					fail(err) // ends the others too
					return
				}
				fmt.Fprintln(w, "job", job, "is done")
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

func do(ctx context.Context, partner *rlock.PermitSemaphore, job int, call func(ctx context.Context, job int) error) error {
	permit, err := partner.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	err = call(permit.Context(ctx), job) // ends if the permit is lost
	if unlocked := permit.Unlock(ctx); err == nil {
		err = unlocked
	}
	return err
}

func call(ctx context.Context, _ int) error {
	select {
	case <-time.After(100 * time.Millisecond): // the request to the partner
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
