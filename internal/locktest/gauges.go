package locktest

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-rlock/rlock"
)

// Gauges is an Observer that counts what is awaited and held, and keeps one span for each acquire
// and each hold, as a user would build them. It notes what does not fit.
type Gauges struct {
	mu      sync.Mutex // guards the rest
	all     counts
	byType  map[string]*counts // by type and side
	spans   map[holdKey]*span  // of holds that are open
	faults  []string
	leads   int
	renewed int // renewals
	failed  int // renewals that failed
}

type counts struct{ acquiring, waiting, held int }

// holdKey distinguishes holds.
type holdKey struct {
	lock, side, id string
	token          int64
}

// span is one acquire, and the hold that it begins.
type span struct {
	start       rlock.StartEvent
	waits       bool
	ended       bool // the acquire
	began, over bool // the hold
	key         holdKey
}

type gaugeKey struct{}

func (g *Gauges) fault(format string, args ...any) {
	if len(g.faults) < 20 {
		g.faults = append(g.faults, fmt.Sprintf(format, args...))
	}
}

// change counts for a type, and for all.
func (g *Gauges) change(e rlock.Event, by func(c *counts)) {
	if g.byType == nil {
		g.byType, g.spans = map[string]*counts{}, map[holdKey]*span{}
	}
	of := e.Type + e.Side
	if g.byType[of] == nil {
		g.byType[of] = &counts{}
	}
	by(g.byType[of])
	by(&g.all)
	for of, c := range g.byType {
		if c.acquiring < 0 || c.waiting < 0 || c.held < 0 {
			g.fault("%s: %+v", of, *c)
		}
	}
}

// of is the span of a context. The hold must have begun if the event is about a hold.
func (g *Gauges) of(ctx context.Context, what string, e rlock.Event, hold bool) *span {
	s, _ := ctx.Value(gaugeKey{}).(*span)
	switch {
	case s == nil:
		g.fault("%s without the context of its acquire: %+v", what, e)
		return &span{}
	case e.Lock != s.start.Lock, e.Type != s.start.Type, e.Side != s.start.Side, e.Type == "":
		g.fault("%s of %+v with the context of %+v", what, e, s.start)
	case hold && (!s.began || s.key != keyOf(e)):
		g.fault("%s of a hold that has not begun, or another: %+v, %+v", what, e, s.key)
	}
	return s
}

func keyOf(e rlock.Event) holdKey { return holdKey{e.Lock, e.Side, e.HoldID, e.Token} }

func (g *Gauges) AcquireStart(ctx context.Context, e rlock.StartEvent) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.change(e.Event, func(c *counts) { c.acquiring++ })
	return context.WithValue(ctx, gaugeKey{}, &span{start: e})
}

func (g *Gauges) Contended(ctx context.Context, e rlock.ContentionEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.of(ctx, "Contended", e.Event, false)
	if s.waits || s.ended {
		g.fault("contended twice, or after the end: %+v", e)
	}
	s.waits = true
	g.change(e.Event, func(c *counts) { c.waiting++ })
}

func (g *Gauges) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.of(ctx, "AcquireEnd", e.Event, false)
	if s.ended {
		g.fault("it ends twice: %+v", e)
	}
	s.ended = true
	g.change(e.Event, func(c *counts) { c.acquiring-- })
	if e.Contended != s.waits {
		g.fault("contended, or not: %+v", e)
	}
	if s.waits {
		g.change(e.Event, func(c *counts) { c.waiting-- })
	}
	if (e.Err == nil && e.Entry > 1) && !e.Reentry || e.Entry == 1 && (e.Reentry || e.HoldID == "") || e.Err != nil && e.Entry != 0 {
		g.fault("%+v", e)
	}
	if e.Entry != 1 {
		return
	}
	s.began, s.key = true, keyOf(e.Event)
	g.change(e.Event, func(c *counts) { c.held++ })
	if g.spans[s.key] != nil {
		g.fault("two holds are one: %+v", e)
	}
	g.spans[s.key] = s
}

func (g *Gauges) endLocked(s *span, e rlock.Event) {
	if s.over {
		g.fault("the hold ends twice: %+v", e)
		return
	}
	s.over = true
	delete(g.spans, s.key)
	g.change(e, func(c *counts) { c.held-- })
}

func (g *Gauges) Lost(ctx context.Context, e rlock.LossEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endLocked(g.of(ctx, "Lost", e.Event, true), e.Event)
}

func (g *Gauges) Unlocked(ctx context.Context, e rlock.UnlockEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.Type == "Semaphore" {
		return
	}
	s := g.of(ctx, "Unlocked", e.Event, true)
	if e.Entry < 1 || e.HandedOver && (!e.Ends || e.Err != nil) {
		g.fault("%+v", e)
	}
	if e.Ends {
		g.endLocked(s, e.Event)
	}
}

func (g *Gauges) Renewed(ctx context.Context, e rlock.RenewalEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(ctx, "Renewed", e.Event, true)
	g.renewed++
	if e.Err != nil {
		g.failed++
	}
	if e.Left <= 0 || e.Took < 0 {
		g.fault("%+v", e)
	}
}

func (g *Gauges) Leadership(ctx context.Context, e rlock.LeadershipEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(ctx, "Leadership", e.Event, true)
	if e.Leads {
		g.leads++
	} else {
		g.leads--
	}
}

// Now returns how many acquires are under way, how many of them wait, how many holds there are, and
// how many leaders.
func (g *Gauges) Now() (acquiring, waiting, held, leads int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all.acquiring, g.all.waiting, g.all.held, g.leads
}

// HeldOf is how many holds there are of a type, and of a side if it has two: "ReadWriteLockread".
func (g *Gauges) HeldOf(of string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.byType[of]; c != nil {
		return c.held
	}
	return 0
}

// Renewals returns how many renewals were reported, and how many of them had failed.
func (g *Gauges) Renewals() (all, failed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.renewed, g.failed
}

// Seen are the types, with their sides, of the events.
func (g *Gauges) Seen() map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := map[string]bool{}
	for of := range g.byType {
		seen[of] = true
	}
	return seen
}

// Faults are what did not fit.
func (g *Gauges) Faults() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.faults
}
