package rlockui

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"
)

// sortedEdges returns the edges, the oldest first.
func (p *people) sortedEdges() []edge {
	all := make([]edge, 0, len(p.edges))
	for one := range p.edges {
		all = append(all, one)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(p.edges[a].Compare(p.edges[b]), strings.Compare(a.waiter, b.waiter), strings.Compare(a.lock, b.lock), strings.Compare(a.holdID, b.holdID)) < 0
	})
	return all
}

// findCycles returns cycles of edges that have stood for a while: at most one through each client, the oldest first.
func (p *people) findCycles(now time.Time) (all []cycle) {
	next := map[string][]edge{}
	var standing []edge
	for _, one := range p.sortedEdges() {
		to := clientOf(one.holdID)
		if to == "" || to == one.waiter || now.Sub(p.edges[one]) < standsFor {
			continue // a client may wait for itself: another goroutine of it has the lock
		}
		next[one.waiter] = append(next[one.waiter], one)
		standing = append(standing, one)
	}
	trim(next)
	inCycle := map[string]bool{}
	searches := 0
	for _, one := range standing {
		if inCycle[one.waiter] || next[one.waiter] == nil {
			continue
		}
		if searches++; len(all) == mostCycles || searches > mostSearches {
			break
		}
		steps := circuit(next, one.waiter)
		if steps == nil {
			delete(next, one.waiter) // it is between two cycles
			continue
		}
		c := cycle{steps: steps}
		for _, step := range steps {
			inCycle[step.waiter] = true
			if since := p.edges[step]; since.After(c.since) {
				c.since = since
			}
		}
		all = append(all, c)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].since.Before(all[j].since) })
	return all
}

// mostSearches bounds the searches of a poll. A search takes a time in proportion to the edges.
const mostSearches = 100

// trim removes the clients that wait for nobody who waits, again and again: what is left is in a cycle, or waits for one.
func trim(next map[string][]edge) {
	waiters := map[string][]string{} // by the client that they wait for
	left := map[string]int{}         // edges to clients that are left
	var ended []string
	for from, edges := range next {
		left[from] = len(edges)
		for _, one := range edges {
			to := clientOf(one.holdID)
			waiters[to] = append(waiters[to], from)
			if _, waits := next[to]; !waits && len(waiters[to]) == 1 {
				ended = append(ended, to)
			}
		}
	}
	for len(ended) > 0 {
		last := ended[len(ended)-1]
		ended = ended[:len(ended)-1]
		for _, from := range waiters[last] {
			if left[from]--; left[from] == 0 {
				delete(next, from)
				ended = append(ended, from)
			}
		}
	}
}

// circuit returns a shortest way from a client back to itself, or nil.
func circuit(next map[string][]edge, from string) []edge {
	by := map[string]edge{} // the edge by which each client was reached
	queue := []string{from}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, one := range next[at] {
			to := clientOf(one.holdID)
			if _, reached := by[to]; reached {
				continue
			}
			by[to] = one
			if to == from {
				steps := []edge{one}
				for steps[0].waiter != from {
					steps = slices.Insert(steps, 0, by[steps[0].waiter])
				}
				return steps
			}
			queue = append(queue, to)
		}
	}
	return nil
}
