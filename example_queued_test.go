package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-rlock/rlock"
)

// waitFor polls until n wait for a lock.
func waitFor(n int, state func(context.Context) (rlock.State, error)) {
	for {
		s, err := state(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		if s.Waiters == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A reader that comes behind a writer waits for it; an unfair lock would let it
// in and the writer starve.
func ExampleFairReadWriteLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	catalogue := client.NewFairReadWriteLock("catalogue")

	reader, err := catalogue.Reader.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		writer, err := catalogue.Writer.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("written")
		_ = writer.Unlock(ctx)
	}()
	waitFor(1, catalogue.Writer.State)

	_, err = catalogue.Reader.TryLock(ctx)
	fmt.Println("a second reader has to wait:", errors.Is(err, rlock.ErrNotAcquired))
	again, err := catalogue.Reader.Lock(reader.Context(ctx))
	fmt.Println("the first one may enter again:", err == nil)
	_ = again.Unlock(ctx)
	_ = reader.Unlock(ctx)
	<-written
	// Output:
	// a second reader has to wait: true
	// the first one may enter again: true
	// written
}

func ExamplePriorityLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	// A nightly job that has waited for 9 minutes goes before urgent ones that
	// come then.
	press := client.NewPriorityLock("printing-press", rlock.WithAging(time.Minute))

	lease, err := press.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	for i, job := range []struct {
		name     string
		priority int
	}{{"nightly", rlock.MinPriority}, {"usual", rlock.DefaultPriority}, {"urgent", rlock.MaxPriority}} {
		go func() {
			defer func() { done <- struct{}{} }()
			err := rlock.Do(ctx, press.At(job.priority), func(context.Context) error {
				fmt.Println(job.name)
				return nil
			})
			if err != nil {
				log.Print(err)
			}
		}()
		waitFor(i+1, press.State)
	}
	_ = lease.Unlock(ctx)
	for range 3 {
		<-done
	}
	// Output:
	// urgent
	// usual
	// nightly
}
