//go:build unix

package interop

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
)

// leastRatio is how many sections of a FairLock rlock must make for each section of Redisson's.
const leastRatio = 1.5

// TestFairLockBesideRedissons measures one fair lock that many owners want all the time: first of rlock, then
// of Redisson, in turns on one server. Only the ratio of two turns that follow each other says something on
// every machine. With -short, and under the race detector, it plays a moment of it and compares nothing.
func TestFairLockBesideRedissons(t *testing.T) {
	if !nightly {
		t.Skip("a part of make nightly")
	}
	for _, c := range []struct {
		name               string
		processes, threads int
	}{
		{"64 owners of one process", 1, 64},
		{"8 owners of each of 4 processes", 4, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			a := &arena{kind: "single", addrs: []string{s.Addr()}, optimizes: true}
			teams := []*team{{language: golang}, {language: java}}
			for _, team := range teams {
				for range c.processes {
					team.peers = append(team.peers, startPeer(t, team.language, a))
				}
			}
			compareTurns(t, teams, c.threads, s.Client(quietly))
		})
	}
}

// team is the processes of one language, which want one lock.
type team struct {
	language language
	peers    []*peer
	rates    []float64 // sections a second, of each turn
	waits    []int     // of all turns, µs
}

// compareTurns gives each team its turns, and compares the figures.
func compareTurns(t *testing.T, teams []*team, threads int, rdb *redis.Client) {
	rounds, turn, warmUp, small := 7, 3*time.Second, 10*time.Second, testing.Short() || raced
	if small {
		rounds, turn, warmUp = 1, time.Second, time.Second
	}
	for _, team := range teams {
		team.race(t, threads, warmUp) // connects, loads scripts, compiles
		team.rates, team.waits = nil, nil
	}
	for range rounds {
		for _, team := range teams {
			team.race(t, threads, turn)
		}
	}
	for _, team := range teams {
		for _, p := range team.peers {
			p.do(t, "1", "exit")
		}
		t.Log(team)
	}
	var ratios []float64
	for i, rate := range teams[0].rates {
		ratios = append(ratios, rate/teams[1].rates[i])
	}
	for _, team := range teams {
		if len(team.waits) == 0 {
			t.Fatalf("%s: nobody has had the lock", team.language)
		}
	}
	ratio := median(ratios)
	text := fmt.Sprintf("a FairLock makes %.2f times the sections of Redisson's (%.2f to %.2f)", ratio, slices.Min(ratios), slices.Max(ratios))
	t.Log(text)
	if ratio < leastRatio && !small {
		t.Errorf("%s; want at least %v", text, leastRatio)
	}
	if keys := rdb.Keys(bg, "*redisson_lock_queue*").Val(); len(keys) > 0 {
		t.Errorf("nobody waits, and there is %q", keys)
	}
}

// race lets all threads of all peers take and release the lock of the team for a while.
func (m *team) race(t *testing.T, threads int, turn time.Duration) {
	t.Helper()
	until := time.Now().Add(turn)
	var calls []*call
	for _, p := range m.peers {
		for i := range threads {
			calls = append(calls, p.send(t, fmt.Sprint(i), "race", "fair", "lock of "+string(m.language), until.UnixMicro()))
		}
	}
	sections := 0
	for _, c := range calls {
		waits := c.must(t, "ok").values
		sections += len(waits)
		for _, wait := range waits {
			micros, err := strconv.Atoi(wait)
			if err != nil {
				t.Fatal(err)
			}
			m.waits = append(m.waits, micros)
		}
	}
	m.rates = append(m.rates, float64(sections)/turn.Seconds())
}

func (m *team) String() string {
	if len(m.waits) == 0 {
		return string(m.language) + ": no section"
	}
	slices.Sort(m.waits)
	at := func(percent int) time.Duration {
		return time.Duration(m.waits[len(m.waits)*percent/100]) * time.Microsecond
	}
	var rates []string
	for _, rate := range m.rates {
		rates = append(rates, fmt.Sprintf("%.0f", rate))
	}
	return fmt.Sprintf("%s: %.0f sections/s (%s); half of the waits within %v, 99 %% within %v",
		m.language, median(m.rates), strings.Join(rates, ", "), at(50), at(99))
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
