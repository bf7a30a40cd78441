package timers

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
)

// Entries come, move and go at random, soon and late, and what is due comes out in order,
// neither too early nor too late.
func TestAgenda(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var g agenda
		want := map[*Entry]clock.Instant{}
		all := make([]*Entry, 300)
		for i := range all {
			all[i] = &Entry{}
		}
		ranges := []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Hour}
		now := clock.Instant(1)
		for range 20_000 {
			switch e := all[rnd.IntN(len(all))]; rnd.IntN(10) {
			case 0:
				g.remove(e)
				delete(want, e)
			case 1, 2: // time passes
				now = now.Add(time.Duration(rnd.Int64N(int64(ranges[rnd.IntN(3)]))))
				last := clock.Instant(0)
				for due := g.takeDue(now); due != nil; due = g.takeDue(now) {
					at, there := want[due]
					if !there || at != due.dueAt || at.After(now) || at.Before(last) || due.index != 0 {
						t.Fatalf("seed %d: at %d came an entry for %d (%d: %v) after one for %d", seed, now, due.dueAt, at, there, last)
					}
					last = at
					delete(want, due)
				}
				for _, at := range want {
					if !at.After(now) {
						t.Fatalf("seed %d: what was due at %d did not come at %d", seed, at, now)
					}
				}
			default:
				// Sometimes it was due before.
				at := max(now.Add(time.Duration(rnd.Int64N(int64(ranges[rnd.IntN(len(ranges))])))-time.Millisecond), 1)
				g.set(e, at)
				want[e] = at
			}
			if len(g) != len(want) {
				t.Fatalf("seed %d: %d entries, want %d", seed, len(g), len(want))
			}
		}
	}
}

// Room for very many entries is given back when they have gone.
func TestAgendaShrinks(t *testing.T) {
	var g agenda
	all := make([]Entry, 100*spare)
	for i := range all {
		g.set(&all[i], clock.Instant(i+1))
	}
	for i := range all {
		g.remove(&all[i])
	}
	if cap(g) > 2*spare {
		t.Errorf("room for %d entries is kept for none", cap(g))
	}
}
