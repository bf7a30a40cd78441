package fuzz

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

// waiting are types whose waiters are subscribed, by how they are acquired.
var waiting = []func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error){
	func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error) {
		return func(ctx context.Context) (*rlock.Lease, error) { return c.NewElection("a").Campaign(ctx, "me") }
	},
	func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error) {
		return func(ctx context.Context) (*rlock.Lease, error) {
			return c.NewPermitSemaphore("a", rlock.WithPermits(1)).Acquire(ctx, 1)
		}
	},
	func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error) {
		return func(ctx context.Context) (*rlock.Lease, error) {
			return c.NewPermitSemaphore("a", rlock.WithPermits(1), rlock.WithFairness()).Acquire(ctx, 1)
		}
	},
}

func init() {
	for _, k := range locktest.Types {
		if !k.Shared {
			waiting = append(waiting, func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error) {
				return func(ctx context.Context) (*rlock.Lease, error) { return k.Open(c, "a").Lock(ctx) }
			})
		}
	}
}

// Whatever others publish on the channels of a lock: the holder keeps it and is not asked to release it, a waiter does not
// get it before it is free, and gets it then.
func FuzzMessages(f *testing.F) {
	for which := range waiting {
		for _, message := range []string{"", "0", "1", "-1", "x 1 2 3 4", "9223372036854775808", "\x00\xff", "2f1c9a3e-0000-8000-8000-000000000001:7"} {
			f.Add(message, uint8(which), uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, message string, which, times uint8) {
		synctest.Test(t, func(t *testing.T) {
			checkMessages(t, message, waiting[int(which)%len(waiting)], int(times%8)+1)
		})
	})
}

func checkMessages(t *testing.T, message string, acquire func(c *rlock.Client) func(ctx context.Context) (*rlock.Lease, error), times int) {
	srv := rlocktest.New(t)
	held, err := acquire(srv.NewClient())(bg)
	if err != nil {
		t.Fatal(err)
	}
	asked := held.ReleaseRequested()
	type result struct {
		lease *rlock.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() {
		lease, err := acquire(srv.NewClient())(t.Context())
		got <- result{lease, err}
	}()
	time.Sleep(time.Second) // it is subscribed
	rdb := srv.Redis()
	channels, err := rdb.PubSubChannels(bg, "*").Result()
	if err != nil || len(channels) == 0 {
		t.Fatalf("nobody is subscribed: %v", err)
	}
	for range times {
		for _, channel := range channels {
			if err := rdb.Publish(bg, channel, message).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(time.Second)
	select {
	case r := <-got:
		t.Fatalf("the lock is held, and after %q on %q a waiter returned: %v", message, channels, r)
	case <-held.Done():
		t.Fatalf("%q on %q ended the lease: %v", message, channels, held.Err())
	case <-asked:
		t.Fatalf("%q on %q is taken for a request to release", message, channels)
	default:
	}
	if err := held.Unlock(bg); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-got:
		if r.err != nil {
			t.Fatal(r.err)
		}
		_ = r.lease.Unlock(bg)
	case <-time.After(time.Minute):
		t.Fatalf("after %q on %q a waiter does not get the free lock", message, channels)
	}
}
