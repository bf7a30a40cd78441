package faults

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// dialing calls on for each connection that a client opens, with the stack of who does.
type dialing struct {
	locktest.ScriptHook
	on func(stack string)
}

func (h *dialing) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var stack [16 << 10]byte
		h.on(string(stack[:runtime.Stack(stack[:], false)]))
		return next(ctx, network, addr)
	}
}

// A dialer panics, once, when the connection for messages is opened, or when go-redis opens it anew by itself, with
// a mutex held. The client listens again.
func TestSubscriptionOutlastsADialThatPanics(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]string{"at first": "PubSub", "in a redial": "PubSub).reconnect"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb, admin := b.Client(t), b.Client(t)
			var left atomic.Bool
			rdb.AddHook(&dialing{on: func(stack string) {
				if strings.Contains(stack, where) && left.CompareAndSwap(false, true) {
					panic("dialer")
				}
			}})
			theirs := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
			for i := range 3 {
				name := fmt.Sprint(i)
				lease := locktest.MustLock(t, b.NewClient(t).NewLock(name))
				next := locktest.Begin(t, bg, theirs.NewLock(name))
				listens := func() bool { return locktest.Subscribers(t, admin, name) == 1 }
				locktest.Eventually(t, "it listens", listens)
				if i == 0 && where != "PubSub" {
					if err := admin.ClientKillByFilter(bg, "type", "pubsub").Err(); err != nil {
						t.Fatal(err)
					}
					locktest.Eventually(t, "it listens again", func() bool { return left.Load() && listens() })
				}
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, next.Held())
			}
			if !left.Load() {
				t.Error("no dial has panicked")
			}
		})
	}
}
