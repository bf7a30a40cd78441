package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/go-rlock/rlock"
)

// Five masters that know nothing of each other: the lock is had while three of them
// answer and keep their data.
func ExampleNewRedLock() {
	var clients []*rlock.Client // one for each master
	for range 5 {
		client, stop := exampleClient()
		defer stop()
		clients = append(clients, client)
	}
	lock, err := rlock.NewRedLock("invoices", clients)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	lease, err := lock.Lock(ctx)
	if errors.Is(err, rlock.ErrNoQuorum) {
		log.Fatal("too many masters are away: ", err) // it names them
	} else if err != nil {
		log.Fatal(err)
	}
	token := lease.Token()
	fmt.Println("unlocked:", lease.Unlock(ctx))

	lease, err = lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a later token is higher:", lease.Token() > token)
	_ = lease.Unlock(ctx)
	// Output:
	// unlocked: <nil>
	// a later token is higher: true
}

// A transfer needs both accounts. Whoever takes them in the other order does not
// get in its way: the order is always the same.
func ExampleNewMultiLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	both, err := rlock.NewMultiLock([]rlock.Locker{client.NewLock("account:8"), client.NewLock("account:3")})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := both.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.NewLock("account:3").TryLock(ctx)
	fmt.Println("held:", errors.Is(err, rlock.ErrNotAcquired))

	work := lease.Context(ctx) // ends if either is lost
	fmt.Println("at work:", work.Err() == nil)

	fmt.Println("unlocked:", lease.Unlock(ctx))
	// Output:
	// held: true
	// at work: true
	// unlocked: <nil>
}
