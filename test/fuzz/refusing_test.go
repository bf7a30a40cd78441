// Package fuzz has what anybody may put into the library: names, options, handles, the replies of a broken server and
// messages of others.
package fuzz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) {
	logging.Disable() // go-redis logs each broken connection
	m.Run()
}

// refusing is a go-redis hook in place of a server that permits nothing. It records what it gets.
type refusing struct {
	mu   sync.Mutex // guards the rest
	sent int        // commands
	keys []string   // of scripts
}

// reply is an error reply of Redis.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

const denied reply = "NOPERM this user has no permissions to run the command"

func (r *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		r.record(cmd)
		return denied
	}
}

func (r *refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			r.record(cmd)
		}
		return denied
	}
}

func (r *refusing) record(cmd redis.Cmder) {
	defer cmd.SetErr(denied)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 2 {
		var n int
		_, _ = fmt.Sscan(fmt.Sprint(args[2]), &n)
		for _, key := range args[3:min(3+n, len(args))] {
			r.keys = append(r.keys, fmt.Sprint(key))
		}
	}
}

// take returns what has been recorded since the call before.
func (r *refusing) take() (sent int, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent, keys = r.sent, r.keys
	r.sent, r.keys = 0, nil
	return sent, keys
}

// newRefused returns a client of a Redis that refuses everything.
func newRefused(t testing.TB, opts ...rlock.Option) (*rlock.Client, *refusing, error) {
	hook := &refusing{}
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:1", // a name would be looked up, outside of a bubble
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return nil, denied }, // of subscriptions
	})
	rdb.AddHook(hook)
	c, err := rlock.New(rdb, append(opts, rlock.WithAnonymity())...)
	t.Cleanup(func() {
		if c != nil {
			_ = c.Close()
		}
		_ = rdb.Close()
	})
	return c, hook, err
}

// call is a way to acquire something.
type call struct {
	what string
	do   func(ctx context.Context) (held bool, err error)
}

func ofLease(lease *rlock.Lease, err error) (bool, error) { return lease != nil, err }

// callsOf are calls of each type with this name, which do not wait for another holder.
func callsOf(c *rlock.Client, name string) (all []call) {
	for _, k := range locktest.Types {
		all = append(all, call{k.Name, func(ctx context.Context) (bool, error) { return ofLease(k.Open(c, name).TryLock(ctx)) }})
	}
	work := func(context.Context) ([]byte, error) { return nil, nil }
	return append(all,
		call{"RedLock", func(ctx context.Context) (bool, error) {
			l, err := rlock.NewRedLock(name, []*rlock.Client{c})
			if err != nil {
				return false, err
			}
			return ofLease(l.TryLock(ctx))
		}},
		call{"MultiLock", func(ctx context.Context) (bool, error) {
			l, err := rlock.NewMultiLock([]*rlock.Lock{c.NewLock(name)})
			if err != nil {
				return false, err
			}
			return ofLease(l.TryLock(ctx))
		}},
		call{"Election", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewElection(name).Campaign(ctx, "me", rlock.WithWait(0)))
		}},
		call{"PermitSemaphore", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewPermitSemaphore(name, rlock.WithPermits(2)).TryAcquire(ctx, 1))
		}},
		call{"fair PermitSemaphore", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewPermitSemaphore(name, rlock.WithPermits(2), rlock.WithFairness()).TryAcquire(ctx, 1))
		}},
		call{"DoubleBarrier", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewDoubleBarrier(name, 1).Enter(ctx, rlock.WithWait(0)))
		}},
		call{"Semaphore", func(ctx context.Context) (bool, error) {
			err := c.NewSemaphore(name, rlock.WithPermits(2)).TryAcquire(ctx, 1)
			return err == nil, err
		}},
		call{"CountDownLatch", func(ctx context.Context) (bool, error) { return c.NewCountDownLatch(name).TrySetCount(ctx, 1) }},
		call{"Barrier", func(ctx context.Context) (bool, error) {
			err := c.NewBarrier(name).Set(ctx)
			return err == nil, err
		}},
		call{"Once", func(ctx context.Context) (bool, error) {
			_, ran, err := c.NewOnce(name, time.Minute).TryDo(ctx, work)
			return ran, err
		}},
		call{"CronJob", func(ctx context.Context) (bool, error) {
			run, err := c.NewCronJob(name).Do(ctx, time.Now().Truncate(time.Second), func(context.Context) error { return nil })
			return run.Here, err
		}},
	)
}

// typed reports whether an error is one that callers can act on.
func typed(err error) bool {
	for _, known := range []error{rlock.ErrNotAcquired, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrForeignKey, rlock.ErrLeaseLost,
		rlock.ErrInvalidArgument, rlock.ErrUnconfirmed, rlock.ErrNotSet, rlock.ErrFailed} {
		if errors.Is(err, known) {
			return strings.HasPrefix(err.Error(), "rlock: ")
		}
	}
	return false
}
