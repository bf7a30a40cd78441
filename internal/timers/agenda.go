package timers

import "github.com/go-rlock/rlock/internal/clock"

// agenda has what is due, as a heap: what is due first is on top. It is not container/heap, whose calls by an interface
// cost a lock and an unlock of very many some percent.
type agenda []*Entry

func (g agenda) first() (at clock.Instant, any bool) {
	if len(g) == 0 {
		return 0, false
	}
	return g[0].at, true
}

// next takes out what is due first, if that is not after a time.
func (g *agenda) next(until clock.Instant) *Entry {
	at, any := g.first()
	if !any || at.After(until) {
		return nil
	}
	e := (*g)[0]
	g.remove(e)
	return e
}

// set sets when an entry is due, which may be in the agenda already.
func (g *agenda) set(e *Entry, at clock.Instant) {
	e.at = at
	if e.index == 0 {
		*g = append(*g, e)
		e.index = int32(len(*g))
	}
	g.settle(e)
}

// remove takes an entry out, if it is in the agenda.
func (g *agenda) remove(e *Entry) {
	if e.index == 0 {
		return
	}
	old := *g
	n := len(old) - 1
	last := old[n]
	old[n] = nil // what ends must not be kept
	if *g = old[:n]; last != e {
		g.put(int(e.index)-1, last)
		g.settle(last)
	}
	e.index = 0
	if cap(old) > 4*n+spare {
		*g = append(make(agenda, 0, 2*n), old[:n]...)
	}
}

func (g agenda) put(i int, e *Entry) {
	g[i] = e
	e.index = int32(i + 1)
}

// settle moves an entry up or down to where it belongs.
func (g agenda) settle(e *Entry) {
	i := int(e.index) - 1
	for i > 0 { // up
		up := (i - 1) / 2
		if !e.at.Before(g[up].at) {
			break
		}
		g.put(i, g[up])
		i = up
	}
	for { // down
		least := 2*i + 1
		if least+1 < len(g) && g[least+1].at.Before(g[least].at) {
			least++
		}
		if least >= len(g) || !g[least].at.Before(e.at) {
			break
		}
		g.put(i, g[least])
		i = least
	}
	g.put(i, e)
}
