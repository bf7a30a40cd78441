package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newDemo(a *app) *cobra.Command {
	var (
		lasts time.Duration
		port  string
	)
	cmd := &cobra.Command{
		Use: "demo", Short: "Show two holders that contend, on an in-memory Redis",
		Long: "Starts an in-memory Redis on this machine, and two clients, billing and reports, that contend for the lock invoices. Meanwhile\n" +
			"other commands can look at it in a second terminal. It needs nothing that is installed.",
		Args: counted(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			ctx, _ := listen()
			return a.demo(ctx, "127.0.0.1:"+port, lasts)
		},
	}
	lasts = 20 * time.Second
	cmd.Flags().Var((*seconds)(&lasts), "for", "how long")
	cmd.Flags().StringVar(&port, "port", "0", "of the Redis; 0 is any that is free")
	return cmd
}

func (a *app) demo(ctx context.Context, addr string, lasts time.Duration) error {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(addr); err != nil {
		return &failure{code: exitUnavailable, text: "the in-memory Redis: " + err.Error()}
	}
	defer server.Close()
	server.ClockTTL(true)
	fmt.Fprintf(a.stdout, "An in-memory Redis is at redis://%s, for %s. In another terminal:\n\n", server.Addr(), span(lasts))
	fmt.Fprintf(a.stdout, "  export REDIS_URL=redis://%s\n  rlock top\n  rlock -n invoices -- echo mine\n\n", server.Addr())

	bounded, cancel := context.WithTimeoutCause(ctx, lasts, errWaited)
	defer cancel()
	begun := time.Now()
	var mu sync.Mutex // guards the lines
	say := func(who, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		line(a.stdout, "%5.1f s  %-8s %s", time.Since(begun).Seconds(), who, fmt.Sprintf(format, args...))
	}
	var all sync.WaitGroup
	for _, who := range []string{"billing", "reports"} {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		client, err := rlock.New(rdb, rlock.WithLabel(who))
		if err != nil {
			return err
		}
		all.Go(func() {
			defer rdb.Close()
			defer client.Close()
			d := &deployment{app: &app{label: who}, rdbs: []redis.UniversalClient{rdb}, clients: []*rlock.Client{client}}
			for bounded.Err() == nil && a.stdout.failed() == nil {
				d.turn(bounded, who, say)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// turn takes the lock once for one of the two, and unlocks it.
func (d *deployment) turn(ctx context.Context, who string, say func(who, format string, args ...any)) {
	lock := d.clients[0].NewLock("invoices")
	lease, err := lock.TryLock(ctx)
	if err != nil && ctx.Err() == nil {
		if s, failed := lock.State(ctx); failed == nil && s.Locked() {
			say(who, "waits: %s", d.holding(ctx, "invoices", "Lock", s))
		}
		lease, err = lock.Lock(ctx)
	}
	if err != nil {
		return
	}
	forget := d.note(who, lease, "")
	say(who, "has it, with token %d", lease.Token())
	pause(ctx, time.Second+rand.N(2*time.Second))
	say(who, "gives it back")
	forget()
	_ = lease.Unlock(context.Background())
	pause(ctx, 200*time.Millisecond+rand.N(800*time.Millisecond))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
