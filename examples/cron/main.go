// Command cron runs a job once for each tick, although three instances have the same schedule, and clocks
// that differ.
//
//	go run ./examples/cron
//
// It brings an in-memory Redis along. To use a real one, set REDIS_URL:
//
//	REDIS_URL=redis://localhost:6379/0 go run ./examples/cron
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	if err := start(ctx, os.Stdout, os.Getenv("REDIS_URL"), 5); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start finds or makes a Redis, and runs three instances for some ticks.
func start(ctx context.Context, w io.Writer, url string, ticks int) error {
	if url == "" {
		mini, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer mini.Close()
		mini.ClockTTL(true)
		url = "redis://" + mini.Addr()
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	first := everySecond(time.Now().Add(100 * time.Millisecond))
	out := &output{w: w}
	var instances sync.WaitGroup
	for name, ahead := range map[string]time.Duration{"alpha": 50 * time.Millisecond, "beta": 0, "gamma": -50 * time.Millisecond} {
		rdb := redis.NewClient(opts)
		defer rdb.Close()
		client, err := rlock.New(rdb, rlock.WithLabel(name)) // one for each process
		if err != nil {
			return err
		}
		defer client.Close()
		i := &instance{name: name, ahead: ahead, job: client.NewCronJob("report", rlock.WithTakeover()), out: out}
		instances.Go(func() { i.schedule(ctx, first, ticks) })
	}
	instances.Wait()
	return ctx.Err()
}

// everySecond is the schedule: the Next of a cron.Schedule, or a function like this.
func everySecond(after time.Time) time.Time { return after.Truncate(time.Second).Add(time.Second) }

// instance is a process with a scheduler, whose clock is ahead of the others.
type instance struct {
	name  string
	ahead time.Duration
	job   *rlock.CronJob
	out   *output
}

// schedule is what a scheduler does: it sleeps until the next tick, by its own clock.
func (i *instance) schedule(ctx context.Context, tick time.Time, ticks int) {
	for ; ticks > 0; ticks-- {
		select {
		case <-time.After(time.Until(tick.Add(-i.ahead))):
		case <-ctx.Done():
			return
		}
		i.do(ctx, tick)
		tick = everySecond(tick)
	}
}

func (i *instance) do(ctx context.Context, tick time.Time) {
	run, err := i.job.Do(ctx, tick, func(ctx context.Context) error {
		time.Sleep(10 * time.Millisecond) // the report; ctx ends if the lease is lost
		return nil
	})
	switch at := tick.Format(time.TimeOnly); {
	case errors.Is(err, rlock.ErrNotRun):
		i.out.say("%s %-5s does not run it: %v", at, i.name, err)
	case errors.Is(err, rlock.ErrUnconfirmed):
		i.out.say("%s %-5s ran it, and Redis may not know: %v", at, i.name, err)
	case errors.Is(err, rlock.ErrLeaseLost):
		i.out.say("%s %-5s lost its lease while it ran it: %v", at, i.name, err)
	case err != nil:
		i.out.say("%s %-5s has failed: %v", at, i.name, err)
	case run.Here:
		i.out.say("%s %-5s ran it, in %v", at, i.name, run.End.Sub(run.Start).Round(time.Millisecond))
	default:
		i.out.say("%s %-5s leaves it to %s", at, i.name, run.Process.Label)
	}
}

// output keeps lines whole.
type output struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (o *output) say(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.w, format+"\n", args...)
}
