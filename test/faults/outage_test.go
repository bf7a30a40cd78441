package faults

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// outage is a way in which Redis gives no answer.
type outage struct {
	name  string
	begin func(t *testing.T) (rdb redis.UniversalClient)
}

var outages = []outage{
	{"refused", func(t *testing.T) redis.UniversalClient {
		s := redistest.Start(t)
		rdb := s.Client()
		s.Kill()
		return rdb
	}},
	{"hung", func(t *testing.T) redis.UniversalClient {
		s := redistest.Start(t)
		rdb := s.Client(func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
		if err := rdb.Ping(bg).Err(); err != nil {
			t.Fatal(err)
		}
		s.Pause()
		t.Cleanup(s.Resume)
		return rdb
	}},
	{"black hole", func(t *testing.T) redis.UniversalClient {
		b := locktest.OnMiniredis(t)
		proxy := faultproxy.New(t, b.Addr)
		proxy.Blackhole(true)
		return locktest.Dialer(proxy.Addr())(t, nil)
	}},
}

// While Redis gives no answer, the end of a wait says so: it is not contention.
func TestErrorAtTheEndOfAWaitReportsAnOutage(t *testing.T) {
	t.Parallel()
	kinds := append([]locktest.Type{}, locktest.Types...)
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			c := locktest.NewClient(t, o.begin(t), rlock.WithUnlockTimeout(100*time.Millisecond))
			check := func(t *testing.T, open func(name string) rlock.Locker) {
				t.Parallel()
				wait := locktest.Ample(2 * time.Second) // a busy machine sends something within it
				t.Run("WithWait", func(t *testing.T) {
					t.Parallel()
					_, err := open("wait").Lock(bg, rlock.WithWait(wait))
					locktest.WantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired, rlock.ErrRefused, context.DeadlineExceeded)
					if !strings.Contains(err.Error(), "timed out after "+wait.String()+"; no answer from Redis") && !strings.Contains(err.Error(), " + ") {
						t.Errorf("%v", err)
					}
				})
				for name, call := range map[string]func(rlock.Locker, context.Context) (*rlock.Lease, error){
					"Lock":    func(l rlock.Locker, ctx context.Context) (*rlock.Lease, error) { return l.Lock(ctx) },
					"TryLock": func(l rlock.Locker, ctx context.Context) (*rlock.Lease, error) { return l.TryLock(ctx) },
				} {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						ctx, cancel := context.WithTimeout(bg, wait)
						defer cancel()
						_, err := call(open(name), ctx)
						locktest.WantErr(t, err, rlock.ErrUnreachable, context.DeadlineExceeded, nil, rlock.ErrNotAcquired, rlock.ErrRefused)
					})
				}
				t.Run("in line", func(t *testing.T) {
					t.Parallel()
					l := open("line")
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					done := make(chan error, 4)
					for range cap(done) {
						go func() {
							_, err := l.Lock(ctx)
							done <- err
						}()
					}
					time.Sleep(wait)
					cancel()
					for range cap(done) {
						err := <-done
						if errors.Is(err, rlock.ErrNotAcquired) || !errors.Is(err, rlock.ErrUnreachable) || !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					}
				})
			}
			for _, k := range kinds {
				t.Run(k.Name, func(t *testing.T) {
					check(t, func(name string) rlock.Locker { return k.Open(c, k.Name+name) })
				})
			}
			t.Run("MultiLock", func(t *testing.T) {
				check(t, func(name string) rlock.Locker {
					l, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("{" + name + "}:1"), c.NewLock("{" + name + "}:2")})
					if err != nil {
						t.Fatal(err)
					}
					return l
				})
			})
		})
	}
}

// With too few of its nodes a RedLock says that there is no quorum.
func TestErrorAtTheEndOfAWaitReportsNoQuorum(t *testing.T) {
	t.Parallel()
	wait := locktest.Ample(2 * time.Second) // a busy machine sends something within it
	for _, o := range outages {
		for _, by := range []struct {
			what  string
			until func(l *rlock.RedLock) error
			also  error
		}{
			{"WithWait", func(l *rlock.RedLock) error {
				_, err := l.Lock(bg, rlock.WithWait(wait))
				return err
			}, nil},
			{"context", func(l *rlock.RedLock) error {
				ctx, cancel := context.WithTimeout(bg, wait)
				defer cancel()
				_, err := l.Lock(ctx)
				return err
			}, context.DeadlineExceeded},
		} {
			locktest.Beside(t, o.name+", "+by.what, func(t *testing.T) {
				clients := []*rlock.Client{locktest.NewClient(t, locktest.OnMiniredis(t).Client(t))}
				for range 2 {
					clients = append(clients, locktest.NewClient(t, o.begin(t)))
				}
				l, err := rlock.NewRedLock("a", clients)
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					err := by.until(l)
					locktest.WantErr(t, err, rlock.ErrNoQuorum, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired)
					if errors.Is(err, context.DeadlineExceeded) != (by.also != nil) {
						t.Error(err)
					}
				}
			})
		}
	}
}

// Where Redis answers, a wait that ends in the middle of a command is no outage,
// whatever ends it and however soon.
func TestEndOfAWaitIsNoOutageWhileRedisAnswers(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t)
	holders := b.NewClient(t, rlock.WithAnonymity())
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			held := locktest.MustLock(t, k.Blocker(holders, k.Name))
			defer locktest.MustUnlock(t, held)
			l := k.Open(c, k.Name)
			told := false
			for i := range 100 {
				ctx, cancel := context.WithTimeout(bg, time.Duration(i)*37*time.Microsecond)
				began := time.Now()
				_, err := l.Lock(ctx)
				took := time.Since(began)
				cancel()
				// On a machine that is very busy Redis may really not answer for so long.
				// Before the first answer nothing has been seen.
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rlock.ErrNotAcquired) != strings.Contains(err.Error(), "; held by ") ||
					errors.Is(err, rlock.ErrUnreachable) && took < 100*time.Millisecond {
					t.Fatalf("after %v: %v", took, err)
				}
				told = told || strings.Contains(err.Error(), "; held by "+held.HoldID())

				began = time.Now()
				_, err = l.Lock(bg, rlock.WithWait(time.Duration(i)*37*time.Microsecond))
				if took := time.Since(began); errors.Is(err, rlock.ErrNotAcquired) == errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) ||
					errors.Is(err, rlock.ErrUnreachable) && took < 100*time.Millisecond {
					t.Fatalf("WithWait, after %v: %v", took, err)
				}
			}
			if !told {
				t.Error("never was the holder named")
			}
			_, err := l.Lock(bg, rlock.WithWait(2*time.Second))
			locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
			if !strings.Contains(err.Error(), ": not acquired: timed out after 2s; held by "+held.HoldID()+", ") {
				t.Errorf("%v", err)
			}
			_, err = l.TryLock(bg)
			if !strings.Contains(err.Error(), ": not acquired: held by "+held.HoldID()+", ") {
				t.Errorf("%v", err)
			}
			var refused *rlock.Error
			if !errors.As(err, &refused) || refused.HolderID != held.HoldID() || refused.Left <= 0 || refused.Left > locktest.Lease {
				t.Errorf("%v, %+v", err, refused)
			}
		})
	}
}

// Lock bears an outage for as long as a watchdog lease, counted from its first look.
func TestLockBearsAnOutageForAWatchdogLease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	p := faultproxy.New(t, b.Addr)
	r := &locktest.Recorder{}
	c := locktest.NewClient(t, locktest.Dialer(p.Addr())(t, nil), rlock.WithObserver(r),
		rlock.WithCommandTimeout(3*time.Second), rlock.WithWatchdogLease(9*time.Second))
	l := c.NewLock("stock")
	locktest.MustUnlock(t, locktest.MustLock(t, l))
	p.Blackhole(true)
	start := time.Now()
	_, err := l.Lock(bg)
	took := time.Since(start)
	if !errors.Is(err, rlock.ErrUnreachable) || took < 9*time.Second {
		t.Fatalf("%v, after %v", err, took)
	}
	if said := regexp.MustCompile(`no answer from Redis for (\d+(?:\.\d{1,3})?s)\b`).FindStringSubmatch(err.Error()); said == nil {
		t.Errorf("%v: does not say for how long it has tried", err)
	} else if d, _ := time.ParseDuration(said[1]); d < 9*time.Second || d > took+time.Second {
		t.Errorf("%v, after %v", err, took)
	}
	// Each look is given the whole command timeout, so the third ends after the lease.
	if e := r.Acquires[len(r.Acquires)-1]; e.Attempts > 3 {
		t.Errorf("%d looks in %v", e.Attempts, took)
	}
}

// A hold that is lost because Redis is silent was lost by no deadline of the caller's: nobody has set one.
func TestLossByASilentRedisMatchesNoDeadlineOfTheCallers(t *testing.T) {
	t.Parallel()
	type lost struct {
		name string
		open func(c *rlock.Client) rlock.Locker
	}
	rows := []lost{{name: "CronJob"}}
	for _, k := range locktest.Types {
		rows = append(rows, lost{name: k.Name, open: func(c *rlock.Client) rlock.Locker { return k.Open(c, "a") }})
	}
	for _, test := range rows {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			proxy := faultproxy.New(t, b.Addr)
			// go-redis gives up by our deadline, not by one of its own.
			rdb := locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = time.Minute, true })
			c := locktest.NewClient(t, rdb, rlock.WithWatchdogLease(9*time.Second), rlock.WithCommandTimeout(time.Second), rlock.WithUnlockTimeout(200*time.Millisecond))
			check := func(what string, err error) {
				t.Helper()
				locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrUnreachable, nil, context.DeadlineExceeded, context.Canceled)
				if err == nil {
					t.Error(what)
				}
			}
			inside := func(ctx context.Context, lease *rlock.Lease) {
				proxy.Blackhole(true)
				<-ctx.Done()
				check("Cause", context.Cause(ctx))
				check("Err", lease.Err())
			}
			if test.open == nil {
				err := rlock.ErrNotRun
				for errors.Is(err, rlock.ErrNotRun) { // a busy machine
					_, err = c.NewCronJob("a").Do(bg, time.Now().Truncate(time.Second), func(ctx context.Context) error {
						lease, _ := rlock.LeaseFrom(ctx)
						inside(ctx, lease)
						return nil
					})
				}
				check("Do", err)
				return
			}
			lease, err := test.open(c).Lock(bg)
			for errors.Is(err, rlock.ErrUnreachable) { // a busy machine
				lease, err = test.open(c).Lock(bg)
			}
			if err != nil {
				t.Fatal(err)
			}
			inside(lease.Context(bg), lease)
			check("Unlock", lease.Unlock(bg))
		})
	}
}
