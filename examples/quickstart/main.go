// Command quickstart shows rlock at work: two clients, as if they were two
// processes, contend for one lock; its holder enters it twice; a wait times
// out; a lease is lost, and the context of its holder ends.
//
//	go run ./examples/quickstart
//
// It brings an in-memory Redis along. To use a real one, set REDIS_URL:
//
//	REDIS_URL=redis://localhost:6379/0 go run ./examples/quickstart
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := start(ctx, os.Stdout, os.Getenv("REDIS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start finds or makes a Redis and runs the show on it.
func start(ctx context.Context, w io.Writer, url string) error {
	if url == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer mini.Close()
		mini.ClockTTL(true)
		url = "redis://" + mini.Addr()
		fmt.Fprintln(w, "Redis: in memory (set REDIS_URL to use a real one)")
	} else {
		fmt.Fprintln(w, "Redis: the one of REDIS_URL")
	}
	return run(ctx, w, url)
}

func run(ctx context.Context, w io.Writer, url string) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	// Two processes would have a client each, and so they do here.
	var clients [2]*rlock.Client
	for i := range clients {
		rdb := redis.NewClient(opts)
		defer rdb.Close()
		// A short lease, so that this program need not run for half a minute.
		if clients[i], err = rlock.New(rdb, rlock.WithWatchdogLease(3*time.Second)); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	s := &show{w: w, start: time.Now(), alpha: clients[0], beta: clients[1]}

	// A name of its own, so that two runs on one Redis do not meet.
	name := fmt.Sprintf("quickstart:%04x", rand.N(1<<16))
	for _, act := range []func(context.Context, string) error{s.contend, s.reenter, s.giveUp, s.lose} {
		if err := act(ctx, name); err != nil {
			return err
		}
	}
	s.say("", "done")
	return nil
}

type show struct {
	mu          sync.Mutex // guards w
	w           io.Writer
	start       time.Time
	alpha, beta *rlock.Client
}

func (s *show) title(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, "\n%s\n", text)
}

// say prints a line: when, who, what.
func (s *show) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, "%6dms  %-8s  %s\n", time.Since(s.start).Milliseconds(), who, fmt.Sprintf(format, args...))
}

// contend: six goroutines of two clients want one lock. One at a time has it,
// and each gets a fencing token greater than the one before.
func (s *show) contend(ctx context.Context, name string) error {
	s.title("1. Six goroutines of two clients want one lock")
	work := func(who string, lock *rlock.Lock) error {
		asked := time.Now()
		lease, err := lock.Lock(ctx)
		if err != nil {
			return err
		}
		s.say(who, "has the lock after %4dms, token %d", time.Since(asked).Milliseconds(), lease.Token())
		time.Sleep(200 * time.Millisecond) // the work
		return lease.Unlock(ctx)
	}
	results := make(chan error)
	for i := range 3 {
		go func() { results <- work(fmt.Sprintf("alpha/%d", i+1), s.alpha.NewLock(name)) }()
		go func() { results <- work(fmt.Sprintf("beta/%d", i+1), s.beta.NewLock(name)) }()
	}
	var err error
	for range 6 {
		err = errors.Join(err, <-results)
	}
	return err
}

// reenter: what is called with the context of a lease may enter again.
func (s *show) reenter(ctx context.Context, name string) error {
	s.title("2. Re-entry: the context of a lease lets in again")
	lock := s.alpha.NewLock(name)
	return rlock.Do(ctx, lock, func(ctx context.Context) error {
		s.say("alpha", "is in")
		return rlock.Do(ctx, lock, func(ctx context.Context) error {
			n, err := lock.HoldCount(ctx)
			if err != nil {
				return err
			}
			s.say("alpha", "is in %d times; any other context would wait", n)
			return nil
		})
	})
}

// giveUp: a wait that is over is an error of its own.
func (s *show) giveUp(ctx context.Context, name string) error {
	s.title("3. A wait that times out")
	return rlock.Do(ctx, s.alpha.NewLock(name), func(ctx context.Context) error {
		s.say("alpha", "has the lock, and keeps it")
		nothing := func(context.Context) error { return nil }
		err := rlock.Do(rlock.WithoutOwner(ctx), s.beta.NewLock(name), nothing, rlock.WithWait(time.Second))
		if !errors.Is(err, rlock.ErrNotAcquired) {
			return fmt.Errorf("expected ErrNotAcquired, got: %w", err)
		}
		s.say("beta", "gave up: %v", err)
		return nil
	})
}

// lose: an operator frees the lock by force. With the next renewal the context of
// the holder ends, and the resource that checks tokens does not accept a late write.
func (s *show) lose(ctx context.Context, name string) (err error) {
	s.title("4. A lease is lost, and the context of its holder ends")
	lock := s.alpha.NewLock(name)
	lease, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Unlock(ctx) }() // if a step fails before the Unlock below
	work := lease.Context(ctx)               // ends with the lease
	s.say("alpha", "has the lock, token %d", lease.Token())

	freed, err := s.beta.NewLock(name).ForceUnlock(ctx)
	if err != nil {
		return err
	}
	s.say("operator", "frees the lock by force: %v", freed)
	next, err := s.beta.NewLock(name).Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Unlock(ctx)) }()
	s.say("beta", "has the lock, token %d", next.Token())

	<-work.Done()
	if err := ctx.Err(); err != nil {
		return err
	}
	var lost *rlock.Error
	if !errors.As(context.Cause(work), &lost) {
		return fmt.Errorf("expected an *rlock.Error, got: %w", context.Cause(work))
	}
	s.say("alpha", "its context ends: %v", lost.Err)
	s.say("alpha", "its lease is lost: %v; because it was taken over: %v",
		errors.Is(lease.Err(), rlock.ErrLeaseLost), errors.Is(lease.Err(), rlock.ErrTakenOver))
	s.say("storage", "would refuse a late write of alpha: its token is lower: %v", lease.Token() < next.Token())
	if err := lease.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
		return fmt.Errorf("expected ErrLeaseLost, got: %w", err)
	}
	s.say("alpha", "unlocks: that reports the loss, and leaves beta's hold alone")
	return nil
}
