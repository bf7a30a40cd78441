package rlocktest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// What the user of the library is told when something is wrong with Redis.
func TestWhatEachFaultIsToldAs(t *testing.T) {
	t.Parallel()
	sentinels := []error{rlock.ErrNotAcquired, rlock.ErrUnreachable, rlock.ErrRefused, rlock.ErrLeaseLost}
	want := func(t *testing.T, what string, err error, each ...error) {
		t.Helper()
		for _, sentinel := range sentinels {
			if is := errors.Is(err, sentinel); is != slices.Contains(each, sentinel) {
				t.Errorf("%s: %v; matches %q: %v", what, err, sentinel, is)
			}
		}
	}
	for name, fault := range map[string]struct {
		begin func(srv *rlocktest.Server)
		call  error // what a call matches, and the cause of a loss
		held  error // what a Lock matches that waits for a holder
		soon  bool  // a call does not try for long
	}{
		"Disconnect": {begin: (*rlocktest.Server).Disconnect, call: rlock.ErrUnreachable, held: rlock.ErrUnreachable},
		"Hang":       {begin: (*rlocktest.Server).Hang, call: rlock.ErrUnreachable, held: rlock.ErrUnreachable},
		"ReadOnly":   {begin: (*rlocktest.Server).ReadOnly, call: rlock.ErrRefused, held: rlock.ErrNotAcquired}, // it reads that there is one
		"Fail":       {begin: func(srv *rlocktest.Server) { srv.Fail(outage) }, call: rlock.ErrRefused, held: rlock.ErrRefused},
		"Fail, for good": {
			begin: func(srv *rlocktest.Server) { srv.Fail("NOPERM no permissions") }, call: rlock.ErrRefused, held: rlock.ErrRefused, soon: true,
		},
		"Slow, by more than the timeout": {
			begin: func(srv *rlocktest.Server) { srv.Slow(2 * rlock.DefaultCommandTimeout) }, call: rlock.ErrUnreachable, held: rlock.ErrUnreachable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := rlocktest.New(t)
				c, other := srv.Client(), srv.NewClient()
				lost, short := lock(t, c.NewLock("lost")), lock(t, c.NewLock("short"))
				wantHeld(t, lock(t, other.NewLock("job"))) // it is connected
				fault.begin(srv)

				began := time.Now()
				_, err := other.NewLock("job").TryLock(t.Context())
				want(t, "TryLock", err, fault.call)
				if passed := time.Since(began); fault.soon && passed > time.Second || !fault.soon && (passed < 3*time.Second || passed > 4*time.Second) {
					t.Errorf("TryLock returned after %v", passed)
				}
				began = time.Now()
				_, err = other.NewLock("short").Lock(t.Context(), rlock.WithWait(10*time.Second))
				want(t, "Lock", err, fault.held)
				if passed := time.Since(began); passed > 11*time.Second {
					t.Errorf("Lock returned after %v", passed)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = other.NewLock("short").Lock(ctx)
				if !fault.soon && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("with a context that ends: %v", err)
				}
				err = short.Unlock(t.Context())
				if !errors.Is(err, rlock.ErrUnconfirmed) || !errors.Is(err, fault.call) {
					t.Errorf("Unlock: %v", err)
				}
				time.Sleep(rlock.DefaultWatchdogLease)
				want(t, "the loss", lost.Err(), rlock.ErrLeaseLost, fault.call)
				want(t, "Unlock after the loss", lost.Unlock(t.Context()), rlock.ErrLeaseLost, fault.call)

				srv.Recover()
				time.Sleep(10 * time.Second) // what was left is cleaned up
				for _, name := range []string{"job", "short", "lost"} {
					wantHeld(t, lock(t, other.NewLock(name)))
				}
			})
		})
	}
}

// A fault that passes within the lease costs no hold.
func TestHoldsOutlastShortFaults(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(srv *rlocktest.Server){
		"Disconnect": (*rlocktest.Server).Disconnect,
		"Hang":       (*rlocktest.Server).Hang,
		"ReadOnly":   (*rlocktest.Server).ReadOnly,
		"Slow":       func(srv *rlocktest.Server) { srv.Slow(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := rlocktest.New(t)
				lease := lock(t, srv.Client().NewLock("job"))
				waiter := make(chan error, 1)
				go func() {
					other, err := srv.NewClient().NewLock("job").Lock(t.Context())
					if err == nil {
						err = other.Unlock(t.Context())
					}
					waiter <- err
				}()
				for range 10 {
					begin(srv)
					srv.Advance(15 * time.Second)
					srv.Recover()
					srv.Advance(15 * time.Second)
				}
				wantHeld(t, lease)
				if err := <-waiter; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The same outside of a bubble.
func TestFaultsInRealTime(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(srv *rlocktest.Server){
		"Disconnect": (*rlocktest.Server).Disconnect,
		"Hang":       (*rlocktest.Server).Hang,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rlocktest.New(t, rlock.WithCommandTimeout(300*time.Millisecond))
			// Remove and Steal ask all holders of a name, of other tests too, and would wait for this one's server.
			name := "job of " + t.Name()
			lease := lock(t, srv.Client().NewLock(name))
			done := lease.Done()
			begin(srv)
			if _, err := srv.Client().NewLock("other").TryLock(t.Context()); !errors.Is(err, rlock.ErrUnreachable) {
				t.Error(err)
			}
			srv.Advance(20 * time.Second)
			if err := lease.Err(); err != nil {
				t.Error(err)
			}
			srv.Advance(10 * time.Second)
			select { // while nothing answers, Advance waits for nobody for long
			case <-done:
			case <-time.After(20 * time.Second):
			}
			wantLost(t, lease, done, rlock.ErrLeaseLost) // with "no answer", if a renewal has failed by then
			srv.Recover()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			next, err := srv.NewClient().NewLock(name).Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			wantHeld(t, next)
		})
	}
}

// A server that is read-only is still read.
func TestReadOnlyServerIsRead(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	ctx, l := t.Context(), srv.Client().NewLock("job")
	lease := lock(t, l)
	rdb := srv.Redis()
	if err := rdb.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	srv.ReadOnly()
	if s, err := l.State(ctx); err != nil || !s.Locked() {
		t.Errorf("State() = %+v, %v", s, err)
	}
	if v, err := rdb.Get(ctx, "key").Result(); v != "value" || err != nil {
		t.Errorf("GET: %q, %v", v, err)
	}
	once := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, DisableIdentity: true})
	defer once.Close()
	if err := once.Del(ctx, "key").Err(); !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("DEL: %v", err)
	}
	if err := once.Eval(ctx, "return redis.call('del', KEYS[1])", []string{"key"}).Err(); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("DEL in a script: %v", err)
	}
	if v, err := once.Eval(ctx, "return redis.call('get', KEYS[1])", []string{"key"}).Result(); v != "value" || err != nil {
		t.Errorf("GET in a script: %v, %v", v, err)
	}
	srv.Recover()
	wantHeld(t, lease)
}

// What a server that hung was sent it runs afterwards.
func TestHungServerRunsWhatItWasSent(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(srv *rlocktest.Server) *redis.Options{
		"in memory": func(srv *rlocktest.Server) *redis.Options { o := *srv.Redis().Options(); return &o },
		"by TCP":    func(srv *rlocktest.Server) *redis.Options { return &redis.Options{Addr: srv.Addr()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rlocktest.New(t)
			o := open(srv)
			o.MaxRetries, o.DisableIdentity, o.ReadTimeout = -1, true, 500*time.Millisecond // a busy machine answers PING within it
			rdb := redis.NewClient(o)
			defer rdb.Close()
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			srv.Hang()
			var timeout net.Error
			if err := rdb.Set(t.Context(), "key", "late", 0).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("SET: %v", err)
			}
			srv.Recover()
			waitFor(t, func() bool { return srv.Redis().Get(t.Context(), "key").Val() == "late" })
			srv.Disconnect()
			if err := rdb.Ping(t.Context()).Err(); err == nil {
				t.Error("PING was answered")
			}
			srv.Recover()
			srv.Slow(time.Minute)
			if err := rdb.Ping(t.Context()).Err(); err == nil {
				t.Error("PING was answered in time")
			}
			srv.Recover()
			waitFor(t, func() bool { return rdb.Ping(t.Context()).Err() == nil })
		})
	}
}
