package rlocktest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// In a bubble everything is on one clock: leases, Redis, contexts, WithWait and timeouts.
func TestInABubble(t *testing.T) {
	t.Parallel()
	bubble := func(name string, f func(t *testing.T, srv *rlocktest.Server)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, rlocktest.New(t)) })
		})
	}
	bubble("a hold is renewed while time passes", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"))
		time.Sleep(10 * time.Minute)
		if rest := time.Until(lease.Deadline()); rest < 15*time.Second || rest > 30*time.Second {
			t.Errorf("the lease lasts for %v more", rest)
		}
		wantHeld(t, lease)
	})
	bubble("a fixed lease runs out, for its holder and in Redis", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"), rlock.WithLease(10*time.Second))
		ctx := lease.Context(t.Context())
		began := time.Now()
		<-ctx.Done()
		if passed := time.Since(began); passed > 10*time.Second || passed < 9*time.Second {
			t.Errorf("told after %v", passed)
		}
		lease2, err := srv.NewClient().NewLock("job").Lock(t.Context())
		if passed := time.Since(began); err != nil || passed > 10*time.Second+100*time.Millisecond {
			t.Fatalf("the next holder came after %v: %v", passed, err)
		}
		wantHeld(t, lease2)
		wantLost(t, lease, lease.Done(), rlock.ErrExpired)
	})
	bubble("a release wakes a waiter elsewhere at once", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"))
		var waited time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			began := time.Now()
			other, err := srv.NewClient().NewLock("job").Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			waited = time.Since(began)
			wantHeld(t, other)
		}()
		time.Sleep(7 * time.Minute)
		wantHeld(t, lease)
		<-done
		if waited < 7*time.Minute || waited > 7*time.Minute+50*time.Millisecond { // a poll would come seconds later
			t.Errorf("waited for %v", waited)
		}
	})
	bubble("a subscription lasts, though each answer comes in the instant of its question", func(t *testing.T, srv *rlocktest.Server) {
		srv.Steal("job")
		told := &subscriptions{}
		if _, err := srv.NewClient(rlock.WithObserver(told)).NewLock("job").Lock(t.Context(), rlock.WithWait(10*time.Minute)); err == nil {
			t.Error("it has the lock")
		}
		if began, ended := told.on.Load(), told.off.Load(); began != 2 || ended != 0 { // to the lock, and after a longest poll with its own id
			t.Errorf("it was subscribed %d times, and the subscription was broken %d times", began, ended)
		}
	})
	bubble("WithWait", func(t *testing.T, srv *rlocktest.Server) {
		srv.Steal("job")
		began := time.Now()
		_, err := srv.Client().NewLock("job").Lock(t.Context(), rlock.WithWait(10*time.Minute))
		if passed := time.Since(began); !errors.Is(err, rlock.ErrNotAcquired) || passed < 10*time.Minute || passed > 10*time.Minute+time.Second {
			t.Errorf("after %v: %v", passed, err)
		}
	})
	bubble("a context with a deadline", func(t *testing.T, srv *rlocktest.Server) {
		srv.Steal("job")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		_, err := srv.Client().NewLock("job").Lock(ctx)
		if passed := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || passed < 10*time.Minute || passed > 10*time.Minute+time.Second {
			t.Errorf("after %v: %v", passed, err)
		}
	})
	bubble("timeouts of commands", func(t *testing.T, srv *rlocktest.Server) {
		srv.Hang()
		began := time.Now()
		_, err := srv.Client().NewLock("job").TryLock(t.Context())
		if passed := time.Since(began); !errors.Is(err, rlock.ErrUnreachable) || passed < rlock.DefaultCommandTimeout || passed > rlock.DefaultCommandTimeout+time.Second {
			t.Errorf("after %v: %v", passed, err)
		}
		srv.Recover()
		time.Sleep(time.Second)
		wantHeld(t, lock(t, srv.NewClient().NewLock("job")))
	})
	bubble("Advance is Sleep", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"), rlock.WithLease(10*time.Minute))
		done, began, at := lease.Done(), time.Now(), srv.Now()
		srv.Steal("other")
		result := make(chan error, 1)
		go func() {
			_, err := srv.Client().NewLock("other").Lock(t.Context(), rlock.WithWait(9*time.Minute))
			result <- err
		}()
		srv.Advance(9 * time.Minute)
		select {
		case err := <-result:
			if !errors.Is(err, rlock.ErrNotAcquired) {
				t.Error(err)
			}
		default:
			t.Error("the wait has not ended")
		}
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		srv.Advance(time.Minute)
		wantLost(t, lease, done, rlock.ErrExpired)
		if passed := time.Since(began); passed < 10*time.Minute || passed > 10*time.Minute+time.Second || srv.Now().Sub(at)-passed > 0 {
			t.Errorf("%v have passed, %v for the server", passed, srv.Now().Sub(at))
		}
	})
	bubble("Pause", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"))
		done := lease.Done()
		srv.Pause(time.Minute)
		wantLost(t, lease, done, rlock.ErrExpired)
		wantHeld(t, lock(t, srv.NewClient().NewLock("job")))
	})
	bubble("Steal and Remove", func(t *testing.T, srv *rlocktest.Server) {
		lease := lock(t, srv.Client().NewLock("job"))
		done := lease.Done()
		began := time.Now()
		other := srv.Steal("job")
		wantLost(t, lease, done, rlock.ErrTakenOver)
		done = other.Done()
		srv.Remove("job")
		wantLost(t, other, done, rlock.ErrRemoved)
		if passed := time.Since(began); passed > time.Millisecond {
			t.Errorf("%v have passed", passed)
		}
	})
	bubble("many goroutines", func(t *testing.T, srv *rlocktest.Server) {
		c := srv.NewClient()
		var inside, sections int
		results := make(chan error)
		for range 50 {
			go func() {
				results <- rlock.Do(t.Context(), c.NewLock("job"), func(context.Context) error {
					if inside++; inside != 1 {
						t.Error("two inside")
					}
					time.Sleep(time.Minute)
					inside--
					sections++
					return nil
				})
			}()
		}
		began := time.Now()
		for range 50 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if passed := time.Since(began); sections != 50 || passed < 50*time.Minute || passed > 51*time.Minute {
			t.Errorf("%d sections in %v", sections, passed)
		}
	})
	bubble("a test that leaves its locks held and its waiters waiting", func(t *testing.T, srv *rlocktest.Server) {
		lock(t, srv.Client().NewLock("job"))
		go srv.NewClient().NewLock("job").Lock(context.Background())
		time.Sleep(10 * time.Minute)
		srv.Disconnect()
	})
	bubble("a RedLock of servers that were made one by one", func(t *testing.T, srv *rlocktest.Server) {
		servers := []*rlocktest.Server{srv, rlocktest.New(t), rlocktest.New(t)}
		lease := lock(t, redLock(t, servers, false))
		time.Sleep(10 * time.Minute)
		servers[0].Disconnect()
		time.Sleep(10 * time.Minute)
		servers[1].Remove("job")
		done := lease.Done()
		servers[2].Remove("job")
		wantLost(t, lease, done, rlock.ErrLeaseLost)
	})
}

// Types that keep their waiters in Redis, and what is no lock, work there too.
func TestEachTypeInABubble(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(c *rlock.Client) rlock.Locker{
		"lock":       func(c *rlock.Client) rlock.Locker { return c.NewLock("x") },
		"fair":       func(c *rlock.Client) rlock.Locker { return c.NewFairLock("x") },
		"fenced":     func(c *rlock.Client) rlock.Locker { return c.NewFencedLock("x") },
		"spin":       func(c *rlock.Client) rlock.Locker { return c.NewSpinLock("x") },
		"write":      func(c *rlock.Client) rlock.Locker { return c.NewReadWriteLock("x").Writer },
		"fair write": func(c *rlock.Client) rlock.Locker { return c.NewFairReadWriteLock("x").Writer },
		"priority":   func(c *rlock.Client) rlock.Locker { return c.NewPriorityLock("x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := rlocktest.New(t)
				began := time.Now()
				results := make(chan error)
				for range 4 {
					l := open(srv.NewClient())
					go func() {
						results <- rlock.Do(t.Context(), l, func(context.Context) error {
							time.Sleep(time.Minute) // renewed
							return nil
						})
					}()
				}
				for range 4 {
					if err := <-results; err != nil {
						t.Error(err)
					}
				}
				if passed := time.Since(began); passed < 4*time.Minute || passed > 4*time.Minute+time.Second {
					t.Errorf("%v have passed", passed)
				}
			})
		})
	}
}

// What cannot work, in a bubble above all, says so and does not hang.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Outside": "this server belongs outside of the synctest bubble",
		"OuterT":  "New in a synctest bubble needs the *testing.T that the bubble was given",
		"Addr":    "Addr in a synctest bubble",
		"LoseAt":  "its rounds come one after the other",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMistake$/^"+name+"$", "-test.v")
			cmd.Env = append(os.Environ(), "RLOCKTEST_MISTAKES=1")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%v, want %q in:\n%s", err, want, out)
			}
		})
	}
}

func TestMistake(t *testing.T) {
	if os.Getenv("RLOCKTEST_MISTAKES") == "" {
		t.Skip("it is run by the test above")
	}
	t.Run("Outside", func(t *testing.T) {
		srv := rlocktest.New(t)
		synctest.Test(t, func(t *testing.T) {
			lock(t, srv.Client().NewLock("job"))
		})
	})
	t.Run("OuterT", func(outer *testing.T) {
		synctest.Test(outer, func(*testing.T) { rlocktest.New(outer) })
	})
	t.Run("LoseAt", func(t *testing.T) {
		rlocktest.LoseAt(t, "job", func(t *testing.T, _ *rlocktest.Round) { t.Parallel() })
	})
	t.Run("Addr", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { rlocktest.New(t).Addr() })
	})
}

// A miniredis of the user's own works in a bubble too.
func TestMiniredisInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		newClient := func() *rlock.Client {
			rdb := redis.NewClient(&redis.Options{
				Addr:   "192.0.2.1:6379",
				Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
			})
			c, err := rlock.New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = c.Close()
				_ = rdb.Close()
			})
			return c
		}
		t.Cleanup(func() { m.Close(); time.Sleep(10 * time.Second) })
		began := time.Now()
		results := make(chan error)
		for range 3 {
			l := newClient().NewLock("job")
			go func() {
				results <- rlock.Do(t.Context(), l, func(context.Context) error {
					time.Sleep(time.Minute) // renewed
					return nil
				})
			}()
		}
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if passed := time.Since(began); passed < 3*time.Minute || passed > 3*time.Minute+time.Second {
			t.Errorf("%v have passed", passed)
		}
	})
}

// subscriptions counts them.
type subscriptions struct{ on, off atomic.Int64 }

func (*subscriptions) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context {
	return ctx
}
func (*subscriptions) AcquireEnd(context.Context, rlock.AcquireEvent) {}
func (*subscriptions) Lost(context.Context, rlock.LossEvent)          {}
func (*subscriptions) Unlocked(context.Context, rlock.UnlockEvent)    {}

func (s *subscriptions) Subscription(e rlock.SubscriptionEvent) {
	if e.On {
		s.on.Add(1)
	} else {
		s.off.Add(1)
	}
}
