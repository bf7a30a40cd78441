package faults

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// acquire is Lock, or takes a permit.
type acquire func(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error)

// A waiter whose look was granted, but not answered, and that then has to wait behind another
// of its client, gives the grant back: that other waits for it, and the one that has it does
// not look. It would be held for its whole lease.
func TestWaiterBehindOthersKeepsNoGrantThatItDoesNotKnowOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		lock   func(c *rlock.Client) acquire
	}{
		"Lock": {"lock/enter", func(c *rlock.Client) acquire {
			return c.NewLock("n").Lock
		}},
		"PermitSemaphore": {"permits/enter", func(c *rlock.Client) acquire {
			s := c.NewPermitSemaphore("n")
			return func(ctx context.Context, opts ...rlock.AcquireOption) (*rlock.Lease, error) {
				return s.Acquire(ctx, 1, opts...)
			}
		}},
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				timeout := locktest.Ample(time.Second)
				client, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(timeout))
				locktest.LoadScripts(t, rdb, c.script)
				if name == "PermitSemaphore" {
					locktest.MustSetPermits(t, b.NewClient(t).NewPermitSemaphore("n"), 1)
				}
				lock := c.lock(client)
				sha, first, since, granted := locktest.SHA(c.script), "", time.Time{}, make(chan struct{})
				proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if !cmd.IsScript(sha) {
						return faultproxy.Pass
					}
					if id := tombstoneOf(cmd); first == "" {
						first, since = id, time.Now()
						close(granted)
					} else if id != first || time.Since(since) > timeout {
						return faultproxy.Pass // it looks again, as it may if it was quicker than the other
					}
					return faultproxy.SwallowReply
				})
				one := make(chan error, 1)
				go func() {
					lease, err := lock(bg, rlock.WithLease(time.Hour))
					if err == nil {
						err = lease.Unlock(bg)
					}
					one <- err
				}()
				<-granted
				ctx, cancel := context.WithTimeout(bg, locktest.Patience)
				defer cancel()
				lease, err := lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, lease)
				if err := <-one; err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// tombstoneOf is the tombstone of the hold that a request is about.
func tombstoneOf(c faultproxy.Command) string {
	i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.Contains(arg, ":rlock:gone:") })
	return c.Args[i]
}
