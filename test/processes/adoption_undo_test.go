package processes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// The answer to what undoes an adoption is lost, and it is repeated when the hold was extended by its handle, and
// the time that it had before is over: the hold lasts as long as Extend has said.
func TestWhatUndoesAnAdoptionDoesNotEndAnExtendedHold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				a := b.NewClient(t)
				locktest.LoadScripts(t, b.Client(t), adopts(k), "adoption/give_back")
				l, lease := k.Open(a, name(t)), locktest.Ample(4*time.Second)
				first := locktest.MustLock(t, l, rlock.WithLease(lease))
				over := time.Now().Add(lease)
				handle := detach(t, first)
				proxy := faultproxy.New(t, b.Addr)
				c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
				seen := make(chan struct{}, 100)
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					switch {
					case c.IsScript(locktest.SHA(adopts(k))):
						seen <- struct{}{}
						return faultproxy.SwallowReply
					case c.IsScript(locktest.SHA("adoption/give_back")):
						return faultproxy.SwallowReply
					}
					return faultproxy.Pass
				})
				ctx, cancel := context.WithCancel(bg)
				result := make(chan error, 1)
				go func() {
					_, err := c.Adopt(ctx, handle, rlock.WithLease(time.Minute))
					result <- err
				}()
				<-seen
				cancel()
				if err := <-result; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				locktest.Eventually(t, "the hold is detached as before", func() bool {
					return a.Extend(bg, handle, long) == nil
				})
				wantRest(t, l, long)
				time.Sleep(time.Until(over) + 10*time.Millisecond)
				proxy.Handle(nil)
				if err := c.Shutdown(bg); err != nil { // what undoes it has been answered
					t.Fatal(err)
				}
				wantRest(t, l, long)
				locktest.MustUnlock(t, adopt(t, a, handle))
				locktest.MustBeFree(t, k.Blocker(a, name(t)))
			})
		})
	})
}

// What undoes an adoption comes when the offer is gone, and the time of the hold with it: the hold ends, and does not
// last for the lease of the adoption.
func TestWhatUndoesAnAdoptionComesAfterTheOffer(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	for _, k := range locktest.Types {
		if adopts(k) != "lock/adopt" && adopts(k) != "rw/write_adopt" && adopts(k) != "rw/read_adopt" {
			continue // its leases follow the clock of the server, which does not move with the TTLs here
		}
		t.Run(k.Name, func(t *testing.T) {
			a := b.NewClient(t)
			locktest.LoadScripts(t, b.Client(t), adopts(k))
			handle := detach(t, locktest.MustLock(t, k.Open(a, name(t)), rlock.WithLease(time.Minute)))
			proxy := faultproxy.New(t, b.Addr)
			c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
			seen := make(chan struct{}, 100)
			proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
				switch {
				case c.IsScript(locktest.SHA(adopts(k))):
					seen <- struct{}{}
					return faultproxy.SwallowReply
				case c.IsScript(locktest.SHA("adoption/give_back")):
					return faultproxy.ResetBefore
				}
				return faultproxy.Pass
			})
			ctx, cancel := context.WithCancel(bg)
			result := make(chan error, 1)
			go func() {
				_, err := c.Adopt(ctx, handle, rlock.WithLease(time.Hour))
				result <- err
			}()
			<-seen
			locktest.Eventually(t, "the adoption has run", func() bool { return b.Mini.TTL(name(t)) > 3*time.Minute })
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			b.Mini.FastForward(3 * time.Minute)
			locktest.MustBeHeld(t, k.Blocker(a, name(t)))
			proxy.Handle(nil)
			if err := c.Shutdown(bg); err != nil { // what undoes it has been answered
				t.Fatal(err)
			}
			locktest.MustBeFree(t, k.Blocker(a, name(t)))
		})
	}
}
