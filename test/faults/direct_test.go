package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// heldUp is for how long a caller that asks Redis itself may be held up when its context has ended; see internal/wire.
const heldUp = 75 * time.Millisecond

// locksOf returns locks of a client.
func locksOf(c *rlock.Client, prefix string, n int) (locks []*rlock.Lock) {
	for i := range n {
		locks = append(locks, c.NewLock(fmt.Sprint(prefix, i)))
	}
	return locks
}

// warm lets Redis answer so often that it is near, as far as this machine lets it.
func warm(t *testing.T, c *rlock.Client) {
	t.Helper()
	for l := range 40 {
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock(fmt.Sprint("warm", l)), rlock.WithWait(locktest.Patience)))
	}
}

// lagging measures by how much a goroutine of this process goes on too late at most, until it is told to stop.
func lagging() (stop func() time.Duration) {
	over, lag := make(chan struct{}), make(chan time.Duration)
	go func() {
		longest := time.Duration(0)
		for {
			const nap = 2 * time.Millisecond
			began := time.Now()
			time.Sleep(nap)
			longest = max(longest, time.Since(began)-nap)
			select {
			case <-over:
				lag <- longest
				return
			default:
			}
		}
	}()
	return func() time.Duration { close(over); return <-lag }
}

// Whatever a stall of the server cuts off, an Unlock says that it is done or that it is not confirmed, never that the
// lease was lost, and nothing is left of it in Redis. With the default timeouts a stall of less than 1.4 s does not even
// do that.
func TestUnlocksThroughStalls(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client()
	const clients, each = 4, 8
	var all []*rlock.Client
	for i := range clients {
		opts := []rlock.Option{rlock.WithAnonymity(), rlock.WithUnlockTimeout(rlock.DefaultUnlockTimeout)}
		if i%2 == 1 {
			opts = append(opts, rlock.WithCommandTimeout(time.Second)) // which is not that of an Unlock
		}
		all = append(all, locktest.NewClient(t, s.Client(), opts...))
	}
	for _, stall := range []time.Duration{30, 90, 150, 700, 1700} {
		stall *= time.Millisecond
		var leases []*rlock.Lease
		for i, c := range all {
			warm(t, c)
			for _, l := range locksOf(c, fmt.Sprint("a", i, ":"), each) {
				leases = append(leases, locktest.MustLock(t, l, rlock.WithWait(locktest.Patience)))
			}
		}
		var unconfirmed atomic.Int32
		var unlocks sync.WaitGroup
		s.Pause()
		stopped := time.Now()
		for _, lease := range leases {
			unlocks.Go(func() {
				switch err := lease.Unlock(bg); {
				case err == nil:
				case errors.Is(err, rlock.ErrUnconfirmed) && !errors.Is(err, rlock.ErrLeaseLost):
					unconfirmed.Add(1)
				default:
					t.Errorf("%v: %v", stall, err)
				}
			})
		}
		time.Sleep(stall)
		s.Resume()
		lasted := time.Since(stopped)
		unlocks.Wait()
		t.Logf("%v: %d of %d Unlocks were not confirmed", stall, unconfirmed.Load(), len(leases))
		if n := unconfirmed.Load(); n > 0 && lasted < 1300*time.Millisecond {
			t.Errorf("%v: %d of %d Unlocks were not confirmed", stall, n, len(leases))
		}
		locktest.OnlyTombstones(t, rdb)
	}
}

// A Lock that is canceled while the server is stopped returns soon, and leaves no lock when the server goes on.
func TestLocksCanceledWhileTheServerIsStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client()
	c := locktest.NewClient(t, rdb, rlock.WithAnonymity())
	const callers, rounds = 15, 10
	locks := locksOf(c, "a", callers)
	longest, slowest, late := time.Duration(0), time.Duration(0), 0
	for round := range rounds {
		warm(t, c)
		ctx, cancel := context.WithCancel(bg)
		var all sync.WaitGroup
		var mu sync.Mutex
		s.Pause()
		for _, l := range locks {
			all.Go(func() {
				lease, err := l.Lock(ctx)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					t.Errorf("round %d: it has %v", round, lease)
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		time.Sleep(time.Duration(5+round*10) * time.Millisecond)
		stop := lagging()
		ended := time.Now()
		cancel()
		all.Wait()
		took := time.Since(ended)
		lag := stop()
		longest = max(longest, took)
		if took > 125*time.Millisecond+3*lag {
			late++
			t.Logf("round %d: %v after the end, while this process was %v late", round, took, lag)
		}
		s.Resume()
		resumed := time.Now()
		locktest.OnlyTombstones(t, rdb)
		slowest = max(slowest, time.Since(resumed))
	}
	t.Logf("the last lock was gone %v after the server went on at most", slowest)
	if late > rounds/2 { // each may have had bad luck that was not seen
		t.Errorf("in %d of %d rounds they returned late, though this process had its turns", late, rounds)
	}
	if slowest > time.Second+locktest.Patience/4 {
		t.Errorf("a lock was held for %v after the server went on", slowest)
	}
	t.Logf("the last of them returned %v after the end at most", longest)
	if longest > heldUp+5*time.Second { // 0.1 s where there is time for all of them
		t.Errorf("they returned %v after the end", longest)
	}
}

// connections is how many a server has accepted.
func connections(t *testing.T, s *redistest.Server) int {
	t.Helper()
	info, err := s.Client().Info(bg, "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "total_connections_received:")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A storm of stalls costs connections and time, and nothing else: what was locked before it is unlocked, and Locks go on as
// before.
func TestStormOfStalls(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client()
	c := locktest.NewClient(t, rdb, rlock.WithAnonymity())
	for _, callers := range []int{8, 64} {
		locks := locksOf(c, "a", callers)
		ctx, cancel := context.WithCancel(bg) // that may end: only such a Lock is cut off
		defer cancel()
		pairs := func(d time.Duration) (n int) {
			var all sync.WaitGroup
			var mu sync.Mutex
			until := time.Now().Add(d)
			for _, l := range locks {
				all.Go(func() {
					mine := 0
					for time.Now().Before(until) {
						lease, err := l.Lock(ctx)
						if err != nil {
							t.Errorf("Lock: %v", err)
							return
						}
						if err := lease.Unlock(bg); err != nil && (!errors.Is(err, rlock.ErrUnconfirmed) || errors.Is(err, rlock.ErrLeaseLost)) {
							t.Errorf("Unlock: %v", err)
							return
						}
						mine++
					}
					mu.Lock()
					defer mu.Unlock()
					n += mine
				})
			}
			all.Wait()
			return n
		}
		pairs(time.Second / 4)
		before := pairs(time.Second)
		accepted := connections(t, s)
		const stalls = 10
		stormy := make(chan struct{})
		go func() {
			defer close(stormy)
			for i := range stalls {
				s.Pause()
				time.Sleep(time.Duration(30+27*i) * time.Millisecond) // to 300
				s.Resume()
				time.Sleep(50 * time.Millisecond)
			}
		}()
		pairs(2500 * time.Millisecond)
		<-stormy
		dials := connections(t, s) - accepted
		after := pairs(time.Second)
		for tries := 0; tries < 20 && after < before/4; tries++ { // a busy machine may have no time just then
			after = pairs(time.Second)
		}
		t.Logf("%d callers: %d pairs/s before, %d after %d stalls, which cost %d connections", callers, before, after, stalls, dials)
		if after < before/4 {
			t.Errorf("%d callers: %d pairs/s before, %d after", callers, before, after)
		}
		if dials > stalls*8 {
			t.Errorf("%d callers: %d stalls cost %d connections", callers, stalls, dials)
		}
	}
}
