package counting

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// faulty is a client behind a proxy, with its objects, and the same of a client that has no
// faults. All scripts are loaded, so that a fault hits the copy that it is meant for.
type faulty struct {
	*rlock.Client
	proxy *faultproxy.Proxy
	rdb   redis.UniversalClient
	s     *rlock.Semaphore
	l     *rlock.CountDownLatch
	b     *rlock.Barrier
	plain objects
}

type objects struct {
	s *rlock.Semaphore
	l *rlock.CountDownLatch
	b *rlock.Barrier
}

func objectsOf(c *rlock.Client) objects {
	return objects{c.NewSemaphore("s"), c.NewCountDownLatch("l"), c.NewBarrier("b")}
}

var countScripts = []string{
	"semaphore/acquire", "semaphore/release", "semaphore/try_set", "semaphore/add", "semaphore/drain", "semaphore/undo", "semaphore/available",
	"semaphore/set", "semaphore/inspect", "semaphore/delete",
	"latch/try_set", "latch/count_down", "latch/look", "latch/delete", "barrier/change", "barrier/look", "record/seal",
}

func newFaulty(t *testing.T, b *locktest.Backend, opts ...rlock.Option) *faulty {
	t.Helper()
	locktest.LoadScripts(t, b.Client(t), countScripts...)
	return faultyBeside(t, b, "", opts...)
}

// faultyBeside is newFaulty where others use the server too, with other prefixes.
func faultyBeside(t *testing.T, b *locktest.Backend, prefix string, opts ...rlock.Option) *faulty {
	t.Helper()
	c, proxy, rdb := b.Faulty(t, append(opts, rlock.WithPrefix(prefix))...)
	o := objectsOf(c)
	return &faulty{c, proxy, rdb, o.s, o.l, o.b, objectsOf(b.NewClient(t, rlock.WithPrefix(prefix)))}
}

// Each operation counts once, and reports what it has done, however its first reply is lost.
func TestLostRepliesCountOnce(t *testing.T) {
	t.Parallel()
	steps := map[string]func(t *testing.T, f *faulty){
		"semaphore/acquire": func(t *testing.T, f *faulty) {
			ok(t, f.plain.s.AddPermits(bg, 5))
			ok(t, f.s.TryAcquire(bg, 2))
			is(t, 3)(f.plain.s.Available(bg))
			ok(t, f.s.Acquire(bg, 3))
		},
		"semaphore/release": func(t *testing.T, f *faulty) {
			ok(t, f.plain.s.AddPermits(bg, 5))
			ok(t, f.s.Release(bg, 2))
			is(t, 7)(f.plain.s.Available(bg))
		},
		"semaphore/try_set": func(t *testing.T, f *faulty) {
			is(t, true)(f.s.TrySetPermits(bg, 5))
			is(t, false)(f.s.TrySetPermits(bg, 6))
			is(t, 5)(f.plain.s.Available(bg))
		},
		"semaphore/add": func(t *testing.T, f *faulty) {
			ok(t, f.s.AddPermits(bg, 5))
			ok(t, f.s.AddPermits(bg, -1))
			is(t, 4)(f.plain.s.Available(bg))
		},
		"semaphore/set": func(t *testing.T, f *faulty) {
			is(t, true)(f.plain.s.TrySetPermits(bg, 5))
			ok(t, f.s.SetPermits(bg, 7))
			is(t, 7)(f.plain.s.Available(bg))
			ok(t, f.s.SetPermits(bg, 2))
			is(t, 2)(f.plain.s.Available(bg))
		},
		"semaphore/inspect": func(t *testing.T, f *faulty) {
			is(t, true)(f.plain.s.TrySetPermits(bg, 5))
			is(t, rlock.SemaphoreState{Set: true, Known: true, Permits: 5, Available: 5})(f.s.State(bg))
		},
		"semaphore/delete": func(t *testing.T, f *faulty) {
			is(t, true)(f.plain.s.TrySetPermits(bg, 5))
			is(t, true)(f.s.Delete(bg))
			is(t, false)(f.s.Delete(bg))
			is(t, true)(f.plain.s.TrySetPermits(bg, 6))
			is(t, 6)(f.plain.s.Available(bg))
		},
		"semaphore/drain": func(t *testing.T, f *faulty) {
			ok(t, f.plain.s.AddPermits(bg, 5))
			is(t, 5)(f.s.Drain(bg))
			ok(t, f.plain.s.Release(bg, 2))
			is(t, 2)(f.s.Drain(bg))
			is(t, 0)(f.plain.s.Available(bg))
		},
		"latch/try_set": func(t *testing.T, f *faulty) {
			is(t, true)(f.l.TrySetCount(bg, 5))
			is(t, false)(f.l.TrySetCount(bg, 6))
			is(t, 5)(f.plain.l.Count(bg))
		},
		"latch/count_down": func(t *testing.T, f *faulty) {
			is(t, true)(f.plain.l.TrySetCount(bg, 3))
			for left := 2; left >= 0; left-- {
				ok(t, f.l.CountDown(bg))
				is(t, left)(f.plain.l.Count(bg))
			}
		},
		"latch/look": func(t *testing.T, f *faulty) { ok(t, f.l.Wait(bg)) },
		"latch/delete": func(t *testing.T, f *faulty) {
			is(t, true)(f.plain.l.TrySetCount(bg, 3))
			is(t, true)(f.l.Delete(bg))
			is(t, false)(f.l.Delete(bg))
			is(t, 0)(f.plain.l.Count(bg))
		},
		"barrier/change": func(t *testing.T, f *faulty) {
			ok(t, f.b.Set(bg))
			if text(t, f.rdb, "{"+f.b.Name()+"}:rlock:barrier") == "" {
				t.Fatal("the barrier is not set")
			}
			ok(t, f.b.Lift(bg))
			ok(t, f.plain.b.Wait(bg))
		},
	}
	locktest.EachLoss(t, "all", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		locktest.LoadScripts(t, b.Client(t), countScripts...)
		for script, do := range steps {
			locktest.Beside(t, script, func(t *testing.T) {
				f := faultyBeside(t, b, script+":")
				locktest.OnNth(t, f.proxy, script, 1, action)
				do(t, f)
				ok(t, f.Shutdown(bg))
				f.proxy.Handle(nil)
			})
		}
	})
}

// give is an operation that is given up while its request is under way, and how Redis looks
// if nothing of it is left.
var givenUp = map[string]struct {
	do   func(ctx context.Context, f *faulty) error
	left func(t *testing.T, f *faulty)
}{
	"semaphore/acquire": {
		func(ctx context.Context, f *faulty) error { return f.s.Acquire(ctx, 2) },
		func(t *testing.T, f *faulty) { soon(t, 5, f.plain.s.Available) },
	},
	"semaphore/add": {
		func(ctx context.Context, f *faulty) error { return f.s.AddPermits(ctx, 2) },
		func(t *testing.T, f *faulty) { soon(t, 5, f.plain.s.Available) },
	},
	"semaphore/drain": {
		func(ctx context.Context, f *faulty) error { _, err := f.s.Drain(ctx); return err },
		func(t *testing.T, f *faulty) { soon(t, 5, f.plain.s.Available) },
	},
}

// What was given up is undone once, whether its request came before, comes late, or never.
// Shutdown waits for that.
func TestGivenUpOperationsAreUndoneOnce(t *testing.T) {
	t.Parallel()
	for script, op := range givenUp {
		locktest.Beside(t, script, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				for name, action := range map[string]faultproxy.Action{
					"came before": faultproxy.SwallowReply, "comes late": faultproxy.Hold, "never comes": faultproxy.ResetBefore,
				} {
					t.Run(name, func(t *testing.T) {
						f := newFaulty(t, b)
						if _, err := f.plain.s.TrySetPermits(bg, 5); err != nil {
							t.Fatal(err)
						}
						ctx, cancel := context.WithCancel(bg)
						sha := locktest.SHA(script)
						f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
							if !c.IsScript(sha) {
								return faultproxy.Pass
							}
							time.AfterFunc(50*time.Millisecond, cancel)
							return action
						})
						err := op.do(ctx, f)
						locktest.WantErr(t, err, context.Canceled)
						f.proxy.Handle(nil)
						ok(t, f.Shutdown(bg)) // waits for the undoing
						is(t, 5)(f.plain.s.Available(bg))
						f.proxy.Release() // the late copies
						op.left(t, f)
						is(t, 5)(f.plain.s.Available(bg))
						if all := text(t, f.rdb, "{s}:rlock:all"); !strings.HasPrefix(all, "5 0 ") {
							t.Fatalf("there are %s permits", all)
						}
					})
				}
			})
		})
	}
}

// Undoing is not lost, and is not done twice, if its own replies are lost.
func TestUndoingSurvivesLostReplies(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "semaphore/undo", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		f := newFaulty(t, b)
		ok(t, f.plain.s.AddPermits(bg, 5))
		ctx, cancel := context.WithCancel(bg)
		acquire, undo, undone := locktest.SHA("semaphore/acquire"), locktest.SHA("semaphore/undo"), 0
		f.proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			switch {
			case c.IsScript(acquire):
				time.AfterFunc(50*time.Millisecond, cancel)
				return faultproxy.SwallowReply
			case c.IsScript(undo):
				if undone++; undone == 1 {
					return action
				}
			}
			return faultproxy.Pass
		})
		locktest.WantEnded(t, f.s.Acquire(ctx, 3), context.Canceled)
		soon(t, 5, f.plain.s.Available)
		ok(t, f.Shutdown(bg))
		is(t, 5)(f.plain.s.Available(bg))
	})
}

// A late copy of an operation that was answered does nothing, whether or not a newer one has
// used its page.
func TestLateCopiesDoNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, later := range []bool{false, true} {
			f := newFaulty(t, b)
			locktest.DeleteAll(t, f.rdb)
			f.proxy.ResetLog()
			is(t, true)(f.s.TrySetPermits(bg, 5))
			ok(t, f.s.Acquire(bg, 3))
			ok(t, f.s.Release(bg, 1))
			ok(t, f.s.AddPermits(bg, 10))
			ok(t, f.s.SetPermits(bg, 11))
			is(t, 9)(f.s.Drain(bg))
			is(t, true)(f.l.TrySetCount(bg, 3))
			ok(t, f.l.CountDown(bg))
			ok(t, f.b.Set(bg))
			ok(t, f.b.Lift(bg))
			is(t, true)(f.l.Delete(bg))
			is(t, true)(f.s.Delete(bg))
			is(t, false)(f.s.Delete(bg))
			if later {
				ok(t, f.s.Release(bg, 7))
				is(t, true)(f.l.TrySetCount(bg, 9))
				ok(t, f.b.Set(bg))
				f.proxy.ResetLog()
				ok(t, f.s.Acquire(bg, 7))
			}
			before := dump(t, f.rdb)
			n := 0
			for _, c := range f.proxy.Commands() {
				if strings.EqualFold(c.Name, "evalsha") {
					ok(t, f.proxy.Replay(c))
					n++
				}
			}
			if after := dump(t, f.rdb); after != before || n == 0 {
				t.Errorf("%d late copies have changed\n%s\nto\n%s", n, before, after)
			}
		}
	})
}

// A count-down of an open latch leaves nothing, so it could count on the next latch if a copy
// came late. A client that has sent a second copy stops the first.
func TestLateCountDownDoesNotCountOnTheNextLatch(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		f := newFaulty(t, b)
		locktest.OnNth(t, f.proxy, "latch/count_down", 1, faultproxy.Hold)
		ok(t, f.l.CountDown(bg))
		ok(t, f.Shutdown(bg))
		is(t, true)(f.plain.l.TrySetCount(bg, 3))
		f.proxy.Release()
		is(t, 3)(f.plain.l.Count(bg))
	})
}

// Release and CountDown that get no answer say so, and are repeated until Redis confirms them.
func TestUnconfirmedReleasesAreRepeated(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		f := newFaulty(t, b, rlock.WithUnlockTimeout(300*time.Millisecond))
		ok(t, f.plain.s.AddPermits(bg, 5))
		is(t, true)(f.plain.l.TrySetCount(bg, 3))
		ok(t, f.s.Acquire(bg, 2))
		f.proxy.Blackhole(true)
		locktest.WantErr(t, f.s.Release(bg, 2), rlock.ErrUnconfirmed, rlock.ErrUnreachable)
		locktest.WantErr(t, f.l.CountDown(bg), rlock.ErrUnconfirmed, rlock.ErrUnreachable)
		f.proxy.Blackhole(false)
		soon(t, 5, f.plain.s.Available)
		soon(t, 2, f.plain.l.Count)
		ok(t, f.Shutdown(bg))
		is(t, 5)(f.plain.s.Available(bg))
		is(t, 2)(f.plain.l.Count(bg))
	})
}

// A release that Redis refuses has not happened, and is repeated until it has.
func TestRefusedReleasesAreRepeatedAndCount(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	user := func(rights ...any) { ok(t, admin.Do(bg, append([]any{"acl", "setuser", "app"}, rights...)...).Err()) }
	user("on", ">password", "~*", "&*", "+@all", "-incrby", "-decr")
	app := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "password", DisableIdentity: true})
	t.Cleanup(func() { _ = app.Close() })
	mine, o := objectsOf(locktest.NewClient(t, app)), objectsOf(b.NewClient(t))
	is(t, true)(o.s.TrySetPermits(bg, 3))
	is(t, true)(o.l.TrySetCount(bg, 3))
	locktest.WantErr(t, mine.s.Release(bg, 1), rlock.ErrRefused)
	locktest.WantErr(t, mine.l.CountDown(bg), rlock.ErrRefused)
	is(t, 3)(o.s.Available(bg))
	user("+incrby", "+decr")
	soon(t, 4, o.s.Available)
	soon(t, 2, o.l.Count)
}

// A waiter outlasts a short outage, and gives up after one as long as a watchdog lease, with
// ErrUnreachable.
func TestWaitersOutlastShortOutages(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"long": 1500 * time.Millisecond, "short": 4 * time.Second} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				f := newFaulty(t, b, rlock.WithCommandTimeout(locktest.Ample(time.Second)), rlock.WithLongestPoll(100*time.Millisecond), rlock.WithWatchdogLease(locktest.Ample(lease)))
				is(t, true)(f.plain.s.TrySetPermits(bg, 1))
				is(t, true)(f.plain.l.TrySetCount(bg, 1))
				ok(t, f.plain.b.Set(bg))
				ok(t, f.s.Acquire(bg, 1))
				begin := func() []<-chan error {
					return []<-chan error{
						begun(func() error { return f.s.Acquire(bg, 1) }),
						begun(func() error { return f.l.Wait(bg) }),
						begun(func() error { return f.b.Wait(bg) }),
						begun(func() error { return f.s.Acquire(bg, 1) }),
					}
				}
				done := begin()
				wait(t, done...)
				f.proxy.Refuse(true)
				if name == "long" {
					for _, d := range done {
						if err := ended(t, d); !errors.Is(err, rlock.ErrUnreachable) {
							t.Fatal(err)
						}
					}
					f.proxy.Refuse(false)
					soon(t, 0, f.s.Available) // go-redis has dialed again
					done = begin()
					wait(t, done...)
				}
				ok(t, f.plain.s.Release(bg, 2))
				ok(t, f.plain.l.CountDown(bg))
				ok(t, f.plain.b.Lift(bg))
				if name == "short" {
					time.Sleep(100 * time.Millisecond) // the fault
					f.proxy.Refuse(false)
				}
				for _, d := range done {
					ok(t, ended(t, d))
				}
				is(t, 0)(f.plain.s.Available(bg))
			})
		})
	}
}

// When messages are lost, the poll finds out.
func TestWaitersDoNotDependOnMessages(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		f := newFaulty(t, b, rlock.WithLongestPoll(100*time.Millisecond))
		is(t, true)(f.plain.s.TrySetPermits(bg, 1))
		is(t, true)(f.plain.l.TrySetCount(bg, 1))
		ok(t, f.plain.b.Set(bg))
		ok(t, f.s.Acquire(bg, 1))
		f.proxy.DropMessages(true)
		done := []<-chan error{
			begun(func() error { return f.s.Acquire(bg, 2) }),
			begun(func() error { return f.l.Wait(bg) }),
			begun(func() error { return f.b.Wait(bg) }),
		}
		wait(t, done...)
		ok(t, f.plain.s.Release(bg, 2))
		ok(t, f.plain.l.CountDown(bg))
		ok(t, f.plain.b.Lift(bg))
		for _, d := range done {
			ok(t, ended(t, d))
		}
	})
}

// dump is all that Redis has, without times.
func dump(t testing.TB, rdb redis.UniversalClient) string {
	t.Helper()
	done, rest := records(t, rdb)
	var out strings.Builder
	for _, key := range append(rest, done...) {
		out.WriteString(key + " = " + text(t, rdb, key) + "\n")
	}
	return out.String()
}
