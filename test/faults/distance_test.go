package faults

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A wait that is shorter than the way to a server that is far away, and answers everything, is no outage: what ends
// the request goes by a new connection, which takes more round trips than the call waits for. Nothing is left there.
func TestWaitThatIsShorterThanTheWayToRedis(t *testing.T) {
	t.Parallel()
	const (
		way  = 200 * time.Millisecond // there and back; a busy machine takes the end of a wait for less
		wait = 5 * time.Millisecond
	)
	var proxies []*faultproxy.Proxy
	var clients []*rlock.Client
	var rdbs []redis.UniversalClient
	for range 3 {
		b := locktest.OnMiniredis(t)
		p := faultproxy.New(t, b.Addr)
		p.Delay(func(faultproxy.Command) time.Duration { return way })
		clients = append(clients, locktest.NewClient(t, locktest.Dialer(p.Addr())(t, nil)))
		proxies, rdbs = append(proxies, p), append(rdbs, b.Client(t))
	}
	c := clients[0]
	call := map[string]func(ctx context.Context, opts ...rlock.AcquireOption) error{}
	locks := map[string]rlock.Locker{
		"RedLock":   locktest.NewRedLock(t, "red", clients, rlock.WithNodeTimeout(locktest.Ample(2*time.Second))),
		"MultiLock": locktest.MultiLockOf(t, c, "multi 1", "multi 2"),
		"permit":    locktest.PermitLocker{PermitSemaphore: locktest.MustSetPermits(t, c.NewPermitSemaphore("permits"), 1), N: 1},
	}
	for _, k := range locktest.Types {
		locks[k.Name] = k.Open(c, k.Name)
	}
	for name, l := range locks {
		call[name] = func(ctx context.Context, opts ...rlock.AcquireOption) error {
			lease, err := l.Lock(ctx, opts...)
			if err == nil {
				err = lease.Unlock(bg)
			}
			return err
		}
	}
	s := c.NewSemaphore("semaphore", rlock.WithPermits(1))
	call["Semaphore"] = func(ctx context.Context, opts ...rlock.AcquireOption) error {
		var waits []rlock.WaitOption
		for _, o := range opts {
			waits = append(waits, o.(rlock.WaitOption))
		}
		err := s.Acquire(ctx, 1, waits...)
		if err == nil {
			err = s.Release(bg, 1)
		}
		return err
	}
	call["latch"] = func(ctx context.Context, opts ...rlock.AcquireOption) error {
		_, err := c.NewCountDownLatch("latch").Count(ctx)
		return err
	}
	t.Run("all", func(t *testing.T) {
		for name, do := range call {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for range 2 { // it is known how far away the server is
					if err := do(bg); err != nil {
						t.Fatal(err)
					}
				}
				for range 5 {
					if name != "latch" {
						err := do(bg, rlock.WithWait(wait))
						locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable, context.DeadlineExceeded)
					}
					ctx, cancel := context.WithTimeout(bg, wait)
					err := do(ctx)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rlock.ErrUnreachable) {
						t.Error(err)
					}
				}
			})
		}
	})
	for _, p := range proxies {
		p.Delay(nil)
	}
	// What was granted meanwhile was given back.
	if err := s.Acquire(bg, 1, rlock.WithWait(20*time.Second)); err != nil {
		t.Error(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, locks["permit"], rlock.WithWait(20*time.Second)))
	for _, key := range rdbs[0].Keys(bg, "*").Val() {
		if strings.Contains(key, "permits") || strings.Contains(key, "semaphore") {
			rdbs[0].Del(bg, key)
		}
	}
	locktest.NothingLeft(t, rdbs...)
}
