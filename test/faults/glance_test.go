package faults

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// wrapped is a client of an application: rlock does not look into it.
type wrapped struct{ *redis.Client }

// hungGlance is a waiter whose client has sent a glance that is not answered, and gets no message
// of the release. go-redis waits for the answer for half a minute.
func hungGlance(t *testing.T, commandTimeout time.Duration) (c *rlock.Client, holder *rlock.Lease, waiter *locktest.Attempt) {
	t.Helper()
	b := locktest.OnServer(t)
	proxy := faultproxy.New(t, b.Addr)
	one := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: 30 * time.Second})
	t.Cleanup(func() { _ = one.Close() })
	c = locktest.NewClient(t, wrapped{one}, rlock.WithLongestPoll(300*time.Millisecond), rlock.WithCommandTimeout(commandTimeout))
	holder = locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
	proxy.DropMessages(true)
	var glances atomic.Int64
	swallowed := make(chan struct{})
	id := locktest.SHA("lock/glance")
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.IsScript(id) && glances.Add(1) == 3 { // the first has found that the script is not loaded
			close(swallowed)
			return faultproxy.SwallowReply
		}
		return faultproxy.Pass
	})
	waiter = locktest.Begin(t, bg, c.NewLock("a"))
	<-swallowed
	return c, holder, waiter
}

// The waiter looks by itself when the command timeout is over, and the next glance is sent.
func TestGlanceWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	_, holder, waiter := hungGlance(t, rlock.DefaultCommandTimeout)
	locktest.MustUnlock(t, holder)
	locktest.MustUnlock(t, waiter.Held()) // long before go-redis gives up
}

// Shutdown waits neither for it nor for the command timeout.
func TestShutdownWhileAGlanceHangs(t *testing.T) {
	t.Parallel()
	c, holder, waiter := hungGlance(t, time.Minute)
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	if err := c.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if <-waiter.Done; !errors.Is(waiter.Err, rlock.ErrClosed) {
		t.Error(waiter.Err)
	}
	locktest.MustUnlock(t, holder)
}
