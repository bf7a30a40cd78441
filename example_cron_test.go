package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-rlock/rlock"
)

// Each of three instances has the same schedule, and calls Do for each tick.
func ExampleCronJob() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	tick := time.Now().Truncate(time.Minute) // the scheduled time
	for range 3 {
		job := client.NewCronJob("report") // in a process of its own
		run, err := job.Do(ctx, tick, func(ctx context.Context) error {
			fmt.Println("writing the report") // ctx ends if the lease is lost
			return nil
		})
		switch {
		case errors.Is(err, rlock.ErrUnreachable):
			log.Fatal("nobody knows who runs it, so this instance does not")
		case err != nil:
			log.Fatal("it has failed: ", err)
		}
		fmt.Println("here:", run.Here)
	}
	// Output:
	// writing the report
	// here: true
	// here: false
	// here: false
}

// A job makes up for the ticks of an outage, when Redis is back.
func ExampleCronJob_Missed() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	schedule := rlock.Every(24 * time.Hour) // or a cron.Schedule
	job := client.NewCronJob("report")
	report := func(ago int) {
		tick := time.Now().Truncate(24 * time.Hour).Add(-24 * time.Hour * time.Duration(ago))
		run, err := job.Do(ctx, tick, func(context.Context) error { return nil })
		fmt.Println("the tick of", ago, "days ago ran here:", run.Here, err)
	}

	report(5)
	// For four days Do returns ErrUnreachable. Then it succeeds again:
	report(0)
	missed, err := job.Missed(ctx, schedule.Next, rlock.MaxRuns)
	if err != nil {
		log.Fatal(err)
	}
	for _, tick := range missed {
		report(int(time.Since(tick).Hours() / 24))
	}
	// Output:
	// the tick of 5 days ago ran here: true <nil>
	// the tick of 0 days ago ran here: true <nil>
	// the tick of 4 days ago ran here: true <nil>
	// the tick of 3 days ago ran here: true <nil>
	// the tick of 2 days ago ran here: true <nil>
	// the tick of 1 days ago ran here: true <nil>
}
