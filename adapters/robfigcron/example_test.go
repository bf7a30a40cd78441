package rlockcron_test

import (
	"context"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/go-rlock/rlock"
	rlockcron "github.com/go-rlock/rlock/adapters/robfigcron"
)

var client *rlock.Client // rlock.New(rdb)

func write(ctx context.Context, tick time.Time) error {
	log.Print("the report of ", tick)
	return ctx.Err()
}

// Each hour once in the fleet.
func ExampleJob_Add() {
	ctx, stop := context.WithCancel(context.Background())
	c := cron.New(cron.WithLocation(time.UTC))
	job := rlockcron.Job{
		CronJob: client.NewCronJob("report"),
		Context: ctx,
		Report: func(run rlock.CronRun, err error) {
			if err != nil {
				log.Print("report: ", err)
			}
		},
	}
	run := func(ctx context.Context, tick time.Time) error {
		return write(ctx, tick) // ctx ends if the lease is lost
	}
	_, err := job.Add(c, "0 * * * *", run)
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
	// When the program stops:
	stop()
	<-c.Stop().Done()
}

// A job that is a cron.Job already, in a chain with others.
func ExampleJob_Wrapper() {
	c := cron.New(cron.WithLocation(time.UTC))
	job := rlockcron.Job{CronJob: client.NewCronJob("report")}
	schedule, err := rlockcron.Parse("0 * * * *", time.UTC)
	if err != nil {
		log.Fatal(err)
	}
	once, err := job.Wrapper(schedule)
	if err != nil {
		log.Fatal(err)
	}
	logger, report := cron.DefaultLogger, cron.FuncJob(func() { log.Print("the report") })
	c.Schedule(schedule, cron.NewChain(cron.Recover(logger), once).Then(report))
}
