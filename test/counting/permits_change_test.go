package counting

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// changing is a client behind a proxy with a PermitSemaphore, and the same of a client that has
// no faults.
type changing struct {
	*rlock.Client
	proxy    *faultproxy.Proxy
	s, plain *rlock.PermitSemaphore
}

// eachPermits runs a scenario with permits of both kinds. scripts is the folder of their scripts. open returns a
// semaphore with a name; with the name "s" it is all there is, or else others run beside it.
func eachPermits(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing)) {
	for _, k := range []struct {
		name, scripts string
		opts          []rlock.PermitSemaphoreOption
	}{
		{"permits", "permits/", nil},
		{"fair permits", "fairpermits/", []rlock.PermitSemaphoreOption{rlock.WithFairness()}},
	} {
		locktest.Beside(t, k.name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				scenario(t, b, k.scripts, func(t *testing.T, name string) *changing {
					t.Helper()
					for _, script := range []string{"try_set", "add", "set", "undo", "inspect"} {
						locktest.LoadScripts(t, b.Client(t), k.scripts+script)
					}
					locktest.LoadScripts(t, b.Client(t), "record/seal")
					c, proxy, rdb := b.Faulty(t)
					if name == "s" {
						locktest.DeleteAll(t, rdb)
					}
					return &changing{c, proxy, c.NewPermitSemaphore(name, k.opts...), b.NewClient(t).NewPermitSemaphore(name, k.opts...)}
				})
			})
		})
	}
}

// permitsAre checks how many permits there are, and how many are free.
func permitsAre(t *testing.T, s *rlock.PermitSemaphore, all, free int) {
	t.Helper()
	state, err := s.State(bg)
	if err != nil || state.Permits != all || state.Available != free {
		t.Fatalf("%+v, %v: want %d permits, %d free", state, err, all, free)
	}
}

// inTime is what becomes of the request of a call that is given up.
var inTime = map[string]faultproxy.Action{
	"came before": faultproxy.SwallowReply, "comes late": faultproxy.Hold, "never comes": faultproxy.ResetBefore,
}

// givesUp has a call be canceled when its request was sent.
func (c *changing) givesUp(t *testing.T, script string, action faultproxy.Action, do func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	sha := locktest.SHA(script)
	c.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if !cmd.IsScript(sha) {
			return faultproxy.Pass
		}
		time.AfterFunc(50*time.Millisecond, cancel) // when the action has been done, most often
		return action
	})
	locktest.WantErr(t, do(ctx), context.Canceled)
	if action == faultproxy.Hold {
		locktest.HeldUp(t, c.proxy, 1)
	}
	c.proxy.Handle(nil)
}

// After an error of AddPermits nothing is added, or taken away, whether its request came before,
// comes late, or never. Permits that are held stay so.
func TestPermitsThatWereNotAddedAreUndone(t *testing.T) {
	t.Parallel()
	eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
		for name, action := range inTime {
			for _, n := range []int{2, -2, 7, -7} {
				t.Run(name, func(t *testing.T) {
					c := open(t, "s")
					is(t, true)(c.plain.TrySetPermits(bg, 5))
					lease := mustAcquire(t, c.plain, 3)
					c.givesUp(t, scripts+"add", action, func(ctx context.Context) error { return c.s.AddPermits(ctx, n) })
					ok(t, c.Shutdown(bg)) // waits for the undoing
					permitsAre(t, c.plain, 5, 2)
					c.proxy.Release() // the late copies
					permitsAre(t, c.plain, 5, 2)
					locktest.MustUnlock(t, lease)
					permitsAre(t, c.plain, 5, 5)
				})
			}
		}
	})
}

// If AddPermits has made the semaphore, there is none again.
func TestUndoneAddPermitsDeletesANewSemaphore(t *testing.T) {
	t.Parallel()
	eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
		for name, action := range inTime {
			for _, n := range []int{3, -3} {
				t.Run(name, func(t *testing.T) {
					c := open(t, "s")
					c.givesUp(t, scripts+"add", action, func(ctx context.Context) error { return c.s.AddPermits(ctx, n) })
					ok(t, c.Shutdown(bg))
					c.proxy.Release()
					wantKeys(t, b.Client(t))
					_, err := c.plain.TryAcquire(bg, 1)
					locktest.WantErr(t, err, rlock.ErrNotSet)
				})
			}
		}
	})
}

// A late copy of a TrySetPermits or SetPermits that was given up changes nothing.
func TestLateCopyOfSetPermitsDoesNothing(t *testing.T) {
	t.Parallel()
	eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
		for script, do := range map[string]func(ctx context.Context, s *rlock.PermitSemaphore) error{
			"try_set": func(ctx context.Context, s *rlock.PermitSemaphore) error {
				_, err := s.TrySetPermits(ctx, 9)
				return err
			},
			"set": func(ctx context.Context, s *rlock.PermitSemaphore) error { return s.SetPermits(ctx, 9) },
		} {
			t.Run(script, func(t *testing.T) {
				c := open(t, "s")
				c.givesUp(t, scripts+script, faultproxy.Hold, func(ctx context.Context) error { return do(ctx, c.s) })
				ok(t, c.Shutdown(bg)) // waits for the seal
				if c.proxy.Release() == 0 {
					t.Fatal("no late copy")
				}
				wantKeys(t, b.Client(t))
			})
		}
	})
}

// Each change counts once, and reports what it has done, however its first reply is lost; also if
// the first copy comes when the second was answered, and others have changed the number since.
func TestChangesOfPermitsCountOnce(t *testing.T) {
	t.Parallel()
	actions := map[string]faultproxy.Action{"comes late": faultproxy.Hold}
	for name, action := range locktest.LossyActions {
		actions[name] = action
	}
	eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
		for name, action := range actions {
			for _, change := range []struct {
				script string
				do     func(s *rlock.PermitSemaphore) error
				all    int // then, of 5
			}{
				{"try_set", func(s *rlock.PermitSemaphore) error { _, err := s.TrySetPermits(bg, 9); return err }, 5},
				{"add", func(s *rlock.PermitSemaphore) error { return s.AddPermits(bg, 3) }, 8},
				{"add", func(s *rlock.PermitSemaphore) error { return s.AddPermits(bg, -3) }, 2},
				{"set", func(s *rlock.PermitSemaphore) error { return s.SetPermits(bg, 9) }, 9},
			} {
				locktest.Beside(t, name+", "+change.script, func(t *testing.T) {
					c := open(t, strings.ReplaceAll(t.Name(), "/", ":"))
					is(t, true)(c.plain.TrySetPermits(bg, 5))
					sha, n := locktest.SHA(scripts+change.script), 0
					c.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
						if cmd.IsScript(sha) {
							if n++; n == 1 {
								return action
							}
						}
						return faultproxy.Pass
					})
					ok(t, change.do(c.s))
					permitsAre(t, c.plain, change.all, change.all)
					ok(t, c.plain.AddPermits(bg, 1))
					if late := c.proxy.Release(); (action == faultproxy.Hold) != (late > 0) {
						t.Fatal(late, "late copies")
					}
					permitsAre(t, c.plain, change.all+1, change.all+1)
				})
			}
		}
	})
}

// An AddPermits that has failed is undone, but not out of a number that was set since: that number
// holds, whatever there was before. What others add since stays.
func TestSetPermitsMakesUpForPermitsThatAreUndoneLater(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(c *changing) (all int){
		"set":      func(c *changing) int { is(t, true)(c.plain.TrySetPermits(bg, 10)); return 10 },
		"set anew": func(c *changing) int { ok(t, c.plain.SetPermits(bg, 10)); return 10 },
		"made":     func(*changing) int { return 0 },
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
				for _, set := range []bool{true, false} {
					t.Run(fmt.Sprint("set ", set), func(t *testing.T) {
						c := open(t, "s")
						all := before(c)
						c.addsInVain(t, scripts)
						soon(t, all+5, c.plain.Available)
						if set {
							all += 5
							for _, n := range []int{all, 20} { // also the number that there is
								ok(t, c.plain.SetPermits(bg, n))
							}
							all = 20
						}
						ok(t, c.plain.AddPermits(bg, 2))
						all += 2
						locktest.HeldUp(t, c.proxy, 1)
						c.proxy.Handle(nil)
						c.proxy.Release()
						ok(t, c.Shutdown(bg))
						permitsAre(t, c.plain, all, all)
					})
				}
			})
		})
	}
}

// addsInVain adds five permits. The caller is canceled while it waits for the reply, which is lost, and the undo comes late.
func (c *changing) addsInVain(t *testing.T, scripts string) {
	t.Helper()
	add, undo := locktest.SHA(scripts+"add"), locktest.SHA(scripts+"undo")
	ctx, cancel := context.WithCancel(bg)
	c.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		switch {
		case cmd.IsScript(add):
			time.AfterFunc(50*time.Millisecond, cancel)
			return faultproxy.SwallowReply
		case cmd.IsScript(undo):
			return faultproxy.Hold
		}
		return faultproxy.Pass
	})
	locktest.WantErr(t, c.s.AddPermits(ctx, 5), context.Canceled)
}

// The semaphore is deleted and made anew, before what an AddPermits has added to the first is undone:
// the second is as it was made.
func TestUndoDoesNotChangeRecreatedPermits(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(c *changing){
		"TrySetPermits": func(c *changing) { is(t, true)(c.plain.TrySetPermits(bg, 20)) },
		"AddPermits":    func(c *changing) { ok(t, c.plain.AddPermits(bg, 20)) },
		"SetPermits":    func(c *changing) { ok(t, c.plain.SetPermits(bg, 20)) },
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
				for _, before := range []int{10, 0} {
					t.Run(fmt.Sprint(before, " before"), func(t *testing.T) {
						c := open(t, "s")
						if before > 0 {
							is(t, true)(c.plain.TrySetPermits(bg, before))
						}
						c.addsInVain(t, scripts)
						soon(t, before+5, c.plain.Available)
						ok(t, b.Client(t).Del(bg, "s", "{s}:timeout").Err())
						ok(t, b.Client(t).Del(bg, "{s}:rlock:permits", "{s}:rlock:permits:ends").Err())
						make(c)
						locktest.HeldUp(t, c.proxy, 1)
						c.proxy.Handle(nil)
						c.proxy.Release()
						ok(t, c.Shutdown(bg))
						permitsAre(t, c.plain, 20, 20)
					})
				}
			})
		})
	}
}

// Waiters get what an undone removal gives back.
func TestPermitsThatAreGivenBackWakeWaiters(t *testing.T) {
	t.Parallel()
	eachPermits(t, func(t *testing.T, b *locktest.Backend, scripts string, open func(t *testing.T, name string) *changing) {
		c := open(t, "s")
		is(t, true)(c.plain.TrySetPermits(bg, 3))
		kept := mustAcquire(t, c.plain, 1)
		add, undo := locktest.SHA(scripts+"add"), locktest.SHA(scripts+"undo")
		ctx, cancel := context.WithCancel(bg)
		c.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			switch {
			case cmd.IsScript(add):
				return faultproxy.SwallowReply
			case cmd.IsScript(undo):
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		adding := begun(func() error { return c.s.AddPermits(ctx, -2) })
		soon(t, 0, c.plain.Available)
		var lease *rlock.Lease
		waiter := begun(func() (err error) { lease, err = c.plain.Acquire(bg, 1); return err })
		locktest.Eventually(t, "it waits", func() bool { s, err := c.plain.State(bg); return err == nil && s.Waiters == 1 })
		cancel()
		locktest.WantErr(t, ended(t, adding), context.Canceled)
		locktest.HeldUp(t, c.proxy, 1)
		c.proxy.Handle(nil)
		c.proxy.Release()
		ok(t, ended(t, waiter))
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, kept)
		permitsAre(t, c.plain, 3, 3)
	})
}
