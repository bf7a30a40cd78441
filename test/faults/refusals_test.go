package faults

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Lock waits out the replies of a server that serves nobody now, and returns at once any other, which
// refuses this very request: see rlock.Locker.
func TestErrorRepliesThatLockWaitsOut(t *testing.T) {
	t.Parallel()
	for reply, waits := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":                           true,
		"BUSY Redis is busy running a script":                                      true,
		"MISCONF Redis is configured to save RDB snapshots, but it is not able to": true,
		"READONLY You can't write against a read only replica.":                    true,
		"MASTERDOWN Link with MASTER is down":                                      true,
		"CLUSTERDOWN The cluster is down":                                          true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                  true,
		"NOREPLICAS Not enough good replicas to write.":                            true,
		"ERR max number of clients reached":                                        true,
		"OOM command not allowed when used memory > 'maxmemory'.":                  false,
		"NOPERM No permissions to access a key":                                    false,
	} {
		code, _, _ := strings.Cut(reply, " ")
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			proxy := faultproxy.New(t, b.Addr)
			proxy.ErrorText = "-" + reply
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetries: -1})
			t.Cleanup(func() { _ = rdb.Close() })
			c := locktest.NewClient(t, rdb)
			l := c.NewLock("a")
			locktest.MustUnlock(t, locktest.MustLock(t, l))
			enter := locktest.SHA("lock/enter")
			isEnter := func(cmd faultproxy.Command) bool { return cmd.IsScript(enter) }
			proxy.ResetLog()
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if isEnter(cmd) {
					return faultproxy.Error
				}
				return faultproxy.Pass
			})
			w := locktest.Begin(t, bg, l)
			if waits {
				locktest.Eventually(t, "it is sent again", func() bool { return proxy.Count(isEnter) >= 3 })
				proxy.Handle(nil)
				locktest.MustUnlock(t, w.Held())
				return
			}
			<-w.Done
			err := w.Err
			if !strings.Contains(err.Error(), "Redis refused: "+reply+" (") || !errors.Is(err, rlock.ErrRefused) || len(matches(err, rlock.ErrRefused)) > 0 || proxy.Count(isEnter) != 1 {
				t.Errorf("%v, after %d", err, proxy.Count(isEnter))
			}
		})
	}
}

// breaker is the Limiter of a go-redis client.
type breaker struct {
	open  atomic.Bool
	asked atomic.Int64 // while it was open
}

var errOpen = errors.New("the circuit breaker is open")

func (b *breaker) Allow() error {
	if !b.open.Load() {
		return nil
	}
	b.asked.Add(1)
	return errOpen
}

func (*breaker) ReportResult(error) {}

// A circuit breaker that is open is an outage: TryLock returns its error at once, a Lock and an Unlock
// outlast it, and nothing is left of what it has refused.
func TestOpenCircuitBreaker(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	fuse := &breaker{}
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Limiter: fuse})
	t.Cleanup(func() { _ = rdb.Close() })
	used := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(time.Minute), rlock.WithAnonymity()) // it writes nothing in the background
	locktest.MustUnlock(t, locktest.MustLock(t, used.NewLock("a")))
	held := locktest.MustLock(t, used.NewLock("b"), rlock.WithLease(time.Hour))
	fuse.open.Store(true)
	for name, c := range map[string]*rlock.Client{"used": used, "new": locktest.NewClient(t, rdb)} {
		before := fuse.asked.Load()
		_, err := c.NewLock("a").TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrUnreachable, errOpen, nil, rlock.ErrNotAcquired)
		if text := err.Error(); strings.Contains(text, " 0s") {
			t.Errorf("%s: %s", name, text)
		}
		if n := fuse.asked.Load() - before; n != 1 {
			t.Errorf("%s: TryLock has asked %d times", name, n)
		}
	}
	w := locktest.Begin(t, bg, used.NewLock("a"))
	unlocked := make(chan error, 1)
	go func() { unlocked <- held.Unlock(bg) }()
	before := fuse.asked.Load()
	locktest.Eventually(t, "they ask again", func() bool { return fuse.asked.Load() > before+10 })
	fuse.open.Store(false)
	locktest.MustUnlock(t, w.Held())
	if err := <-unlocked; err != nil {
		t.Error(err)
	}
	if keys := locktest.Keys(t, b.Client(t)); len(keys) != 0 {
		t.Errorf("%q are left", keys)
	}
}
