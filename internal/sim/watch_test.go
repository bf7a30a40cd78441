package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// watchRun plays a seed: three hosts on which one takes the lock and one watches
// it. When the faults are over each watch has told the state that there is, and
// ends with its client.
func watchRun(t *testing.T, seed uint64, s scenario) (trace []string, told int) {
	bubble(t, seed, Config{Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		var players []*player
		var work, ends sync.WaitGroup
		var mu sync.Mutex // guards the latest states
		latest := make([]rlock.State, 3)
		for i := range latest {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			states, err := p.locks["stock"].(*rlock.Lock).Watch(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			ends.Go(func() {
				for state := range states {
					mu.Lock()
					latest[i] = state
					told++
					mu.Unlock()
				}
			})
			r := w.Rand(fmt.Sprint("worker", i))
			work.Go(func() {
				for w.Elapsed() < span {
					p.h.Sleep(p.h.Name, time.Duration(r.Int64N(int64(300*time.Millisecond))))
					l, err := p.locks["stock"].Lock(context.Background(), rlock.WithWait(giveUpWithin))
					if err != nil {
						continue
					}
					p.h.Sleep(p.h.Name, time.Duration(r.Int64N(int64(100*time.Millisecond))))
					_ = l.Unlock(context.Background()) // what it says is the other tests' business
				}
			})
		}
		w.Play(w.Schedule(s.mix, s.faults, span))
		w.Heal()
		work.Wait()

		check := func(when string, holders []rlock.Holder) {
			// A command that hangs, the pause after it, and the longest poll.
			time.Sleep(2*lockCommand + time.Second + lockPoll)
			mu.Lock()
			defer mu.Unlock()
			for i, state := range latest {
				if !slices.Equal(state.Holders, holders) {
					t.Errorf("seed %d, %s: watch %d has told %+v, not %+v", seed, when, i, state, holders)
				}
			}
		}
		time.Sleep(lockLease + lockPoll + 10*time.Second) // what was left behind has run out
		l, err := players[0].locks["stock"].Lock(context.Background())
		if err != nil {
			t.Error(err)
			return
		}
		check("held", []rlock.Holder{{HoldID: l.HoldID(), Count: 1}})
		if err := l.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
		check("free", nil)
		// A client that is closed may or may not have the time to unsubscribe.
		trace = w.Trace()
		for _, p := range players {
			p.close()
		}
		ends.Wait()
	})
	return trace, told
}

func TestWatchConvergesToTheState(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for i, seed := range seedsOf(ordinary(2)) {
				trace, told := watchRun(t, seed, s)
				if told < 5 {
					t.Errorf("seed %d: only %d states were told", seed, told)
				}
				if i > 0 || brief() && s.name != "harsh" {
					continue
				}
				if again, _ := watchRun(t, seed, s); !slices.Equal(again, trace) {
					i := 0
					for i < min(len(again), len(trace)) && again[i] == trace[i] {
						i++
					}
					t.Errorf("seed %d: two runs differ, first with\n%s\nand\n%s", seed,
						strings.Join(trace[max(i-3, 0):min(i+3, len(trace))], "\n"), strings.Join(again[max(i-3, 0):min(i+3, len(again))], "\n"))
				}
			}
		})
	}
}
