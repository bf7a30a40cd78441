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
			teams := []*team{{kind: "fair", language: golang}, {kind: "fair", language: java}}
			for _, team := range teams {
				for range c.processes {
					team.peers = append(team.peers, startPeer(t, team.language, a))
				}
			}
			compareTurns(t, teams, c.threads, s.Client(quietly))
		})
	}
}

// leastMixed is how many sections a fleet of both languages must make for each section of the slower fleet of one language.
const leastMixed = 0.8

// both is the language of a team that has both.
const both language = "Go and Java"

// TestMixedFleetKeepsThroughput measures one lock that two processes want all the time, in turns: two of Go, two of Java, one
// of each. With -short, and under the race detector, it plays a moment of it and compares nothing but that each had the lock.
func TestMixedFleetKeepsThroughput(t *testing.T) {
	if !nightly {
		t.Skip("a part of make nightly")
	}
	const threads = 8
	rounds, turn, warmUp, small := 5, 2*time.Second, 8*time.Second, testing.Short() || raced
	if small {
		rounds, turn, warmUp = 1, time.Second, time.Second
	}
	for _, kind := range []string{"lock", "fair"} {
		t.Run(kind, func(t *testing.T) {
			s := redistest.Start(t)
			a := &arena{kind: "single", addrs: []string{s.Addr()}, optimizes: true}
			var teams []*team
			for _, languages := range [][2]language{{golang, golang}, {java, java}, {golang, java}} {
				team := &team{kind: kind, language: languages[0]}
				if languages[0] != languages[1] {
					team.language = both
				}
				for _, l := range languages {
					team.peers = append(team.peers, startPeer(t, l, a))
				}
				team.race(t, threads, warmUp)
				team.rates, team.waits, team.shares = nil, nil, nil
				teams = append(teams, team)
			}
			for range rounds {
				for _, team := range teams {
					team.race(t, threads, turn)
				}
			}
			mixed := teams[2]
			for _, team := range teams {
				t.Logf("%v; of each process: %v", team, team.shares)
			}
			if slices.Min(mixed.shares) == 0 {
				t.Errorf("of both languages, one never had the lock: %v", mixed.shares)
			}
			ratio := mixedRatio(teams[0].rates, teams[1].rates, mixed.rates)
			t.Logf("a fleet of both makes %.2f sections for each of the slower fleet of one", ratio)
			if ratio < leastMixed && !small {
				t.Errorf("want at least %v", leastMixed)
			}
		})
	}
}

// mixedRatio is the median over the rounds of the mixed fleet's rate for each of the slower fleet.
func mixedRatio(one, other, mixed []float64) float64 {
	var ratios []float64
	for i, rate := range mixed {
		ratios = append(ratios, rate/min(one[i], other[i]))
	}
	return median(ratios)
}

// A fleet that is slower than its slower half is noticed.
func TestMixedRatio(t *testing.T) {
	fast, slow := []float64{100, 110, 90}, []float64{40, 50, 45}
	if got := mixedRatio(fast, slow, []float64{30, 30, 30}); got >= leastMixed {
		t.Errorf("%v passes", got)
	}
	if got := mixedRatio(slow, fast, []float64{60, 10, 60}); got < leastMixed {
		t.Errorf("%v fails", got)
	}
}

// team is the processes of one language, which want one lock.
type team struct {
	kind     string // of the lock
	language language
	peers    []*peer
	rates    []float64 // sections a second, of each turn
	waits    []int     // of all turns, µs
	shares   []int     // sections of each peer, of all turns
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
			calls = append(calls, p.send(t, fmt.Sprint(i), "race", m.kind, "lock of "+string(m.language), until.UnixMicro()))
		}
	}
	sections := 0
	if m.shares == nil {
		m.shares = make([]int, len(m.peers))
	}
	for i, c := range calls {
		waits := c.must(t, "ok").values
		sections += len(waits)
		m.shares[i/threads] += len(waits)
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
