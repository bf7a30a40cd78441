package coordination

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// section runs a function under a lease.
type section struct {
	name string
	run  func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error
	// lose takes the lock of the function away.
	lose func(t *testing.T, admin *rlock.Client)
}

func sections(t *testing.T, b *locktest.Backend) []section {
	tick := time.Now().Truncate(time.Second) // of a CronJob: each run has the next
	force := func(open func(admin *rlock.Client) rlock.Inspector) func(*testing.T, *rlock.Client) {
		return func(t *testing.T, admin *rlock.Client) {
			if was, err := open(admin).ForceUnlock(bg); !was || err != nil {
				t.Error("not taken away:", was, err)
			}
		}
	}
	return []section{
		{"Do", func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			return rlock.Do(ctx, c.NewLock("a"), fn)
		}, force(func(admin *rlock.Client) rlock.Inspector { return admin.NewLock("a") })},
		{"Do of a MultiLock", func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			return rlock.Do(ctx, locktest.MultiLockOf(t, c, "a", "b"), fn)
		}, force(func(admin *rlock.Client) rlock.Inspector { return admin.NewLock("b") })},
		{"Once", func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			_, _, err := c.NewOnce("once", time.Minute).Do(ctx, func(ctx context.Context) ([]byte, error) { return []byte("done"), fn(ctx) })
			return err
		}, force(func(admin *rlock.Client) rlock.Inspector { return admin.NewOnce("once", time.Minute) })},
		{"CronJob", func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			tick = tick.Add(time.Millisecond)
			_, err := c.NewCronJob("cron").Do(ctx, tick, fn)
			return err
		}, func(t *testing.T, _ *rlock.Client) {
			if n := b.Client(t).Del(bg, fmt.Sprint("{cron}:rlock:cron:", tick.UnixMilli())).Val(); n != 1 {
				t.Error("not taken away")
			}
		}},
	}
}

func eachSection(t *testing.T, scenario func(t *testing.T, b *locktest.Backend, s section)) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, s := range sections(t, b) {
			t.Run(s.name, func(t *testing.T) { scenario(t, b, s) })
		}
	})
}

// notices has the lease of ctx notice that it was taken away.
func notices(t *testing.T, ctx context.Context) *rlock.Lease {
	t.Helper()
	lease, ok := rlock.LeaseFrom(ctx)
	if !ok {
		t.Fatal("no lease")
	}
	if err := lease.Extend(bg, time.Minute); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Error("it is not lost:", err)
	}
	locktest.Eventually(t, "the context ends", func() bool { return ctx.Err() != nil }) // a MultiLock's ends in the background
	return lease
}

// failure is an error of the caller's that wraps another.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Whatever a function returns that was cut off by the end of its lease, the loss comes first, and
// nothing says that the caller has gone away.
func TestLossComesBeforeTheErrorOfTheFunction(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		c, admin := b.NewClient(t), b.NewClient(t)
		for what, test := range map[string]struct {
			returns func(ctx context.Context, lease *rlock.Lease) error
			alone   bool   // the loss is all
			matches error  // too
			says    string // too
		}{
			"nothing":                     {returns: func(context.Context, *rlock.Lease) error { return nil }, alone: true},
			"the error of its context":    {returns: func(ctx context.Context, _ *rlock.Lease) error { return ctx.Err() }, alone: true},
			"the cause of its context":    {returns: func(ctx context.Context, _ *rlock.Lease) error { return context.Cause(ctx) }, alone: true},
			"the error of its lease":      {returns: func(_ context.Context, l *rlock.Lease) error { return l.Err() }, alone: true},
			"that in a text":              {returns: func(ctx context.Context, _ *rlock.Lease) error { return fmt.Errorf("save: %w", ctx.Err()) }, says: "save: context canceled"},
			"that in an error of its own": {returns: func(ctx context.Context, _ *rlock.Lease) error { return failure{ctx.Err()} }, says: "context canceled"},
			"that beside another":         {returns: func(ctx context.Context, _ *rlock.Lease) error { return errors.Join(ctx.Err(), mine) }, matches: mine, says: "mine"},
			"another":                     {returns: func(context.Context, *rlock.Lease) error { return mine }, matches: mine, says: "mine"},
			"the end of a timeout of its": {returns: func(context.Context, *rlock.Lease) error { return context.DeadlineExceeded }, matches: context.DeadlineExceeded},
		} {
			t.Run(what, func(t *testing.T) {
				var returned, lost error
				err := s.run(bg, c, func(ctx context.Context) error {
					s.lose(t, admin)
					lease := notices(t, ctx)
					returned, lost = test.returns(ctx, lease), lease.Err()
					return returned
				})
				locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, context.Canceled, rlock.ErrClosed)
				if test.alone != (err.Error() == lost.Error()) || !strings.HasPrefix(err.Error(), lost.Error()) {
					t.Errorf("%q, want first %q, and alone: %v", err, lost, test.alone)
				}
				if test.matches != nil && !errors.Is(err, test.matches) || !strings.HasSuffix(err.Error(), test.says) {
					t.Errorf("%q does not match %v, or say %q", err, test.matches, test.says)
				}
				if want, _ := returned.(failure); want.error != nil {
					if got := (failure{}); !errors.As(err, &got) || got != want {
						t.Errorf("%v has no %v", err, want)
					}
				}
			})
		}
	})
}

// A loss that only the release finds did not cut the function off. Its caller has not gone
// away all the same.
func TestLossThatTheReleaseFindsComesFirst(t *testing.T) {
	t.Parallel()
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		c, admin := b.NewClient(t), b.NewClient(t)
		err := s.run(bg, c, func(ctx context.Context) error {
			s.lose(t, admin)
			if err := ctx.Err(); err != nil && s.name != "CronJob" { // which is renewed after 10 ms: on a slow machine that finds it
				t.Error(err)
			}
			return context.Canceled // of something that it has canceled itself
		})
		locktest.WantErr(t, err, rlock.ErrLeaseLost, nil, context.Canceled)
	})
}

// Of the end of the lease and that of the caller's context, the first one has cut the function off.
func TestFirstCauseEndsTheContextOfTheFunction(t *testing.T) {
	t.Parallel()
	left := errors.New("the client has gone away")
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		c, admin := b.NewClient(t), b.NewClient(t)
		run := func(fn func(ctx context.Context, leave func())) error {
			caller, leave := context.WithCancelCause(bg)
			defer leave(nil)
			return s.run(caller, c, func(ctx context.Context) error {
				fn(ctx, func() { leave(left) })
				<-ctx.Done()
				return ctx.Err()
			})
		}

		err := run(func(_ context.Context, leave func()) { leave() })
		if err != context.Canceled {
			t.Errorf("the caller alone: %v", err)
		}
		err = run(func(ctx context.Context, leave func()) {
			leave()
			s.lose(t, admin)
			notices(t, ctx)
		})
		locktest.WantErr(t, err, context.Canceled, rlock.ErrLeaseLost)
		err = run(func(ctx context.Context, leave func()) {
			s.lose(t, admin)
			notices(t, ctx)
			leave()
		})
		locktest.WantErr(t, err, rlock.ErrLeaseLost, nil, context.Canceled)
	})
}

// A function inside another's that is cut off by the loss of the outer lock reports to the outer
// one what it was told; there it is a loss.
func TestLossOfAnOuterLockCutsInnerFunctionsOff(t *testing.T) {
	t.Parallel()
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		c, admin := b.NewClient(t), b.NewClient(t)
		err := s.run(bg, c, func(outer context.Context) error {
			err := rlock.Do(outer, c.NewLock("inner"), func(ctx context.Context) error {
				s.lose(t, admin)
				notices(t, outer)
				<-ctx.Done()
				return ctx.Err()
			})
			if err != context.Canceled {
				t.Errorf("the inner one: %v", err) // its own lock was not lost
			}
			return err
		})
		locktest.WantErr(t, err, rlock.ErrLeaseLost, nil, context.Canceled)
		var e *rlock.Error
		if errors.As(err, &e); e.Lock == "inner" {
			t.Errorf("lost %q", e.Lock)
		}
	})
}

// The holder leaves because its client shuts down. That is no loss, and no caller has gone away.
func TestFunctionThatLeavesAtAShutdownSaysSo(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		for what, returns := range map[string]func(ctx context.Context) error{
			"nothing":                  func(context.Context) error { return nil },
			"the error of its context": func(ctx context.Context) error { return ctx.Err() },
			"another":                  func(context.Context) error { return mine },
			"both":                     func(ctx context.Context) error { return errors.Join(mine, ctx.Err()) },
		} {
			t.Run(what, func(t *testing.T) {
				c := b.NewClient(t)
				closed := make(chan error, 1)
				err := s.run(bg, c, func(ctx context.Context) error {
					go func() { closed <- c.Shutdown(bg) }()
					<-ctx.Done()
					return returns(ctx)
				})
				switch what {
				case "nothing":
					if err != nil {
						t.Error(err)
					}
				case "another":
					if err != mine {
						t.Error(err)
					}
				default:
					locktest.WantErr(t, err, rlock.ErrClosed, nil, context.Canceled, rlock.ErrLeaseLost)
					if errors.Is(err, mine) != (what == "both") {
						t.Error(err)
					}
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				if _, err := b.NewClient(t).NewOnce("once", time.Minute).Forget(bg); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// Who unlocks the lease of a function inside it is told that it was done twice, and the rest of the
// function ran without the lock.
func TestFunctionThatUnlocksItsOwnLeaseGetsAnError(t *testing.T) {
	t.Parallel()
	eachSection(t, func(t *testing.T, b *locktest.Backend, s section) {
		c := b.NewClient(t)
		for what, returns := range map[string]func(ctx context.Context) error{
			"nothing":                  func(context.Context) error { return nil },
			"the error of its context": func(ctx context.Context) error { return ctx.Err() },
			"the cause of its context": func(ctx context.Context) error { return context.Cause(ctx) },
		} {
			err := s.run(bg, c, func(ctx context.Context) error {
				lease, _ := rlock.LeaseFrom(ctx)
				locktest.MustUnlock(t, lease)
				<-ctx.Done()
				return returns(ctx)
			})
			locktest.WantErr(t, err, rlock.ErrUnlocked, nil, context.Canceled, rlock.ErrLeaseLost)
			if n := strings.Count(err.Error(), "rlock: "); n != 1 {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Whoever gives a function to a call is told by errors.Is alone whether it did not run, ran and failed, or
// ran well and the release is not confirmed; also where such calls nest.
func TestErrorSaysWhetherTheFunctionRan(t *testing.T) {
	t.Parallel()
	mine := errors.New("the disk is full")
	const notRun, failed, unconfirmed = "not run", "failed", "unconfirmed"
	// outcome is what a handler makes of an error.
	outcome := func(err error) string {
		switch {
		case err == nil:
			return "done"
		case errors.Is(err, rlock.ErrNotRun):
			return notRun
		case errors.Is(err, rlock.ErrUnconfirmed):
			return unconfirmed
		}
		return failed
	}
	for _, name := range []string{"Do", "Do of a MultiLock", "Lease.Do", "Lease.Do of a permit", "Election", "Once anew", "CronJob"} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				all := ranSections(t, b)
				s := all[slices.IndexFunc(all, func(s section) bool { return s.name == name })]
				rdb := b.Client(t)
				var deaf atomic.Bool // to whatever ends a hold
				lost := func(cmd redis.Cmder, next func() error) error {
					if err := next(); err != nil || !deaf.Load() || !strings.HasPrefix(cmd.Name(), "eval") {
						return err
					}
					cmd.SetErr(io.EOF)
					return io.EOF
				}
				rdb.AddHook(&locktest.ScriptHook{One: lost, Pipe: func(cmds []redis.Cmder, next func() error) error {
					err := next()
					for _, cmd := range cmds {
						err = errors.Join(err, lost(cmd, func() error { return nil }))
					}
					return err
				}})
				c := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(time.Second), rlock.WithCommandTimeout(time.Minute))
				other := b.NewClient(t)
				held := locktest.MustLock(t, other.NewLock("inner"))
				defer locktest.MustUnlock(t, held)
				inner := func(ctx context.Context) error {
					return rlock.Do(ctx, c.NewLock("inner"), func(context.Context) error { return nil }, rlock.WithWait(0))
				}
				for _, test := range []struct {
					what    string
					ctx     func() context.Context
					fn      func(ctx context.Context) error
					want    string
					matches error
				}{
					{what: "it returns nil", fn: func(context.Context) error { return nil }, want: "done"},
					{what: "it fails", fn: func(context.Context) error { return mine }, want: failed, matches: mine},
					{what: "it fails, unconfirmed", fn: func(context.Context) error { deaf.Store(true); return mine }, want: failed, matches: mine},
					{what: "it returns nil, unconfirmed", fn: func(context.Context) error { deaf.Store(true); return nil }, want: unconfirmed},
					{what: "one inside it does not run", fn: inner, want: failed, matches: rlock.ErrNotAcquired},
					{what: "that in a text", fn: func(ctx context.Context) error { return fmt.Errorf("pay: %w", inner(ctx)) }, want: failed, matches: rlock.ErrNotAcquired},
					{what: "that, unconfirmed", fn: func(ctx context.Context) error {
						err := inner(ctx)
						deaf.Store(true)
						return err
					}, want: failed, matches: rlock.ErrNotAcquired},
					{what: "one inside it is unconfirmed", fn: func(ctx context.Context) error {
						return rlock.Do(ctx, c.NewLock("second"), func(context.Context) error { deaf.Store(true); return nil })
					}, want: failed},
					{what: "the context has ended", ctx: func() context.Context {
						ctx, cancel := context.WithCancel(bg)
						cancel()
						return ctx
					}, fn: func(context.Context) error { t.Error("it ran"); return nil }, want: notRun, matches: context.Canceled},
				} {
					deaf.Store(false)
					ctx := bg
					if test.ctx != nil {
						ctx = test.ctx()
					}
					err := s.run(ctx, c, test.fn)
					if got := outcome(err); got != test.want || test.matches != nil && !errors.Is(err, test.matches) {
						t.Errorf("%s: %s, want %s and %v: %v", test.what, got, test.want, test.matches, err)
					}
					deaf.Store(false)
				}
			})
		})
	}
}

// ranSections are calls that get a function, each time for something new.
func ranSections(t *testing.T, b *locktest.Backend) []section {
	n := 0
	name := func(of string) string { n++; return fmt.Sprint(of, n) }
	permits := func() *rlock.PermitSemaphore {
		return locktest.MustSetPermits(t, b.NewClient(t).NewPermitSemaphore(name("permits")), 1)
	}
	return append([]section{
		{name: "Lease.Do", run: func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			lease := locktest.MustLock(t, c.NewLock(name("lease")))
			if ctx.Err() != nil { // nobody calls it then: it has ended
				ended, end := context.WithCancel(bg)
				end()
				_ = lease.Unlock(ended)
				return errors.Join(lease.Do(ctx, fn), ctx.Err())
			}
			return lease.Do(ctx, fn)
		}},
		{name: "Lease.Do of a permit", run: func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			lease, err := c.NewPermitSemaphore(permits().Name()).Acquire(bg, 1)
			if err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				_ = lease.Unlock(bg)
				return errors.Join(lease.Do(ctx, fn), ctx.Err())
			}
			return lease.Do(ctx, fn)
		}},
		{name: "Election", run: func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			return c.NewElection(name("election")).Run(ctx, "me", fn)
		}},
		{name: "Once anew", run: func(ctx context.Context, c *rlock.Client, fn func(ctx context.Context) error) error {
			_, _, err := c.NewOnce(name("once"), time.Minute).Do(ctx, func(ctx context.Context) ([]byte, error) { return nil, fn(ctx) })
			return err
		}},
	}, slices.DeleteFunc(sections(t, b), func(s section) bool { return s.name == "Once" })...)
}
