package faults

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// disjoint are the sentinels of which an acquire that has failed matches exactly those that say why.
var disjoint = map[string]error{
	"ErrNotAcquired": rlock.ErrNotAcquired, "ErrUnreachable": rlock.ErrUnreachable, "ErrNoQuorum": rlock.ErrNoQuorum,
	"ErrRefused": rlock.ErrRefused, "ErrLeaseLost": rlock.ErrLeaseLost, "ErrClosed": rlock.ErrClosed,
	"context.DeadlineExceeded": context.DeadlineExceeded, "context.Canceled": context.Canceled,
}

// matches returns which sentinels an error matches beside or unlike those that it should.
func matches(err error, want ...error) (wrong []string) {
	for name, s := range disjoint {
		wanted := false
		for _, w := range want {
			wanted = wanted || w == s
		}
		if errors.Is(err, s) != wanted {
			wrong = append(wrong, fmt.Sprintf("matches %s: %v", name, !wanted))
		}
	}
	return wrong
}

// contended is something that callers in several processes want.
type contended struct {
	name string
	// prepare, unless nil, makes it.
	prepare func(t *testing.T, holders []*rlock.Client)
	// begin takes it, or sees to it that callers have to wait.
	begin func(t *testing.T, holders []*rlock.Client)
	// open returns the calls of a client; those that there are not are nil.
	open func(t *testing.T, clients []*rlock.Client) calls
}

type calls struct {
	try      func(ctx context.Context) error                     // does not wait
	withWait func(ctx context.Context, wait time.Duration) error // waits for so long
	wait     func(ctx context.Context) error                     // waits until ctx ends
	change   func(ctx context.Context) error                     // of what waiters of another kind wait for
}

// plain: the end of its wait is that of the context alone, since there is nothing to acquire.
func (c *calls) plain() bool { return c.change != nil }

func everythingContended() (all []contended) {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	locker := func(name string, prepare func(t *testing.T, holders []*rlock.Client), held, open func(t *testing.T, clients []*rlock.Client) rlock.Locker) {
		all = append(all, contended{name, prepare, func(t *testing.T, holders []*rlock.Client) {
			locktest.MustLock(t, held(t, holders))
		}, func(t *testing.T, clients []*rlock.Client) calls {
			l := open(t, clients)
			return calls{
				try: func(ctx context.Context) error { _, err := l.TryLock(ctx); return err },
				withWait: func(ctx context.Context, d time.Duration) error {
					_, err := l.Lock(ctx, rlock.WithWait(d))
					return err
				},
				wait: func(ctx context.Context) error { _, err := l.Lock(ctx); return err },
			}
		}})
	}
	for _, k := range locktest.Types {
		locker(k.Name, nil, func(_ *testing.T, c []*rlock.Client) rlock.Locker { return k.Blocker(c[0], k.Name) },
			func(_ *testing.T, c []*rlock.Client) rlock.Locker { return k.Open(c[0], k.Name) })
	}
	for name, open := range map[string]func(t *testing.T, c []*rlock.Client) rlock.Locker{
		"Election": func(_ *testing.T, c []*rlock.Client) rlock.Locker {
			return locktest.Electing{Election: c[0].NewElection("election")}
		},
		"MultiLock of one slot": func(t *testing.T, c []*rlock.Client) rlock.Locker {
			return locktest.MultiLockOf(t, c[0], "{m}:1", "{m}:2")
		},
		"MultiLock": func(t *testing.T, c []*rlock.Client) rlock.Locker {
			return locktest.NewMultiLock(t, c[0].NewLock("m:1"), c[1].NewFairLock("m:2"))
		},
		"RedLock": func(t *testing.T, c []*rlock.Client) rlock.Locker {
			return locktest.NewRedLock(t, "red", c, rlock.WithNodeTimeout(time.Second))
		},
	} {
		locker(name, nil, open, open)
	}
	for name, opts := range map[string][]rlock.PermitSemaphoreOption{"PermitSemaphore": nil, "fair PermitSemaphore": {rlock.WithFairness()}} {
		open := func(_ *testing.T, c []*rlock.Client) rlock.Locker {
			return locktest.PermitLocker{PermitSemaphore: c[0].NewPermitSemaphore(name, opts...), N: 1}
		}
		locker(name, func(t *testing.T, c []*rlock.Client) {
			locktest.MustSetPermits(t, c[0].NewPermitSemaphore(name, opts...), 1)
		}, open, open)
	}
	return append(all,
		contended{"Semaphore", func(t *testing.T, c []*rlock.Client) {
			_, err := c[0].NewSemaphore("semaphore").TrySetPermits(bg, 1)
			must(t, err)
		}, func(t *testing.T, c []*rlock.Client) { must(t, c[0].NewSemaphore("semaphore").Acquire(bg, 1)) }, func(_ *testing.T, c []*rlock.Client) calls {
			s := c[0].NewSemaphore("semaphore")
			return calls{
				try:      func(ctx context.Context) error { return s.TryAcquire(ctx, 1) },
				withWait: func(ctx context.Context, d time.Duration) error { return s.Acquire(ctx, 1, rlock.WithWait(d)) },
				wait:     func(ctx context.Context) error { return s.Acquire(ctx, 1) },
			}
		}},
		contended{"DoubleBarrier", nil, nil, func(_ *testing.T, c []*rlock.Client) calls {
			b := c[0].NewDoubleBarrier("double", 9)
			return calls{
				withWait: func(ctx context.Context, d time.Duration) error {
					_, err := b.Enter(ctx, rlock.WithWait(d))
					return err
				},
				wait: func(ctx context.Context) error { _, err := b.Enter(ctx); return err },
			}
		}},
		contended{"Once", nil, func(t *testing.T, c []*rlock.Client) {
			begun, end := make(chan struct{}), make(chan struct{})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _, _ = c[0].NewOnce("once", time.Minute).Do(bg, func(context.Context) ([]byte, error) {
					close(begun)
					<-end
					return nil, nil
				})
			}()
			t.Cleanup(func() { close(end); <-ended })
			<-begun
		}, func(_ *testing.T, c []*rlock.Client) calls {
			o := c[0].NewOnce("once", time.Minute)
			return calls{wait: func(ctx context.Context) error {
				_, _, err := o.Do(ctx, func(context.Context) ([]byte, error) { return nil, errors.New("it ran") })
				return err
			}}
		}},
		contended{"CountDownLatch", func(t *testing.T, c []*rlock.Client) {
			_, err := c[0].NewCountDownLatch("latch").TrySetCount(bg, 1)
			must(t, err)
		}, nil, func(_ *testing.T, c []*rlock.Client) calls {
			l := c[0].NewCountDownLatch("latch")
			return calls{wait: func(ctx context.Context) error { return l.Wait(ctx) }, withWait: func(ctx context.Context, d time.Duration) error {
				return l.Wait(ctx, rlock.WithWait(d))
			}, change: func(ctx context.Context) error {
				_, err := c[0].NewCountDownLatch("another latch").TrySetCount(ctx, 1)
				return err
			}}
		}},
		contended{"Barrier", func(t *testing.T, c []*rlock.Client) { must(t, c[0].NewBarrier("barrier").Set(bg)) },
			nil, func(_ *testing.T, c []*rlock.Client) calls {
				b := c[0].NewBarrier("barrier")
				return calls{wait: func(ctx context.Context) error { return b.Wait(ctx) }, withWait: func(ctx context.Context, d time.Duration) error {
					return b.Wait(ctx, rlock.WithWait(d))
				}, change: c[0].NewBarrier("another barrier").Set}
			}},
	)
}

// An error of an acquire matches what its last look saw, and nothing else: so a handler can ask in
// any order.
func TestSentinelsAreDisjoint(t *testing.T) {
	t.Parallel()
	const (
		long   = time.Minute
		budget = 3 * time.Second
	)
	plainly := func(_ *testing.T, s *redistest.Server) *redis.Options { return &redis.Options{Addr: s.Addr()} }
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, s *redistest.Server)
		login func(t *testing.T, s *redistest.Server) *redis.Options // nil: plainly

		want, ofQuorum []error       // beside the error of the context
		atOnce         bool          // also by who would wait; not of a quorum, which is waited for
		wait           time.Duration // of those who wait
		reply          string        // code of the error reply that errors.As finds
		hook           func() error  // of go-redis, instead of the server; nil: none
	}{
		{name: "held", want: []error{rlock.ErrNotAcquired}, wait: 2 * time.Second},
		{
			name: "down", begin: func(_ *testing.T, s *redistest.Server) { s.Kill() },
			want: []error{rlock.ErrUnreachable}, wait: 500 * time.Millisecond,
		},
		{
			name: "hung", begin: func(t *testing.T, s *redistest.Server) { s.Pause(); t.Cleanup(s.Resume) },
			want: []error{rlock.ErrUnreachable}, wait: 500 * time.Millisecond,
		},
		{
			name: "NOPERM", login: func(_ *testing.T, s *redistest.Server) *redis.Options {
				return &redis.Options{Addr: s.Addr(), Username: "app", Password: "password"}
			},
			begin: func(t *testing.T, s *redistest.Server) {
				run(t, s, "acl", "setuser", "app", "on", ">password", "~*", "&*", "+@all", "-@read", "-@write")
			},
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "NOPERM",
		},
		{
			name: "NOPERM for scripts", login: func(_ *testing.T, s *redistest.Server) *redis.Options {
				return &redis.Options{Addr: s.Addr(), Username: "app", Password: "password"}
			},
			begin: func(t *testing.T, s *redistest.Server) {
				run(t, s, "acl", "setuser", "app", "on", ">password", "~*", "&*", "+@all", "-@scripting")
			},
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "NOPERM",
		},
		{
			name: "WRONGPASS", login: func(_ *testing.T, s *redistest.Server) *redis.Options {
				return &redis.Options{Addr: s.Addr(), Username: "nobody", Password: "wrong"}
			},
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "WRONGPASS",
		},
		{
			name: "NOAUTH", begin: func(t *testing.T, s *redistest.Server) { run(t, s, "config", "set", "requirepass", "password") },
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "NOAUTH",
		},
		{
			// A script that writes anything else first is let through: not all would be refused.
			name: "OOM", login: func(t *testing.T, s *redistest.Server) *redis.Options {
				proxy := faultproxy.New(t, s.Addr())
				proxy.ErrorText = "-OOM command not allowed when used memory > 'maxmemory'."
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.Name == "evalsha" || c.Name == "eval" {
						return faultproxy.Error
					}
					return faultproxy.Pass
				})
				return &redis.Options{Addr: proxy.Addr()}
			},
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "OOM",
		},
		{
			name: "READONLY", begin: func(t *testing.T, s *redistest.Server) { run(t, s, "replicaof", "127.0.0.1", "1") },
			want: []error{rlock.ErrRefused}, wait: 2 * time.Second, reply: "READONLY",
		},
		{
			name: "a hook that returns redis.Nil", hook: func() error { return redis.Nil },
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "unexpected reply",
		},
		{
			name: "a hook that answers something else", hook: func() error { return nil },
			want: []error{rlock.ErrRefused}, atOnce: true, wait: 2 * time.Second, reply: "unexpected reply",
		},
		{
			name: "a hook that panics", hook: func() error { panic("boom") },
			want: []error{rlock.ErrUnreachable}, atOnce: true, wait: 2 * time.Second,
		},
		{
			name: "a client of go-redis that was closed", hook: func() error { return redis.ErrClosed },
			want: []error{rlock.ErrUnreachable}, atOnce: true, wait: 2 * time.Second,
		},
	} {
		locktest.Beside(t, c.name, func(t *testing.T) {
			var servers []*redistest.Server
			var holders, clients []*rlock.Client
			for range 3 {
				servers = append(servers, redistest.Start(t))
			}
			for _, s := range servers {
				holders = append(holders, locktest.NewClient(t, s.Client()))
			}
			all := everythingContended()
			for _, k := range all {
				if k.prepare != nil {
					k.prepare(t, holders)
				}
				if c.name == "held" && k.begin != nil {
					k.begin(t, holders)
				}
			}
			for _, s := range servers {
				if c.login == nil {
					c.login = plainly
				}
				rdb := redis.NewClient(c.login(t, s))
				t.Cleanup(func() { _ = rdb.Close() })
				if c.hook != nil {
					rdb.AddHook(inPlaceOfScripts(c.hook))
				}
				clients = append(clients, locktest.NewClient(t, rdb, rlock.WithCommandTimeout(budget), rlock.WithUnlockTimeout(100*time.Millisecond)))
				if c.begin != nil {
					c.begin(t, s)
				}
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			for _, k := range all {
				calls := k.open(t, clients)
				want, reply, atOnce := c.want, c.reply, c.atOnce
				switch {
				case k.name == "RedLock" && c.want[0] == rlock.ErrUnreachable:
					want, atOnce = []error{rlock.ErrNoQuorum, rlock.ErrUnreachable}, false // other nodes may answer
				case k.name == "RedLock" && atOnce:
					want = []error{rlock.ErrNoQuorum, rlock.ErrRefused}
				case k.name == "RedLock" && c.name != "held":
					want = []error{rlock.ErrNoQuorum, rlock.ErrUnreachable}
				case calls.plain() && c.name == "held":
					want = nil
				}
				faults := func(err error, want []error) (all []string) {
					all = matches(err, want...)
					var e *rlock.Error
					if !errors.As(err, &e) || e.Lock == "" {
						all = append(all, fmt.Sprintf("%T without the name", err))
					}
					var said redis.Error
					if errors.As(err, &said) != (reply != "") || reply != "" && !redis.HasErrorPrefix(err, reply) &&
						!strings.Contains(err.Error(), "can't run this command") && !strings.Contains(err.Error(), "unauthenticated") {
						all = append(all, fmt.Sprintf("the reply of Redis is %v", said))
					}
					return all
				}
				// mayBeLate reports whether an error may be of a busy machine that has answered no look in time.
				mayBeLate := func(err error) bool {
					answered := errors.Is(err, rlock.ErrRefused) || errors.Is(err, rlock.ErrNotAcquired) && c.name == "held"
					return err != nil && !answered && c.name != "down" && c.name != "hung"
				}
				// check repeats a call, for longer, if an answer may be late.
				check := func(mode string, call func(wait time.Duration) error, want ...error) {
					for n := 1; ; n++ {
						err := call(time.Duration(n) * c.wait)
						all := faults(err, want)
						if n < 10 && len(all) > 0 && mayBeLate(err) {
							continue
						}
						for _, fault := range all {
							t.Errorf("%s %s: %v: %s", k.name, mode, err, fault)
						}
						return
					}
				}
				if calls.try != nil {
					wg.Go(func() { check("try", func(time.Duration) error { return calls.try(bg) }, want...) })
				}
				if calls.change != nil && c.name != "held" {
					wg.Go(func() { check("change", func(time.Duration) error { return calls.change(bg) }, want...) })
				}
				if calls.withWait != nil {
					wg.Go(func() {
						want := want
						if c.name == "held" {
							want = c.want // there is an end of a wait to be told from that of a context
						}
						check("WithWait", func(wait time.Duration) error { return calls.withWait(bg, wait) }, want...)
					})
				}
				until := func(end error) []error {
					if atOnce {
						return want
					}
					return append([]error{end}, want...)
				}
				enough := func(wait time.Duration) time.Duration {
					if atOnce {
						return long
					}
					return wait
				}
				wg.Go(func() {
					check("deadline", func(wait time.Duration) error {
						ctx, cancel := context.WithTimeout(bg, enough(wait))
						defer cancel()
						return calls.wait(ctx)
					}, until(context.DeadlineExceeded)...)
				})
				wg.Go(func() {
					check("cancel", func(wait time.Duration) error {
						ctx, cancel := context.WithCancel(bg)
						defer time.AfterFunc(enough(wait), cancel).Stop()
						return calls.wait(ctx)
					}, until(context.Canceled)...)
				})
				if c.name == "held" {
					ctx, cancel := context.WithCancel(bg)
					cancel()
					check("canceled before", func(time.Duration) error { return calls.wait(ctx) }, context.Canceled)
					if calls.try != nil {
						check("try, canceled before", func(time.Duration) error { return calls.try(ctx) }, context.Canceled)
					}
				}
			}
		})
	}
}

// inPlaceOfScripts is a hook that answers in the place of the scripts of a server.
func inPlaceOfScripts(hook func() error) *locktest.ScriptHook {
	answer := func(cmds []redis.Cmder, next func() error) error {
		for _, cmd := range cmds {
			if cmd.Name() != "evalsha" && cmd.Name() != "eval" {
				return next()
			}
		}
		err := hook()
		for _, cmd := range cmds {
			cmd.SetErr(err)
			if cmd, ok := cmd.(interface{ SetVal(any) }); ok && err == nil {
				cmd.SetVal("what nobody has asked for")
			}
		}
		return err
	}
	return &locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error { return answer([]redis.Cmder{cmd}, next) }, Pipe: answer}
}

// What is asked of a hold, or of a lock, tells an error reply from no answer as an acquire does.
func TestSentinelsOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		begin func(t *testing.T, s *redistest.Server)
		want  error
		now   bool // it is not asked again
	}{
		{"down", func(_ *testing.T, s *redistest.Server) { s.Kill() }, rlock.ErrUnreachable, false},
		{"hung", func(t *testing.T, s *redistest.Server) { s.Pause(); t.Cleanup(s.Resume) }, rlock.ErrUnreachable, false},
		{"NOPERM", func(t *testing.T, s *redistest.Server) { run(t, s, "acl", "setuser", "app", "-@all") }, rlock.ErrRefused, true},
		{"READONLY", func(t *testing.T, s *redistest.Server) { run(t, s, "replicaof", "127.0.0.1", "1") }, rlock.ErrRefused, false},
	} {
		locktest.Beside(t, c.name, func(t *testing.T) {
			s := redistest.Start(t)
			run(t, s, "acl", "setuser", "app", "on", ">password", "~*", "&*", "+@all")
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "app", Password: "password"})
			t.Cleanup(func() { _ = rdb.Close() })
			client := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(3*time.Second), rlock.WithUnlockTimeout(4*time.Second))
			l := client.NewLock("a")
			lease := locktest.MustLock(t, l)
			c.begin(t, s)
			var wg sync.WaitGroup
			for name, call := range map[string]func(ctx context.Context) error{
				"Extend":         func(ctx context.Context) error { return lease.Extend(ctx, time.Hour) },
				"re-entry":       func(ctx context.Context) error { _, err := l.Lock(inside{lease.Context(bg), ctx}); return err },
				"ForceUnlock":    func(ctx context.Context) error { _, err := l.ForceUnlock(ctx); return err },
				"ForceUnlockIf":  func(ctx context.Context) error { _, err := l.ForceUnlockIf(ctx, "another"); return err },
				"TrySetPermits":  func(ctx context.Context) error { _, err := client.NewSemaphore("b").TrySetPermits(ctx, 1); return err },
				"State":          func(ctx context.Context) error { _, err := l.State(ctx); return err },
				"RequestRelease": func(ctx context.Context) error { _, err := l.RequestRelease(ctx); return err },
			} {
				if c.name == "READONLY" && name == "State" {
					continue // a replica may be read
				}
				// check repeats a call, for longer, if a busy machine may not have answered in time.
				check := func(call func(wait time.Duration) error, want ...error) {
					for n := 1; ; n++ {
						err := call(time.Duration(n) * 2 * time.Second)
						late := !errors.Is(err, rlock.ErrRefused) && (errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded))
						wrong := matches(err, want...)
						if n < 10 && len(wrong) > 0 && late {
							continue
						}
						if len(wrong) > 0 {
							t.Errorf("%s: %v: %v", name, err, wrong)
						}
						return
					}
				}
				bounded := func() {
					want := []error{c.want, context.DeadlineExceeded}
					if c.now {
						want = want[:1]
					}
					check(func(wait time.Duration) error {
						if c.now {
							wait = time.Minute
						}
						ctx, cancel := context.WithTimeout(bg, wait)
						defer cancel()
						return call(ctx)
					}, want...)
				}
				wg.Go(func() {
					check(func(time.Duration) error { return call(bg) }, c.want)
					if name == "re-entry" {
						bounded() // now, lest it wait for that one
					}
				})
				if name != "re-entry" {
					wg.Go(bounded)
				}
			}
			wg.Wait()
			err := lease.Unlock(bg)
			if wrong := matches(err, c.want); len(wrong) > 0 || !errors.Is(err, rlock.ErrUnconfirmed) {
				t.Errorf("Unlock: %v: %v", err, wrong)
			}
		})
	}
}

// inside is a context that descends from a lease, and ends with another.
type inside struct {
	lease context.Context
	context.Context
}

func (c inside) Value(key any) any { return c.lease.Value(key) }

// A refusal says what Redis replied, and what to do about it.
func TestTextOfARefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"OOM", `^rlock: "a": Redis refused: OOM command not allowed when used memory > 'maxmemory'\. \(raise maxmemory or make room; keep maxmemory-policy noeviction: any other evicts locks\)$`},
		{"NOPERM", `^rlock: "a": Redis refused: (ERR The user executing the script can't run this command or subcommand|NOPERM .*) \(docs/acl\.md has a user for each type\)$`},
		{"READONLY", `^rlock: "a": Redis refused within 3s: READONLY You can't write against a read only replica\.$`},
	} {
		locktest.Beside(t, c.name, func(t *testing.T) {
			s := redistest.Start(t)
			client := locktest.NewClient(t, s.Client(), rlock.WithCommandTimeout(3*time.Second))
			l := client.NewLock("a")
			locktest.MustUnlock(t, locktest.MustLock(t, l))
			switch c.name {
			case "OOM":
				run(t, s, "config", "set", "maxmemory", "1")
			case "NOPERM":
				run(t, s, "acl", "setuser", "default", "-hset")
			case "READONLY":
				run(t, s, "replicaof", "127.0.0.1", "1")
			}
			if _, err := l.TryLock(bg); !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Error(err)
			}
			if c.name != "READONLY" {
				return
			}
			_, err := l.Lock(bg, rlock.WithWait(1234567890*time.Nanosecond))
			if !strings.HasPrefix(err.Error(), `rlock: "a": timed out after 1.235s; Redis refused: READONLY `) {
				t.Error(err)
			}
		})
	}
}

// The nodes of a RedLock say what they have replied, but are not the lock.
func TestNoQuorumOfNodesThatRefuse(t *testing.T) {
	t.Parallel()
	var clients []*rlock.Client
	for range 3 {
		s := redistest.Start(t)
		clients = append(clients, locktest.NewClient(t, s.Client()))
		run(t, s, "acl", "setuser", "default", "-hset")
	}
	_, err := locktest.NewRedLock(t, "a", clients).TryLock(bg)
	if wrong := matches(err, rlock.ErrNoQuorum, rlock.ErrRefused); len(wrong) > 0 {
		t.Errorf("%v: %v", err, wrong)
	}
	var said redis.Error
	if !errors.As(err, &said) || strings.Count(err.Error(), "docs/acl.md") < 2 {
		t.Errorf("%v: the replies are not there", err)
	}
}

// Who waits for another call of its owner sees what that sees.
func TestSentinelsBehindACallOfTheSameOwner(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"held": rlock.ErrNotAcquired, "hung": rlock.ErrUnreachable} {
		locktest.Beside(t, name, func(t *testing.T) {
			s := redistest.Start(t)
			c := locktest.NewClient(t, s.Client())
			if name == "held" {
				for _, k := range locktest.Types {
					locktest.MustLock(t, k.Blocker(c, k.Name))
				}
			} else {
				s.Pause()
				t.Cleanup(s.Resume)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			for _, k := range locktest.Types {
				l, owner := k.Open(c, k.Name), rlock.WithOwner(bg)
				first := locktest.Begin(t, owner, l)
				if name == "held" {
					locktest.Eventually(t, "it waits", func() bool { s, err := l.State(bg); return err == nil && s.Waiters == 1 })
				}
				wg.Go(func() {
					defer first.Cancel()
					_, err := l.Lock(owner, rlock.WithWait(2*time.Second))
					if wrong := matches(err, want); len(wrong) > 0 {
						t.Errorf("%s: %v: %v", k.Name, err, wrong)
					}
				})
			}
		})
	}
}

// run has a server run a command.
func run(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	rdb := s.Client()
	if err := rdb.Do(bg, args...).Err(); err != nil {
		t.Fatal(err)
	}
}
