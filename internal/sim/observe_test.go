package sim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// observeRun plays a seed: three hosts that campaign, proclaim and observe. When the faults
// are over each Observe has told the leader and the value that there are.
func observeRun(t *testing.T, seed uint64, s scenario) (told int) {
	bubble(t, seed, Config{Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		ctx := context.Background()
		var players []*player
		var elections []*rlock.Election
		var work, ends sync.WaitGroup
		var mu sync.Mutex // guards the latest leaders
		latest := make([]rlock.Leader, 3)
		for i := range latest {
			p := newPlayer(w, s, string(rune('a'+i)))
			e := p.c.NewElection("job")
			players, elections = append(players, p), append(elections, e)
			leaders, err := e.Observe(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ends.Go(func() {
				for l := range leaders {
					mu.Lock()
					latest[i] = l
					told++
					mu.Unlock()
				}
			})
			r := w.Rand(fmt.Sprint("worker", i))
			work.Go(func() {
				for n := 0; w.Elapsed() < span; n++ {
					p.h.Sleep(p.h.Name, time.Duration(r.Int64N(int64(300*time.Millisecond))))
					l, err := e.Campaign(ctx, fmt.Sprint(p.h.Name, n), rlock.WithWait(giveUpWithin))
					if err != nil {
						continue
					}
					for m := range r.IntN(3) {
						p.h.Sleep(p.h.Name, time.Duration(r.Int64N(int64(50*time.Millisecond))))
						_ = e.Proclaim(ctx, l, fmt.Sprint(p.h.Name, n, " ", m))
					}
					_ = l.Unlock(ctx) // what it says is the other tests' business
				}
			})
		}
		w.Play(w.Schedule(s.mix, s.faults, span))
		time.Sleep(max(0, span-w.Elapsed())) // the rates stay until then
		w.Heal()
		work.Wait()

		check := func(when string, want rlock.Leader) {
			// A command that hangs, the pause after it, and the longest poll.
			time.Sleep(2*lockCommand + time.Second + lockPoll)
			mu.Lock()
			defer mu.Unlock()
			for i, l := range latest {
				if l != want {
					t.Errorf("seed %d, %s: observer %d was told %+v, not %+v", seed, when, i, l, want)
				}
			}
		}
		time.Sleep(lockLease + lockPoll + 10*time.Second) // what was left behind has run out
		l, err := elections[0].Campaign(ctx, "first")
		if err != nil {
			t.Error(err)
			return
		}
		check("at first", rlock.Leader{Value: "first", HoldID: l.HoldID(), Token: l.Token()})
		if err := elections[0].Proclaim(ctx, l, "second"); err != nil {
			t.Error(err)
		}
		check("later", rlock.Leader{Value: "second", HoldID: l.HoldID(), Token: l.Token()})
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
		check("in the end", rlock.Leader{})
		for _, p := range players {
			p.close()
		}
		ends.Wait()
	})
	return told
}

func TestObserveConvergesToTheLeader(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seedsOf(ordinary(2)) {
				if told := observeRun(t, seed, s); told < 8 {
					t.Errorf("seed %d: only %d leaders were told", seed, told)
				}
			}
		})
	}
}

// After a quiet time, in which observers look rarely, a message still tells them of each change at
// once, and the end of a lease without one as soon as it is over.
func TestObserveReportsAChangeImmediatelyAfterAQuietTime(t *testing.T) {
	t.Parallel()
	for _, quiet := range []time.Duration{6 * time.Second, 10 * time.Minute} {
		bubble(t, 1, Config{}, func(w *World) {
			ctx := context.Background()
			var clients []*rlock.Client
			var rdbs []*redis.Client
			var seen []<-chan rlock.Leader
			for _, name := range []string{"a", "b"} {
				h := w.Host(name)
				rdb := redis.NewClient(h.Options(0))
				c, err := rlock.New(rdb, seam.Option(h.Env()).(rlock.Option), rlock.WithLongestPoll(time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				leaders, err := c.NewElection("job").Observe(ctx)
				if err != nil {
					t.Fatal(err)
				}
				rdbs, clients, seen = append(rdbs, rdb), append(clients, c), append(seen, leaders)
			}
			tells := func(what string, want rlock.Leader, within time.Duration) {
				t.Helper()
				limit := time.After(within)
				for i, leaders := range seen {
					select {
					case l := <-leaders:
						if l != want {
							t.Fatalf("%s: observer %d is told %+v, not %+v", what, i, l, want)
						}
					case <-limit:
						t.Fatalf("%s: observer %d is not told within %v", what, i, within)
					}
				}
				time.Sleep(quiet)
			}
			const soon = time.Second
			tells("nobody", rlock.Leader{}, soon)
			e := clients[0].NewElection("job")
			l, err := e.Campaign(ctx, "one")
			if err != nil {
				t.Fatal(err)
			}
			leader := rlock.Leader{Value: "one", HoldID: l.HoldID(), Token: l.Token()}
			tells("a leader", leader, soon)
			for i := range 3 {
				leader.Value = fmt.Sprint("value ", i)
				if err := e.Proclaim(ctx, l, leader.Value); err != nil {
					t.Fatal(err)
				}
				tells("news", leader, soon)
			}
			if err := l.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
			tells("its end", rlock.Leader{}, soon)
			const lease = 5 * time.Minute
			if l, err = e.Campaign(ctx, "two", rlock.WithLease(lease)); err != nil {
				t.Fatal(err)
			}
			tells("the next", rlock.Leader{Value: "two", HoldID: l.HoldID(), Token: l.Token()}, soon)
			tells("the end of its lease", rlock.Leader{}, max(lease-quiet, 0)+soon)
			for i, c := range clients {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				_ = rdbs[i].Close()
			}
		})
	}
}
