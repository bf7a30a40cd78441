package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-rlock/rlock"
)

// account is what a fencing token protects: it refuses who is late.
type account struct{ seen, balance int64 }

func (a *account) deposit(token, amount int64) error {
	if token < a.seen {
		return fmt.Errorf("token %d is older than %d", token, a.seen)
	}
	a.seen, a.balance = token, a.balance+amount
	return nil
}

// The numbers of a fenced lock are those of Redisson's RFencedLock, so that Java
// and Go processes can hand them to one resource.
func ExampleFencedLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewFencedLock("account:7")
	var resource account

	slow, err := lock.Lock(ctx, rlock.WithLease(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	<-slow.Done() // the lease runs out while its holder is busy elsewhere

	quick, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("quick:", resource.deposit(quick.Token(), 10))
	fmt.Println("slow:", resource.deposit(slow.Token(), 10))
	_ = quick.Unlock(ctx)

	current, err := lock.CurrentToken(ctx)
	fmt.Println("current token:", current, err)
	// Output:
	// quick: <nil>
	// slow: token 1 is older than 2
	// current token: 2 <nil>
}

func ExampleSpinLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewSpinLock("stock:4711", rlock.WithBackoff(rlock.ExponentialBackoff(time.Millisecond, 20*time.Millisecond)))

	lease, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = lock.Lock(ctx, rlock.WithWait(500*time.Millisecond)) // as a different owner
	fmt.Println("second:", errors.Is(err, rlock.ErrNotAcquired))
	fmt.Println("unlock:", lease.Unlock(ctx))
	// Output:
	// second: true
	// unlock: <nil>
}

// Watch tells who holds a lock to one who does not want it.
func ExampleLock_watch() {
	client, stop := exampleClient()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lock := client.NewLock("nightly-report")

	states, err := lock.Watch(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println((<-states).Mode)

	lease, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	held := <-states
	fmt.Println(held.Mode, held.Holders[0].HoldID == lease.HoldID())

	_ = lease.Unlock(ctx)
	for s := range states { // it may have told the token by itself, in between
		if !s.Locked() {
			fmt.Println(s.Mode)
			cancel() // ends the watch, and the loop with it
		}
	}
	// Output:
	// free
	// exclusive true
	// free
}

// Whoever wants a lock may ask its holder for it. The holder decides when it is done.
func ExampleLease_ReleaseRequested() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	index := client.NewLock("index")

	lease, err := index.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { // what takes hours, in small steps
		for {
			select {
			case <-lease.ReleaseRequested():
				fmt.Println("somebody is in a hurry")
				done <- lease.Unlock(ctx)
				return
			case <-lease.Done():
				done <- lease.Err()
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()

	// In another process:
	asked, err := index.RequestRelease(ctx)
	fmt.Println("asked:", asked, err)
	urgent, err := index.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("unlocked:", <-done)
	_ = urgent.Unlock(ctx)
	// Unordered output:
	// asked: true <nil>
	// somebody is in a hurry
	// unlocked: <nil>
}
