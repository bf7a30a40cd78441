package timers

import "github.com/go-rlock/rlock/internal/clock"

// agenda is a heap of entries by the time at which they are due. It is not container/heap, whose calls through an
// interface made a lock and unlock some percent slower.
type agenda []*Entry

func (g agenda) first() (at clock.Instant, any bool) {
	if len(g) == 0 {
		return 0, false
	}
	return g[0].dueAt, true
}

// takeDue removes and returns the first entry if it is due by a time. Otherwise it returns nil.
func (g *agenda) takeDue(until clock.Instant) *Entry {
	at, any := g.first()
	if !any || at.After(until) {
		return nil
	}
	e := (*g)[0]
	g.remove(e)
	return e
}

// set sets when an entry is due, and adds it if necessary.
func (g *agenda) set(e *Entry, at clock.Instant) {
	e.dueAt = at
	if e.index == 0 {
		*g = append(*g, e)
		e.index = int32(len(*g))
	}
	g.settle(e)
}

// remove removes an entry, if it is in the agenda.
func (g *agenda) remove(e *Entry) {
	if e.index == 0 {
		return
	}
	old := *g
	n := len(old) - 1
	last := old[n]
	old[n] = nil // for the garbage collector
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
		if !e.dueAt.Before(g[up].dueAt) {
			break
		}
		g.put(i, g[up])
		i = up
	}
	for { // down
		least := 2*i + 1
		if least+1 < len(g) && g[least+1].dueAt.Before(g[least].dueAt) {
			least++
		}
		if least >= len(g) || !g[least].dueAt.Before(e.dueAt) {
			break
		}
		g.put(i, g[least])
		i = least
	}
	g.put(i, e)
}
