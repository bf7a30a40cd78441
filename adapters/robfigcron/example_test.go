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

// Each hour once in the fleet.
func ExampleJob_Add() {
	ctx, stop := context.WithCancel(context.Background())
	c := cron.New(cron.WithLocation(time.UTC))
	job := rlockcron.Job{CronJob: client.NewCronJob("report"), Context: ctx, Report: func(run rlock.CronRun, err error) {
		if err != nil {
			log.Print("report: ", err)
		}
	}}
	if _, err := job.Add(c, "0 * * * *", func(ctx context.Context, tick time.Time) error {
		log.Print("the report of ", tick)
		return ctx.Err() // ctx ends if the lease is lost
	}); err != nil {
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
	schedule, err := rlockcron.Parse("@every 1h", c.Location()) // each whole hour
	if err != nil {
		log.Fatal(err)
	}
	once, err := rlockcron.Job{CronJob: client.NewCronJob("report")}.Wrapper(schedule)
	if err != nil {
		log.Fatal(err)
	}
	report := cron.FuncJob(func() { log.Print("the report") })
	c.Schedule(schedule, cron.NewChain(cron.Recover(cron.DefaultLogger), once).Then(report))
}
