package rlock

import (
	"maps"
	"slices"
	"time"
)

// ScriptText is what a server is sent of a script.
func ScriptText(name string) string { return embedded[name].text }

// ScriptNames are all scripts that there are.
func ScriptNames() []string { return slices.Sorted(maps.Keys(embedded)) }

// Request is what would be sent.
type Request struct {
	Script string
	Keys   []string
	Args   []any
}

// RequestsAbout are the requests of a lock that ask for something of a hold with
// this id: each but the one that only looks.
func RequestsAbout(l Internals, stay string) []Request {
	c := l.internals()
	first := &attempt{core: c, stay: stay, tries: 1}
	first.opts.lease = time.Second
	under := *first
	under.under = &hold{stay: stay}
	var all []Request
	for _, r := range []*request{
		c.enter(first, false), c.enter(first, true), c.enter(&under, false), c.reenter(stay, time.Second, 2),
		c.release(stay, 0), c.release(stay, 1), c.abandon(stay, false), c.abandon(stay, true),
		c.renew(stay, time.Second), c.renew(stay, 0), c.forceUnlock(""), c.forceUnlock(stay),
	} {
		all = append(all, Request{r.script.name, r.keys, r.args})
	}
	return all
}

// Internals is what each lock has.
type Internals interface{ internals() *core }

func (l *core) internals() *core { return l }
