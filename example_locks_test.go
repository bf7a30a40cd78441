package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

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

// Three jobs line up while a fourth is at work. They are served in the order in
// which they came, wherever they run.
func ExampleClient_NewFairLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	printer := client.NewFairLock("printer")
	first, err := printer.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	var jobs sync.WaitGroup
	for i := 1; i <= 3; i++ {
		jobs.Go(func() {
			lease, err := printer.Lock(ctx)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("job", i)
			if err := lease.Unlock(ctx); err != nil {
				log.Fatal(err)
			}
		})
		for waiting := 0; waiting < i; time.Sleep(time.Millisecond) {
			state, err := printer.State(ctx)
			if err != nil {
				log.Fatal(err)
			}
			waiting = state.Waiters
		}
	}

	if err := first.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	jobs.Wait()
	// Output:
	// job 1
	// job 2
	// job 3
}

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
