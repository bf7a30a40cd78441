package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// curve is a figure of each peer along a measure: a table of its points, and a chart if it has a file.
type curve struct {
	file, title     string
	measure, metric string
	x, y            string
	scale           float64 // of the figure in the chart
	logX, logY      bool
	shows           string // beneath the title of the chart
}

// curves are in the order of the text; the curves of one measure are one section there.
var curves = []curve{
	{file: "callers-throughput", title: "Many keys: pairs a second", measure: "own", metric: "pairs/s", x: "callers", y: "pairs/s", scale: 1, logX: true,
		shows: "Each caller locks and unlocks a key of its own."},
	{title: "Many keys: 99 % of the pairs within", measure: "own", metric: "p99", x: "callers"},
	{file: "processes-throughput", title: "One key: hand-overs a second", measure: "processes", metric: "hand-overs/s", x: "processes", y: "hand-overs/s", scale: 1, logX: true,
		shows: "Eight goroutines in each process want the same lock."},
	{title: "One key: 99 % of the waits within", measure: "processes", metric: "p99", x: "processes"},
	{file: "held-bytes", title: "Memory: bytes for each held lock", measure: "held", metric: "each", x: "held locks", y: "bytes", scale: 1, logX: true, logY: true,
		shows: "Heap and stacks of the process, with all renewals at work."},
	{title: "Held locks with a lease of 30 s: share of a core", measure: "held", metric: "cores", x: "held locks"},
	{title: "Waiters: bytes for each", measure: "waiters", metric: "each", x: "waiters"},
	{file: "waiters-commands", title: "Waiters: commands a second", measure: "waiters", metric: "commands/s", x: "waiters", y: "commands/s", scale: 1, logX: true,
		shows: "What Redis has to do for waiters while nothing is released."},
	{title: "Over a network: median of one caller's pairs", measure: "delay, 1 caller", metric: "p50", x: "round trip of the network, ms"},
	{file: "delay-throughput", title: "Over a network: pairs a second of 512 callers", measure: "delay, 512 callers", metric: "pairs/s", x: "round trip of the network, ms", y: "pairs/s", scale: 1, logY: true,
		shows: "As in the first chart, with a Redis that is further away."},
}

// svg draws the chart; "" if it has none, or only one point.
func (c curve) svg(r *results) string {
	if c.file == "" {
		return ""
	}
	drawn := chart{title: c.title, x: c.x, y: c.y, logX: c.logX, logY: c.logY, xs: r.points(c.measure)}
	for _, name := range r.peersOf(c.measure) {
		l := chartLine{name: name}
		for _, x := range drawn.xs {
			v := r.get(c.measure, name, x, c.metric)
			low := v.Least
			if v.N == 0 || c.logY && v.Median <= 0 {
				continue
			}
			if c.logY && low <= 0 {
				low = v.Median
			}
			l.points = append(l.points, chartPoint{x, v.Median * c.scale, low * c.scale, v.Most * c.scale})
		}
		if len(l.points) > 0 {
			drawn.lines = append(drawn.lines, l)
		}
	}
	return drawn.svg()
}

// knee is where a rate that grows stops to: the first point with nine tenths of the most.
func (r *results) knee(measure, peer, metric string) (x float64, at, most stat) {
	for _, p := range r.points(measure) {
		if v := r.get(measure, peer, p, metric); v.N > 0 && (most.N == 0 || v.Median > most.Median) {
			most = v
		}
	}
	for _, p := range r.points(measure) {
		if v := r.get(measure, peer, p, metric); v.N > 0 && v.Median >= 0.9*most.Median {
			return p, v, most
		}
	}
	return math.NaN(), most, most
}

// wall says what is busy at a point.
func (r *results) wall(measure, peer string, x float64) string {
	server, client := r.get(measure, peer, x, "server core").Median, r.get(measure, peer, x, "client cores").Median
	busy := fmt.Sprintf("the server's thread is busy for %s of the time and the clients use %s of a core", percent(server), percent(client))
	switch cores := r.cores(); {
	case math.IsNaN(server) || math.IsNaN(client):
		return ""
	case server >= 0.85:
		return busy + ": the server is the wall"
	case server+client >= 0.9*cores:
		return busy + fmt.Sprintf(": all %.0f cores of the machine are busy, which is the wall", cores)
	case client >= 0.9 && client > 2*server:
		return busy + ": the clients' work is the wall"
	}
	return busy + ": most of the time is spent on the way"
}

// bends says where the curves of a measure bend, and why, as far as the figures show it.
func (r *results) bends(measure string) (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case measure == "own" || measure == "processes":
		metric, of := "pairs/s", "callers"
		if measure == "processes" {
			metric, of = "hand-overs/s", "processes"
		}
		for _, p := range r.peersOf(measure) {
			x, at, most := r.knee(measure, p, metric)
			if at.N == 0 || p == batchName {
				continue
			}
			line := fmt.Sprintf("%s: %s %s at %.0f %s, of %s at the most", p, figure(metric, at.Median), metric, x, of, figure(metric, most.Median))
			if w := r.wall(measure, p, x); w != "" {
				line += "; there " + w
			}
			say("%s.", line)
			xs := r.points(measure)
			last := xs[len(xs)-1]
			if v := r.get(measure, p, last, metric); v.N > 0 && v.Median < 0.75*most.Median {
				say("%s falls to %s with %.0f %s.", p, figure(metric, v.Median), last, of)
			}
			for _, x := range xs {
				if v := r.get(measure, p, x, "hung"); v.N > 0 && v.Most > 0 {
					say("%s: with %.0f %s, up to %.0f goroutines got no answer within %v after the end.", p, x, of, v.Most, hang)
				}
			}
		}
	case measure == "held" || measure == "waiters":
		for _, p := range r.peersOf(measure) {
			var all []string
			for _, x := range r.points(measure) {
				v := r.get(measure, p, x, "each")
				if v.N == 0 {
					continue
				}
				text := fmt.Sprintf("%s each at %s", bytesOf(v.Median), thousands(x))
				if got := r.get(measure, p, x, "acquired"); got.N > 0 && got.Median < x {
					text += fmt.Sprintf(" (only %s were acquired within a minute: there it ends)", thousands(got.Median))
				}
				if lost := r.get(measure, p, x, "lost"); lost.N > 0 && lost.Most > 0 {
					text += fmt.Sprintf(" (%.0f lost: the renewals take longer than the lease)", lost.Most)
				}
				all = append(all, text)
			}
			say("%s: %s.", p, strings.Join(all, ", "))
		}
		if measure == "held" {
			say("A fixed part of each process, its connections and timers, weighs on the first points. Renewals grow with the holds, and so does the share of a core.")
			say("The peers stop where each hold has a goroutine or a timer of its own, and the next point would take gigabytes, or more time than a lease.")
		} else {
			say("Each waiter is a goroutine with a stack, whatever the library; the rest is what the library adds.")
		}
	case strings.HasPrefix(measure, "delay"):
		for _, p := range r.peersOf(measure) {
			trips := (r.get(measure, p, 10, "p50").Median - r.get(measure, p, 1, "p50").Median) / 9e-3
			if measure == "delay, 1 caller" && p != pingName && !math.IsNaN(trips) {
				say("%s: each millisecond of the network costs a pair %.1f ms.", p, trips)
			}
		}
	}
	return lines
}

// sections are the measures that have curves, in their order.
func sections() (measures []string) {
	for _, c := range curves {
		if !slices.Contains(measures, c.measure) {
			measures = append(measures, c.measure)
		}
	}
	return measures
}
