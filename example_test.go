package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// exampleRedis is an in-memory Redis for the examples. A program would connect
// to its own: redis.NewClient(&redis.Options{Addr: "localhost:6379"}).
func exampleRedis() (rdb *redis.Client, stop func()) {
	mini, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	mini.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: mini.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		mini.Close()
	}
}

func exampleClient(opts ...rlock.Option) (client *rlock.Client, stop func()) {
	rdb, stopRedis := exampleRedis()
	client, err := rlock.New(rdb, opts...)
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close()
		stopRedis()
	}
}

// store is a resource that remembers the highest token it has seen.
type store struct{ highest int64 }

func (s *store) write(token int64, text string) error {
	if token < s.highest {
		return errors.New("refused: " + text)
	}
	s.highest = token
	fmt.Println("written:", text)
	return nil
}

func Example() {
	ctx := context.Background()
	rdb, stop := exampleRedis()
	defer stop()

	client, err := rlock.New(rdb) // one for each process
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	invoices := client.NewLock("invoices")

	// Do locks, calls the function, and unlocks.
	err = rlock.Do(ctx, invoices, func(ctx context.Context) error {
		fmt.Println("writing invoices:", ctx.Err() == nil) // ctx ends if the lock is lost
		return nil
	}, rlock.WithWait(5*time.Second))
	if errors.Is(err, rlock.ErrNotAcquired) { // never in an outage: that is ErrUnreachable or ErrRefused
		fmt.Println("another process holds the lock")
		return
	} else if err != nil { // also ErrLeaseLost: we were not alone
		log.Fatal(err)
	}

	// Lock returns the hold itself: a lease.
	lease, err := invoices.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	work := lease.Context(ctx) // ends if the lock is lost; context.Cause says why
	fmt.Println("at work:", work.Err() == nil, "with a fencing token:", lease.Token() > 0)
	if err := lease.Unlock(ctx); err != nil { // ErrLeaseLost, as above
		log.Fatal(err)
	}
	// Output:
	// writing invoices: true
	// at work: true with a fencing token: true
}

func ExampleLock_Lock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("counter") // may be shared

	counter := 0
	done := make(chan struct{})
	for range 10 {
		go func() {
			defer func() { done <- struct{}{} }()
			lease, err := lock.Lock(ctx)
			if err != nil {
				log.Print(err)
				return
			}
			counter++
			if err := lease.Unlock(ctx); err != nil {
				log.Print(err)
			}
		}()
	}
	for range 10 {
		<-done
	}
	fmt.Println(counter)
	// Output: 10
}

func ExampleLock_TryLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("nightly-report")

	lease, err := lock.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = lock.TryLock(ctx) // not a re-entry: ctx does not come from the lease
	fmt.Println("second:", errors.Is(err, rlock.ErrNotAcquired))

	fmt.Println("unlock:", lease.Unlock(ctx))
	lease, err = lock.TryLock(ctx)
	fmt.Println("third:", err)
	_ = lease.Unlock(ctx)
	// Output:
	// second: true
	// unlock: <nil>
	// third: <nil>
}

func ExampleDo() {
	client, stop := exampleClient()
	defer stop()

	err := rlock.Do(context.Background(), client.NewLock("migration"), func(ctx context.Context) error {
		fmt.Println("alone, for as long as ctx lasts:", ctx.Err() == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone, for as long as ctx lasts: true
	// <nil>
}

// Goroutines that are started below one lease exclude each other from every other
// lock.
func ExampleDo_goroutines() {
	client, stop := exampleClient()
	defer stop()
	order, total := client.NewLock("order:4711"), client.NewLock("total")

	sum := 0
	err := rlock.Do(context.Background(), order, func(ctx context.Context) error {
		errs := make([]error, 8)
		var items sync.WaitGroup
		for i := range errs {
			items.Go(func() {
				errs[i] = rlock.Do(ctx, total, func(context.Context) error {
					sum += i // one at a time
					return nil
				})
			})
		}
		items.Wait()
		return errors.Join(errs...)
	})
	fmt.Println(sum, err)
	// Output: 28 <nil>
}

// What is called with the context of a lease may enter the lock again.
func ExampleLease_Context() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("account:7")

	withdraw := func(ctx context.Context) error {
		return rlock.Do(ctx, lock, func(ctx context.Context) error {
			n, err := lock.HoldCount(ctx)
			fmt.Println("entered", n, "times")
			return err
		})
	}
	lease, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := withdraw(lease.Context(ctx)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("still held:", lease.Err() == nil)
	fmt.Println("unlock:", lease.Unlock(ctx))
	// Output:
	// entered 2 times
	// still held: true
	// unlock: <nil>
}

// A lease that is lost says so, and why.
func ExampleLease_Done() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	// A fixed lease, which the work then outruns.
	lease, err := client.NewLock("slow").Lock(ctx, rlock.WithLease(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	work := lease.Context(ctx)

	<-lease.Done() // in a select, beside the work
	<-work.Done()
	fmt.Println("lost:", errors.Is(lease.Err(), rlock.ErrLeaseLost))
	fmt.Println("because it ran out:", errors.Is(context.Cause(work), rlock.ErrExpired))
	fmt.Println("unlock says so too:", errors.Is(lease.Unlock(ctx), rlock.ErrLeaseLost))
	// Output:
	// lost: true
	// because it ran out: true
	// unlock says so too: true
}

func ExampleWithWait() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("busy")

	lease, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	_, err = lock.Lock(ctx, rlock.WithWait(500*time.Millisecond))
	var refused *rlock.Error
	if errors.As(err, &refused) { // its text says so, too
		fmt.Println("held by the lease above:", refused.HolderID == lease.HoldID())
		fmt.Println("for less than its lease:", refused.Left <= rlock.DefaultWatchdogLease)
	}
	fmt.Println("not acquired:", errors.Is(err, rlock.ErrNotAcquired))
	fmt.Println("context over:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// held by the lease above: true
	// for less than its lease: true
	// not acquired: true
	// context over: false
}

// A store that remembers the highest token it has seen is safe from a holder
// that goes on after it has lost its lock.
func ExampleLease_Token() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("document")

	var document store
	slow, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lock.ForceUnlock(ctx); err != nil { // slow does not know yet
		log.Fatal(err)
	}
	quick, err := lock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_ = document.write(quick.Token(), "by the new holder")
	fmt.Println(document.write(slow.Token(), "by the old one"))
	_ = quick.Unlock(ctx)
	_ = slow.Unlock(ctx) // tells it that its lease is lost
	// Output:
	// written: by the new holder
	// refused: by the old one
}

// The code that writes is handed a context, as usual, and finds the lease and its token in it.
func ExampleLeaseFrom() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	var document store
	save := func(ctx context.Context, text string) error {
		lease, ok := rlock.LeaseFrom(ctx)
		if !ok {
			return errors.New("save needs the context of a lease")
		}
		return document.write(lease.Token(), text)
	}
	err := rlock.Do(ctx, client.NewLock("document"), func(ctx context.Context) error {
		return save(ctx, "a draft")
	})
	fmt.Println(err)
	fmt.Println(save(ctx, "a note"))
	// Output:
	// written: a draft
	// <nil>
	// save needs the context of a lease
}
