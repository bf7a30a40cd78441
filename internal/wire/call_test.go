package wire

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
)

var bg = context.Background()

// server is a hook that replies in place of a server.
type server func(ctx context.Context, cmd redis.Cmder) (any, error)

func (s server) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s server) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		val, err := s(ctx, cmd)
		cmd.(interface{ SetVal(any) }).SetVal(val)
		cmd.SetErr(err)
		return err
	}
}

func (s server) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type deaf struct{}

func (deaf) Retried(context.Context, string, error) {}
func (deaf) Unpublished(error)                      {}

// open returns the deployment of a server.
func open(t testing.TB, s server) *Deployment {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialed
	rdb.AddHook(s)
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Minute, UnlockTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		_ = rdb.Close()
	})
	return d
}

// asking returns a request with a text, which identifies it.
func asking(script *Script, which string) *Request {
	r := &Request{Script: script}
	r.Put(1, "key", which)
	return r
}

var script = NewScript("test/ask", func() (string, bool) { return "return ARGV[1]", false })

// A reply that comes after its call has returned does not become the answer of a later call,
// although calls and workers are reused.
func TestLateAnswerIsNotALaterCalls(t *testing.T) {
	stuck, arrived := make(chan struct{}), make(chan struct{})
	d := open(t, func(_ context.Context, cmd redis.Cmder) (any, error) {
		which := cmd.Args()[4]
		if which == "late" {
			arrived <- struct{}{}
			<-stuck
		}
		return which, nil
	})
	d.Do(bg, time.Minute, asking(script, "first")) // a call and a worker rest now
	ctx, cancel := context.WithCancel(bg)
	go func() {
		<-arrived
		cancel()
	}()
	if a := d.Do(ctx, time.Minute, asking(script, "late")); !errors.Is(a.Err, context.Canceled) || !a.Unsure {
		t.Fatalf("%+v", a)
	}
	var wg sync.WaitGroup
	for _, which := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			for i := range 200 {
				if i == 10 && which == "a" {
					close(stuck)
				}
				if a := d.Do(bg, time.Minute, asking(script, which)); a.Val != which || a.Err != nil || a.Unsure {
					t.Errorf("%s: %+v", which, a)
				}
			}
		})
	}
	wg.Wait()
}

// When a call ends without a reply, the context of its copy ends too, so that go-redis does not
// send the copy any more. The context has the caller's values, and the deadline of the budget.
func TestContextOfACopy(t *testing.T) {
	type key struct{}
	caller, cancel := context.WithCancel(context.WithValue(bg, key{}, "value"))
	seen := make(chan context.Context)
	ended := make(chan error)
	d := open(t, func(ctx context.Context, cmd redis.Cmder) (any, error) {
		cmd.Args() // to send it
		seen <- ctx
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	for name, test := range map[string]struct {
		ctx    context.Context
		budget time.Duration
		end    func()
		want   error
	}{
		"canceled": {caller, time.Minute, cancel, context.Canceled},
		"too late": {context.WithValue(bg, key{}, "value"), 50 * time.Millisecond, func() {}, context.DeadlineExceeded},
	} {
		start := time.Now()
		done := make(chan Answer, 1)
		r := asking(script, name)
		r.NoResend = true // no second copy
		go func() { done <- d.Do(test.ctx, test.budget, r) }()
		ctx := <-seen
		if at, ok := ctx.Deadline(); !ok || at.Before(start.Add(test.budget)) || at.After(time.Now().Add(test.budget)) {
			t.Errorf("%s: deadline %v, %v", name, at.Sub(start), ok)
		}
		if ctx.Value(key{}) != "value" {
			t.Errorf("%s: the caller's values are missing", name)
		}
		test.end()
		if a := <-done; a.Err == nil || !a.Unsure {
			t.Errorf("%s: %+v", name, a)
		}
		if err := <-ended; !errors.Is(err, test.want) {
			t.Errorf("%s: the copy's context ended with %v", name, err)
		}
	}
}

// If a hook ends its goroutine, only the copy that met the hook gets no answer.
func TestWorkerThatAHookEnds(t *testing.T) {
	d := open(t, func(_ context.Context, cmd redis.Cmder) (any, error) {
		if cmd.Args()[4] == "end" {
			runtime.Goexit()
		}
		return "ok", nil
	})
	for range 3 {
		if a := d.Do(bg, 20*time.Millisecond, asking(script, "end")); !errors.Is(a.Err, ErrUnreachable) || !a.Unsure {
			t.Errorf("%+v", a)
		}
		if a := d.Do(bg, time.Minute, asking(script, "go on")); a.Val != "ok" {
			t.Errorf("%+v", a)
		}
	}
	d.Stop()
	if err := d.Wait(bg); err != nil {
		t.Error(err)
	}
}

// Few workers stay when many callers have left, none when they were not needed for a while,
// and none when the deployment is stopped. Later requests are still sent.
func TestWorkersEnd(t *testing.T) {
	t.Parallel()
	all := make(chan struct{})
	var here sync.WaitGroup
	d := open(t, func(_ context.Context, cmd redis.Cmder) (any, error) {
		if cmd.Args()[4] == "together" {
			here.Done()
			<-all
		}
		return "ok", nil
	})
	const callers = 5 * mostSpare
	d.senders.one.alone = callers
	here.Add(callers)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() { d.Do(bg, time.Minute, asking(script, "together")) })
	}
	here.Wait()
	close(all)
	wg.Wait()
	resting := func() (workers, calls int) {
		one := &d.senders.one
		one.mu.Lock()
		defer one.mu.Unlock()
		d.calls.mu.Lock()
		defer d.calls.mu.Unlock()
		return len(one.idle), len(d.calls.all)
	}
	if workers, calls := resting(); workers > mostSpare || calls > mostSpare {
		t.Errorf("%d workers and %d calls rest", workers, calls)
	}
	allGone := func(after string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			workers, _ := resting()
			if workers == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d workers rest after %s", workers, after)
			}
		}
	}
	allGone("nobody needed them")
	if a := d.Do(bg, time.Minute, asking(script, "again")); a.Val != "ok" {
		t.Errorf("%+v", a)
	}
	d.Stop()
	if a := d.Do(bg, time.Minute, asking(script, "after")); a.Val != "ok" {
		t.Errorf("%+v", a)
	}
	allGone("Stop")
}

// A worker that is taken while others are trimmed does its job: callers race with trim, and each
// of them gets its answer.
func TestTrimmedWorkersLoseNoJob(t *testing.T) {
	d := open(t, func(context.Context, redis.Cmder) (any, error) { return "ok", nil })
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				d.senders.one.trim() // far more often than by its timer
			}
		}
	})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 2000 {
				if a := d.Do(bg, time.Minute, asking(script, "ask")); a.Val != "ok" || a.Unsure {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	callers.Wait()
	close(quit)
	wg.Wait()
}

// The timer of a call stays armed for the next request with the same call. It does not end that
// request early, does not send a copy early, and fires at the deadline of that request.
func TestTimerOfAnEarlierRequest(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	ends := make(chan struct{})
	d := open(t, func(_ context.Context, cmd redis.Cmder) (any, error) {
		sent.Add(1)
		switch cmd.Args()[4] {
		case "slow":
			time.Sleep(50 * time.Millisecond)
		case "silent":
			<-ends
		}
		return "ok", nil
	})
	defer close(ends)
	for _, pause := range []time.Duration{0, 60 * time.Millisecond} { // the timer fires during the next request, or before it
		for d.Do(bg, 40*time.Millisecond, asking(script, "quick")).Err != nil {
			t.Log("a busy machine")
		}
		time.Sleep(pause)
		sent.Store(0)
		if a := d.Do(bg, time.Minute, asking(script, "slow")); a.Err != nil || a.Unsure || sent.Load() != 1 {
			t.Errorf("after %v: %+v, sent %d times", pause, a, sent.Load())
		}
		sent.Store(0)
		began := time.Now()
		if a := d.Do(bg, time.Second, asking(script, "silent")); !errors.Is(a.Err, ErrUnreachable) || sent.Load() != copies {
			t.Errorf("after %v: %+v after %v, sent %d times", pause, a, time.Since(began), sent.Load())
		}
	}
}

// Of two copies of a request with one effect, the reply of the copy that did the work counts, in each form of such a
// reply, and in each order of the replies. Only after a reply that nothing was done does the call wait for the other copy.
func TestOneEffectOfTwoCopies(t *testing.T) {
	t.Parallel()
	d := open(t, func(context.Context, redis.Cmder) (any, error) { return nil, nil })
	list := func(items ...any) any { return items }
	for _, c := range []struct {
		name         string
		each         bool
		done, absent any // reply of the copy that ran first, and of the other copy
		both         any // the combined reply; nil means done
		waits        bool
	}{
		{name: "a number", done: int64(1), absent: int64(0)},
		{name: "a token", done: int64(7), absent: int64(-7)},
		{name: "a list", done: list(int64(1), int64(25), "3:1700"), absent: int64(0)},
		{name: "a list, and another has it since", done: list(int64(1), int64(25), "3:1700"), absent: int64(-1)},
		{name: "a list, and a list", done: list(int64(1), int64(25)), absent: list(int64(0))},
		{name: "all of several", each: true, done: int64(1), absent: list(int64(0), int64(-1))},
		{name: "some of several", each: true, done: list(int64(1), int64(0)), absent: list(int64(0), int64(0)), waits: true},
		{name: "some of several each", each: true, done: list(int64(1), int64(0)), absent: list(int64(-1), int64(1)), both: list(int64(1), int64(1)), waits: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := c.both
			if want == nil {
				want = c.done
			}
			for order, replies := range map[string][]any{"in order": {c.done, c.absent}, "the other way round": {c.absent, c.done}} {
				r := asking(script, c.name)
				r.OneEffect, r.Each = true, c.each
				call := newCall()
				call.d, call.r, call.ctx = d, r, bg
				call.start(time.Now(), time.Hour)
				call.waiting, call.sent = len(replies), len(replies)
				var last Answer
				for i, reply := range replies {
					last = Answer{Val: reply, slot: uint8(i)}
					first := i == 0
					if over, waits := call.isDone(&last), first && (c.waits || order != "in order"); over == waits {
						t.Fatalf("%s: %+v ends the call: %v", order, last, over)
					} else if over {
						break
					}
				}
				if !reflect.DeepEqual(last.Val, want) || last.Err != nil {
					t.Errorf("%s: %+v, want %v", order, last, want)
				}
			}
		})
	}
}

// A program uses a few of all the scripts: a text is made when it is needed, once for a script and its WithMany.
func TestScriptIsAssembledOnceWhenItIsNeeded(t *testing.T) {
	made := 0
	s := NewScript("a", func() (string, bool) { made++; return "return 1", true })
	with := s.WithMany(echoes)
	if made != 0 {
		t.Fatal("made before it was needed")
	}
	if s.Text() != "return 1" || with.Text() != s.Text() || with.SHA() != "e0e1f9fabfc9d4800c877a703b823ac0578ff8db" || !with.Publishes() || with.Many != echoes || made != 1 {
		t.Errorf("%+v, %+v: made %d times", s, with, made)
	}
}
