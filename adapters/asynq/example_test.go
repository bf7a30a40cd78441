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
	queue  *asynq.Client // asynq.NewClient(redis)
)

const address = "10.0.0.7:9000"

func accountOf(t *asynq.Task) string { return string(t.Payload()) }

func ExampleRunScheduler() {
	ctx := context.Background()
	// In each process; one of them enqueues.
	election := client.NewElection("scheduler")
	open := func() (*asynq.Scheduler, error) {
		s := asynq.NewScheduler(redis, nil)
		_, err := s.Register("0 * * * *", asynq.NewTask("report", nil),
			asynq.Unique(30*time.Minute))
		return s, err
	}
	err := rlockasynq.RunScheduler(ctx, election, address, open)
	log.Print(err)
}

// One task for each account at a time.
func ExamplePerKey() {
	mux := asynq.NewServeMux()
	mux.Use(rlockasynq.PerKey(client, "account:", accountOf))
	server := asynq.NewServer(redis, asynq.Config{
		// A busy key uses up no retry, and comes back after a second.
		IsFailure:      rlockasynq.IsFailure,
		RetryDelayFunc: rlockasynq.RetryDelay(time.Second),
	})
	log.Print(server.Run(mux))
}

// In each process, as the job of robfig/cron on rlock: asynq accepts a tick's id once.
func enqueue(ctx context.Context, tick time.Time) error {
	id := asynq.TaskID("report:" + tick.Format(time.RFC3339))
	_, err := queue.EnqueueContext(ctx, asynq.NewTask("report", nil), id)
	return err
}

var _ = enqueue
