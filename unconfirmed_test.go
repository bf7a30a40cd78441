package rlock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A lease that runs out while Unlock is on its way has run out: nobody removed it.
func TestLeaseThatRunsOutDuringUnlockIsExpired(t *testing.T) {
	t.Parallel()
	for _, k := range typesOfLocks {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := onMiniredis(t)
			proxy := faultproxy.New(t, b.addr)
			c := newClientOn(t, dialer(proxy.Addr())(t, nil), rlock.WithCommandTimeout(10*time.Second), rlock.WithUnlockTimeout(10*time.Second))
			other := b.newClient(t)
			for _, taken := range []bool{false, true} {
				l := k.open(c, "a")
				lease := mustLock(t, l, rlock.WithLease(400*time.Millisecond))
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
					next = mustLock(t, k.blocker(other, "a"))
				} else {
					// A reader's timer may run out a moment before the hash does.
					eventually(t, "it has run out", func() bool {
						locked, err := k.open(other, "a").IsLocked(bg)
						return !locked && err == nil && !b.mini.Exists("a")
					})
				}
				close(released)
				wantErr(t, <-done, rlock.ErrLeaseLost, rlock.ErrExpired, nil, rlock.ErrRemoved, rlock.ErrTakenOver)
				proxy.Delay(nil)
				if next != nil {
					mustUnlock(t, next)
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
	for i, k := range typesOfLocks {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			user := "user" + string(rune('a'+i))
			allow := func(what ...any) {
				t.Helper()
				if err := admin.Do(bg, append([]any{"acl", "setuser", user}, what...)...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			allow("on", ">pw", "~*", "&*", "+@all")
			c := newClientOn(t, s.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" }))
			lease := mustLock(t, k.open(c, k.name))
			allow("-evalsha", "-eval")
			err := lease.Unlock(bg)
			wantErr(t, err, rlock.ErrUnconfirmed, nil, rlock.ErrUnreachable, rlock.ErrLeaseLost)
			if !redis.HasErrorPrefix(err, "NOPERM") {
				t.Errorf("%v does not say why", err)
			}
			l := k.open(newClientOn(t, admin), k.name)
			if locked, err := l.IsLocked(bg); !locked || err != nil {
				t.Errorf("%v, %v", locked, err)
			}
			allow("+evalsha", "+eval")
			eventually(t, "it is released", func() bool { locked, err := l.IsLocked(bg); return !locked && err == nil })
		})
	}
	t.Run("client is closed", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		c := newClientOn(t, rdb)
		lease := mustLock(t, c.NewLock("closed"))
		if err := rdb.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, redis.ErrClosed)
		if err := c.Close(); err != nil { // which does not wait for what cannot be
			t.Error(err)
		}
	})
}
