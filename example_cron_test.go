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

// After an outage a job makes up for the latest of the ticks that nobody has run.
func ExampleCronJob_Missed() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	next := func(after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) } // or Next of a cron.Schedule
	report := func(context.Context) error { return nil }

	job := client.NewCronJob("report")
	if _, err := job.Do(ctx, time.Now().Add(-5*time.Hour).Truncate(time.Hour), report); err != nil { // the last run
		log.Fatal(err)
	}
	missed, err := job.Missed(ctx, next, 1) // with rlock.MaxRuns it is all of them
	if err != nil {
		log.Fatal(err)
	}
	for _, tick := range missed {
		run, err := job.Do(ctx, tick, report)
		fmt.Println("made up for it here:", run.Here, err)
	}
	// Output:
	// made up for it here: true <nil>
}
