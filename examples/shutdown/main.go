// Command shutdown works under a lock until it is told to stop, ends the item that it has begun, and leaves nothing
// locked.
//
//	go run ./examples/shutdown   # and then Ctrl-C, or kill
package main

import (
	"cmp"
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
	rdb := redis.NewClient(&redis.Options{Addr: cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")})
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	told, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()

	done := make(chan error, 1)
	go func() { done <- rlock.Do(context.Background(), client.NewLock("items"), work) }()
	select {
	case err := <-done: // without being told
		log.Fatal(err)
	case <-told.Done():
	}

	// Below the time after which the process is killed: with Kubernetes 30 s.
	leave, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := client.Shutdown(leave); err != nil {
		log.Fatal(err) // names what is still held: it is free when its lease is over
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
