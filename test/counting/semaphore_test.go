package counting

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestSemaphoreOnAnOrdinaryDay(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t, rlock.WithPrefix("app:"))
		s := c.NewSemaphore("s")
		if s.Name() != "app:s" {
			t.Fatal(s.Name())
		}
		locktest.WantErr(t, s.TryAcquire(bg, 1), rlock.ErrNotSet, nil, rlock.ErrNotAcquired)
		locktest.WantErr(t, s.Acquire(bg, 1), rlock.ErrNotSet)
		is(t, 0)(s.Available(bg))
		is(t, true)(s.TrySetPermits(bg, 3))
		is(t, false)(s.TrySetPermits(bg, 5))
		ok(t, s.Acquire(bg, 2))
		is(t, 1)(s.Available(bg))
		err := s.TryAcquire(bg, 2)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if want := `rlock: "app:s": not acquired: permits free: 1 of 3, wanted: 2`; err.Error() != want {
			t.Fatalf("%v, want %s", err, want)
		}
		err = s.Acquire(bg, 2, rlock.WithWait(time.Second))
		locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded, rlock.ErrUnreachable)
		if want := `rlock: "app:s": not acquired: timed out after 1s; permits free: 1 of 3, wanted: 2`; err.Error() != want {
			t.Fatalf("%v, want %s", err, want)
		}
		ok(t, s.Release(bg, 2))
		is(t, 3)(s.Drain(bg))
		is(t, 0)(s.Drain(bg))
		ok(t, s.AddPermits(bg, -2))
		is(t, -2)(s.Available(bg))
		locktest.WantErr(t, s.TryAcquire(bg, 1), rlock.ErrNotAcquired)
		ok(t, s.AddPermits(bg, 5))
		ok(t, s.TryAcquire(bg, 3))
		ended, cancel := context.WithCancel(bg)
		cancel()
		ok(t, s.Release(ended, 3))
		is(t, 3)(s.Available(bg))
		locktest.WantEnded(t, s.Acquire(ended, 1), context.Canceled)
		wantKeys(t, b.Client(t), "app:s")
	})
}

func TestWrongArgumentsOfSemaphoresAreRefused(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	sent := &locktest.CountHook{}
	rdb := b.Client(t)
	rdb.AddHook(sent)
	c := locktest.NewClient(t, rdb)
	s := c.NewSemaphore("s")
	most := rlock.MaxPermits
	// Where an int has 32 bits, one more than the most permits is a negative number, which is refused, too.
	for _, n := range []int{0, -1, most + 1, math.MinInt} {
		_, err := s.TrySetPermits(bg, n)
		for _, err := range []error{err, s.SetPermits(bg, n), s.Acquire(bg, n), s.TryAcquire(bg, n), s.Release(bg, n)} {
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
		_, err = c.NewCountDownLatch("l").TrySetCount(bg, n)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, n := range []int{0, most + 1, -most - 1, math.MinInt} {
		locktest.WantErr(t, s.AddPermits(bg, n), rlock.ErrInvalidArgument)
	}
	locktest.WantErr(t, s.Acquire(bg, 1, nil), rlock.ErrInvalidArgument)
	var noContext context.Context
	locktest.WantErr(t, s.Acquire(noContext, 1), rlock.ErrInvalidArgument)
	for _, c := range []*rlock.Client{nil, c} {
		name := "a{b"
		_, err := c.NewSemaphore(name).Available(bg)
		_, err2 := c.NewCountDownLatch(name).Count(bg)
		_, err3 := c.NewSemaphore(name).State(bg)
		_, err4 := (&rlock.Semaphore{}).Delete(bg)
		for _, err := range []error{
			err, err2, err3, err4, c.NewSemaphore("").SetPermits(bg, 1), c.NewSemaphore("").Acquire(bg, 1), c.NewSemaphore("").Release(bg, 1), c.NewCountDownLatch("").CountDown(bg),
			c.NewCountDownLatch("").Wait(bg), c.NewBarrier("").Set(bg), c.NewBarrier(name).Wait(bg),
			(&rlock.Semaphore{}).Release(bg, 1), (&rlock.CountDownLatch{}).CountDown(bg), (&rlock.Barrier{}).Wait(bg),
		} {
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	if n := sent.N.Load(); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

// More than an int of Java can hold is refused by Redis, and changes nothing.
func TestTooManyPermitsAreRefused(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		s := b.NewClient(t).NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, rlock.MaxPermits))
		locktest.WantErr(t, s.Release(bg, 1), rlock.ErrInvalidArgument, nil, rlock.ErrUnconfirmed)
		locktest.WantErr(t, s.AddPermits(bg, 1), rlock.ErrInvalidArgument)
		is(t, rlock.MaxPermits)(s.Available(bg))
		ok(t, s.Acquire(bg, rlock.MaxPermits))
		ok(t, s.AddPermits(bg, -rlock.MaxPermits))
		locktest.WantErr(t, s.AddPermits(bg, -1), rlock.ErrInvalidArgument)
		ok(t, s.Release(bg, rlock.MaxPermits))
		ok(t, s.Release(bg, rlock.MaxPermits))
		is(t, rlock.MaxPermits)(s.Available(bg))
	})
}

func TestKeysOfOtherTypesAreNoSemaphores(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, rdb := b.NewClient(t), b.Client(t)
		for name, put := range map[string]func() error{
			"hash":   func() error { return rdb.HSet(bg, "hash", "a", "1").Err() },
			"text":   func() error { return rdb.Set(bg, "text", "12x", 0).Err() },
			"real":   func() error { return rdb.Set(bg, "real", "1.5", 0).Err() },
			"number": func() error { return rdb.Set(bg, "number", "12345678901234", 0).Err() },
		} {
			ok(t, put())
			s, l := c.NewSemaphore(name), c.NewCountDownLatch(name)
			before := rdb.Dump(bg, name).Val()
			_, err1 := s.TrySetPermits(bg, 1)
			_, err2 := s.Drain(bg)
			_, err3 := s.Available(bg)
			_, err4 := l.TrySetCount(bg, 1)
			_, err5 := l.Delete(bg)
			_, err6 := l.Count(bg)
			for i, err := range []error{err1, err2, err3, err4, err5, err6, s.Acquire(bg, 1), s.TryAcquire(bg, 1), s.Release(bg, 1), s.AddPermits(bg, 1), l.CountDown(bg), l.Wait(bg)} {
				if !errors.Is(err, rlock.ErrForeignKey) {
					t.Errorf("%s, call %d: %v", name, i, err)
				}
			}
			if b.Real != nil && rdb.Dump(bg, name).Val() != before {
				t.Errorf("%s was changed", name)
			}
		}
	})
}

// A release wakes the waiters of its own client and of others by a message.
func TestReleaseWakesWaiters(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		var clients []*rlock.Client
		for range 3 {
			clients = append(clients, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)))
		}
		s := clients[0].NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, 4))
		ok(t, s.Acquire(bg, 4))
		var done []<-chan error
		for i := range 12 {
			done = append(done, begun(func() error { return clients[i%3].NewSemaphore("s").Acquire(bg, 1+i%2) }))
		}
		wait(t, done[11])
		for range 3 {
			ok(t, s.Release(bg, 2))
		}
		ok(t, s.Release(bg, 12))
		for _, d := range done {
			ok(t, ended(t, d))
		}
		is(t, 0)(s.Available(bg))
	})
}

// The waiters of one client are served in the order in which they came, and a large request
// is not overtaken by small ones.
func TestWaitersOfOneClientGoInOrder(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient))
		s := c.NewSemaphore("s")
		is(t, true)(s.TrySetPermits(bg, 5))
		ok(t, s.Acquire(bg, 5))
		done := []<-chan error{begun(func() error { return s.Acquire(bg, 5) })}
		listened(t, b.Client(t), "s", 1)
		for range 2 {
			done = append(done, begun(func() error { return s.Acquire(bg, 1) }))
		}
		ok(t, s.Release(bg, 4))
		wait(t, done[1:]...)
		ok(t, s.TryAcquire(bg, 1)) // who does not wait is not in the line
		ok(t, s.Release(bg, 4))
		for _, d := range done {
			ok(t, ended(t, d))
		}
		is(t, 0)(s.Available(bg))
	})
}

// A thousand waiters that are canceled at once send next to nothing.
func TestWaitersCanceledTogetherSendNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	sent := &locktest.CountHook{}
	rdb := b.Client(t)
	rdb.AddHook(sent)
	s := locktest.NewClient(t, rdb).NewSemaphore("s")
	is(t, true)(s.TrySetPermits(bg, 1))
	ok(t, s.Acquire(bg, 1))
	ctx, cancel := context.WithCancel(bg)
	const waiters = 1000
	var wg sync.WaitGroup
	var wrong atomic.Int64
	wait := func() {
		if err := s.Acquire(ctx, 1); !errors.Is(err, context.Canceled) {
			wrong.Add(1)
		}
	}
	wg.Go(wait)
	listened(t, b.Client(t), "s", 1)
	for range waiters - 1 {
		wg.Go(wait)
	}
	time.Sleep(300 * time.Millisecond) // none that is late looks either
	before := sent.N.Load()
	cancel()
	wg.Wait()
	if n := sent.N.Load() - before; n > 20 || wrong.Load() > 0 {
		t.Errorf("%d commands, %d wrong errors", n, wrong.Load())
	}
	ok(t, s.Release(bg, 1))
	is(t, 1)(s.Available(bg))
}

// Waiters leave with ErrClosed when the client shuts down; permits can be released until the
// end, and after it.
func TestShutdownSendsWaitersAway(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		s, l, bar := c.NewSemaphore("s"), c.NewCountDownLatch("l"), c.NewBarrier("b")
		is(t, true)(s.TrySetPermits(bg, 1))
		is(t, true)(l.TrySetCount(bg, 1))
		ok(t, bar.Set(bg))
		ok(t, s.Acquire(bg, 1))
		done := []<-chan error{
			begun(func() error { return s.Acquire(bg, 1) }),
			begun(func() error { return l.Wait(bg) }),
			begun(func() error { return bar.Wait(bg) }),
		}
		wait(t, done...)
		ok(t, c.Shutdown(bg))
		for _, d := range done {
			locktest.WantErr(t, ended(t, d), rlock.ErrClosed)
		}
		ok(t, s.Release(bg, 1))
		ok(t, l.CountDown(bg))
		locktest.WantErr(t, s.Acquire(bg, 1), rlock.ErrClosed)
		locktest.WantErr(t, s.AddPermits(bg, 1), rlock.ErrClosed)
		other := b.NewClient(t)
		is(t, 1)(other.NewSemaphore("s").Available(bg))
		is(t, 0)(other.NewCountDownLatch("l").Count(bg))
	})
}

func TestIsSetOfABarrier(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		set := c.NewBarrier("b")
		is(t, false)(set.IsSet(bg))
		ok(t, set.Set(bg))
		is(t, true)(b.NewClient(t).NewBarrier("b").IsSet(bg))
		ok(t, set.Lift(bg))
		is(t, false)(set.IsSet(bg))
		_, err := c.NewBarrier("").IsSet(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		ok(t, c.Close())
		_, err = set.IsSet(bg)
		locktest.WantErr(t, err, rlock.ErrClosed)
	})
}
