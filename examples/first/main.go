// Command first takes a lock, works, and frees it. Two that run at the same time work one after the other:
//
//	go run ./examples/first & go run ./examples/first
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/redis/go-redis/v9"
)

func main() {
	rdb := redis.NewClient(&redis.Options{
		Addr: os.Getenv("REDIS_ADDR"), // "" is localhost:6379
	})
	client, err := rlock.New(rdb) // one for each process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	// Lock waits while another process has the lock.
	lock := client.NewLock("report")
	lease, err := lock.Lock(ctx, rlock.WithWait(5*time.Second))
	if err != nil {
		log.Fatal(err) // another process still has it, or Redis does not answer
	}
	log.Print("has the lock, token ", lease.Token())
	work(lease.Context(ctx))
	if err := lease.Unlock(ctx); err != nil { // fails if the lock was lost
		log.Fatal(err)
	}
	log.Print("has freed it")
}

func work(ctx context.Context) { // ctx ends if the lock is lost
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
}
