package wire

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/seam"
)

// near is behind, with a server that counts as near even if this machine is slow.
func near(t *testing.T) (*Deployment, *faultproxy.Proxy) {
	t.Helper()
	d, proxy := behind(t)
	for range 2 { // dials, loads the script, and searches for hooks
		if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	idle(t, &d.senders.one)
	stayNear(d)
	return d, proxy
}

// stayNear makes the latest replies count as fast.
func stayNear(d *Deployment) {
	change(d, func(s *sender) { s.repliedAt, s.isFast, s.usual, s.far = time.Now(), true, nearby/10, 0 })
}

func change(d *Deployment, how func(s *sender)) {
	s := &d.senders.one
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s)
}

// callersSend returns how many callers are sending a request themselves.
func callersSend() int {
	buf := make([]byte, 1<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], []byte("(*worker).serveSelf("))
}

func TestCallersAskAServerThatIsNearThemselves(t *testing.T) {
	d, proxy := near(t)
	direct := make(chan int, 1)
	proxy.Handle(func(faultproxy.Command) faultproxy.Action { direct <- callersSend(); return faultproxy.Pass })
	ask := func(ctx context.Context, budget time.Duration, edit func(*Request)) int {
		t.Helper()
		r := echoOf("a")
		if edit != nil {
			edit(r)
		}
		if a := d.Do(ctx, budget, r); a.Err != nil {
			t.Fatal(a.Err)
		}
		return <-direct
	}
	if ask(bg, time.Minute, nil) != 1 {
		t.Fatal("a worker has sent it")
	}
	soon, cancel := context.WithTimeout(bg, heldUp)
	defer cancel()
	for what, n := range map[string]int{
		"that must not run twice":        ask(bg, time.Minute, func(r *Request) { r.NoResend = true }),
		"with little time":               ask(bg, heldUp, nil),
		"whose context ends soon":        ask(soon, time.Minute, nil),
		"that is to be sent by a worker": ask(ByWorker(bg), time.Minute, nil),
	} {
		if n != 0 {
			t.Errorf("a caller has sent a request %s", what)
		}
	}
	for what, how := range map[string]func(s *sender){
		"after a slow answer":              func(s *sender) { s.isFast = false },
		"to a server that usually is slow": func(s *sender) { s.usual = nearby },
		"while four others do":             func(s *sender) { s.busy += mostDirect },
		"while another is without answer":  func(s *sender) { s.overdue++ },
		"when a hook has come":             func(*sender) { d.direct.later.Store(true) },
	} {
		stayNear(d)
		change(d, how)
		if ask(bg, time.Minute, nil) != 0 {
			t.Errorf("a caller has sent a request %s", what)
		}
		await(func() (rests bool) {
			change(d, func(s *sender) { rests = s.busy%mostDirect == 0 })
			return rests
		})
		change(d, func(s *sender) { s.busy, s.overdue = 0, 0 })
		d.direct.later.Store(false)
	}
	stayNear(d)
	if ask(bg, time.Minute, nil) != 1 {
		t.Error("a worker has sent the last")
	}
	d.cluster = &nodes{Client: d.rdb.(*redis.Client)} // without a map of its slots
	d.senders.free.isFast = true
	if ask(bg, time.Minute, nil) != 0 {
		t.Error("a caller has sent a request to a node that is not known")
	}
}

// Callers send with a client when a search has found no hooks, even if contexts or short timeouts end its reads.
func TestClientsThatCallersMayUse(t *testing.T) {
	none := func(*redis.Options) {}
	client := func(edit func(o *redis.Options), hooks ...redis.Hook) func(addr string) redis.UniversalClient {
		return func(addr string) redis.UniversalClient {
			o := &redis.Options{Addr: addr}
			edit(o)
			rdb := redis.NewClient(o)
			for _, h := range hooks {
				rdb.AddHook(h)
			}
			return rdb
		}
	}
	cluster := func(ends bool) func(addr string) redis.UniversalClient {
		return func(addr string) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: ends})
		}
	}
	contextsEnd := func(o *redis.Options) { o.ContextTimeoutEnabled = true }
	for name, c := range map[string]struct {
		open func(addr string) redis.UniversalClient
		may  bool
	}{
		"plain":                       {client(none), true},
		"hook":                        {client(none, evalshas(new(atomic.Int32))), false},
		"contexts end reads":          {client(contextsEnd), true},
		"contexts end reads, hook":    {client(contextsEnd, evalshas(new(atomic.Int32))), false},
		"short timeouts":              {client(func(o *redis.Options) { o.ReadTimeout = heldUp }), true},
		"limiter":                     {client(func(o *redis.Options) { o.Limiter = openLimiter{} }), false},
		"cluster":                     {cluster(false), false},
		"cluster, contexts end reads": {cluster(true), false},
	} {
		d := opened(t, c.open(miniredis.RunT(t).Addr()))
		for i := range 3 {
			ask := newCall()
			ask.d, ask.r, ask.ctx = d, echoOf("a"), bg
			ask.start(time.Now(), time.Minute)
			if by := ask.direct(time.Now()); (by.client != nil) != (c.may && i > 0) {
				t.Errorf("%s, after %d requests: %v", name, i, by)
			}
			if a := d.Do(bg, time.Minute, echoOf("a")); a.Err != nil {
				t.Errorf("%s: %v", name, a.Err)
			}
			if d.cluster == nil {
				idle(t, &d.senders.one)
			}
		}
	}
}

// A hook that blocks never holds up a caller: neither a hook added early or late, nor with reads that contexts end.
func TestHooksThatBlock(t *testing.T) {
	for _, ends := range []bool{false, true} {
		for _, later := range []bool{false, true} {
			var blocks atomic.Bool
			met, free := make(chan struct{}, 10), make(chan struct{})
			hook := processHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if blocks.Load() {
					met <- struct{}{}
					<-free
				}
				return next(ctx, cmd)
			})
			rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), ContextTimeoutEnabled: ends})
			if !later {
				rdb.AddHook(hook)
			}
			d := opened(t, rdb)
			for range 3 {
				if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
					t.Fatal(a.Err)
				}
				idle(t, &d.senders.one)
				stayNear(d)
			}
			if later {
				rdb.AddHook(hook)
			}
			blocks.Store(true)
			ctx, cancel := context.WithCancel(bg)
			answered := make(chan Answer, 1)
			go func() { answered <- d.Do(ctx, time.Minute, echoOf("a")) }()
			<-met
			cancel()
			select {
			case a := <-answered:
				if !errors.Is(a.Err, context.Canceled) {
					t.Errorf("contexts end reads: %v, later: %v: %+v", ends, later, a)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("contexts end reads: %v, later: %v: the hook holds up the caller", ends, later)
			}
			close(free)
			idle(t, &d.senders.one)
		}
	}
}

// openLimiter is a Limiter that permits all commands.
type openLimiter struct{}

func (openLimiter) Allow() error       { return nil }
func (openLimiter) ReportResult(error) {}

// If the reply to a copy that a caller has sent is late, that copy may have run, and the call continues with a second
// copy, by a worker.
func TestLateReplyToACaller(t *testing.T) {
	for _, steady := range []bool{false, true} {
		d, proxy := near(t)
		var copies atomic.Int32
		free := make(chan struct{})
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if isEcho(cmd, "none") {
				if copies.Add(1) == 1 {
					<-free
				} else {
					change(d, func(s *sender) {
						if s.isFast {
							t.Error("the next request would be sent by its caller")
						}
					})
					close(free)
				}
			}
			return faultproxy.Pass
		})
		ctx, cancel := context.WithCancel(bg)
		within := heldUp
		if steady {
			ctx, within = bg, d.direct.steady
		}
		r := echoOf("none")
		r.OneEffect = true // the echo does not confirm the effect: an earlier copy may have had it
		began := time.Now()
		a := d.Do(ctx, time.Minute, r)
		if took := time.Since(began); took < within || took > within+5*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := copies.Load(); a.Err != nil || !a.Unsure || n != 2 {
			t.Errorf("%d copies, %+v", n, a)
		}
		if d.HeldUp() == 0 && time.Since(began) < within+heldUp/2 {
			t.Error("the time that was lost is forgotten")
		}
		cancel()
		idle(t, &d.senders.one)
	}
}

// A caller whose context ends while a server does not answer returns soon, with the answer that its request may run yet.
func TestCanceledWhileItAsksItself(t *testing.T) {
	d, proxy := near(t)
	reached := make(chan struct{}, 10)
	free := make(chan struct{})
	proxy.Handle(func(faultproxy.Command) faultproxy.Action { reached <- struct{}{}; <-free; return faultproxy.Pass })
	ctx, cancel := context.WithCancel(bg)
	answered := make(chan Answer, 1)
	go func() { answered <- d.Do(ctx, time.Minute, echoOf("a")) }()
	<-reached
	ended := time.Now()
	cancel()
	a := <-answered
	if late := time.Since(ended); late > heldUp+5*time.Second || !errors.Is(a.Err, context.Canceled) || !a.Unsure {
		t.Errorf("%v after the end: %+v", late, a)
	}
	close(free)
	idle(t, &d.senders.one)
}

// A caller does not wait for a connection for longer than for a reply. A request that has not left the process has not run.
func TestCanceledWhileItWaitsForAConnection(t *testing.T) {
	proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1, MaxRetries: -1})
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		d.Stop()
		_ = rdb.Close()
	}()
	for range 2 {
		if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	idle(t, &d.senders.one)
	stayNear(d)
	taken, free := make(chan struct{}), make(chan struct{})
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.Name == "ping" {
			close(taken)
			<-free
		}
		return faultproxy.Pass
	})
	go rdb.Ping(bg)
	<-taken
	ctx, cancel := context.WithCancel(bg)
	time.AfterFunc(heldUp/5, cancel)
	began := time.Now()
	a := d.Do(ctx, time.Minute, echoOf("a"))
	if took := time.Since(began); took > 5*time.Second || !errors.Is(a.Err, context.Canceled) || a.Unsure {
		t.Errorf("after %v: %+v", took, a)
	}
	close(free)
	idle(t, &d.senders.one)
}

// Requests that wait while a caller sends are then sent by a goroutine of the worker that the caller was.
func TestOthersGoOnAfterACaller(t *testing.T) {
	d, proxy := near(t)
	change(d, func(s *sender) { s.alone, s.near = 1, 1 })
	reached, free := make(chan int, 1), make(chan struct{})
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "self") {
			reached <- callersSend()
			<-free
		}
		return faultproxy.Pass
	})
	var all sync.WaitGroup
	ask := func(text string) {
		all.Go(func() {
			if a := d.Do(bg, time.Minute, echoOf(text)); a.Err != nil || a.Val != text {
				t.Errorf("%s: %+v", text, a)
			}
		})
	}
	ask("self")
	if <-reached != 1 {
		t.Error("a worker has sent it")
	}
	for i := range 20 {
		ask(strconv.Itoa(i))
	}
	await(func() bool {
		d.senders.one.mu.Lock()
		defer d.senders.one.mu.Unlock()
		return d.senders.one.waitsLocked() == 20
	})
	close(free)
	all.Wait()
	idle(t, &d.senders.one)
}

func TestManyCallersAskThemselves(t *testing.T) {
	d, _ := near(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := range 160 {
				if j%8 == 0 {
					stayNear(d)
				}
				text := strconv.Itoa(i*1000 + j)
				if a := d.Do(bg, time.Minute, echoOf(text)); a.Err != nil || a.Val != text || a.Unsure {
					t.Errorf("%s: %+v", text, a)
				}
			}
		})
	}
	all.Wait()
	idle(t, &d.senders.one)
}

// Hooks get all commands, even if a program adds the hooks while callers send some requests themselves.
func TestHooksSeeWhatCallersWouldSend(t *testing.T) {
	for what, read := range map[string]func(cmd redis.Cmder){
		"that reads nothing":         func(redis.Cmder) {},
		"that reads the words":       func(cmd redis.Cmder) { _ = cmd.Args() },
		"that reads the words later": nil,
	} {
		d, _ := near(t)
		var seen atomic.Int32
		d.rdb.(*redis.Client).AddHook(processHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if cmd.Name() == "evalsha" {
				seen.Add(1)
			}
			if read != nil {
				read(cmd)
				return next(ctx, cmd)
			}
			defer func() { _ = cmd.Args() }()
			return next(ctx, cmd)
		}))
		for i := range int32(50) {
			if a := d.Do(bg, time.Minute, echoOf("a")); a.Err != nil {
				t.Fatal(a.Err)
			}
			if n := seen.Load(); n != i+1 {
				t.Fatalf("a hook %s has seen %d of %d commands", what, n, i+1)
			}
			if i%10 == 0 {
				idle(t, &d.senders.one)
				stayNear(d)
			}
		}
	}
}

// processHook is a hook for single commands.
type processHook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, cmd, next) }
}
func (processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A hook that is added while a caller sends, and that panics or ends its goroutine, ends the request of that caller. Other
// requests continue.
func TestHooksThatCallersMeet(t *testing.T) {
	d, proxy := near(t)
	d.direct.ways.Store(&ways{{d.rdb, heldUp}, {d.rdb, d.direct.steady}})
	d.direct.rdb = nil
	d.cfg.Panics.Report = func(string, error, string) {}
	var does atomic.Pointer[func()]
	d.rdb.(*redis.Client).AddHook(processHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if do := does.Swap(nil); do != nil && callersSend() == 1 {
			(*do)()
		}
		return next(ctx, cmd)
	}))
	for name, do := range map[string]func(){"panic": func() { panic("boom") }, "end": runtime.Goexit} {
		stayNear(d)
		does.Store(&do)
		ended := make(chan Answer, 1)
		go func() {
			defer close(ended)
			ended <- d.Do(bg, time.Minute, echoOf("met"))
		}()
		if a, returned := <-ended; returned != (name == "panic") || returned && !Panicked(a.Err) {
			t.Errorf("%s: %+v, returned: %v", name, a, returned)
		}
		idle(t, &d.senders.one)
		if a := d.Do(bg, time.Minute, echoOf("next")); a.Err != nil {
			t.Errorf("%s: %+v", name, a)
		}
		idle(t, &d.senders.one) // a worker that has sent the request records how long that took
	}
	if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, "met") }); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

// A server that stops costs at most as many connections as callers may use. go-redis sends none of the copies again.
func TestStallCostsFewConnections(t *testing.T) {
	d, proxy := near(t)
	var stalled atomic.Bool
	free := make(chan struct{})
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if stalled.Load() {
			<-free
		}
		return faultproxy.Pass
	})
	dials := func() uint32 { return d.rdb.PoolStats().Misses }
	var all sync.WaitGroup
	ask := func() {
		for i := range 64 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				if a := d.Do(ctx, time.Minute, echoOf("all"+strconv.Itoa(i))); a.Err != nil {
					t.Errorf("%+v", a)
				}
			})
		}
	}
	ask() // dials as many connections as callers need
	all.Wait()
	idle(t, &d.senders.one)
	stayNear(d)
	before := dials()
	proxy.ResetLog()
	stalled.Store(true)
	ask()
	time.Sleep(4 * heldUp)
	stalled.Store(false)
	close(free)
	all.Wait()
	idle(t, &d.senders.one)
	// Connections for the copies that were cut off, for their second copies, and for pipelines that were begun meanwhile.
	if n := dials() - before; n > 3*mostDirect+alone {
		t.Errorf("%d connections were opened", n)
	}
	for i := range 64 {
		text := "all" + strconv.Itoa(i)
		if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, text) }); n > copies {
			t.Errorf("%s was sent %d times", text, n)
		}
	}
}
