// Command shutdown works under a lock until it is asked to stop, ends the item that it has begun, and leaves nothing
// locked.
//
//	go run ./examples/shutdown   # and then Ctrl-C, or kill
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/redis/go-redis/v9"
)

func main() {
	rdb := redis.NewClient(&redis.Options{
		Addr: os.Getenv("REDIS_ADDR"), // "" is localhost:6379
	})
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	stop, cancel := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer cancel()

	lock, done := client.NewLock("items"), make(chan error, 1)
	go func() { done <- rlock.Do(ctx, lock, work) }()
	select {
	case err := <-done: // without a signal
		log.Fatal(err)
	case <-stop.Done():
	}

	// Below the time after which the process is killed: with Kubernetes 30 s.
	leave, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := client.Shutdown(leave); err != nil {
		// It names what is still held: that is free when its lease is over.
		log.Fatal(err)
	}
	if err := <-done; err != nil && !errors.Is(err, rlock.ErrClosed) {
		log.Fatal(err)
	}
	log.Print("all is unlocked")
}

// work has the lock until it returns. Shutdown ends ctx, and waits.
func work(ctx context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		log.Print("begins item ", n)
		time.Sleep(100 * time.Millisecond)
		log.Print("ends item ", n)
	}
	return context.Cause(ctx) // rlock.ErrClosed, or why the lock was lost
}
