// Command invoices does a job that one process at a time may do, and ends with a status that a scheduler
// understands: 0 if the job is done or another process does it, 1 if nobody knows.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/redis/go-redis/v9"
)

var rdb = redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})

func main() {
	client, err := rlock.New(rdb) // one a process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = rlock.Do(context.Background(), client.NewLock("invoices"), write,
		rlock.WithWait(5*time.Second))
	switch {
	case errors.Is(err, rlock.ErrNotRun) &&
		errors.Is(err, rlock.ErrNotAcquired):
		log.Print("another process writes them: ", err)
	case errors.Is(err, rlock.ErrNotRun): // rlock.ErrUnreachable or ErrRefused
		log.Fatal("not written: ", err)
	case errors.Is(err, rlock.ErrUnconfirmed): // write returned nil
		log.Print("written; the lock is free when its lease is over: ", err)
	case err != nil: // of write, or rlock.ErrLeaseLost
		log.Fatal("some may be written: ", err)
	}
}

func write(ctx context.Context) error { // ctx ends when the lock is lost
	last, err := rdb.Get(ctx, "invoices:last").Int() // of earlier runs
	for n := last + 1; n <= 3 && (err == nil || err == redis.Nil); n++ {
		log.Print("invoice ", n)
		time.Sleep(100 * time.Millisecond)
		err = rdb.Set(ctx, "invoices:last", n, 0).Err()
	}
	return err
}
