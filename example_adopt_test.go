package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/go-rlock/rlock"
)

// One process takes the lock, and leaves it to another one, which goes on under the same fencing
// token. Nobody else can enter between.
func ExampleClient_Adopt() {
	ctx := context.Background()
	first, second, stop := twoProcesses()
	defer stop()

	lease, err := first.NewLock("deploy").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	handle, err := lease.Detach(ctx) // print it, or put it into the environment of a child
	if err != nil {
		log.Fatal(err)
	}

	adopted, err := second.Adopt(ctx, handle)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same token:", adopted.Token() == lease.Token())
	_, err = second.Adopt(ctx, handle)
	fmt.Println("a second time:", errors.Is(err, rlock.ErrNotAcquired))
	if err := adopted.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the same token: true
	// a second time: true
}

// A holder that makes its handle known works on until somebody adopts its hold.
func ExampleLease_Handle() {
	ctx := context.Background()
	parent, child, stop := twoProcesses()
	defer stop()

	lease, err := parent.NewLock("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	handle, err := lease.Handle()
	if err != nil {
		log.Fatal(err)
	}

	adopted, err := child.Adopt(ctx, handle)
	if err != nil {
		log.Fatal(err)
	}
	defer adopted.Unlock(ctx)
	<-lease.Done() // it had ended when Adopt returned
	fmt.Println(errors.Is(lease.Err(), rlock.ErrAdopted))
	// Output: true
}

// twoProcesses stands for two processes, each of which has a client.
func twoProcesses() (first, second *rlock.Client, stop func()) {
	rdb, stopRedis := exampleRedis()
	first, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	second, err = rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	return first, second, func() {
		_ = first.Close()
		_ = second.Close()
		stopRedis()
	}
}
