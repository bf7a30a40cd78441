//go:build unix

package counting

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// lossy is a proxy to a server that loses a part of the replies and requests of scripts, and
// doubles some.
func lossy(t *testing.T, b *locktest.Backend) *faultproxy.Proxy {
	t.Helper()
	locktest.LoadScripts(t, b.Client(t), countScripts...)
	proxy := faultproxy.New(t, b.Addr)
	var shas []string
	for _, s := range countScripts {
		shas = append(shas, locktest.SHA(s))
	}
	faults := []faultproxy.Action{
		faultproxy.SwallowReply, faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate, faultproxy.Error,
	}
	var lost atomic.Int64
	t.Cleanup(func() { t.Logf("%d faults", lost.Load()) })
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		for _, sha := range shas {
			if c.IsScript(sha) && rand.IntN(100) < 3 {
				lost.Add(1)
				return faults[rand.IntN(len(faults))]
			}
		}
		return faultproxy.Pass
	})
	return proxy
}

// childClient is a client in a child, that gives up a lost reply soon, as does its go-redis.
func childClient(t *testing.T, addr string) *rlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: locktest.Ample(500 * time.Millisecond)})
	c, err := rlock.New(rdb, rlock.WithCommandTimeout(locktest.Ample(250*time.Millisecond)), rlock.WithUnlockTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Four processes with very many goroutines have ten permits: never are more than ten inside, and
// none is missing at the end, though replies are lost. Some waits are given up.
func TestPermitsAmongProcesses(t *testing.T) {
	t.Parallel()
	const processes, permits = 4, 10
	goroutines, rounds := 50, 12
	if testing.Short() || locktest.UnderRace() {
		goroutines, rounds = 20, 5
	}
	b := locktest.OnServer(t)
	proxy := lossy(t, b)
	s := b.NewClient(t).NewSemaphore("s")
	is(t, true)(s.TrySetPermits(bg, permits))
	var all []*locktest.Child
	for range processes {
		all = append(all, locktest.StartChild(t, "permits", proxy.Addr(), b.Addr, strconv.Itoa(goroutines), strconv.Itoa(rounds), strconv.Itoa(permits)))
	}
	for _, c := range all {
		c.Report("done")
		c.Finish()
	}
	is(t, permits)(s.Available(bg))
	if inside := text(t, b.Client(t), "inside"); inside != "0" {
		t.Errorf("%s are inside", inside)
	}
}

func childPermits(t *testing.T, p *locktest.Parent, addr string, args []string) {
	number := func(i int) int { n, _ := strconv.Atoi(args[i]); return n }
	c, guard, most := childClient(t, addr), redis.NewClient(&redis.Options{Addr: args[0]}), int64(number(3))
	s := c.NewSemaphore("s")
	var wg sync.WaitGroup
	for g := range number(1) {
		wg.Go(func() {
			for round := 0; round < number(2); {
				var wait []rlock.WaitOption
				if (g+round)%7 == 0 {
					wait = append(wait, rlock.WithWait(time.Duration(rand.IntN(10_000))*time.Microsecond))
				}
				n := 1 + (g+round)%3
				if err := s.Acquire(bg, n, wait...); err != nil {
					if wait == nil {
						t.Error(err)
						return
					}
					if rand.IntN(2) == 0 {
						round++
					}
					continue
				}
				if inside := guard.IncrBy(bg, "inside", int64(n)); inside.Err() != nil || inside.Val() > most {
					t.Errorf("%d permits are taken, %v", inside.Val(), inside.Err())
				}
				guard.DecrBy(bg, "inside", int64(n))
				// Unconfirmed, it is repeated.
				if err := s.Release(bg, n); err != nil {
					t.Log(err)
				}
				round++
			}
		})
	}
	wg.Wait()
	if err := c.Shutdown(bg); err != nil { // all that was given up, or is unconfirmed, is settled
		t.Error(err)
	}
	p.Report("done")
}

// Eight processes count a latch of a thousand down over a network that loses replies. It opens
// exactly with the last one.
func TestLatchAmongProcesses(t *testing.T) {
	t.Parallel()
	const processes = 8
	each := 125
	if testing.Short() || locktest.UnderRace() {
		each = 25
	}
	b := locktest.OnServer(t)
	proxy := lossy(t, b)
	var waiting []<-chan error
	l := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewCountDownLatch("l")
	is(t, true)(l.TrySetCount(bg, processes*each))
	for range 10 {
		waiting = append(waiting, begun(func() error { return l.Wait(bg) }))
	}
	var all []*locktest.Child
	for range processes {
		all = append(all, locktest.StartChild(t, "count", proxy.Addr(), strconv.Itoa(each)))
	}
	for _, c := range all {
		c.Report("almost") // all but one
	}
	for i, c := range all {
		is(t, processes-i)(l.Count(bg))
		wait(t, waiting[0])
		c.Order("finish")
		c.Report("done")
		c.Finish()
	}
	for _, w := range waiting {
		ok(t, ended(t, w))
	}
	is(t, 0)(l.Count(bg))
}

func childCount(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c := childClient(t, addr)
	l := c.NewCountDownLatch("l")
	each, _ := strconv.Atoi(args[0])
	var wg sync.WaitGroup
	for range each - 1 {
		wg.Go(func() {
			if err := l.CountDown(bg); err != nil {
				t.Log(err) // it is repeated
			}
		})
	}
	wg.Wait()
	if err := c.Shutdown(bg); err != nil { // all are confirmed
		t.Error(err)
	}
	p.Report("almost")
	p.Await("finish")
	c = childClient(t, addr)
	if err := c.NewCountDownLatch("l").CountDown(bg); err != nil {
		t.Log(err)
	}
	if err := c.Shutdown(bg); err != nil {
		t.Error(err)
	}
	p.Report("done")
}
