package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// idle are waiters of one client for locks that others hold for an hour, one for each lock.
type idle struct {
	names  []string
	cancel []context.CancelFunc
	done   []chan error // nil: it got the lock
}

func newIdle(t *testing.T, b *locktest.Backend, c *rlock.Client, n int) *idle {
	t.Helper()
	rdb := b.Client(t)
	w := &idle{}
	for i := range n {
		name, done := fmt.Sprint("idle:", i), make(chan error, 1)
		rdb.HSet(bg, name, "first:1", 1)
		rdb.PExpire(bg, name, time.Hour)
		ctx, cancel := context.WithCancel(bg)
		t.Cleanup(cancel)
		w.names, w.cancel, w.done = append(w.names, name), append(w.cancel, cancel), append(w.done, done)
		go func() {
			lease, err := c.NewLock(name).Lock(ctx)
			if err == nil {
				err = lease.Unlock(bg)
			}
			done <- err
		}()
	}
	locktest.Eventually(t, "all have subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*idle:*").Val()) == n })
	return w
}

// ends returns what became of a waiter, and how long that took.
func (w *idle) ends(t *testing.T, i int) (took time.Duration, err error) {
	t.Helper()
	start := time.Now()
	select {
	case err := <-w.done[i]:
		return time.Since(start), err
	case <-time.After(20 * time.Second):
		t.Fatalf("the waiter for %s sleeps on", w.names[i])
		return 0, nil
	}
}

func TestIdleWaitersLookTogether(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	const locks, poll, polls = 250, 500 * time.Millisecond, 4
	c := b.NewClient(t, rlock.WithLongestPoll(poll))
	newIdle(t, b, c, locks)
	time.Sleep(poll) // until all have looked for the second time
	looks := locktest.EvalCounter(t, b)
	start := time.Now()
	time.Sleep(polls * poll)
	rounds := int(time.Since(start)/(poll*7/8)) + 1
	if n := looks(); n < 3 || n > 3*rounds {
		t.Errorf("%d looks in %d rounds at %d locks, want 3 in each", n, rounds, locks)
	}
}

func TestGlanceFindsWhatNoMessageTells(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		const poll = 300 * time.Millisecond
		w := newIdle(t, b, b.NewClient(t, rlock.WithLongestPoll(poll)), 5)
		time.Sleep(2 * poll) // they leave looking to glances

		rdb.Del(bg, w.names[0])
		if took, err := w.ends(t, 0); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}

		// The holder has died: its lease ends, at last.
		rdb.PExpire(bg, w.names[1], 4*poll)
		if took, err := w.ends(t, 1); err != nil || took < 3*poll || took > 5*time.Second {
			t.Errorf("the lease of %v has ended, and the waiter: %v after %v", 4*poll, err, took)
		}

		// Another holds the lock by now.
		rdb.Del(bg, w.names[2])
		rdb.HSet(bg, w.names[2], "second:2", 1)
		rdb.PExpire(bg, w.names[2], time.Minute)
		time.Sleep(3 * poll)
		w.cancel[2]()
		var e *rlock.Error
		if _, err := w.ends(t, 2); !errors.As(err, &e) || e.HolderID != "second:2" || e.Left > time.Minute || e.Left < 30*time.Second {
			t.Errorf("a waiter for a lock that second:2 holds for a minute: %v", err)
		}

		// A key that cannot be looked at keeps nobody from getting other locks.
		rdb.Set(bg, w.names[3], "not a lock", 0)
		rdb.Del(bg, w.names[4])
		_, err := w.ends(t, 3)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
		if took, err := w.ends(t, 4); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}
	})
}

// A hook that ends the goroutine of a glance costs that glance its answer, and no later one.
func TestGlancesOutlastAHookThatEndsOne(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	const poll = 300 * time.Millisecond
	rdb := b.Client(t)
	ended := make(chan struct{})
	var once sync.Once
	rdb.AddHook(&locktest.ScriptHook{Pipe: func(cmds []redis.Cmder, next func() error) error {
		if locktest.Runs(cmds[0], "lock/glance") {
			once.Do(func() {
				close(ended)
				runtime.Goexit()
			})
		}
		return next()
	}})
	w := newIdle(t, b, locktest.NewClient(t, rdb, rlock.WithLongestPoll(poll)), 2)
	<-ended
	time.Sleep(2 * poll) // they leave looking to glances again
	for i, name := range w.names {
		b.Client(t).Del(bg, name)
		if took, err := w.ends(t, i); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}
	}
}
