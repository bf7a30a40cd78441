package main

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// times is a histogram of durations whose buckets are 1.6 % wide. Its buckets exist
// before the first, so that counting allocates nothing.
type times struct {
	Buckets []uint32
	N       uint64
	Sum     time.Duration
	Most    time.Duration
}

const (
	lowest = 7 // the first bucket ends at 2^7 ns
	fine   = 6 // 2^6 buckets for each doubling
)

func newTimes() *times { return &times{Buckets: make([]uint32, (36-lowest)<<fine)} }

func (t *times) add(d time.Duration) {
	t.N++
	t.Sum += d
	t.Most = max(t.Most, d)
	v := uint64(max(d, 1<<lowest))
	shift := bits.Len64(v) - 1
	i := (shift-lowest)<<fine + int(v>>(shift-fine))&(1<<fine-1)
	t.Buckets[min(i, len(t.Buckets)-1)]++
}

// plus adds others to a new one.
func plus(all ...*times) *times {
	sum := newTimes()
	for _, t := range all {
		for i, n := range t.Buckets {
			sum.Buckets[i] += n
		}
		sum.N += t.N
		sum.Sum += t.Sum
		sum.Most = max(sum.Most, t.Most)
	}
	return sum
}

// percentile is NaN if there are none.
func (t *times) percentile(p float64) float64 {
	if t.N == 0 {
		return math.NaN()
	}
	left := uint64(math.Ceil(p / 100 * float64(t.N)))
	for i, n := range t.Buckets {
		if uint64(n) >= left {
			shift := i>>fine + lowest
			at := uint64(1)<<shift + uint64(i&(1<<fine-1))<<(shift-fine)
			return float64(at+1<<(shift-fine)/2) / 1e9
		}
		left -= uint64(n)
	}
	return t.Most.Seconds()
}

func (t *times) mean() float64 { return t.Sum.Seconds() / float64(t.N) }

// jain is Jain's index of fairness: 1 if all have the same, 1/n if one has all.
func jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// stat is a figure over the rounds.
type stat struct {
	Median, Least, Most float64
	N                   int
}

func statOf(values []float64) stat {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(v) == 0 {
		return stat{math.NaN(), math.NaN(), math.NaN(), 0}
	}
	slices.Sort(v)
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (v[len(v)/2-1] + m) / 2
	}
	return stat{m, v[0], v[len(v)-1], len(v)}
}
