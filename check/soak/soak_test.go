//go:build linux

package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/locktest"
)

var (
	long      = flag.Bool("long", false, "an hour, with a new seed")
	total     = flag.Duration("for", 0, "how long it takes, with a new seed")
	givenSeed = flag.Uint64("seed", 0, "draws the same faults and uses again; 0 draws the same every day")
)

func TestMain(m *testing.M) { locktest.MainAtMost(m, 1) } // a heap has one run at a time

// The parts of a run.
const (
	rounds     = 15               // of a short run; each ends with a quiet point
	longRound  = time.Minute      // of a long run
	warmUp     = 4                // the first quarter of a run is not judged
	leastGap   = 5 * time.Second  // the shortest time between two faults of a long run
	longestGap = 15 * time.Second // the longest time between two faults of a long run
	shortGaps  = 18               // a short run has as many longest gaps, so that each fault happens
	leastUses  = 140              // of each type have to succeed
)

// plan says how long the run takes, and with which seed.
func plan(t *testing.T) (d time.Duration, seed uint64) {
	d, seed = 75*time.Second, *givenSeed
	switch {
	case *total > 0:
		d = *total
	case *long:
		d = time.Hour
	}
	switch {
	case seed == 0 && (*total > 0 || *long || locktest.IsNightly()):
		seed = uint64(time.Now().UnixNano())
	case seed == 0:
		seed = 1
	}
	t.Logf("again: go test -run '^%s$' ./soak -args -for=%v -seed=%d", t.Name(), d, seed)
	return d, seed
}

// Nothing grows while all types are used, and servers and connections fail.
func TestNothingGrowsUnderFire(t *testing.T) {
	d, seed := plan(t)
	h := newHouse(t, seed, uses)
	samples := h.soak(seed, d)
	judged := samples[len(samples)/warmUp:]
	t.Log(header)
	for i, s := range samples {
		t.Logf("| %d | %v", i+1, s)
	}
	for _, grown := range judge(judged) {
		t.Error(grown)
	}
	for _, lacks := range h.lacking(len(samples)) {
		t.Error("too little: ", lacks)
	}
	for _, wrong := range h.unexpected() {
		t.Error("unexpected error: ", wrong)
	}
	t.Log(h.summary())
}

// soak lets the workers work and faults happen for that long, and takes a sample after each round. A slow machine needs
// more rounds until it has done enough: it gets up to three times as long.
func (h *house) soak(seed uint64, d time.Duration) (samples []sample) {
	round := min(longRound, d/rounds)
	longest := min(longestGap, d/shortGaps)
	least := min(leastGap, longest/3)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var next []string
	for began := time.Now(); time.Since(began) < d || time.Since(began) < 3*d && h.lacking(len(samples)) != nil; {
		h.begin()
		for end := time.Now().Add(round); ; {
			gap := least + time.Duration(rnd.Int64N(int64(longest-least)))
			if left := time.Until(end); left < gap {
				time.Sleep(max(left, 0))
				break
			}
			time.Sleep(gap)
			if len(next) == 0 {
				next = slices.Clone(faults)
				rnd.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
			}
			h.strike(rnd, next[0])
			next = next[1:]
		}
		h.end()
		samples = append(samples, h.sample(patience))
	}
	return samples
}

// lacking is what a run has too little of to say anything.
func (h *house) lacking(samples int) (lacks []string) {
	if samples < rounds/2 {
		lacks = append(lacks, fmt.Sprintf("%d samples", samples))
	}
	for _, fault := range faults {
		if h.struck[fault] == 0 {
			lacks = append(lacks, "no "+fault)
		}
	}
	for i, u := range h.uses {
		if n := h.done[i].Load(); n < leastUses {
			lacks = append(lacks, fmt.Sprintf("%d uses of a %s", n, u.kind))
		}
		if n := h.touched(i); n < names*9/10 {
			lacks = append(lacks, fmt.Sprintf("%d of %d names of a %s", n, names, u.kind))
		}
	}
	return lacks
}
