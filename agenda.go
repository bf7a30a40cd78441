package rlock

import (
	"container/heap"

	"github.com/go-rlock/rlock/internal/clock"
)

// agenda is what the watchdog has to do, by time. What is due soon is in a heap. The rest is on
// the sheet of its day, in no order, until that day comes: a hold that ends before, as most do,
// was never sorted in; and of 100,000 that are renewed every few seconds, the heap has the few
// thousand of a day, which the processor has just read.
//
// What is due before the horizon is soon. The horizon is the beginning of a day, and moves
// forward only.
type agenda struct {
	soon    soon
	later   sheets         // only latest may be empty
	byDay   map[day]*sheet // those of later
	latest  *sheet         // the one that was written on last, if it is among them
	horizon day
	n       int      // entries
	blank   []*sheet // for other days
}

// day is a part of the time, counted from the first one.
type day int64

// dayBits is how long a day is: 2^26 ns, which is 67 ms.
const dayBits = 26

func dayOf(t clock.Instant) day     { return day(t >> dayBits) }
func (d day) begins() clock.Instant { return clock.Instant(d) << dayBits }

// sheet is what is due on a day.
type sheet struct {
	day     day
	index   int // in later
	entries []*entry
}

// first returns when something may be due, at the earliest: the time of one entry, or the
// beginning of a day with some.
func (g *agenda) first() (at clock.Instant, any bool) {
	switch {
	case len(g.soon) > 0:
		return g.soon[0].at, true // before the horizon, and so before what is later
	case len(g.later) > 0:
		return g.later[0].day.begins(), true
	}
	return 0, false
}

// next takes out what is due first, if that is not after a time.
func (g *agenda) next(until clock.Instant) *entry {
	for at, any := g.first(); any && !at.After(until); at, any = g.first() {
		if len(g.soon) > 0 {
			g.n--
			return heap.Pop(&g.soon).(*entry)
		}
		g.open()
	}
	return nil
}

// open moves the horizon behind the first sheet, and what is on it to what is soon.
func (g *agenda) open() {
	p := g.later[0]
	g.horizon = p.day + 1
	for _, e := range p.entries {
		heap.Push(&g.soon, e)
	}
	g.tear(p)
}

// set sets when an entry is due, which may be in the agenda already.
func (g *agenda) set(e *entry, at clock.Instant) {
	d := dayOf(at)
	switch soon := dayOf(e.at) < g.horizon; {
	case e.index < 0:
	case soon && d < g.horizon:
		e.at = at
		heap.Fix(&g.soon, int(e.index))
		return
	default:
		g.remove(e)
	}
	e.at = at
	g.n++
	if d < g.horizon {
		heap.Push(&g.soon, e)
		return
	}
	p := g.sheetOf(d)
	e.index = int32(len(p.entries))
	p.entries = append(p.entries, e)
}

// sheetOf returns the sheet of a day, to write on it.
func (g *agenda) sheetOf(d day) *sheet {
	if p := g.latest; p != nil {
		if p.day == d {
			return p
		}
		if len(p.entries) == 0 {
			g.tear(p)
		}
	}
	p := g.byDay[d]
	if p == nil {
		p = &sheet{}
		if n := len(g.blank); n > 0 {
			p, g.blank = g.blank[n-1], g.blank[:n-1]
		}
		p.day = d
		if g.byDay == nil {
			g.byDay = map[day]*sheet{}
		}
		g.byDay[d] = p
		heap.Push(&g.later, p)
	}
	g.latest = p
	return p
}

// mostBlank is how many blank sheets are kept. A few are written on at a time: what is renewed is
// on one until it is answered, and then on another.
const mostBlank = 4

// tear takes a sheet out. It is kept as a blank one, unless it is much too large.
func (g *agenda) tear(p *sheet) {
	heap.Remove(&g.later, p.index)
	delete(g.byDay, p.day)
	if g.latest == p {
		g.latest = nil
	}
	if len(g.blank) < mostBlank && cap(p.entries) <= g.n+2*spare {
		clear(p.entries)
		p.entries = p.entries[:0]
		g.blank = append(g.blank, p)
	}
}

// remove takes an entry out, if it is in the agenda.
func (g *agenda) remove(e *entry) {
	if e.index < 0 {
		return
	}
	g.n--
	d := dayOf(e.at)
	if d < g.horizon {
		heap.Remove(&g.soon, int(e.index))
		return
	}
	p := g.byDay[d]
	n := len(p.entries) - 1
	last := p.entries[n]
	p.entries[e.index], last.index = last, e.index
	p.entries[n], p.entries = nil, p.entries[:n]
	e.index = -1
	if n == 0 && p != g.latest { // that one is likely to be written on again
		g.tear(p)
	}
}

// all returns what is in the agenda.
func (g *agenda) all() []*entry {
	all := append([]*entry(nil), g.soon...)
	for _, p := range g.later {
		all = append(all, p.entries...)
	}
	return all
}

// soon is a heap by time.
type soon []*entry

func (s soon) Len() int           { return len(s) }
func (s soon) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s soon) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = int32(i), int32(j)
}

func (s *soon) Push(x any) {
	e := x.(*entry)
	e.index = int32(len(*s))
	*s = append(*s, e)
}

func (s *soon) Pop() any {
	old := *s
	n := len(old) - 1
	e := old[n]
	old[n] = nil
	e.index = -1
	*s = old[:n]
	return e
}

// sheets is a heap by day.
type sheets []*sheet

func (s sheets) Len() int           { return len(s) }
func (s sheets) Less(i, j int) bool { return s[i].day < s[j].day }
func (s sheets) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *sheets) Push(x any) {
	p := x.(*sheet)
	p.index = len(*s)
	*s = append(*s, p)
}

func (s *sheets) Pop() any {
	old := *s
	n := len(old) - 1
	p := old[n]
	old[n] = nil
	*s = old[:n]
	return p
}
