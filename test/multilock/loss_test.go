package multilock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestMultiLockIsLostWithAMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for cause, test := range map[string]struct {
			lock  []rlock.LockOption
			lease []rlock.AcquireOption
			end   func(c, other *rlock.Client, rdb redis.UniversalClient, l *rlock.Lease)
			want  []error
		}{
			"removed": {end: func(_, other *rlock.Client, _ redis.UniversalClient, l *rlock.Lease) {
				if done, err := other.NewLock(l.Name()).ForceUnlock(bg); !done || err != nil {
					t.Error(done, err)
				}
			}, want: []error{rlock.ErrLeaseLost, rlock.ErrRemoved}},
			"taken over": {end: func(_, _ *rlock.Client, rdb redis.UniversalClient, l *rlock.Lease) {
				_, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
					p.Del(bg, l.Name())
					p.HSet(bg, l.Name(), redistest.HoldID("another:1"), 1)
					p.PExpire(bg, l.Name(), time.Hour)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}, want: []error{rlock.ErrLeaseLost, rlock.ErrTakenOver}},
			"expired":  {lease: []rlock.AcquireOption{rlock.WithLease(time.Minute)}, want: []error{rlock.ErrLeaseLost, rlock.ErrExpired}},
			"too long": {lock: []rlock.LockOption{rlock.WithMaxHold(time.Minute)}, want: []error{rlock.ErrLeaseLost, rlock.ErrMaxHold}},
			"unlocked": {end: func(_, _ *rlock.Client, _ redis.UniversalClient, l *rlock.Lease) {
				locktest.MustUnlock(t, l)
			}, want: []error{rlock.ErrUnlocked, nil, rlock.ErrLeaseLost}},
			"detached": {end: func(_, other *rlock.Client, _ redis.UniversalClient, l *rlock.Lease) {
				if _, err := l.Detach(bg); err != nil {
					t.Error(err)
				}
				if done, err := other.NewLock(l.Name()).ForceUnlock(bg); !done || err != nil { // it is left in Redis
					t.Error(done, err)
				}
			}, want: []error{rlock.ErrUnlocked, nil, rlock.ErrLeaseLost}},
		} {
			for _, at := range []int{0, 2} {
				t.Run(fmt.Sprint(cause, " ", at), func(t *testing.T) {
					t.Parallel()
					rdb, rest := b.Client(t), locktest.OnMiniredis(t).Client(t)
					// Three members, each of a client of its own, of which one has the trouble.
					prefix := rlock.WithPrefix(strings.ReplaceAll(t.Name(), "/", "_") + ":")
					var clock locktest.Clock // of that one
					var locks []rlock.Locker
					var clients []*rlock.Client
					for i := range 3 {
						c, opts := locktest.NewClient(t, rest, prefix), []rlock.LockOption(nil)
						if i == at {
							c, opts = locktest.NewClient(t, rdb, prefix, clock.Option()), test.lock
						}
						clients = append(clients, c)
						locks = append(locks, c.NewLock(fmt.Sprint("m", i), opts...))
					}
					lease := locktest.MustLock(t, locktest.NewMultiLock(t, locks...), test.lease...)
					ctx := lease.Context(bg)
					bad := lease.Members()[at]
					if test.end != nil {
						// By name: ForceUnlock of a client without the prefix.
						test.end(clients[at], locktest.NewClient(t, rdb), rdb, bad)
					}
					clock.Forward(locktest.Lease / 3) // the watchdog looks, and what is shorter is over
					select {
					case <-lease.Done():
					case <-time.After(locktest.Patience):
						t.Fatal("the loss was not told")
					}
					<-ctx.Done()
					locktest.WantErr(t, lease.Err(), test.want...)
					locktest.WantErr(t, context.Cause(ctx), test.want...)
					if err := lease.Err(); !strings.Contains(err.Error(), fmt.Sprintf("%q", bad.Name())) && cause != "expired" {
						t.Errorf("does not say which: %v", err)
					}
					// The others are given back, without anybody asking for it.
					locktest.NothingLeft(t, rest)
					for i, l := range lease.Members() {
						if i != at && l.Err() == nil {
							t.Errorf("%s lives on", l.Name())
						}
					}
					locktest.WantErr(t, lease.Extend(bg, time.Minute), test.want...)
					locktest.WantErr(t, lease.Unlock(bg), test.want...)
					locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
				})
			}
		}
	})
}
