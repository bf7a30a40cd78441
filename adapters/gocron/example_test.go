package rlockgocron_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-rlock/rlock"
	rlockgocron "github.com/go-rlock/rlock/adapters/gocron"
)

var client *rlock.Client // rlock.New(rdb)

func write(ctx context.Context, tick time.Time) error {
	log.Print("the report of ", tick)
	return ctx.Err()
}

// Each hour once in the fleet.
func ExampleJob() {
	scheduler, err := gocron.NewScheduler(gocron.WithLocation(time.UTC))
	if err != nil {
		log.Fatal(err)
	}
	report := rlockgocron.NewJob(client, "report") // of a *rlock.Client
	// ctx ends when the lease is lost, and when gocron ends the job.
	task := report.Task(func(ctx context.Context, tick time.Time) error {
		return write(ctx, tick)
	})
	_, err = report.AddTo(scheduler, gocron.CronJob("0 * * * *", false), task)
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
}

// All jobs on one instance.
func ExampleElector() {
	elector, err := rlockgocron.NewElector(client.NewElection("scheduler"), "10.0.0.7")
	if err != nil {
		log.Fatal(err)
	}
	ctx, resign := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- elector.Run(ctx) }()
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	// When the program stops:
	_ = scheduler.Shutdown()
	resign()
	<-ended
}
