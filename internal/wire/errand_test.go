package wire

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/seam"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "20") // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// behind returns the deployment of a new server, behind a proxy.
func behind(t *testing.T) (*Deployment, *faultproxy.Proxy) { return behindFor(t, 5*time.Second) }

// behindFor is behind, with a read timeout of go-redis.
func behindFor(t *testing.T, reply time.Duration) (*Deployment, *faultproxy.Proxy) {
	proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: reply, MaxRetries: -1})
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Second, UnlockTimeout: time.Second, LongestCall: time.Second, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		rdb.Close()
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if err := d.Wait(ctx); err != nil {
			t.Error("something is under way still")
		}
	})
	return d, proxy
}

var echo = NewScript("echo", func() (string, bool) {
	return "if ARGV[1] == 'bad' then return redis.call('hget', KEYS[1], 'f') end return ARGV[1]", false
})

// errand is a request for an echo.
type errand struct {
	text    string
	timeout time.Duration
	drop    error // why the request is not needed any more
	edit    func(*Request)
	ctx     context.Context
	answer  chan Answer
}

func newErrand(text string) *errand {
	return &errand{text: text, timeout: 5 * time.Second, ctx: bg, answer: make(chan Answer, 2)}
}

func (e *errand) Request() (*Request, error) {
	r := &Request{Script: echo, Keys: []string{"key"}, Args: []any{e.text}, FailFast: true}
	if e.edit != nil {
		e.edit(r)
	}
	return r, e.drop
}

func (e *errand) Answered(_ time.Time, a Answer) { e.answer <- a }
func (e *errand) Timeout() time.Duration         { return e.timeout }
func (e *errand) Context() context.Context       { return e.ctx }
func (e *errand) Wanted() bool                   { return true }

// must waits for the answer, which must be the echo.
func (e *errand) must(t *testing.T, unsure bool) {
	t.Helper()
	if a := <-e.answer; a.Err != nil || a.Val != e.text || a.Unsure != unsure {
		t.Errorf("%s: %+v", e.text, a)
	}
}

// isEcho reports whether a command is a request for the echo of a text.
func isEcho(c faultproxy.Command, text string) bool {
	return c.IsScript(echo.SHA()) && c.Args[len(c.Args)-1] == text
}

// holdsHeld is for a proxy: nobody answers the text "held".
func holdsHeld(c faultproxy.Command) faultproxy.Action {
	if isEcho(c, "held") {
		return faultproxy.Hold
	}
	return faultproxy.Pass
}

// warm loads the script into the server.
func warm(t *testing.T, d *Deployment) {
	for late := true; late; late = d.lost() { // on a slow machine a reply may be late, and that remains until a PING is answered
		e := newErrand("warm")
		d.Ask(e)
		e.must(t, false)
	}
}

// hold keeps every worker busy with a first request until release is called.
func hold(t *testing.T, d *Deployment, proxy *faultproxy.Proxy) (release func()) {
	t.Helper()
	d.senders.votes.far = 0 // the server counts as near even if this machine is slow
	free := make(chan struct{})
	reached := make(chan struct{}, voteWorkers)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if isEcho(c, "first") {
			reached <- struct{}{}
			<-free
		}
		return faultproxy.Pass
	})
	var first []*errand
	for range voteWorkers {
		first = append(first, newErrand("first"))
		d.Ask(first[len(first)-1])
		<-reached
	}
	var once sync.Once
	release = func() {
		once.Do(func() {
			close(free)
			for _, e := range first {
				e.must(t, false)
			}
		})
	}
	t.Cleanup(release)
	return release
}

// Errands that come while the workers are busy share a pipeline. An errand that is not needed any
// more is not sent, and an errand that fails does not affect the others.
func TestAskTogether(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	d.io.Set(bg, "key", "no hash", 0)
	release := hold(t, d, proxy)
	var all []*errand
	for i := range 40 {
		all = append(all, newErrand(fmt.Sprint(i)))
	}
	all[7].drop = ErrTooLate
	all[11].text = "bad"
	before := len(proxy.Commands())
	for _, e := range all {
		d.Ask(e)
	}
	time.Sleep(20 * time.Millisecond)
	if n := len(proxy.Commands()) - before; n != 0 {
		t.Errorf("%d commands were sent beside those under way", n)
	}
	release()
	for i, e := range all {
		switch i {
		case 7:
			if a := <-e.answer; a.Err != ErrTooLate || a.Unsure {
				t.Errorf("%+v", a)
			}
		case 11:
			if a := <-e.answer; !errors.Is(a.Err, ErrForeignKey) {
				t.Errorf("%+v", a)
			}
		default:
			e.must(t, false)
		}
	}
	if proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "7") }) != 0 {
		t.Error("sent although it is not needed any more")
	}
	conns := map[int]bool{}
	for _, c := range proxy.Commands()[before:] {
		conns[c.Conn] = true
	}
	if len(conns) > 3 { // one of them for the type of the foreign key
		t.Errorf("%d connections", len(conns))
	}
}

// A request that the server does not run now is not sent again, and certainly has not run.
func TestAskFailsFast(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if isEcho(c, "loading") {
			return faultproxy.Error
		}
		return faultproxy.Pass
	})
	e := newErrand("loading")
	d.Ask(e)
	if a := <-e.answer; !errors.Is(a.Err, ErrRefused) || errors.Is(a.Err, ErrUnreachable) || a.Unsure {
		t.Errorf("%+v", a)
	}
	if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "loading") }); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// A lost reply delays only its own request. A second copy gets the answer, which is unsure, because
// the first copy may have run.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	d, proxy := behindFor(t, longestIO)
	d.senders.votes.far = 0 // the server counts as near even if this machine is slow
	warm(t, d)
	lost := make(chan bool, voteWorkers)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if isEcho(c, "lost") {
			select {
			case lost <- true:
				return faultproxy.SwallowReply
			default: // a second copy
			}
		}
		return faultproxy.Pass
	})
	var all []*errand
	for i := range voteWorkers {
		e := newErrand("lost")
		e.timeout = 20 * time.Second
		all = append(all, e)
		d.Ask(e)
		for len(lost) <= i { // so that each errand has a separate pipeline
			time.Sleep(time.Millisecond)
		}
	}
	after := newErrand("after")
	d.Ask(after)
	after.must(t, false)
	if proxy.Count(func(c faultproxy.Command) bool { return c.Name == "ping" }) == 0 {
		t.Error("it was sent before the server had answered a PING")
	}
	if len(all[0].answer)+len(all[1].answer) > 0 {
		t.Error("the request after them had to wait")
	}
	for _, e := range all {
		e.must(t, true)
	}
	if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "lost") }); n != 2*voteWorkers {
		t.Errorf("sent %d times", n)
	}
}

// A reply that is late but not lost is the answer, and no second copy is sent.
func TestAskAnsweredLate(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	e := newErrand("late")
	proxy.Delay(func(c faultproxy.Command) time.Duration {
		if isEcho(c, "late") {
			return e.timeout * 2 / overduePart
		}
		return 0
	})
	d.Ask(e)
	e.must(t, false)
	if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "late") }); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// An errand without a reply ends with its timeout, and its answer is unsure.
func TestAskUnanswered(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	proxy.Handle(holdsHeld)
	e := newErrand("held")
	e.timeout = 2 * time.Second // enough to send it
	began := time.Now()
	d.Ask(e)
	if a := <-e.answer; !errors.Is(a.Err, ErrUnreachable) || !strings.Contains(a.Err.Error(), " within 2s") || !a.Unsure {
		t.Errorf("%+v", a)
	}
	if took := time.Since(began); took < e.timeout {
		t.Errorf("gave up after %v", took)
	}
	if !d.IsLost(time.Second) {
		t.Error("a server without an answer counts as reachable")
	}
}

// A request that still waits for a connection when its errand has ended is not sent.
func TestNobodyWaitsForAConnectionInVain(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), PoolSize: 1, PoolTimeout: time.Hour, ReadTimeout: 5 * time.Second, MaxRetries: -1})
	defer rdb.Close()
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Second, UnlockTimeout: time.Second, LongestCall: time.Second, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	only := rdb.Conn()

	if err := only.Ping(bg).Err(); err != nil {
		t.Fatal(err)
	}
	e := newErrand("waits")
	e.timeout = 200 * time.Millisecond
	d.Ask(e)
	if a := <-e.answer; !errors.Is(a.Err, ErrUnreachable) || a.Unsure {
		t.Errorf("%+v", a)
	}
	await(func() bool { // or this test hangs
		s := &d.senders.votes
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.busy == 0 && s.overdue == 0
	})
	_ = only.Close()
	again := newErrand("again") // by the same worker, if that still rests
	d.Ask(again)
	again.must(t, false)
}

// An errand to a server that does not answer waits for the reply to a PING, and can be withdrawn.
func TestAskWaitsForThePing(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	d.Failed(errors.New("no answer"))
	ping := make(chan faultproxy.Action, 1)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.Name == "ping" {
			return <-ping
		}
		return faultproxy.Pass
	})
	for _, answers := range []bool{false, true} {
		stays, goes, hasty := newErrand("stays"), newErrand("goes"), newErrand("hasty")
		hasty.timeout = 50 * time.Millisecond
		for _, e := range []*errand{stays, goes, hasty} {
			w := d.Ask(e)
			if w == nil {
				t.Fatal("it was asked")
			}
			if e == goes && (!w.Withdraw() || w.Withdraw()) {
				t.Error("an errand that waits can be withdrawn once")
			}
		}
		if a := <-hasty.answer; !errors.Is(a.Err, ErrUnreachable) || a.Unsure {
			t.Errorf("%+v", a)
		}
		if answers {
			ping <- faultproxy.Pass
			stays.must(t, false)
		} else {
			ping <- faultproxy.ResetBefore
			if a := <-stays.answer; !errors.Is(a.Err, ErrUnreachable) || a.Unsure {
				t.Errorf("%+v", a)
			}
		}
		if len(goes.answer) > 0 {
			t.Error("a withdrawn errand was answered")
		}
	}
	if proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "goes") || isEcho(c, "hasty") }) > 0 {
		t.Error("a withdrawn errand was sent")
	}
}

// Workers of errands end when they have nothing to do.
func TestWorkersOfErrandsEnd(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	s := &d.senders.votes
	rest := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.idle)
	}
	var all []*errand
	for i := range 10 {
		all = append(all, newErrand(fmt.Sprint(i)))
		d.Ask(all[i])
	}
	for _, e := range all {
		e.must(t, false)
	}
	idle(t, s)
	await(func() bool { return rest() == 0 }) // or this test hangs
	d.Stop()
	again := newErrand("after Stop") // others may have locks on this server
	d.Ask(again)
	again.must(t, false)
	idle(t, s)
	if n := rest(); n != 0 {
		t.Errorf("%d workers stay after Stop", n)
	}
}

// If a hook ends the goroutine of a worker, the worker's request continues as after a lost reply, and
// other requests are not affected.
func TestWorkerOfErrandsThatAHookEnds(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	warm(t, d)
	var ended atomic.Bool
	d.rdb.(*redis.Client).AddHook(&seenHook{before: func() {
		if !ended.Swap(true) {
			runtime.Goexit()
		}
	}})
	for range 2 * voteWorkers {
		e := newErrand("hooked")
		d.Ask(e)
		e.must(t, false) // the first copy has not left this process, and never will
	}
}

// The hooks of go-redis get the values of the caller's context if the request does not share a pipeline.
func TestAskHasTheValuesOfTheCaller(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	type key struct{}
	seen := &seenHook{key: key{}}
	d.rdb.(*redis.Client).AddHook(seen)
	ctx := context.WithValue(bg, key{}, "mine")
	e := newErrand("hooked")
	e.ctx = ctx
	d.Ask(e)
	e.must(t, false)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if !slices.Contains(seen.values, any("mine")) {
		t.Errorf("%v", seen.values)
	}
}

type seenHook struct {
	key    any
	before func()     // called first
	mu     sync.Mutex // guards the rest
	values []any
}

func (h *seenHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *seenHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.before != nil {
			h.before()
		}
		h.mu.Lock()
		h.values = append(h.values, ctx.Value(h.key))
		h.mu.Unlock()
		return next(ctx, cmd)
	}
}
func (h *seenHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// chained is an errand whose answer causes the next errand.
type chained struct {
	*errand
	next func()
}

func (c chained) Answered(sent time.Time, a Answer) {
	c.next()
	c.errand.Answered(sent, a)
}

// An errand that an answer causes is sent by the worker that passes the answer on: no other worker is
// woken for it.
func TestAnswerIsFollowedByTheSameWorker(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	s := &d.senders.votes
	last := newErrand("last")
	next := func() { d.Ask(last) }
	for i := range 20 {
		c, then := chained{errand: newErrand(fmt.Sprint(i))}, next
		c.timeout = time.Minute // an overdue worker would not count
		c.next = then
		next = func() {
			s.mu.Lock()
			busy, rest := s.busy, len(s.idle)
			s.mu.Unlock()
			if i < 19 && (busy != 1 || rest != 0) {
				t.Errorf("%d: %d workers are busy, %d rest", i, busy, rest)
			}
			d.Ask(c)
		}
	}
	next()
	last.must(t, false)
	idle(t, s)
}

// An errand that waits for a worker that passes answers on is sent even if that worker ends.
func TestWorkerThatEndsWithAnAnswer(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	last := newErrand("last")
	d.Ask(chained{newErrand("first"), func() {
		d.Ask(last)
		runtime.Goexit()
	}})
	last.must(t, false)
	idle(t, &d.senders.votes)
}

// Background errands are sent one pipeline at a time, and not at all after the end of their context. A request with
// NoResend is sent once, even if its reply is late.
func TestPut(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	home, _ := behind(t)
	warm(t, d)
	free, reached := make(chan struct{}), make(chan struct{}, 1)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if isEcho(c, "first") {
			reached <- struct{}{}
			<-free
		}
		return faultproxy.Pass
	})
	first := newErrand("first")
	first.timeout, first.edit = time.Hour, func(r *Request) { r.NoResend = true }
	d.Put(home, first)
	<-reached
	var all []*errand
	for i := range 10 {
		e := newErrand(fmt.Sprint(i))
		if i == 5 {
			ctx, cancel := context.WithCancel(bg)
			e.ctx = ctx
			cancel()
		}
		all = append(all, e)
		d.Put(home, e)
	}
	s := &d.senders.renewals
	s.mu.Lock()
	if s.busy != 1 || s.waitsLocked() != len(all) {
		t.Errorf("%d workers are busy, %d errands wait", s.busy, s.waitsLocked())
	}
	s.mu.Unlock()
	if home.sending.None() {
		t.Error("the end of the home does not wait for them")
	}
	before := len(proxy.Commands())
	close(free)
	first.must(t, false)
	conns := map[int]bool{}
	for i, e := range all {
		if i != 5 {
			e.must(t, false)
		} else if a := <-e.answer; a.Err != ErrTooLate || a.Unsure {
			t.Errorf("%+v", a)
		}
	}
	for _, c := range proxy.Commands()[before:] {
		conns[c.Conn] = true
	}
	if len(conns) != 1 {
		t.Errorf("%d connections", len(conns))
	}
	if proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "5") }) > 0 {
		t.Error("sent although its client has ended")
	}
	proxy.Handle(holdsHeld)
	held := newErrand("held")
	held.timeout, held.edit = time.Second, first.edit
	d.Put(home, held)
	if a := <-held.answer; !errors.Is(a.Err, ErrUnreachable) || !a.Unsure {
		t.Errorf("%+v", a)
	}
	if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "held") }); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// How long a request may be without a reply depends on the usual time of the server: at least an
// eighth of the timeout, twice the usual time if that is more, and at most three quarters of the timeout.
func TestWhatIsLateFollowsTheServer(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var s sender
	for _, c := range []struct {
		takes time.Duration // time of the next replies
		times int
		late  time.Duration // patience after these replies
	}{
		{0, 0, 100 * ms},
		{10 * ms, 3, 100 * ms},
		{400 * ms, 1, 120 * ms}, // a single reply changes little
		{200 * ms, 50, 400 * ms},
		{700 * ms, 50, 600 * ms},
		{10 * ms, 50, 100 * ms},
	} {
		for range c.times {
			s.noteReplyLocked(time.Now(), c.takes)
		}
		if got := s.patience(800 * ms).Round(5 * ms); got != c.late {
			t.Errorf("after %d of %v: %v, want %v", c.times, c.takes, got, c.late)
		}
	}
}

// A late reply to a caller says nothing about errands: they do not wait for a PING.
func TestOverdueRequestOfACallerDoesNotDelayErrands(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	proxy.Handle(holdsHeld)
	ctx, leave := context.WithCancel(bg)
	done := make(chan Answer, 1)
	go func() { done <- d.Do(ctx, 8*time.Second, echoOf("held")) }()
	await(func() bool {
		s := &d.senders.one
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.overdue > 0
	})
	if d.lost() {
		t.Error("errands wait for a PING")
	}
	leave()
	<-done
}
