package rlockasynq_test

import (
	"context"
	"log"
	"time"

	"github.com/hibiken/asynq"

	"github.com/go-rlock/rlock"
	rlockasynq "github.com/go-rlock/rlock/adapters/asynq"
)

var (
	client *rlock.Client // rlock.New(rdb)
	redis  = asynq.RedisClientOpt{Addr: "localhost:6379"}
)

// In each process of the fleet; one of them enqueues.
func ExampleRunScheduler() {
	err := rlockasynq.RunScheduler(context.Background(), client.NewElection("scheduler"), "10.0.0.7", func() (*asynq.Scheduler, error) {
		s := asynq.NewScheduler(redis, nil)
		_, err := s.Register("0 * * * *", asynq.NewTask("report", nil), asynq.Unique(30*time.Minute))
		return s, err
	})
	log.Print(err)
}

// One task for each account at a time.
func ExamplePerKey() {
	mux := asynq.NewServeMux()
	mux.Use(rlockasynq.PerKey(client, "account:", func(t *asynq.Task) string { return string(t.Payload()) }))
	server := asynq.NewServer(redis, asynq.Config{
		IsFailure:      rlockasynq.IsFailure,               // a busy key uses up no retry
		RetryDelayFunc: rlockasynq.RetryDelay(time.Second), // and comes back after a second
	})
	log.Print(server.Run(mux))
}
