// Command leader has one leader among three instances: it does the work of the cluster, the others know its
// address. When it resigns, the next one leads immediately; when it dies, at the end of its lease.
//
//	go run ./examples/leader
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/examples/internal/demo"
)

func main() {
	newRedis, stop, err := demo.Redis()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	var instances sync.WaitGroup
	for i := range 3 { // each would be a process
		instances.Go(func() {
			rdb := newRedis()
			defer rdb.Close()
			client, err := rlock.New(rdb)
			if err != nil {
				log.Fatal(err)
			}
			defer client.Close()
			if err := serve(context.Background(), os.Stdout, client, fmt.Sprintf("10.0.0.%d:9000", i+1), resign); err != nil {
				log.Fatal(err)
			}
		})
	}
	instances.Wait()
}

// serve takes part in the election until ctx ends or its work as the leader is done.
func serve(ctx context.Context, w io.Writer, client *rlock.Client, address string, work func(ctx context.Context, token int64) error) error {
	scheduler := client.NewElection("scheduler")
	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer func() { cancel(); followers.Wait() }()
	leaders, err := scheduler.Observe(ctx) // until ctx ends
	if err != nil {
		return err
	}
	followers.Go(func() {
		for leader := range leaders { // the latest: requests for the leader go to its address
			fmt.Fprintf(w, "%s sees the leader %q\n", address, leader.Value)
		}
	})
	// Run campaigns again after a loss, and outlasts a time without Redis.
	return scheduler.Run(ctx, address, func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		fmt.Fprintf(w, "%s leads\n", address)
		return work(ctx, lease.Token()) // what it writes to checks the token
	})
}

// resign works for a moment, and returns: the next one leads.
func resign(ctx context.Context, _ int64) error {
	select {
	case <-time.After(200 * time.Millisecond):
		return nil
	case <-ctx.Done(): // the leadership is lost
		return ctx.Err()
	}
}
