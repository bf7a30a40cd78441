package counting

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// The semaphore is deleted, and made anew or followed by another type of its name, before what a
// call that has failed has done to the first is undone: the second is as it was made.
func TestUndoDoesNotChangeARecreatedSemaphore(t *testing.T) {
	t.Parallel()
	type number = func(context.Context) (int, error)
	shown := func(t *testing.T, f *faulty) number { // and it is known how many there are
		return func(context.Context) (int, error) {
			shows(t, f.plain.s, 20, 20)
			return 20, nil
		}
	}
	next := map[string]func(t *testing.T, f *faulty, c *rlock.Client) number{
		"TrySetPermits": func(t *testing.T, f *faulty, _ *rlock.Client) number {
			is(t, true)(f.plain.s.TrySetPermits(bg, 20))
			return shown(t, f)
		},
		"AddPermits": func(t *testing.T, f *faulty, _ *rlock.Client) number {
			ok(t, f.plain.s.AddPermits(bg, 20))
			return shown(t, f)
		},
		"SetPermits": func(t *testing.T, f *faulty, _ *rlock.Client) number {
			ok(t, f.plain.s.SetPermits(bg, 20))
			return shown(t, f)
		},
		"Release": func(t *testing.T, f *faulty, _ *rlock.Client) number {
			ok(t, f.plain.s.Release(bg, 20))
			return f.plain.s.Available
		},
		"Java": func(t *testing.T, f *faulty, _ *rlock.Client) number {
			ok(t, f.rdb.Set(bg, "s", 20, 0).Err())
			return f.plain.s.Available
		},
		"PermitSemaphore": func(t *testing.T, f *faulty, c *rlock.Client) number {
			p := c.NewPermitSemaphore("s")
			is(t, true)(p.TrySetPermits(bg, 20))
			return p.Available
		},
		"CountDownLatch": func(t *testing.T, f *faulty, c *rlock.Client) number {
			l := c.NewCountDownLatch("s")
			is(t, true)(l.TrySetCount(bg, 20))
			return l.Count
		},
	}
	for script, op := range givenUp {
		for name, anew := range next {
			locktest.Beside(t, script+", "+name, func(t *testing.T) {
				locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
					f := newFaulty(t, b)
					is(t, true)(f.plain.s.TrySetPermits(bg, 5))
					ctx, cancel := context.WithCancel(bg)
					sha, undo := locktest.SHA(script), locktest.SHA("semaphore/undo")
					f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
						switch {
						case c.IsScript(sha):
							time.AfterFunc(50*time.Millisecond, cancel)
							return faultproxy.SwallowReply
						case c.IsScript(undo):
							return faultproxy.Hold
						}
						return faultproxy.Pass
					})
					locktest.WantErr(t, op.do(ctx, f), context.Canceled)
					locktest.HeldUp(t, f.proxy, 1)
					is(t, true)(f.plain.s.Delete(bg))
					now := anew(t, f, b.NewClient(t))
					f.proxy.Handle(nil)
					f.proxy.Release()
					ok(t, f.Shutdown(bg)) // waits for the undoing
					is(t, 20)(now(bg))
				})
			})
		}
	}
}

// Of a semaphore that Java has made, an acquire that has failed is undone all the same.
func TestAcquireOfJavasPermitsIsUndone(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"semaphore/acquire", "semaphore/drain"} {
		locktest.Beside(t, script, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				f := newFaulty(t, b)
				ok(t, f.rdb.Set(bg, "s", 5, 0).Err())
				ctx, cancel := context.WithCancel(bg)
				sha := locktest.SHA(script)
				f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if !c.IsScript(sha) {
						return faultproxy.Pass
					}
					time.AfterFunc(50*time.Millisecond, cancel)
					return faultproxy.SwallowReply
				})
				locktest.WantErr(t, givenUp[script].do(ctx, f), context.Canceled)
				f.proxy.Handle(nil)
				ok(t, f.Shutdown(bg)) // waits for the undoing
				is(t, rlock.SemaphoreState{Set: true, Available: 5})(f.plain.s.State(bg))
			})
		})
	}
}
