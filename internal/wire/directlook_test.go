package wire

import (
	"context"
	"errors"
	"net"
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

// evalshas is a hook that counts scripts.
func evalshas(n *atomic.Int32) redis.Hook {
	return processHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			n.Add(1)
		}
		return next(ctx, cmd)
	})
}

// mustBeSeen checks that a hook gets each request from now on.
func mustBeSeen(t *testing.T, d *Deployment, seen *atomic.Int32) {
	t.Helper()
	for range 20 {
		idle(t, &d.senders.one)
		stayNear(d)
		before := seen.Load()
		if a := d.Do(bg, time.Minute, echoOf("a")); a.Err != nil {
			t.Fatal(a.Err)
		}
		if seen.Load() != before+1 {
			t.Fatal("a hook has not seen a request")
		}
	}
}

// conns opens n connections.
func conns(t *testing.T, d *Deployment, n int) {
	t.Helper()
	rdb := d.rdb.(*redis.Client)
	for range n {
		c := rdb.Conn()
		defer c.Close()
		if err := c.Ping(bg).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A copy searches for hooks, then a hook is added, the next copy meets that hook, and then the first copy gets its reply.
// The result of the first copy must not count: there is a hook.
func TestLookFromBeforeAHookWasAdded(t *testing.T) {
	d, proxy := near(t)
	conns(t, d, 3) // go-redis calls hooks for each new connection, too
	d.direct.hookSearch.Store(false)
	reached, free := make(chan struct{}), make(chan struct{})
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if isEcho(cmd, "early") {
			close(reached)
			<-free
		}
		return faultproxy.Pass
	})
	var early sync.WaitGroup
	early.Go(func() { d.Do(bg, time.Minute, echoOf("early")) })
	<-reached
	var seen atomic.Int32
	d.rdb.(*redis.Client).AddHook(evalshas(&seen))
	if a := d.Do(bg, time.Minute, echoOf("meets it")); a.Err != nil || seen.Load() != 1 {
		t.Errorf("%+v, a hook has seen %d", a, seen.Load())
	}
	close(free)
	early.Wait()
	mustBeSeen(t, d, &seen)
}

// slowToAdd is a hook for dials only. AddHook of another hook has to wait for it.
type slowToAdd struct{ wait atomic.Pointer[func()] }

func (*slowToAdd) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *slowToAdd) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if wait := h.wait.Load(); wait != nil {
		(*wait)()
	}
	return next
}
func (*slowToAdd) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// go-redis calls all hooks before it uses an added one. A copy that searches meanwhile meets only the earlier hooks.
func TestLookWhileAHookIsAdded(t *testing.T) {
	proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	slow := &slowToAdd{}
	rdb.AddHook(slow)
	d := opened(t, rdb)
	for range 2 {
		if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	idle(t, &d.senders.one)
	asked, free, added := make(chan struct{}), make(chan struct{}), make(chan struct{})
	wait := func() { close(asked); <-free }
	slow.wait.Store(&wait)
	var seen atomic.Int32
	go func() {
		defer close(added)
		rdb.AddHook(evalshas(&seen))
	}()
	<-asked
	if a := d.Do(bg, time.Minute, echoOf("between")); a.Err != nil {
		t.Error(a.Err)
	}
	close(free)
	<-added
	mustBeSeen(t, d, &seen)
}

// opened returns the deployment of a client, and closes both at the end of the test.
func opened(t *testing.T, rdb redis.UniversalClient) *Deployment {
	t.Helper()
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{Report: func(string, error, string) {}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		_ = rdb.Close()
	})
	return d
}

// If the copy that should search for hooks was not sent, as before a server runs, the next copy searches. So callers send to
// a near server in the end.
func TestLookThatWasNotSent(t *testing.T) {
	proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
	var runs atomic.Bool
	d := opened(t, redis.NewClient(&redis.Options{Addr: proxy.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !runs.Load() {
			return nil, errors.New("nobody is there")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}))
	if a := d.Do(bg, 50*time.Millisecond, echoOf("a")); a.Err == nil {
		t.Fatal("it was sent")
	}
	// Until this copy has ended, no other copy searches. A worker whose copy is late is not among the busy ones.
	for end := time.Now().Add(10 * time.Second); d.direct.hookSearch.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the copy that was not sent still searches")
		}
	}
	runs.Store(true)
	for range 2 {
		if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	var byCaller atomic.Bool
	proxy.Handle(func(faultproxy.Command) faultproxy.Action {
		byCaller.CompareAndSwap(false, callersSend() == 1)
		return faultproxy.Pass
	})
	for range 50 { // on a busy machine the time of a caller's copy may end before it is written
		idle(t, &d.senders.one)
		stayNear(d)
		if a := d.Do(bg, time.Minute, echoOf("a")); a.Err != nil {
			t.Fatal(a.Err)
		}
		if byCaller.Load() {
			return
		}
	}
	t.Error("no caller sends any more")
}

// go-redis, with its default retries, sends each copy of a caller once: if the copy is cut off, if its connection is lost,
// and if the server refuses the copy for now.
func TestGoRedisRepeatsNoCopyOfACaller(t *testing.T) {
	for name, meets := range map[string]faultproxy.Action{
		"reply swallowed": faultproxy.SwallowReply, "reset after running": faultproxy.ResetAfter,
		"reset before": faultproxy.ResetBefore, "loading": faultproxy.Error,
	} {
		t.Run(name, func(t *testing.T) {
			proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
			d := opened(t, redis.NewClient(&redis.Options{Addr: proxy.Addr()}))
			for range 2 {
				if a := d.Do(bg, time.Minute, echoOf("warm")); a.Err != nil {
					t.Fatal(a.Err)
				}
			}
			idle(t, &d.senders.one)
			const rounds = 20
			var byCallers atomic.Int32
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.Name == "evalsha" && callersSend() > 0 {
					byCallers.Add(1)
					return meets
				}
				return faultproxy.Pass
			})
			for i := range rounds {
				stayNear(d)
				text := strconv.Itoa(i)
				ctx, cancel := context.WithCancel(bg)
				a := d.Do(ctx, time.Minute, echoOf(text))
				cancel()
				idle(t, &d.senders.one)
				if n := proxy.Count(func(c faultproxy.Command) bool { return isEcho(c, text) }); n > copies || a.Err != nil {
					t.Errorf("%d copies: %+v", n, a)
				}
			}
			if n := byCallers.Load(); n < 1 || n > rounds {
				t.Errorf("callers have sent %d copies of %d requests", n, rounds)
			}
		})
	}
}

// A caller also waits for the handshake of a new connection. Each step of the handshake holds it up for at most a timeout.
func TestCanceledDuringAHandshake(t *testing.T) {
	for _, delay := range []time.Duration{heldUp * 2 / 3, 20 * heldUp} {
		d, proxy := near(t)
		reached := make(chan struct{}, 100)
		pings := make(chan struct{}, 1)
		proxy.Delay(func(cmd faultproxy.Command) time.Duration {
			switch cmd.Name {
			case "ping":
				pings <- struct{}{}
			case "hello":
				reached <- struct{}{}
			}
			return delay
		})
		taken := make(chan struct{})
		go func() { // uses the only connection
			defer close(taken)
			d.rdb.Ping(bg)
		}()
		<-pings
		ctx, cancel := context.WithCancel(bg)
		ended := make(chan time.Time, 1)
		go func() {
			<-reached
			ended <- time.Now()
			cancel()
		}()
		a := d.Do(ctx, time.Minute, echoOf("a"))
		returned := time.Now()
		late := returned.Sub(<-ended)
		t.Logf("steps of %v: %v after the end: %+v", delay, late, a)
		if late > 3*heldUp+5*time.Second {
			t.Errorf("steps of %v: %v after the end: %+v", delay, late, a)
		}
		<-taken
		proxy.Delay(nil)
		idle(t, &d.senders.one)
	}
}

// A hook may end the goroutines of callers again and again: the sender still counts its workers right, and other requests
// get their answers.
func TestCallersThatAHookEnds(t *testing.T) {
	d, _ := near(t)
	d.direct.ways.Store(&ways{{d.rdb, heldUp}, {d.rdb, heldUp}})
	d.direct.rdb = nil
	d.rdb.(*redis.Client).AddHook(processHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if args := cmd.Args(); args[len(args)-1] == "end" {
			runtime.Goexit()
		}
		return next(ctx, cmd)
	}))
	var all sync.WaitGroup
	var ended atomic.Int32
	for i := range 32 {
		all.Go(func() {
			for range 10 {
				stayNear(d)
				if i%4 > 0 {
					if a := d.Do(bg, time.Minute, echoOf(strconv.Itoa(i))); a.Err != nil || a.Val != strconv.Itoa(i) {
						t.Errorf("%+v", a)
					}
					continue
				}
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					returned := false
					defer func() {
						if !returned {
							ended.Add(1)
						}
					}()
					d.Do(bg, 4*heldUp, echoOf("end")) // sent by a worker, it gets no answer
					returned = true
				}()
				<-gone
			}
		})
	}
	all.Wait()
	idle(t, &d.senders.one)
	if t.Logf("%d callers were ended", ended.Load()); ended.Load() == 0 {
		t.Error("no caller was ended")
	}
}
