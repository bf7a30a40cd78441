package faults

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A lease that runs out while Unlock is on its way has run out: nobody removed it.
func TestLeaseThatRunsOutDuringUnlockIsExpired(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			proxy := faultproxy.New(t, b.Addr)
			// Nothing is sent again meanwhile: a second copy could not tell that the first one has
			// not ended the hold.
			rdb := locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
			c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(time.Minute), rlock.WithUnlockTimeout(time.Minute))
			other := b.NewClient(t)
			for _, taken := range []bool{false, true} {
				l := k.Open(c, "a")
				lease := locktest.MustLock(t, l, rlock.WithLease(3*time.Second)) // one that a busy machine hears of in time
				released := make(chan struct{})
				proxy.Delay(func(cmd faultproxy.Command) time.Duration {
					if cmd.Name == "evalsha" || cmd.Name == "eval" {
						<-released
					}
					return 0
				})
				done := make(chan error)
				go func() { done <- lease.Unlock(bg) }()
				var next *rlock.Lease
				if taken {
					next = locktest.MustLock(t, k.Blocker(other, "a"))
				} else {
					// A reader's timer may run out a moment before the hash does.
					locktest.Eventually(t, "it has run out", func() bool {
						locked, err := k.Open(other, "a").IsLocked(bg)
						return !locked && err == nil && !b.Mini.Exists("a")
					})
				}
				close(released)
				locktest.WantErr(t, <-done, rlock.ErrLeaseLost, rlock.ErrExpired, nil, rlock.ErrRemoved, rlock.ErrTakenOver)
				proxy.Delay(nil)
				if next != nil {
					locktest.MustUnlock(t, next)
				}
			}
		})
	}
}

// A release that Redis refuses is named, and repeated when that is over.
func TestReleaseThatRedisRefusesIsRepeated(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	for i, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			user := "user" + string(rune('a'+i))
			allow := func(what ...any) {
				t.Helper()
				if err := admin.Do(bg, append([]any{"acl", "setuser", user}, what...)...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			allow("on", ">pw", "~*", "&*", "+@all")
			c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" }))
			lease := locktest.MustLock(t, k.Open(c, k.Name))
			allow("-evalsha", "-eval")
			err := lease.Unlock(bg)
			locktest.WantErr(t, err, rlock.ErrUnconfirmed, nil, rlock.ErrUnreachable, rlock.ErrLeaseLost)
			if !redis.HasErrorPrefix(err, "NOPERM") {
				t.Errorf("%v does not say why", err)
			}
			l := k.Open(locktest.NewClient(t, admin), k.Name)
			if locked, err := l.IsLocked(bg); !locked || err != nil {
				t.Errorf("%v, %v", locked, err)
			}
			allow("+evalsha", "+eval")
			locktest.Eventually(t, "it is released", func() bool { locked, err := l.IsLocked(bg); return !locked && err == nil })
		})
	}
	t.Run("client is closed", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		c := locktest.NewClient(t, rdb)
		lease := locktest.MustLock(t, c.NewLock("closed"))
		if err := rdb.Close(); err != nil {
			t.Fatal(err)
		}
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, redis.ErrClosed)
		if err := c.Close(); err != nil { // which does not wait for what cannot be
			t.Error(err)
		}
	})
}
