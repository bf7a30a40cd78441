package coordination

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

const (
	lockKey   = "{job}:rlock:once"
	resultKey = "{job}:rlock:once:result"
)

// returns is a function that returns a text.
func returns(text string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return []byte(text), nil }
}

func unwanted(context.Context) ([]byte, error) { panic("it ran") }

func wantDo(t testing.TB, o *rlock.Once, fn func(context.Context) ([]byte, error), want string, ran bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	got, did, err := o.Do(ctx, fn)
	if string(got) != want || did != ran || err != nil {
		t.Fatalf("Do: %.50q, ran: %v, %v; want %.50q, %v", got, did, err, want, ran)
	}
}

// doing is a Do under way.
type doing struct {
	inside chan struct{}     // closed when its function has begun
	fate   chan func() error // what the function does
	result string
	cancel context.CancelFunc
	got    []byte
	ran    bool
	err    error
	done   chan struct{}

	mayFail bool // of the model: a run has failed while it waited
}

func does(o *rlock.Once, result string) *doing {
	ctx, cancel := context.WithCancel(bg)
	d := &doing{inside: make(chan struct{}), fate: make(chan func() error, 1), result: result, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		defer func() {
			if p := recover(); p != nil {
				d.ran, d.err = true, fmt.Errorf("panic: %v", p)
			}
		}()
		d.got, d.ran, d.err = o.Do(ctx, func(context.Context) ([]byte, error) {
			close(d.inside)
			err := (<-d.fate)()
			if err != nil {
				return nil, err
			}
			return []byte(result), nil
		})
	}()
	return d
}

// runs waits until its function runs.
func (d *doing) runs(t locktest.TB) {
	t.Helper()
	select {
	case <-d.inside:
	case <-d.done:
		t.Fatalf("it does not run: %q, %v, %v", d.got, d.ran, d.err)
	case <-time.After(20 * time.Second):
		t.Fatal("it does not run")
	}
}

// end waits for its end.
func (d *doing) end(t locktest.TB) {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
		t.Fatal("Do does not return")
	}
}

// succeeds lets it end well.
func (d *doing) succeeds(t locktest.TB) {
	t.Helper()
	d.fate <- func() error { return nil }
	d.end(t)
}

func (d *doing) want(t locktest.TB, result string, ran bool) {
	t.Helper()
	d.end(t)
	if string(d.got) != result || d.ran != ran || d.err != nil {
		t.Fatalf("Do: %q, ran: %v, %v; want %q, %v", d.got, d.ran, d.err, result, ran)
	}
}

func TestOneRunsAndAllHaveTheResult(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		// Waiters are woken by messages: nobody polls.
		var all []*rlock.Once
		for range 2 {
			all = append(all, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewOnce("job", time.Minute))
		}
		rdb := b.Client(t)
		first := does(all[0], "result")
		first.runs(t)
		var waiting []*doing
		for i := range 20 {
			waiting = append(waiting, does(all[i%2], "another"))
		}
		if held, err := all[1].IsLocked(bg); err != nil || !held {
			t.Fatal(held, err)
		}
		first.succeeds(t)
		first.want(t, "result", true)
		for _, d := range waiting {
			d.want(t, "result", false)
		}
		wantDo(t, all[1], unwanted, "result", false)
		locktest.WantTTL(t, rdb, resultKey, time.Minute)
		if err := rdb.Del(bg, resultKey).Err(); err != nil { // its time is over
			t.Fatal(err)
		}
		wantDo(t, all[1], returns(""), "", true)
		wantDo(t, all[0], unwanted, "", false)
		locktest.WantTTL(t, rdb, resultKey, time.Minute)
	})
}

func TestResultIsKeptForItsTime(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		o := b.NewClient(t).NewOnce("job", time.Millisecond)
		for i := range 3 {
			text := fmt.Sprint(i)
			wantDo(t, o, returns(text), text, true)
			locktest.Eventually(t, "the result is gone", func() bool { return b.Client(t).Exists(bg, resultKey).Val() == 0 })
		}
	})
}

// inLine waits until so many calls wait in the client of o.
func inLine(t testing.TB, o *rlock.Once, n int) {
	t.Helper()
	locktest.Eventually(t, "all wait", func() bool { return locktest.Waiters(t, o) == n })
}

// Those that wait when the function fails fail too, in all processes, and it does not run for each
// of them. Who comes later runs anew.
func TestFailureOfAOnceIsForAllWhoWait(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed: 100 % of it")
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		opts := rlock.WithLongestPoll(locktest.Patient) // only messages wake
		// Those that wait elsewhere have done so for longer than a look takes.
		var clock locktest.Clock
		all := []*rlock.Once{b.NewClient(t, opts).NewOnce("job", time.Minute)}
		for range 7 {
			all = append(all, b.NewClient(t, opts, clock.Option()).NewOnce("job", time.Minute))
		}
		for range 2 {
			first := does(all[0], "")
			first.runs(t)
			var waiting []*doing
			for i := range 40 {
				d := does(all[i%8], "")
				d.fate <- func() error { return failed }
				waiting = append(waiting, d)
			}
			for _, o := range all {
				inLine(t, o, 5)
			}
			clock.Forward(20 * time.Second)
			first.fate <- func() error { return failed }
			if first.end(t); !first.ran || first.err != failed {
				t.Fatal(first.ran, first.err)
			}
			ran := 0
			for i, d := range waiting {
				d.end(t)
				switch {
				case d.ran:
					if ran++; d.err != failed {
						t.Fatal(d.err)
					}
				case !errors.Is(d.err, rlock.ErrFailed) || errors.Is(d.err, rlock.ErrNotAcquired) || !strings.Contains(d.err.Error(), failed.Error()):
					t.Fatal(i, d.err)
				case i%8 == 0 && !errors.Is(d.err, failed):
					t.Fatal(i, "of the same client:", d.err)
				}
			}
			if ran > 3 { // a look may have been under way when it failed, or when the clock was put forward
				t.Errorf("%d of %d that waited ran", ran, len(waiting))
			}
		}
		next := does(all[1], "result")
		next.runs(t)
		last := does(all[0], "")
		inLine(t, all[0], 1)
		next.succeeds(t)
		next.want(t, "result", true)
		last.want(t, "result", false)
		if b.Client(t).HExists(bg, resultKey, "error").Val() {
			t.Error("the failure is kept beside the result")
		}
	})
}

// A run that ends by itself in another way, or because of its caller, is none that failed: the next
// one that waits runs its own.
func TestRunThatIsBrokenOffIsFollowedByTheNext(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(d *doing) error{
		"panic":  func(*doing) error { panic("on purpose") },
		"goexit": func(*doing) error { runtime.Goexit(); return nil },
		"cancel": func(d *doing) error { d.cancel(); return context.Canceled },
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			opts := rlock.WithLongestPoll(locktest.Patient)
			o, other := b.NewClient(t, opts).NewOnce("job", time.Minute), b.NewClient(t, opts).NewOnce("job", time.Minute)
			first := does(o, "")
			first.runs(t)
			waiting := []*doing{does(o, "a"), does(other, "b")}
			inLine(t, o, 1)
			inLine(t, other, 1)
			first.fate <- func() error { return fail(first) }
			first.end(t)
			var next, last *doing
			select {
			case <-waiting[0].inside:
				next, last = waiting[0], waiting[1]
			case <-waiting[1].inside:
				next, last = waiting[1], waiting[0]
			case <-time.After(20 * time.Second):
				t.Fatal("nobody runs")
			}
			next.succeeds(t)
			next.want(t, next.result, true)
			last.want(t, next.result, false)
		})
	}
}

// The reply that a failure was noted is lost: nothing is left of the run, and those who wait hear of
// it. A copy that comes late changes nothing.
func TestFailureOfAOnceWithLostReplies(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	fails := func(context.Context) ([]byte, error) { return nil, failed }
	locktest.EachLoss(t, "once/fail", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		var clock locktest.Clock
		c, proxy, rdb := b.Faulty(t)
		o, other := c.NewOnce("job", time.Minute), b.NewClient(t, clock.Option()).NewOnce("job", time.Minute)
		locktest.LoadScripts(t, rdb, "lock/enter", "once/finish", "once/fail")
		locktest.OnNth(t, proxy, "once/fail", 1, action)
		first := does(o, "")
		first.runs(t)
		waits := does(other, "")
		waits.fate <- func() error { return failed }
		inLine(t, other, 1)
		clock.Forward(20 * time.Second)
		first.fate <- func() error { return failed }
		if first.end(t); !errors.Is(first.err, failed) || errors.Is(first.err, rlock.ErrUnconfirmed) ||
			strings.Contains(first.err.Error(), rlock.ErrUnconfirmed.Error()) != locktest.LosesReply(action) {
			t.Fatal(first.err)
		}
		if waits.end(t); !waits.ran && !errors.Is(waits.err, rlock.ErrFailed) { // it may have looked before the clock was put forward
			t.Fatal(waits.err)
		}
		wantDo(t, o, returns("result"), "result", true)
	})
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		o := c.NewOnce("job", time.Minute)
		locktest.LoadScripts(t, rdb, "lock/enter", "once/finish", "once/fail")
		locktest.OnNth(t, proxy, "once/fail", 1, faultproxy.Hold)
		if _, ran, err := o.Do(bg, fails); !ran || err != failed { // by a resend
			t.Fatal(ran, err)
		}
		wantDo(t, o, returns("result"), "result", true)
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		if rdb.HExists(bg, resultKey, "error").Val() {
			t.Error("a late copy has noted the failure")
		}
		wantDo(t, o, unwanted, "result", false)
	})
}

// A runner that lost its lease does not overwrite the result of its successor, and what it
// brings before that has one is not kept either.
func TestLateRunnerOfAOnceDoesNotOverwrite(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		o, other := b.NewClient(t).NewOnce("job", time.Minute), b.NewClient(t).NewOnce("job", time.Minute)
		for _, early := range []bool{true, false} {
			locktest.DeleteAll(t, rdb)
			late := does(o, "late")
			late.runs(t)
			if was, err := other.ForceUnlock(bg); !was || err != nil {
				t.Fatal(was, err)
			}
			next := does(other, "next")
			next.runs(t)
			if !early {
				next.succeeds(t)
			}
			late.succeeds(t)
			locktest.WantErr(t, late.err, rlock.ErrLeaseLost)
			if string(late.got) != "late" || !late.ran {
				t.Fatalf("%q, %v", late.got, late.ran)
			}
			if early {
				if n := rdb.Exists(bg, resultKey).Val(); n != 0 {
					t.Fatal("the late result was written")
				}
				next.succeeds(t)
			}
			next.want(t, "next", true)
			wantDo(t, o, unwanted, "next", false)
		}
	})
}

// The reply that the result of a late runner was not written is lost too.
func TestLateRunnerWithLostReplyReportsTheLoss(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "once/finish", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		locktest.LoadScripts(t, rdb, "lock/enter", "once/finish")
		other := b.NewClient(t).NewOnce("job", time.Minute)
		late := does(c.NewOnce("job", time.Minute), "late")
		late.runs(t)
		if was, err := other.ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		locktest.OnNth(t, proxy, "once/finish", 1, action)
		late.succeeds(t)
		locktest.WantErr(t, late.err, rlock.ErrLeaseLost, rlock.ErrRemoved)
		wantDo(t, other, returns("next"), "next", true)
	})
}

func TestLostRepliesOfAOnce(t *testing.T) {
	t.Parallel()
	for nth, script := range []string{"lock/enter", "once/peek", "once/finish", "once/peek"} {
		locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			c, proxy, rdb := b.Faulty(t)
			o := c.NewOnce("job", time.Minute)
			locktest.LoadScripts(t, rdb, "once/peek", "lock/enter", "once/finish")
			locktest.OnNth(t, proxy, script, int64(1+nth/3), action)
			var runs atomic.Int64
			for i := range 3 {
				wantDo(t, o, func(context.Context) ([]byte, error) {
					runs.Add(1)
					return []byte("result"), nil
				}, "result", i == 0)
			}
			if runs.Load() != 1 {
				t.Errorf("it ran %d times", runs.Load())
			}
			if rdb.Exists(bg, lockKey).Val() != 0 {
				t.Error("the lock is held")
			}
		})
	}
}

// While another caller's request for the lock is under way, the function runs to its end: that caller has the lock, and
// does not run its own.
func TestCallerWithTheLockChecksForAnOutcome(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, fate := range map[string]func() error{"a result": func() error { return nil }, "a failure": func() error { return failed }} {
		locktest.Beside(t, name, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				first, rdb := b.NewClient(t).NewOnce("job", time.Minute), b.Client(t)
				asks, goOn := make(chan struct{}), make(chan struct{})
				var granted atomic.Bool
				rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
					if locktest.Runs(cmd, "lock/enter") && !granted.Swap(true) {
						close(asks)
						<-goOn
					}
					return next()
				}})
				var clock locktest.Clock
				second := does(locktest.NewClient(t, rdb, clock.Option(), rlock.WithCommandTimeout(time.Hour)).NewOnce("job", time.Minute), "")
				<-asks
				mine := does(first, "result")
				mine.runs(t)
				clock.Forward(20 * time.Second) // the second waits for longer than the request takes
				mine.fate <- fate
				mine.end(t)
				close(goOn)
				if name == "a result" {
					second.want(t, "result", false)
				} else if second.end(t); second.ran {
					t.Error("it ran")
				} else {
					locktest.WantErr(t, second.err, rlock.ErrFailed, rlock.ErrNotRun)
				}
				if b.Client(t).Exists(bg, lockKey).Val() != 0 {
					t.Error("the lock is held")
				}
			})
		})
	}
}

// A caller that has the lock, and is refused what it has to know, does not run, and frees the lock.
func TestCallerThatMayNotCheckDoesNotRun(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(locktest.Ample(500*time.Millisecond)))
		locktest.LoadScripts(t, rdb, "once/peek", "lock/enter")
		var checks atomic.Int64
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(locktest.SHA("once/peek")) && checks.Add(1) > 1 {
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
		_, ran, err := c.NewOnce("job", time.Minute).Do(bg, unwanted)
		if ran {
			t.Error("it ran")
		}
		locktest.WantErr(t, err, rlock.ErrNotRun, rlock.ErrRefused)
		locktest.Eventually(t, "the lock is free", func() bool { return b.Client(t).Exists(bg, lockKey).Val() == 0 })
	})
}

// Do has given up the write of a result, and its caller uses the slice for something else: what
// is written in the background is what the function returned.
func TestResultThatIsWrittenLaterIsThatOfTheFunction(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithUnlockTimeout(100*time.Millisecond))
		o := c.NewOnce("job", time.Minute)
		locktest.LoadScripts(t, rdb, "lock/enter", "once/finish")
		var away atomic.Bool
		away.Store(true)
		id := locktest.SHA("once/finish")
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) && away.Load() {
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
		result, ran, err := o.Do(bg, returns("result"))
		if !ran || string(result) != "result" {
			t.Fatalf("Do: %q, ran: %v", result, ran)
		}
		locktest.WantErr(t, err, rlock.ErrUnconfirmed)
		copy(result, "reused")
		away.Store(false)
		locktest.Eventually(t, "the result is written", func() bool { return rdb.Exists(bg, resultKey).Val() == 1 })
		wantDo(t, o, unwanted, "result", false)
	})
}

// A copy of the first request that comes late neither holds the lock nor brings the result
// back.
func TestLateCopiesOfAOnceChangeNothing(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"lock/enter", "once/finish"} {
		locktest.Beside(t, script, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				c, proxy, rdb := b.Faulty(t)
				o := c.NewOnce("job", time.Minute)
				locktest.LoadScripts(t, rdb, "lock/enter", "once/finish")
				locktest.OnNth(t, proxy, script, 1, faultproxy.Hold)
				wantDo(t, o, returns("first"), "first", true) // by a resend
				rdb.Del(bg, resultKey)                        // its time is over
				if script == "once/finish" {
					wantDo(t, o, returns("second"), "second", true)
				}
				if n := proxy.Release(); n != 1 {
					t.Fatalf("%d copies were late", n)
				}
				if rdb.Exists(bg, lockKey).Val() != 0 {
					t.Error("the lock is held")
				}
				if script == "once/finish" {
					wantDo(t, o, unwanted, "second", false)
				} else if rdb.Exists(bg, resultKey).Val() != 0 {
					t.Error("the result is back")
				}
			})
		})
	}
}

func TestPeekAndForget(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		o, other := c.NewOnce("job", time.Minute), b.NewClient(t).NewOnce("job", time.Minute)
		peeks := func(want string, is bool) {
			t.Helper()
			if got, kept, err := other.Peek(bg); string(got) != want || kept != is || err != nil {
				t.Fatalf("%.20q, %v, %v", got, kept, err)
			}
		}
		forgets := func(want bool) {
			t.Helper()
			if was, err := other.Forget(bg); was != want || err != nil {
				t.Fatal(was, err)
			}
		}
		peeks("", false)
		forgets(false)
		first := does(o, "first")
		first.runs(t)
		peeks("", false) // and does not wait for it
		forgets(false)   // nor does it keep the result from being kept
		first.succeeds(t)
		first.want(t, "first", true)
		peeks("first", true)
		wantDo(t, other, unwanted, "first", false)
		forgets(true)
		peeks("", false)
		if n := b.Client(t).Exists(bg, resultKey).Val(); n != 0 {
			t.Error("the key is there")
		}
		wantDo(t, other, returns(""), "", true)
		peeks("", true)
		forgets(true)
		if _, _, err := other.Do(bg, func(context.Context) ([]byte, error) { return nil, errors.New("failed") }); err == nil {
			t.Error("no error")
		}
		peeks("", false) // a failure is no result
		forgets(false)

		locktest.Stop(c)
		_, _, err := o.Peek(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
		_, err = o.Forget(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
	})
}

// A Forget whose reply is lost is not sent again: it could take a newer result.
func TestForgetIsSentOnce(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		o := c.NewOnce("job", time.Minute)
		locktest.LoadScripts(t, rdb, "once/forget")
		wantDo(t, b.NewClient(t).NewOnce("job", time.Minute), returns("a"), "a", true)
		sent := locktest.OnNth(t, proxy, "once/forget", 1, faultproxy.ResetAfter)
		_, err := o.Forget(bg)
		locktest.WantErr(t, err, rlock.ErrUnreachable)
		if n := sent.Load(); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// A function that hangs, and does not heed its context, keeps the others waiting no longer than
// it may.
func TestOnceThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	first := does(srv.Client().NewOnce("job", time.Hour, rlock.WithMaxHold(10*time.Minute)), "late")
	first.runs(t)
	second := does(srv.NewClient().NewOnce("job", time.Hour), "second")
	locktest.Eventually(t, "it waits", func() bool { return srv.Redis().Exists(bg, lockKey).Val() == 1 })
	srv.Advance(9 * time.Minute)
	select {
	case <-second.inside:
		t.Fatal("it runs beside the first")
	default:
	}
	srv.Advance(2 * time.Minute)
	second.runs(t)
	first.succeeds(t)
	locktest.WantErr(t, first.err, rlock.ErrLeaseLost, rlock.ErrMaxHold)
	second.succeeds(t)
	second.want(t, "second", true)
}

func TestInvalidArgumentsOfAOnce(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for _, o := range []*rlock.Once{
		c.NewOnce("", time.Minute), c.NewOnce("job", 0), c.NewOnce("job", time.Microsecond), c.NewOnce("job", rlock.MaxKeep+1),
		c.NewOnce("job", math.MinInt64), c.NewOnce("job", time.Minute, rlock.WithMaxHold(-1)), c.NewOnce("job", time.Minute, nil), c.NewOnce("a{b", time.Minute), (*rlock.Client)(nil).NewOnce("job", time.Minute), {},
	} {
		_, ran, err := o.Do(bg, unwanted)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		if ran {
			t.Error("it ran")
		}
		_, _, err = o.Peek(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = o.Forget(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	o := c.NewOnce("job", time.Minute)
	_, _, err := o.Do(bg, nil)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	_, ran, err := o.Do(bg, returns(strings.Repeat("x", rlock.MaxResultLength+1)))
	if locktest.WantErr(t, err, rlock.ErrInvalidArgument); !ran {
		t.Error("it did not run")
	}
	_, _, err = o.Do(bg, func(ctx context.Context) ([]byte, error) {
		_, _, err := o.Do(ctx, unwanted)
		return nil, err
	})
	locktest.WantErr(t, err, rlock.ErrReentrant)
	longest := strings.Repeat("x", rlock.MaxResultLength)
	wantDo(t, o, returns(longest), longest, true)
	wantDo(t, o, unwanted, longest, false)

	// The end of the context of one who waits.
	o = c.NewOnce("another", time.Minute)
	first := does(o, "")
	first.runs(t)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	_, _, err = o.Do(ctx, unwanted)
	locktest.WantEnded(t, err, context.DeadlineExceeded)
	first.succeeds(t)
}

// The client shuts down while a function runs: its result is kept all the same.
func TestResultOfARunnerWhoseClientShutsDown(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	first := does(c.NewOnce("job", time.Minute), "result")
	first.runs(t)
	second := does(c.NewOnce("job", time.Minute), "")
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Shutdown(bg); err != nil {
			t.Error(err)
		}
	})
	second.end(t)
	locktest.WantErr(t, second.err, rlock.ErrClosed)
	first.succeeds(t)
	first.want(t, "result", true)
	wg.Wait()
	wantDo(t, b.NewClient(t).NewOnce("job", time.Minute), unwanted, "result", false)
}

// Many waiters of a client cost few commands: what the first of them finds is for all.
func TestWaitersOfAClientShareOneRequest(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	sent := &locktest.CountHook{}
	rdb.AddHook(sent)
	c := locktest.NewClient(t, rdb)
	first := does(b.NewClient(t).NewOnce("job", time.Minute), "result")
	first.runs(t)
	o := c.NewOnce("job", time.Minute)
	var all []*doing
	for _, n := range []int{1, 500} { // those behind the first do not look, so they have no copies to stop
		for len(all) < n {
			all = append(all, does(o, ""))
		}
		locktest.Eventually(t, "all wait", func() bool { return locktest.Waiters(t, o) == n })
	}
	before := sent.N.Load()
	first.succeeds(t)
	for _, d := range all {
		d.want(t, "result", false)
	}
	if n := sent.N.Load() - before; n > 20 {
		t.Errorf("%d commands", n)
	}
	before = sent.N.Load()
	for range 10 {
		wantDo(t, o, unwanted, "result", false)
	}
	if n := sent.N.Load() - before; n != 10 {
		t.Errorf("%d commands for 10 results", n)
	}
}

// TryDo waits for nobody, and says whether somebody runs or has run; WithWait bounds a Do.
func TestOnceWithoutAWaitAndWithABound(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		o, other := b.NewClient(t).NewOnce("job", time.Hour), locktest.NewClient(t, rdb).NewOnce("job", time.Hour)
		first := does(o, "first")
		<-first.inside
		for name, o := range map[string]*rlock.Once{"the client that runs": o, "another": other} {
			_, ran, err := o.TryDo(bg, unwanted)
			if ran {
				t.Errorf("%s: ran", name)
			}
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
			_, ran, err = o.Do(bg, unwanted, rlock.WithWait(0))
			if ran {
				t.Errorf("%s: ran", name)
			}
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
		}
		_, ran, err := other.Do(bg, unwanted, rlock.WithWait(2*time.Second))
		if ran {
			t.Error("ran")
		}
		locktest.WantEnded(t, err, nil)
		first.fate <- func() error { return nil }
		<-first.done
		for _, o := range []*rlock.Once{o, other} {
			if got, ran, err := o.TryDo(bg, unwanted); string(got) != "first" || ran || err != nil {
				t.Errorf("%q, %v, %v", got, ran, err)
			}
		}
		if was, err := o.Forget(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		if got, ran, err := other.TryDo(bg, returns("second")); string(got) != "second" || !ran || err != nil {
			t.Errorf("%q, %v, %v", got, ran, err)
		}
	})
}

// Of many that try at once one runs.
func TestOneOfManyTriesRuns(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		clients := []*rlock.Client{b.NewClient(t), b.NewClient(t), b.NewClient(t)}
		var runs atomic.Int32
		var wg sync.WaitGroup
		for i := range 30 {
			o := clients[i%3].NewOnce("job", time.Hour)
			wg.Go(func() {
				_, ran, err := o.TryDo(bg, func(context.Context) ([]byte, error) {
					runs.Add(1)
					return []byte("done"), nil
				})
				if err != nil && !errors.Is(err, rlock.ErrNotAcquired) || err != nil && ran {
					t.Error(ran, err)
				}
			})
		}
		wg.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("%d ran", n)
		}
	})
}
