package named_test

import (
	"context"
	"log"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/named"
)

var client *rlock.Client // rlock.New(rdb)

func ExampleLocks() {
	locks, err := named.New(client, "lock:account:", rlock.WithWait(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	pay := func(ctx context.Context, id string) error {
		if err := locks.Lock(ctx, id); err != nil {
			return err
		}
		defer locks.Unlock(ctx, id) // works with an ended context
		return nil
	}
	if err := pay(context.Background(), "7"); err != nil {
		log.Fatal(err)
	}
}

func ExampleMutex() {
	report := func(err error) { log.Print(err) }
	mutex, err := named.NewMutex(client.NewLock("m"), report)
	if err != nil {
		log.Fatal(err)
	}
	cond := sync.NewCond(mutex)
	cond.L.Lock()
	defer cond.L.Unlock()
}
