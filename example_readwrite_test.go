package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/go-rlock/rlock"
)

// Many read a price list; one at a time changes it.
func ExampleReadWriteLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	prices := client.NewReadWriteLock("prices")

	first, err := prices.Reader.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := prices.Reader.Lock(ctx) // beside the first
	if err != nil {
		log.Fatal(err)
	}
	_, err = prices.Writer.TryLock(ctx)
	fmt.Println("a writer beside readers:", !errors.Is(err, rlock.ErrNotAcquired))

	_ = first.Unlock(ctx)
	_ = second.Unlock(ctx)
	write, err := prices.Writer.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a writer alone:", write.Err() == nil, "with a fencing token:", write.Token() > 0)
	if err := write.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// a writer beside readers: false
	// a writer alone: true with a fencing token: true
}

// A writer goes on as a reader, with no gap for another writer.
func ExampleReadWriteLock_downgrade() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	prices := client.NewReadWriteLock("prices")

	write, err := prices.Writer.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	read, err := prices.Reader.Lock(write.Context(ctx)) // the writer's context: let in at once
	if err != nil {
		log.Fatal(err)
	}
	if err := write.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("reads on:", read.Err() == nil)

	_, err = prices.Writer.Lock(read.Context(ctx))
	fmt.Println("cannot go back:", errors.Is(err, rlock.ErrUpgrade))
	if err := read.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// reads on: true
	// cannot go back: true
}
