package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/seam"
)

// echoes is echo for several requests together.
var echoes = NewScript("echoes", func() (string, bool) {
	return "local all = {} for i = 1, #KEYS do all[i] = ARGV[i] end return all", false
})

var echoOfMany = echo.WithMany(echoes)

// echoWithOthers returns a request for an echo, which one script may do for several requests.
func echoWithOthers(text string) *Request {
	r := echoOf(text)
	r.Script = echoOfMany
	return r
}

// dialing returns a deployment behind a proxy. dial opens its connections.
func dialing(t *testing.T, dial func(ctx context.Context, open func() (net.Conn, error)) (net.Conn, error)) (*Deployment, *faultproxy.Proxy) {
	proxy := faultproxy.New(t, miniredis.RunT(t).Addr())
	rdb := redis.NewClient(&redis.Options{
		Addr: proxy.Addr(), ReadTimeout: time.Minute, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dial(ctx, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(context.Background(), network, addr) })
		},
	})
	d, err := Open(rdb, Config{Clock: seam.SystemClock{}, CommandTimeout: time.Minute, UnlockTimeout: time.Minute, LongestCall: time.Minute, Events: deaf{}, Panics: &Panics{}})
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
	return d, proxy
}

func isScript(c faultproxy.Command) bool { return c.Name == "eval" || c.Name == "evalsha" }

// A request that go-redis has not written has certainly not run, and is never written later: after a
// connection that is closed in its handshake, a hook that refuses the request, and a dial that
// outlasts the caller.
func TestRequestThatWasNotWritten(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(d *Deployment, ctx context.Context, r *Request) Answer{
		"by itself": func(d *Deployment, ctx context.Context, r *Request) Answer { return d.Do(ctx, time.Minute, r) },
		"for replicas": func(d *Deployment, ctx context.Context, r *Request) Answer {
			r.Acked = true
			return d.Do(ctx, time.Minute, r)
		},
		"in a pipeline": func(d *Deployment, ctx context.Context, r *Request) Answer {
			k := &d.senders.one
			k.mu.Lock()
			k.alone, k.busy = 1, 1 // a worker that is about to take the waiting jobs
			k.mu.Unlock()
			answers := make(chan Answer, 2)
			go func() { answers <- d.Do(ctx, time.Minute, echoWithOthers("other")) }()
			go func() { answers <- d.Do(ctx, time.Minute, r) }()
			await(func() bool { k.mu.Lock(); defer k.mu.Unlock(); return len(k.waiting) == 2 })
			k.mu.Lock()
			k.busy--
			k.addLocked(time.Now())
			k.mu.Unlock()
			<-answers
			return <-answers
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := func() *Request {
				r := echoWithOthers("never")
				r.FailFast = true // the request is not sent again
				return r
			}
			t.Run("handshake", func(t *testing.T) {
				t.Parallel()
				d, proxy := behind(t)
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action { return faultproxy.ResetBefore })
				ctx, cancel := context.WithCancel(bg)
				go func() {
					await(func() bool { return len(proxy.Commands()) > 0 })
					if name == "in a pipeline" {
						cancel() // the other request is sent again
					}
				}()
				a := do(d, ctx, request())
				if cancel(); a.Err == nil || a.Unsure || proxy.Count(isScript) > 0 {
					t.Errorf("%+v, %d scripts", a, proxy.Count(isScript))
				}
			})
			t.Run("hook", func(t *testing.T) {
				t.Parallel()
				d, proxy := behind(t)
				ctx, cancel := context.WithCancel(bg)
				d.rdb.(*redis.Client).AddHook(barrier(func() error { cancel(); return errors.New("not now") }))
				if a := do(d, ctx, request()); a.Err == nil || a.Unsure || proxy.Count(isScript) > 0 {
					t.Errorf("%+v, %d scripts", a, proxy.Count(isScript))
				}
			})
			t.Run("dial", func(t *testing.T) {
				t.Parallel()
				dials, goOn := make(chan struct{}, 100), make(chan struct{})
				d, proxy := dialing(t, func(_ context.Context, open func() (net.Conn, error)) (net.Conn, error) {
					dials <- struct{}{}
					<-goOn
					return open()
				})
				ctx, cancel := context.WithCancel(bg)
				go func() { <-dials; cancel() }()
				if a := do(d, ctx, request()); !errors.Is(a.Err, context.Canceled) || a.Unsure {
					t.Errorf("%+v", a)
				}
				close(goOn)
				if err := d.Wait(bg); err != nil {
					t.Error(err)
				}
				if n := proxy.Count(func(c faultproxy.Command) bool {
					return isScript(c) && slices.Contains(c.Args, "never") && c.Args[0] != "return nil"
				}); n > 0 {
					t.Errorf("it was sent after that: %v", proxy.Commands())
				}
			})
		})
	}
}

// barrier is a hook that may refuse commands before they are sent.
type barrier func() error

func (barrier) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b barrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := b(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (b barrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := b(); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// await waits for a condition.
func await(condition func() bool) {
	for !condition() {
		time.Sleep(time.Millisecond)
	}
}

// Requests whose callers leave before the pipeline is written are left out of it, as single requests
// or as parts of a script for many. Each of the other requests gets its own answer.
func TestSomeLeaveBeforeTheirPipelineIsWritten(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]func(string) *Request{"alone": echoOf, "a script for many": echoWithOthers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, nil)
			reached, goOn := make(chan struct{}), make(chan struct{})
			var first sync.Once
			c.rdb.(*redis.Client).AddHook(pipelineHook(func(int) {
				first.Do(func() {
					close(reached)
					<-goOn
				})
			}))
			ctx, cancel := context.WithCancel(bg)
			var left sync.WaitGroup
			for i := range 9 {
				text := fmt.Sprint(i)
				if i%3 > 0 {
					c.do(bg, time.Minute, request(text), func(a Answer) {
						if a.Err != nil || a.Val != text || a.Unsure {
							t.Errorf("%s: %+v", text, a)
						}
					})
					continue
				}
				left.Add(1)
				c.do(ctx, time.Minute, request(text), func(a Answer) {
					defer left.Done()
					if !errors.Is(a.Err, context.Canceled) || a.Unsure {
						t.Errorf("%s: %+v", text, a)
					}
				})
			}
			c.release()
			<-reached
			cancel()
			left.Wait()
			close(goOn)
			c.all.Wait()
			for i := 0; i < 9; i += 3 {
				if n := c.proxy.Count(func(cmd faultproxy.Command) bool {
					return isScript(cmd) && cmd.Args[0] != "return nil" && slices.Contains(cmd.Args[3:], fmt.Sprint(i))
				}); n > 0 {
					t.Errorf("%d was sent", i)
				}
			}
			idle(t, &c.senders.one)
		})
	}
}

// The hooks of go-redis get the values of the first caller of a pipeline, and all callers.
func TestPipelineHasTheValuesOfItsCallers(t *testing.T) {
	t.Parallel()
	type key struct{}
	const n = 5
	seen := func(ctx context.Context) (first any, all []any) {
		for _, caller := range Callers(ctx) {
			all = append(all, caller.Value(key{}))
		}
		return ctx.Value(key{}), all
	}
	if Callers(bg) != nil {
		t.Error("a pipeline of nobody")
	}
	for name, ask := range map[string]func(t *testing.T) (got chan context.Context, ask func(ctx context.Context), all func()){
		"calls": func(t *testing.T) (chan context.Context, func(context.Context), func()) {
			c := newCrowd(t, nil)
			got := make(chan context.Context, n)
			c.rdb.(*redis.Client).AddHook(contexts(got))
			return got, func(ctx context.Context) {
				c.do(ctx, time.Hour, echoOf("one"), func(a Answer) {
					if a.Err != nil {
						t.Error(a.Err)
					}
				})
			}, func() { c.release(); c.all.Wait() }
		},
		"errands": func(t *testing.T) (chan context.Context, func(context.Context), func()) {
			d, proxy := behind(t)
			warm(t, d)
			release := hold(t, d, proxy)
			got := make(chan context.Context, n)
			d.rdb.(*redis.Client).AddHook(contexts(got))
			var all []*errand
			return got, func(ctx context.Context) {
					e := newErrand("one")
					e.ctx = ctx
					all = append(all, e)
					d.Ask(e)
				}, func() {
					release()
					for _, e := range all {
						e.must(t, false)
					}
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, one, all := ask(t)
			var want []any
			for i := range n {
				one(context.WithValue(bg, key{}, i))
				want = append(want, i)
			}
			all()
			first, callers := seen(<-got)
			if first != 0 || !slices.Equal(callers, want) {
				t.Errorf("%v first of %v, want %v", first, callers, want)
			}
		})
	}
}

// When the first caller leaves, its pipeline continues for the others. The context of the pipeline, and
// contexts that hooks derive from it, do not end then, and have no cause.
func TestPipelineDoesNotEndWithItsFirstCaller(t *testing.T) {
	t.Parallel()
	type key struct{}
	first, leave := context.WithCancelCause(context.WithValue(bg, key{}, 1))
	bounded, end := context.WithCancel(bg)
	ctx := forCallers(bounded, []context.Context{first, bg})
	derived, cancel := context.WithCancel(ctx)
	defer cancel()
	leave(errors.New("on purpose"))
	if err := errors.Join(ctx.Err(), derived.Err(), context.Cause(ctx), context.Cause(derived)); err != nil || derived.Value(key{}) != 1 {
		t.Error(err, derived.Value(key{}))
	}
	end()
	<-derived.Done()
	if err := context.Cause(derived); err != context.Canceled {
		t.Error(err)
	}
}

// contexts is a hook that sends on the contexts of pipelines.
type contexts chan context.Context

func (contexts) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (contexts) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c contexts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c <- ctx
		return next(ctx, cmds)
	}
}
