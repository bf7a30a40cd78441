package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
)

// crowd is a deployment. All its workers wait for replies.
type crowd struct {
	*Deployment
	t     *testing.T
	proxy *faultproxy.Proxy
	free  chan struct{}
	first sync.WaitGroup
	all   sync.WaitGroup
}

func echoOf(text string) *Request {
	r := &Request{Script: echo}
	r.Put(1, "key", text)
	return r
}

// newCrowd sends as many first requests as workers may send immediately, and holds them until free
// is closed. meets decides about all other requests; nil means that they pass.
func newCrowd(t *testing.T, meets func(faultproxy.Command) faultproxy.Action) *crowd {
	return newCrowdFor(t, time.Hour, meets)
}

// newCrowdFor is newCrowd with a budget for the first requests.
func newCrowdFor(t *testing.T, budget time.Duration, meets func(faultproxy.Command) faultproxy.Action) *crowd {
	d, proxy := behindFor(t, longestIO) // the first requests are not sent again for a while
	d.senders.one.far = 0               // the server counts as near even if this machine is slow
	c := &crowd{Deployment: d, t: t, proxy: proxy, free: make(chan struct{})}
	if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
		t.Fatal(a.Err)
	}
	reached := make(chan struct{}, alone)
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "first") {
			select {
			case reached <- struct{}{}:
			default: // the request was sent again
			}
			<-c.free
		} else if meets != nil {
			return meets(cmd)
		}
		return faultproxy.Pass
	})
	t.Cleanup(func() {
		c.release()
		c.first.Wait()
		c.all.Wait()
	})
	for range alone {
		c.first.Go(func() {
			if a := d.Do(bg, budget, echoOf("first")); budget == time.Hour && (a.Err != nil || a.Val != "first") {
				t.Errorf("%+v", a)
			}
		})
		<-reached
	}
	return c
}

func (c *crowd) release() {
	select {
	case <-c.free:
	default:
		close(c.free)
	}
}

// do makes a request in a goroutine, and returns when the request waits; or is answered, if a slow machine has sent the
// first requests again.
func (c *crowd) do(ctx context.Context, budget time.Duration, r *Request, then func(Answer)) {
	c.t.Helper()
	n := c.queue()
	answered := make(chan struct{})
	c.all.Go(func() {
		defer close(answered)
		then(c.Do(ctx, budget, r))
	})
	for c.queue() == n {
		select {
		case <-answered:
			return
		default:
			runtime.Gosched()
		}
	}
}

// must is do with a request for an echo.
func (c *crowd) must(text string, unsure bool) {
	c.do(bg, 10*time.Minute, echoOf(text), func(a Answer) {
		if a.Err != nil || a.Val != text || a.Unsure != unsure {
			c.t.Errorf("%s: %+v", text, a)
		}
	})
}

// start makes a request in a goroutine.
func (c *crowd) start(budget time.Duration, r *Request, then func(Answer)) {
	c.all.Go(func() { then(c.Do(bg, budget, r)) })
}

// waitFor returns when n requests wait; or after a minute, if a slow machine has sent some of them.
func (c *crowd) waitFor(n int) {
	for end := time.Now().Add(time.Minute); c.queue() < n && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (c *crowd) queue() int {
	k := &c.senders.one
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.waiting) - k.head
}

func (c *crowd) sent(text string) int {
	return c.proxy.Count(func(cmd faultproxy.Command) bool { return isEcho(cmd, text) })
}

// While many requests are under way, the next ones wait, and share a pipeline. Each gets its own
// answer, and a request that fails does not affect the others.
func TestRequestsShareAPipeline(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.io.Set(bg, "key", "no hash", 0)
	before := len(c.proxy.Commands())
	for i := range combined {
		if i == 11 {
			c.start(10*time.Minute, echoOf("bad"), func(a Answer) {
				if !errors.Is(a.Err, ErrForeignKey) {
					t.Errorf("%+v", a)
				}
			})
			continue
		}
		c.start(10*time.Minute, echoOf(fmt.Sprint(i)), func(a Answer) {
			if a.Err != nil || a.Val != fmt.Sprint(i) || a.Unsure {
				t.Errorf("%d: %+v", i, a)
			}
		})
	}
	c.waitFor(combined)
	if n := len(c.proxy.Commands()) - before; n != 0 {
		t.Errorf("%d commands were sent beside those under way", n)
	}
	c.release()
	c.all.Wait()
	conns := map[int]bool{}
	for _, cmd := range c.proxy.Commands()[before:] {
		if cmd.IsScript(echo.SHA()) {
			conns[cmd.Conn] = true
		}
	}
	if len(conns) != 1 {
		t.Errorf("%d connections, not one pipeline", len(conns))
	}
}

// awayFrom returns a crowd with a server at a distance. sent, begun and heard are how long ago a worker was last given
// requests, the busy period began, and the latest reply came.
func awayFrom(t *testing.T, away, sent, begun, heard time.Duration) *crowd {
	c := newCrowd(t, nil)
	k := &c.senders.one
	k.mu.Lock()
	defer k.mu.Unlock()
	k.far, k.away = farPipelines, distance{since: time.Now().Add(time.Hour), now: away}
	now := time.Now()
	k.givenAt, k.busySince, k.repliedAt = now.Add(-sent), now.Add(-begun), now.Add(-heard)
	return c
}

// A request that waits for a server far away is sent when no request was sent for a part of the
// distance, although no reply has come.
func TestRequestsToAServerFarAwayDoNotWaitForAnswers(t *testing.T) {
	t.Parallel()
	// The timer sends the first one, or a slow machine sends it immediately; then the others follow.
	for _, x := range []struct {
		callers      int
		begun, heard time.Duration
	}{
		{1, time.Hour, -time.Hour},
		{20, time.Hour, -time.Hour},
		{20, -time.Hour, time.Hour}, // no request was sent for long: a missing reply proves nothing
	} {
		c := awayFrom(t, 80*time.Millisecond, -10*time.Millisecond, x.begun, x.heard)
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		for i := range x.callers {
			c.all.Go(func() {
				if a := c.Do(ctx, time.Hour, echoOf(fmt.Sprint(i))); a.Err != nil || a.Val != fmt.Sprint(i) {
					t.Errorf("%d of %d: %+v", i, x.callers, a)
				}
			})
		}
		c.all.Wait()
		c.senders.one.mu.Lock()
		if c.senders.one.busy < alone {
			t.Errorf("%+v: they waited until those that were sent at once had failed", x)
		}
		c.senders.one.mu.Unlock()
		cancel()
	}
}

// If a server far away may hang, no more requests are sent to it without a reply; the same for a near server.
func TestRequestsThatWaitForAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*crowd{
		"hangs": awayFrom(t, 80*time.Millisecond, time.Second, time.Second, time.Second),
		"near":  awayFrom(t, far-1, time.Second, time.Second, -time.Hour),
	} {
		for i := range 5 {
			c.all.Go(func() { c.Do(bg, 10*time.Minute, echoOf(fmt.Sprint(i))) })
		}
		time.Sleep(10 * 80 * time.Millisecond / farPipelines) // for requests that should not be sent
		for i := range 5 {
			if c.sent(fmt.Sprint(i)) > 0 {
				t.Errorf("%s: %d was sent", name, i)
			}
		}
		c.release()
	}
}

// A busy period begins when a worker is given requests, no other request is under way, and the server has replied
// since the latest request: a server without a reply may hang.
func TestBegunAfterARest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		busy, overdue int
		heard         time.Duration // time of the latest reply after the latest request
		want          time.Time
	}{{1, 0, 1, now}, {2, 0, 1, time.Time{}}, {1, 1, 1, time.Time{}}, {1, 0, -1, time.Time{}}} {
		s := &sender{d: &Deployment{ctx: bg}, limits: limits{errands: true}, busy: c.busy, overdue: c.overdue}
		s.givenAt = now.Add(-time.Second)
		s.repliedAt = s.givenAt.Add(c.heard)
		s.givenLocked(&worker{s: s}, now)
		if s.busySince != c.want || s.givenAt != now {
			t.Errorf("%+v: begun at %v, want %v", c, s.busySince, c.want)
		}
	}
}

// A worker of a server far away waits for the callers of its pipeline before it takes the waiting jobs.
func TestCallersOfAPipelineAreGathered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		away, ago time.Duration
		waits     int
		want      bool
	}{{far, 0, 1, false}, {far, 0, 2, true}, {far, 0, 3, true}, {far, far, 1, true}, {far - 1, 0, 0, true}} {
		s := &sender{limits: limits{from: far}, away: distance{now: c.away}, waiting: make([]job, c.waits)}
		if got := s.gathered(2, c.ago); got != c.want {
			t.Errorf("%v away, answered %v ago, %d of 2 wait: gathered %v", c.away, c.ago, c.waits, got)
		}
		(&worker{s: s, batch: make([]job, 2)}).gather() // must return
	}
}

// A server far away gets more pipelines. Its replies show the distance.
func TestPipelinesOfAServerFarAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took time.Duration
		most int
	}{{far - 1, 1}, {far, 3}} {
		s := &sender{d: &Deployment{ctx: bg}, limits: limits{alone: 1, near: 1, far: 3, from: far, batch: 2}, busy: 8, away: distance{now: c.took}}
		taken := 0
		for range 5 {
			for range 2 {
				s.waiting = append(s.waiting, job{call: &call{queued: true, budget: time.Hour}})
			}
			if more, _ := s.takeNext(&worker{s: s, state: sending, wake: make(chan struct{}), abandoned: make(chan struct{})}, false); more {
				taken++
			}
		}
		if taken != c.most {
			t.Errorf("%v away: %d pipelines, want %d", c.took, taken, c.most)
		}
	}
	s := &sender{d: &Deployment{ctx: bg}, limits: limits{alone: 1}, busy: 1}
	s.takeNext(&worker{s: s, state: sending, wake: make(chan struct{}), sent: time.Now().Add(-time.Second)}, true)
	if got := s.away.least(); got < time.Second {
		t.Errorf("answered after a second: %v away", got)
	}
}

// The distance of a server is the shortest time of its latest replies.
func TestDistance(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var a distance
	now := time.Now()
	for _, c := range []struct{ after, took, least time.Duration }{
		{0, 30 * ms, 30 * ms},
		{ms, 2 * ms, 2 * ms},
		{ms, 9 * ms, 2 * ms},
		{forgetAfter, 8 * ms, 2 * ms}, // the server was near a moment ago
		{forgetAfter + ms, 7 * ms, 7 * ms},
		{ms, 5 * ms, 5 * ms},
	} {
		now = now.Add(c.after)
		a.add(now, c.took)
		if got := a.least(); got != c.least {
			t.Errorf("after %v: %v, want %v", c.took, got, c.least)
		}
	}
}

// A server far away may be silent for the round trips of a new connection.
func TestPatienceFollowsTheDistance(t *testing.T) {
	d := open(t, nil)
	if p := d.Patience(); p != 0 {
		t.Errorf("%v, of a server that has not answered yet", p)
	}
	now := time.Now()
	for _, took := range []time.Duration{40 * time.Millisecond, 120 * time.Millisecond, 40 * time.Millisecond} {
		d.senders.one.mu.Lock()
		d.senders.one.noteReplyLocked(now, took)
		d.senders.one.mu.Unlock()
	}
	if p := d.Patience(); p < (newConnection+2)*40*time.Millisecond || p > (newConnection+3)*40*time.Millisecond {
		t.Errorf("%v, of a server 40 ms away", p)
	}
	d.senders.byNode = map[string]*sender{"far": {away: distance{now: time.Second}, usual: time.Second}}
	if p := d.Patience(); p != 8*time.Second {
		t.Errorf("%v, of a cluster with a node that is 1 s away", p)
	}
}

// While few requests are under way, they do not wait for each other.
func TestFewRequestsAreSentAtOnce(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	free, reached := make(chan struct{}), make(chan struct{}, alone)
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.Name == "evalsha" {
			reached <- struct{}{}
			<-free
		}
		return faultproxy.Pass
	})
	var wg sync.WaitGroup
	for i := range alone {
		wg.Go(func() {
			if a := d.Do(bg, time.Minute, echoOf(fmt.Sprint(i))); a.Err != nil {
				t.Error(a.Err)
			}
		})
	}
	for range alone {
		<-reached
	}
	close(free)
	wg.Wait()
}

// A request that needs a WAIT on its connection, and a command that is no script, do not wait for
// workers.
func TestRequestsThatAreNotCombined(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	acked := echoOf("acked")
	acked.Acked = true
	if a := c.Do(bg, time.Minute, acked); a.Val != "acked" {
		t.Errorf("%+v", a)
	}
	if a := c.Do(bg, time.Minute, &Request{Args: []any{"ping"}}); a.Val != "PONG" {
		t.Errorf("%+v", a)
	}
}

// A request that is canceled before a worker takes it was never sent, and its answer is not unsure.
func TestCanceledBeforeItIsSent(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	ctx, cancel := context.WithCancel(bg)
	left := make(chan Answer, 1)
	c.senders.one.mu.Lock()
	c.senders.one.givenAt = time.Now().Add(time.Hour) // as if workers took other requests
	c.senders.one.mu.Unlock()
	c.do(ctx, time.Minute, echoOf("canceled"), func(a Answer) { left <- a })
	c.do(bg, 50*time.Millisecond, echoOf("too late"), func(a Answer) {
		if !errors.Is(a.Err, ErrUnreachable) || a.Unsure {
			t.Errorf("%+v", a)
		}
		left <- Answer{}
	})
	<-left
	c.must("other", false)
	cancel()
	if a := <-left; !errors.Is(a.Err, context.Canceled) || a.Unsure {
		t.Errorf("%+v", a)
	}
	c.release()
	c.all.Wait()
	if n := c.sent("canceled") + c.sent("too late"); n != 0 {
		t.Errorf("%d were sent", n)
	}
}

// Withdrawn requests are removed even if all workers hang.
func TestWithdrawnAreForgotten(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.must("stays", false)
	ctx, cancel := context.WithCancel(bg)
	const many = 5 * combined
	var left sync.WaitGroup
	for range many {
		left.Add(1)
		c.do(ctx, time.Minute, echoOf("canceled"), func(Answer) { left.Done() })
	}
	cancel()
	left.Wait()
	if n := c.queue(); n > combined+1 {
		t.Errorf("%d of %d are kept", n, many)
	}
	c.release()
	c.all.Wait()
	idle(t, &c.senders.one)
}

// A request that is canceled while its pipeline is under way returns immediately, and may have
// run. The others get their answers.
func TestCanceledInAPipeline(t *testing.T) {
	t.Parallel()
	var c *crowd
	ctx, cancel := context.WithCancel(bg)
	left := make(chan struct{})
	c = newCrowd(t, func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "canceled") {
			cancel()
			<-left // or this test hangs
		}
		return faultproxy.Pass
	})
	c.must("before", false)
	c.do(ctx, time.Minute, echoOf("canceled"), func(a Answer) {
		if !errors.Is(a.Err, context.Canceled) || !a.Unsure {
			t.Errorf("%+v", a)
		}
		close(left)
	})
	c.must("after", false)
	c.release()
}

// When the connection of a pipeline is lost, each of its requests may have run, and is sent
// again, except a request that must not run twice.
func TestPipelineLosesItsConnection(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	c := newCrowd(t, func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "lost") && !lost.Swap(true) {
			return faultproxy.ResetAfter
		}
		return faultproxy.Pass
	})
	c.must("lost", true)
	c.must("behind", true)
	only := echoOf("once")
	only.NoResend = true
	c.do(bg, time.Minute, only, func(a Answer) {
		if !errors.Is(a.Err, ErrUnreachable) || !a.Unsure {
			t.Errorf("%+v", a)
		}
	})
	c.release()
	c.all.Wait()
	if n := c.sent("once"); n > 1 {
		t.Errorf("sent %d times", n)
	}
}

// When one request of a pipeline is sent again, the others are not.
func TestOneOfAPipelineIsSentAgain(t *testing.T) {
	t.Parallel()
	var refused atomic.Bool
	c := newCrowd(t, func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "loading") && !refused.Swap(true) {
			return faultproxy.Error
		}
		return faultproxy.Pass
	})
	for _, text := range []string{"a", "loading", "b"} {
		c.must(text, false)
	}
	c.release()
	c.all.Wait()
	if a, again, b := c.sent("a"), c.sent("loading"), c.sent("b"); a != 1 || again != 2 || b != 1 {
		t.Errorf("sent %d, %d, %d times", a, again, b)
	}
}

// A server that has lost the script gets its text, also in a pipeline.
func TestPipelineOfAForgottenScript(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	for i := range 5 {
		c.must(fmt.Sprint(i), false)
	}
	if err := c.io.ScriptFlush(bg).Err(); err != nil {
		t.Fatal(err)
	}
	c.release()
}

// If no worker gets a reply, another worker sends the waiting requests in time.
func TestWorkersThatHang(t *testing.T) {
	t.Parallel()
	const budget = 8 * time.Second // a request is overdue after a second
	c := newCrowdFor(t, budget, nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if a := c.Do(bg, budget, echoOf(fmt.Sprint(i))); a.Err != nil || a.Val != fmt.Sprint(i) || a.Unsure {
				t.Errorf("%d: %+v", i, a)
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		if n := c.sent(fmt.Sprint(i)); n != 1 {
			t.Errorf("%d was sent %d times", i, n)
		}
	}
}

// A hook that panics, or ends the goroutine, in a pipeline affects only the requests of that
// pipeline.
func TestPipelineThatAHookEnds(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(){
		"end":   runtime.Goexit,
		"panic": func() { panic("hook") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, nil)
			c.cfg.Panics.Report = func(string, error, string) {}
			c.rdb.(*redis.Client).AddHook(pipelineHook(func(n int) {
				if n == combined { // the other pipeline has two requests
					hurt()
				}
			}))
			for i := range combined {
				c.start(20*time.Second, echoOf(fmt.Sprint(i)), func(a Answer) {
					switch {
					case a.Unsure != (name == "panic"): // after Goexit they were not sent, and never will be
						t.Errorf("%+v", a)
					case name == "panic" && !Panicked(a.Err), name == "end" && a.Err != nil:
						t.Errorf("%+v", a)
					}
				})
			}
			c.waitFor(combined)
			c.must("next", false)
			c.must("and next", false)
			c.release()
			c.all.Wait()
			c.first.Wait()
			c.Stop()
			if err := c.Wait(bg); err != nil {
				t.Error(err)
			}
			idle(t, &c.senders.one)
		})
	}
}

// pipelineHook is called before each pipeline, with its length.
type pipelineHook func(n int)

func (pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h(len(cmds))
		return next(ctx, cmds)
	}
}

// Callers that cancel and callers that do not, in any order: each gets its own answer, and in the
// end no worker counts as busy.
func TestCombinedCallers(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	var n atomic.Int64
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.Name == "evalsha" && n.Add(1)%97 == 0 {
			return faultproxy.Error
		}
		return faultproxy.Pass
	})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for j := range 30 {
				text := fmt.Sprint(i, " ", j)
				ctx, cancel := context.WithCancel(bg)
				if (i+j)%5 == 0 {
					time.AfterFunc(time.Duration(j)*20*time.Microsecond, cancel)
				}
				a := d.Do(ctx, time.Minute, echoOf(text))
				if a.Err == nil && a.Val != text || a.Err != nil && !errors.Is(a.Err, context.Canceled) {
					t.Errorf("%s: %+v", text, a)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if err := d.Wait(bg); err != nil {
		t.Error(err)
	}
	idle(t, &d.senders.one)
}

// idle waits until no job waits and no worker counts as busy, which may be later than the last answer.
func idle(t *testing.T, s *sender) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		busy, passing, pipelines, waiting, withdrawn := s.busy, s.passing, s.pipelines, len(s.waiting), s.withdrawn
		s.mu.Unlock()
		if busy == 0 && passing == 0 && pipelines == 0 && waiting == 0 && withdrawn == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d workers and %d pipelines count, %d pass answers on; %d jobs wait, %d of them withdrawn",
				busy, pipelines, passing, waiting, withdrawn)
		}
	}
}

// nodes is a cluster of two nodes for a Deployment: keys begin with "a" or "b".
type nodes struct {
	*redis.Client
	of map[byte]*redis.Client
}

func (n *nodes) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	return n.of[key[0]], nil
}
func (n *nodes) ReloadState(context.Context) {}

// A node that hangs does not hold up requests to other nodes.
func TestNodesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	answer := func(cmd redis.Cmder) {
		key := cmd.Args()[3].(string)
		if key[0] == 'a' {
			<-free
		}
		cmd.(interface{ SetVal(any) }).SetVal(key)
	}
	n := &nodes{Client: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), of: map[byte]*redis.Client{}}
	n.AddHook(answering(answer))
	defer n.Close()
	for key, addr := range map[byte]string{'a': "127.0.0.1:2", 'b': "127.0.0.1:3"} {
		n.of[key] = redis.NewClient(&redis.Options{Addr: addr})
		defer n.of[key].Close()
	}
	d, err := Open(n, Config{CommandTimeout: time.Minute, UnlockTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{}})
	if err != nil || !d.IsCluster() {
		t.Fatal(err)
	}
	defer d.Stop()
	ask := func(key string) {
		r := &Request{Script: echo}
		r.Put(1, key)
		if a := d.Do(bg, time.Minute, r); a.Err != nil || a.Val != key {
			t.Errorf("%s: %+v", key, a)
		}
	}
	ask("b")
	var held, others sync.WaitGroup
	for i := range 3 * alone {
		held.Go(func() { ask(fmt.Sprint("a", i)) })
	}
	for k := (*sender)(nil); ; runtime.Gosched() {
		d.senders.mu.Lock()
		k = d.senders.byNode["127.0.0.1:2"]
		d.senders.mu.Unlock()
		if k == nil {
			continue
		}
		k.mu.Lock()
		n := len(k.waiting)
		k.mu.Unlock()
		if n == 2*alone {
			break
		}
	}
	began := time.Now()
	for i := range 3 * alone {
		others.Go(func() { ask(fmt.Sprint("b", i)) })
	}
	others.Wait()
	if took := time.Since(began); took > time.Minute/overduePart {
		t.Errorf("they had to wait for %v", took)
	}
	close(free)
	held.Wait()
}

// answering is a hook that replies in place of servers.
type answering func(redis.Cmder)

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { h(cmd); return nil }
}
func (h answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h(cmd)
		}
		return nil
	}
}

// crowded returns a deployment with a hook in place of a server, which calls meets for each command, alone or in a
// pipeline, and replies with the text of the request.
func crowded(t *testing.T, meets func(text string)) *Deployment {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialed
	rdb.AddHook(answering(func(cmd redis.Cmder) {
		text := cmd.Args()[4].(string)
		meets(text)
		cmd.(interface{ SetVal(any) }).SetVal(text)
	}))
	d, err := Open(rdb, Config{CommandTimeout: time.Minute, UnlockTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		if err := d.Wait(bg); err != nil {
			t.Error(err)
		}
		rdb.Close()
	})
	return d
}

// While no worker gets a reply, the waiting requests are sent one pipeline at a time: a server or a
// process that was only short of time could not catch up with all of them. After the first reply,
// workers share the rest again, and other workers replace those that hang.
func TestWorkersThatHangAreReplacedOneByOne(t *testing.T) {
	t.Parallel()
	began := time.Now()
	stuck, free := make(chan struct{}), make(chan struct{})
	var sent atomic.Int64
	d := crowded(t, func(text string) {
		switch text {
		case "stuck":
			sent.Add(1)
			<-stuck
		case "waits":
			sent.Add(1)
			<-free
		}
	})
	var first, all sync.WaitGroup
	const budget = 16 * time.Second // a request is overdue after two seconds
	for range alone {
		first.Go(func() { d.Do(bg, budget, echoOf("stuck")) })
	}
	for sent.Load() < alone {
		time.Sleep(time.Millisecond)
	}
	for range 10 * combined {
		all.Go(func() {
			if a := d.Do(bg, budget, echoOf("waits")); a.Err != nil || a.Val != "waits" {
				t.Errorf("%+v", a)
			}
		})
	}
	for sent.Load() == alone {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // for requests that should not be sent
	n := sent.Load() - alone
	if most := int64(time.Since(began) / (budget / overduePart)); n > most {
		t.Errorf("%d pipelines were sent after %v", n, time.Since(began))
	}
	close(free)
	all.Wait()
	if took := time.Since(began); took > budget*7/8 {
		t.Errorf("it took %v", took)
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	if a := d.Do(ctx, time.Hour, echoOf("next")); a.Err != nil { // a second copy would come after minutes
		t.Errorf("the next one: %+v", a)
	}
	close(stuck)
	first.Wait()
	idle(t, &d.senders.one)
}

// Withdrawn requests do not make others wait: the workers that would take them may hang.
func TestWithdrawnDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	free, reached := make(chan struct{}), make(chan struct{}, 2)
	d := crowded(t, func(text string) {
		if text == "hangs" {
			reached <- struct{}{}
			<-free
		}
	})
	s := &d.senders.one
	s.limits = limits{alone: 2, near: 1, batch: combined}
	var all sync.WaitGroup
	do := func(ctx context.Context, text string) {
		all.Go(func() { d.Do(ctx, time.Hour, echoOf(text)) })
	}
	queue := func(n int) {
		for queued := -1; queued != n; runtime.Gosched() {
			s.mu.Lock()
			queued = s.waitsLocked()
			s.mu.Unlock()
		}
	}
	s.mu.Lock() // a pipeline hangs, and one request
	s.busy, s.pipelines = 1, 1
	s.mu.Unlock()
	do(bg, "hangs")
	<-reached
	ctx, cancel := context.WithCancel(bg)
	do(ctx, "canceled")
	queue(1)
	cancel()
	queue(0)
	s.mu.Lock()
	if len(s.waiting) != 0 || s.withdrawn != 0 {
		t.Errorf("%d are kept, %d of them withdrawn", len(s.waiting), s.withdrawn)
	}
	s.busy-- // the pipeline still counts, and one more request may be sent
	s.mu.Unlock()
	do(bg, "hangs")
	<-reached // or this test hangs
	close(free)
	all.Wait()
}

// When the server answers again, other workers replace overdue workers. Without overdue workers, no worker is added to the
// worker that takes the waiting jobs.
func TestWorkersInThePlaceOfThoseThatHang(t *testing.T) {
	t.Parallel()
	for _, hang := range []int{0, 1} {
		free, reached := make(chan struct{}), make(chan string, 3)
		d := crowded(t, func(text string) {
			if reached <- text; text != "0" {
				<-free
			}
		})
		s := &d.senders.one
		s.limits = limits{alone: 2, near: 2, batch: 1}
		s.mu.Lock()
		s.busy = 2 // until all requests wait
		s.mu.Unlock()
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() { d.Do(bg, time.Hour, echoOf(fmt.Sprint(i))) })
			for queued := 0; queued <= i; runtime.Gosched() {
				s.mu.Lock()
				queued = s.waitsLocked()
				s.mu.Unlock()
			}
		}
		s.mu.Lock()
		s.busy, s.overdue = 0, hang
		s.addLocked(time.Now())
		s.mu.Unlock()
		for range 2 + hang {
			<-reached // or this test hangs
		}
		time.Sleep(20 * time.Millisecond) // for a request that should not be sent
		if n := len(reached); n > 0 {
			t.Errorf("%d hang: %d more were sent", hang, n)
		}
		close(free)
		all.Wait()
	}
}

// One request is overdue early, another late. A request that waits behind both is sent when the first is overdue:
// after each patience, the overdue worker checks whether any request was sent meanwhile.
func TestWorkersThatHangForHours(t *testing.T) {
	t.Parallel()
	free, reached := make(chan struct{}), make(chan struct{}, 2)
	d := crowded(t, func(text string) {
		if text == "hangs" {
			reached <- struct{}{}
			<-free
		}
	})
	d.senders.one.limits = limits{alone: 2, near: 1, batch: combined}
	var all sync.WaitGroup
	do := func(budget time.Duration, text string) {
		all.Go(func() { d.Do(bg, budget, echoOf(text)) })
		<-reached
	}
	do(8*time.Second, "hangs") // overdue after a second
	time.Sleep(500 * time.Millisecond)
	do(time.Hour, "hangs") // overdue after minutes
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	if a := d.Do(ctx, time.Hour, echoOf("waits")); a.Err != nil {
		t.Errorf("%+v", a)
	}
	close(free)
	all.Wait()
}

// A hook may panic at the TYPE that finds out why a request of a pipeline has failed.
func TestHookPanicsAtWhyAPipelineFailed(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.cfg.Panics.Report = func(string, error, string) {}
	c.io.Set(bg, "key", "no hash", 0)
	c.rdb.(*redis.Client).AddHook(answeringTypes{})
	for range 2 {
		c.do(bg, time.Minute, echoOf("bad"), func(a Answer) {
			if !errors.Is(a.Err, ErrForeignKey) {
				t.Errorf("%+v", a)
			}
		})
	}
	c.release()
	c.all.Wait()
}

// A hook may also panic at the TYPE for an errand.
func TestHookPanicsAtWhyAnErrandFailed(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	warm(t, d)
	release := hold(t, d, proxy)
	defer release()
	d.cfg.Panics.Report = func(string, error, string) {}
	d.io.Set(bg, "key", "no hash", 0)
	d.rdb.(*redis.Client).AddHook(answeringTypes{})
	var bad [2]*errand
	for i := range bad {
		bad[i] = newErrand("bad")
		d.Ask(bad[i])
	}
	release()
	for _, e := range bad {
		if a := <-e.answer; !errors.Is(a.Err, ErrForeignKey) {
			t.Errorf("%+v", a)
		}
	}
}

// answeringTypes panics at a TYPE.
type answeringTypes struct{}

func (answeringTypes) DialHook(next redis.DialHook) redis.DialHook { return next }
func (answeringTypes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "type" {
			panic("hook")
		}
		return next(ctx, cmd)
	}
}
func (answeringTypes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Callers that come together send one HELLO. If the caller that sent it leaves, the others still get
// an answer.
func TestOneAsksHowToPublish(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(bg)
	var hellos atomic.Int64
	arrived := make(chan struct{}, 100)
	left := make(chan struct{})
	d := open(t, func(_ context.Context, cmd redis.Cmder) (any, error) {
		hellos.Add(1)
		arrived <- struct{}{}
		if cmd.Args()[0] != "hello" {
			t.Errorf("%v", cmd)
		}
		<-left
		return []any{"mode", "standalone"}, nil
	})
	d.cfg.Publish = PublishAuto
	var all sync.WaitGroup
	all.Go(func() {
		if err := d.Ready(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(left)
	})
	<-arrived
	for range 50 {
		all.Go(func() {
			if err := d.Ready(bg); err != nil {
				t.Error(err)
			}
		})
	}
	select {
	case <-arrived: // a second HELLO: they do not share
	case <-time.After(50 * time.Millisecond):
	}
	if n := hellos.Load(); n != 1 {
		t.Errorf("%d ask", n)
	}
	cancel()
	all.Wait()
	if n := hellos.Load(); n > 2 || !d.PublishKnown() {
		t.Errorf("%d have asked", n)
	}
}

// A caller that found the way to publish unknown, just before another caller found it out, does not
// send a second HELLO.
func TestNobodyAsksAgainHowToPublish(t *testing.T) {
	t.Parallel()
	for range 300 {
		var hellos atomic.Int64
		d := open(t, func(context.Context, redis.Cmder) (any, error) {
			hellos.Add(1)
			return []any{"mode", "standalone"}, nil
		})
		d.cfg.Publish = PublishAuto
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := d.Ready(bg); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := hellos.Load(); n != 1 {
			t.Fatalf("%d have asked", n)
		}
	}
}

// One script does at most mostTogether requests, so that other clients do not wait for long. A pipeline
// may have several such scripts.
func TestPipelineOfSeveralScriptsForMany(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	if err := c.rdb.ScriptLoad(bg, echoes.Text()).Err(); err != nil {
		t.Fatal(err)
	}
	before := len(c.proxy.Commands())
	const n = 2*mostTogether + 20
	for i := range n {
		text := fmt.Sprint(i)
		c.start(time.Hour, echoWithOthers(text), func(a Answer) {
			if a.Err != nil || a.Val != text || a.Unsure {
				t.Errorf("%s: %+v", text, a)
			}
		})
	}
	c.waitFor(n)
	c.release()
	c.all.Wait()
	conns, scripts := map[int]bool{}, map[string]int{} // by number of keys
	for _, cmd := range c.proxy.Commands()[before:] {
		if cmd.IsScript(echoes.SHA()) && cmd.Name == "evalsha" {
			conns[cmd.Conn] = true
			scripts[cmd.Args[1]]++
		}
	}
	if len(conns) != 1 || scripts[fmt.Sprint(mostTogether)] != 2 || scripts["20"] != 1 {
		t.Errorf("%d connections, scripts by keys: %v", len(conns), scripts)
	}
}

// If the time of a request was over while the request waited in this process, its error is notSent if
// the server answered others meanwhile, and otherwise that the server gave no answer.
func TestRequestThatWaitedInThisProcess(t *testing.T) {
	t.Parallel()
	d, _ := behind(t)
	k := &d.senders.one
	set := func(heard time.Time) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.busy, k.pipelines, k.givenAt, k.repliedAt = alone, pipelines, time.Now().Add(time.Hour), heard // other requests are under way
	}
	const budget = 200 * time.Millisecond
	set(time.Now().Add(time.Hour))
	a := d.Do(bg, budget, echoOf("late"))
	if !errors.Is(a.Err, ErrUnreachable) || a.Unsure || a.Err.Error() != (&notSent{budget}).Error() {
		t.Errorf("%+v", a)
	}
	ctx, cancel := context.WithTimeout(bg, budget)
	defer cancel()
	var why *notSent
	if a := d.Do(ctx, time.Second, echoOf("late")); !errors.Is(a.Err, context.DeadlineExceeded) || !errors.As(LastFailure(a.Err), &why) || a.Unsure {
		t.Errorf("%+v", a)
	}
	set(time.Now().Add(-time.Second))
	if a := d.Do(bg, budget, echoOf("late")); !errors.Is(a.Err, ErrUnreachable) || a.Unsure || errors.As(a.Err, &why) {
		t.Errorf("%+v", a)
	}
}

// A request that was sent so late that it got no reply has the error sentLate.
func TestRequestThatWasSentLate(t *testing.T) {
	t.Parallel()
	d, proxy := behind(t)
	k := &d.senders.one
	const budget, waits = 8 * time.Second, 1500 * time.Millisecond // waits is more than an eighth of the budget, and short enough for a busy machine
	if a := d.Do(bg, time.Minute, echoOf("early")); a.Err != nil { // opens the connection
		t.Fatal(a.Err)
	}
	k.mu.Lock()
	k.busy, k.pipelines, k.givenAt, k.repliedAt = alone, pipelines, time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	k.mu.Unlock()
	answered := make(chan Answer, 1)
	go func() { answered <- d.Do(bg, budget, echoOf("late")) }()
	time.Sleep(waits) // the request waits meanwhile
	proxy.Blackhole(true)
	k.mu.Lock()
	k.busy, k.pipelines = 0, 0
	k.addLocked(time.Now())
	k.mu.Unlock()
	a := <-answered
	var late *sentLate
	if !errors.Is(a.Err, ErrUnreachable) || !a.Unsure || !errors.As(a.Err, &late) || late.queued < waits/2 || late.queued > budget ||
		!strings.Contains(a.Err.Error(), "waited in this process behind other requests") {
		t.Errorf("%+v", a)
	}
}
