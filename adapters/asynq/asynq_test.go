package rlockasynq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/go-rlock/rlock"
	rlockasynq "github.com/go-rlock/rlock/adapters/asynq"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

// Three processes have the scheduler; one runs it, and resigns.
func TestSchedulerRunsOnTheLeaderOnly(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client()
	var started, most atomic.Int32
	enqueued := make(chan int, 1000)
	type member struct {
		cancel context.CancelFunc
		ended  chan error
	}
	members := make([]member, 3)
	for i := range members {
		ctx, cancel := context.WithCancel(t.Context())
		members[i] = member{cancel, make(chan error, 1)}
		election := locktest.NewClient(t, srv.Client()).NewElection("scheduler")
		go func() {
			members[i].ended <- rlockasynq.RunScheduler(ctx, election, fmt.Sprint(i), func() (*asynq.Scheduler, error) {
				most.Store(max(most.Load(), started.Add(1)))
				s := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{Logger: silent{}, HeartbeatInterval: time.Hour,
					PostEnqueueFunc: func(*asynq.TaskInfo, error) { enqueued <- i }})
				_, err := s.Register("@every 1s", asynq.NewTask("report", nil))
				return s, err
			})
			started.Add(-1)
		}()
	}
	first := <-enqueued
	members[first].cancel()
	if err := <-members[first].ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it resigns with %v", err)
	}
	next := first
	for next == first { // another leads
		next = <-enqueued
	}
	for i, m := range members {
		m.cancel()
		if i != first {
			if err := <-m.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%d: %v", i, err)
			}
		}
	}
	if n := most.Load(); n > 2 { // the successor may begin before the first has returned
		t.Errorf("%d schedulers ran at once", n)
	}
}

// tasks is a provider of one task.
type tasks struct{}

func (tasks) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	return []*asynq.PeriodicTaskConfig{{Cronspec: "@every 1s", Task: asynq.NewTask("report", nil)}}, nil
}

func TestAPeriodicTaskManagerRunsOnTheLeader(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	election, enqueued := locktest.NewClient(t, srv.Client()).NewElection("scheduler"), make(chan struct{}, 1000)
	err := rlockasynq.RunScheduler(ctx, election, "", func() (*asynq.PeriodicTaskManager, error) {
		go func() { <-enqueued; cancel() }()
		return asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: tasks{}, RedisUniversalClient: rdb,
			SchedulerOpts: &asynq.SchedulerOpts{Logger: silent{}, HeartbeatInterval: time.Hour, PostEnqueueFunc: func(*asynq.TaskInfo, error) { enqueued <- struct{}{} }}})
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	none := func() (*asynq.PeriodicTaskManager, error) { return nil, nil }
	if err := rlockasynq.RunScheduler(t.Context(), election, "", none); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestSchedulerThatCannotBeMade(t *testing.T) {
	t.Parallel()
	client, failed := rlocktest.New(t).Client(), errors.New("failed")
	run := func(build func() (*asynq.Scheduler, error)) error {
		return rlockasynq.RunScheduler(t.Context(), client.NewElection("a"), "", build)
	}
	if err := run(func() (*asynq.Scheduler, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	if err := run(func() (*asynq.Scheduler, error) { return nil, nil }); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if err := run(nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

// Two servers handle the tasks of three keys.
func TestOneTaskForEachKey(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const keys, each = 3, 5
	var mu sync.Mutex // guards the maps
	running, handled, together := map[string]int{}, map[string]int{}, 0
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		key := string(task.Payload())
		if lease, ok := rlock.LeaseFrom(ctx); !ok || lease.Token() <= 0 {
			t.Errorf("the lease is %v", lease)
		}
		mu.Lock()
		running[key]++
		if running[key] > 1 {
			together++
		}
		mu.Unlock()
		time.Sleep(30 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		running[key]--
		handled[key]++
		return nil
	})
	for range 2 {
		mux := asynq.NewServeMux()
		mux.Use(rlockasynq.PerKey(locktest.NewClient(t, srv.Client()), "account:", func(task *asynq.Task) string { return string(task.Payload()) }))
		mux.Handle("change", handler)
		server := asynq.NewServerFromRedisClient(srv.Client(), asynq.Config{Concurrency: 6, Logger: silent{}, TaskCheckInterval: 200 * time.Millisecond,
			DelayedTaskCheckInterval: 100 * time.Millisecond, IsFailure: rlockasynq.IsFailure, RetryDelayFunc: rlockasynq.RetryDelay(50 * time.Millisecond)})
		if err := server.Start(mux); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Shutdown)
	}
	client := asynq.NewClientFromRedisClient(srv.Client())
	for range each {
		for key := range keys {
			if _, err := client.Enqueue(asynq.NewTask("change", fmt.Appendf(nil, "{%d}", key)), asynq.MaxRetry(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	locktest.Eventually(t, "all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for key := range keys {
			if handled[fmt.Sprintf("{%d}", key)] < each {
				return false
			}
		}
		return true
	})
	if together > 0 {
		t.Errorf("%d tasks ran beside another of their key", together)
	}
}

func TestPerKeyTellsWhatHappened(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	failed := errors.New("failed")
	handle := func(ctx context.Context, key string, fn func(ctx context.Context) error) error {
		middleware := rlockasynq.PerKey(srv.Client(), "account:", func(*asynq.Task) string { return key })
		return middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return fn(ctx) })).ProcessTask(ctx, asynq.NewTask("change", nil))
	}
	unheld := func(ctx context.Context) error {
		if _, ok := rlock.LeaseFrom(ctx); ok {
			t.Error("a task without a key has a lock")
		}
		return nil
	}
	if err := handle(t.Context(), "", unheld); err != nil {
		t.Error(err)
	}
	never := func(context.Context) error { t.Error("it was handled"); return nil }
	other := srv.Steal("account:7")
	err := handle(t.Context(), "7", never)
	if !errors.Is(err, rlockasynq.ErrBusy) || !errors.Is(err, rlock.ErrNotAcquired) || rlockasynq.IsFailure(err) {
		t.Errorf("while another is handled: %v", err)
	}
	if d := rlockasynq.RetryDelay(time.Second)(9, err, nil); d != time.Second {
		t.Errorf("it comes back after %v", d)
	}
	locktest.MustUnlock(t, other)
	if err := handle(t.Context(), "7", func(context.Context) error { return failed }); !errors.Is(err, failed) || !rlockasynq.IsFailure(err) {
		t.Errorf("a failure: %v", err)
	}
	if err := handle(t.Context(), "7", func(ctx context.Context) error { srv.Remove("account:7"); <-ctx.Done(); return nil }); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("a loss: %v", err)
	}
	// The server shuts down: the context of the task ends inside, and the lock is free all the same.
	ctx, cancel := context.WithCancel(t.Context())
	if err := handle(ctx, "7", func(ctx context.Context) error { cancel(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	locktest.MustBeFree(t, srv.Client().NewLock("account:7"))
	for _, key := range []string{"{", "a}b{c", "\x00\xff", strings.Repeat("x", 100_000)} {
		if err := handle(t.Context(), key, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%.10q: %v", key, err)
		}
	}
}
