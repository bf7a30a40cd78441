package timers

import (
	"container/heap"

	"github.com/go-rlock/rlock/internal/clock"
)

// agenda has what is due, as a heap: what is due first is on top.
type agenda []*Entry

// first returns when something is due.
func (g agenda) first() (at clock.Instant, any bool) {
	if len(g) == 0 {
		return 0, false
	}
	return g[0].at, true
}

// next takes out what is due first, if that is not after a time.
func (g *agenda) next(until clock.Instant) *Entry {
	if at, any := g.first(); !any || at.After(until) {
		return nil
	}
	return heap.Pop(g).(*Entry)
}

// set sets when an entry is due, which may be in the agenda already.
func (g *agenda) set(e *Entry, at clock.Instant) {
	e.at = at
	if e.index > 0 {
		heap.Fix(g, int(e.index)-1)
		return
	}
	heap.Push(g, e)
}

// remove takes an entry out, if it is in the agenda.
func (g *agenda) remove(e *Entry) {
	if e.index > 0 {
		heap.Remove(g, int(e.index)-1)
	}
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (g agenda) Len() int           { return len(g) }
func (g agenda) Less(i, j int) bool { return g[i].at.Before(g[j].at) }
func (g agenda) Swap(i, j int) {
	g[i], g[j] = g[j], g[i]
	g[i].index, g[j].index = int32(i+1), int32(j+1)
}

func (g *agenda) Push(x any) {
	e := x.(*Entry)
	*g = append(*g, e)
	e.index = int32(len(*g))
}

func (g *agenda) Pop() any {
	old := *g
	n := len(old) - 1
	e := old[n]
	old[n] = nil // what ends must not be kept
	e.index = 0
	if *g = old[:n]; cap(old) > 4*n+spare {
		*g = append(make(agenda, 0, 2*n), old[:n]...)
	}
	return e
}
