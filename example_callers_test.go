package rlock_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

type traceKey struct{}

// tracer is a hook of go-redis that notes which traces have sent something to Redis.
type tracer struct {
	mu   sync.Mutex // guards seen
	seen map[any]bool
}

func (t *tracer) note(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if trace := ctx.Value(traceKey{}); trace != nil { // background work has none
		t.seen[trace] = true
	}
}

func (t *tracer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.note(ctx)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook notes the traces of all whose requests share the pipeline. A span would be a child of
// the first, and have links to the others.
func (t *tracer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, caller := range rlock.Callers(ctx) {
			t.note(caller)
		}
		return next(ctx, cmds)
	}
}

func (t *tracer) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// Requests of many callers at a time share pipelines; a hook sees them all.
func ExampleCallers() {
	rdb, stop := exampleRedis()
	defer stop()
	tracing := &tracer{seen: map[any]bool{}}
	rdb.AddHook(tracing)
	client, err := rlock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			ctx := context.WithValue(context.Background(), traceKey{}, i)
			err := rlock.Do(ctx, client.NewLock(fmt.Sprint("order:", i)), func(context.Context) error { return nil })
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	fmt.Println(len(tracing.seen), "traces")
	// Output: 100 traces
}
