package rlock

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
		want := map[*entry]clock.Instant{}
		all := make([]*entry, 300)
		for i := range all {
			all[i] = &entry{index: -1}
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
				for due := g.next(now); due != nil; due = g.next(now) {
					at, there := want[due]
					if !there || at != due.at || at.After(now) || at.Before(last) || due.index != -1 {
						t.Fatalf("seed %d: at %d came an entry for %d (%d: %v) after one for %d", seed, now, due.at, at, there, last)
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
			if g.n != len(want) {
				t.Fatalf("seed %d: %d entries, want %d", seed, g.n, len(want))
			}
		}
		// A wake-up at the first time may come too early, but not too late.
		for len(want) > 0 {
			at, any := g.first()
			if !any {
				t.Fatalf("seed %d: %d entries, and nothing is due ever", seed, len(want))
			}
			least := at.Add(time.Hour)
			for _, w := range want {
				least = min(least, w)
			}
			empty := len(g.soon) == 0 && len(g.later[0].entries) == 0
			if at.After(least) || dayOf(at) != dayOf(least) && !empty {
				t.Fatalf("seed %d: the first is due at %d, want %d", seed, at, least)
			}
			if e := g.next(at); e != nil {
				delete(want, e)
			}
		}
		if len(g.later) > 1 || len(g.byDay) != len(g.later) || len(g.all()) > 0 || g.n != 0 {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}

// Each entry is listed once, wherever it is.
func TestAgendaListsAll(t *testing.T) {
	var g agenda
	want := map[*entry]bool{}
	for i := range clock.Instant(100) {
		e := &entry{index: -1}
		want[e] = true
		g.set(e, i.Add(time.Duration(i)*50*time.Millisecond))
	}
	delete(want, g.next(clock.Instant(time.Second))) // some of the rest are soon now
	if len(g.soon) == 0 || len(g.later) == 0 {
		t.Fatalf("%d are soon, on %d days later", len(g.soon), len(g.later))
	}
	for _, e := range g.all() {
		if !want[e] {
			t.Fatal("an entry that is not there, or twice")
		}
		delete(want, e)
	}
	if len(want) > 0 {
		t.Errorf("%d entries are not listed", len(want))
	}
}
