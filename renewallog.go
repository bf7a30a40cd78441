package rlock

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
)

// failing are the outages that the renewals of a client see, by node. The mutex of the watchdog guards it.
type failing struct {
	lease time.Duration
	nodes map[any]failure
}

// failure is an outage of a node: when a renewal failed there first, and when last.
type failure struct{ since, last clock.Instant }

// forget is called when no hold is left: nobody sees any more how the outages end.
func (f *failing) forget() { f.nodes = nil }

// fails notes a failed renewal, and reports whether an outage begins with it. One of which no renewal was
// seen for a whole lease has ended with the last hold there.
func (f *failing) fails(node any, now clock.Instant) (begins bool) {
	outage, goesOn := f.nodes[node]
	if goesOn = goesOn && now.Sub(outage.last) <= f.lease; !goesOn {
		outage.since = now
	}
	if f.nodes == nil {
		f.nodes = map[any]failure{}
	}
	f.nodes[node] = failure{outage.since, now}
	return !goesOn
}

// succeeds notes a renewal that has succeeded, and reports whether an outage ends with it, and how long that
// was.
func (f *failing) succeeds(node any, now clock.Instant) (after time.Duration, ends bool) {
	outage, is := f.nodes[node]
	delete(f.nodes, node)
	return now.Sub(outage.since), is && now.Sub(outage.last) <= f.lease
}

// renewals logs when the renewals of a node, or of the nodes of a RedLock, begin to
// fail without an answer, and when one succeeds again: once each, however many holds there
// are.
func (w *watchdog) renewals(key any, node redis.UniversalClient, renewed bool, failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	switch {
	case renewed:
		if after, ends := w.failing.succeeds(key, now); ends {
			attrs := ofNode(node, "after", after.Round(time.Millisecond))
			w.events.Later(func() { w.events.Logger.Info("rlock: renewals get through again", attrs...) })
		}
	case failed == nil, w.holding == 0: // a late answer about a hold that has ended
	case w.failing.fails(key, now):
		attrs := ofNode(node, "error", failed)
		w.events.Later(func() { w.events.Logger.Warn("rlock: renewals fail, trying again", attrs...) })
	}
}

// ofNode are attributes for the log, after the address of a node if that is known.
func ofNode(node redis.UniversalClient, attrs ...any) []any {
	if one, ok := node.(*redis.Client); ok {
		attrs = append([]any{"node", one.Options().Addr}, attrs...)
	}
	return attrs
}
