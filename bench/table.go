package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// row is a row of the table: a scenario, what each did, and what the library must reach
// in the same run.
type row struct {
	name     string
	scenario string
	cells    map[string]string // by peer
	goals    []goal
}

// goal is one condition of a row.
type goal struct {
	text string // what was measured, and what must be
	met  bool
	any  bool // it was measured
}

func atMost(what string, got stat, most float64, show func(float64) string) goal {
	return goal{fmt.Sprintf("%s %s (≤ %s)", what, show(got.Median), show(most)), got.Median <= most, got.N > 0}
}

func below(what string, got stat, bound float64, show func(float64) string) goal {
	return goal{fmt.Sprintf("%s %s (< %s)", what, show(got.Median), show(bound)), got.Median < bound, got.N > 0}
}

func atLeast(what string, got stat, least float64, show func(float64) string) goal {
	return goal{fmt.Sprintf("%s %s (≥ %s)", what, show(got.Median), show(least)), got.Median >= least, got.N > 0}
}

// The columns of the table. Ours is the first: the last ones are off the screen.
var columns = []string{ours, rawName, bsmName, syncName, rueidisN, redisson}

// cells joins some figures of each peer.
func (r *results) cells(measure string, x float64, metrics ...string) map[string]string {
	cells := map[string]string{}
	for _, p := range r.peersOf(measure) {
		var all []string
		for _, m := range metrics {
			if v := r.get(measure, p, x, m); v.N > 0 {
				all = append(all, figure(m, v.Median))
			}
		}
		cells[p] = strings.Join(all, "; ")
	}
	return cells
}

func (r *results) rows() []row {
	get, ratio := r.get, r.ratio
	own := func(p string, x float64, m string) stat { return get("own", p, x, m) }
	many := r.at("own", 512)

	// Without a goal: a program that has 64 locks at hand is another matter.
	pipes := autoName
	throughput := r.cells("own", many, "pairs/s")
	throughput[rawName] += fmt.Sprintf("; auto-pipelined %s", figure("pairs/s", own(pipes, many, "pairs/s").Median))
	for _, p := range r.peersOf("own") {
		if hung := own(p, many, "hung"); hung.Most > 0 {
			throughput[p] += fmt.Sprintf("; up to %.0f callers hung", hung.Most)
		}
	}
	few := stat{Median: math.Inf(1)} // of 2, 4 and 8 callers, the least to one caller
	for _, x := range []float64{2, 4, 8} {
		if v := own(ours, x, "pairs/s"); v.N > 0 {
			few = stat{Median: min(few.Median, v.Median/own(ours, 1, "pairs/s").Median), N: 1}
		}
	}
	server := r.cells("own", 1, "server µs", "inside")
	for p, cell := range r.cells("own", many, "server µs") {
		server[p] += fmt.Sprintf("; with %.0f callers %s", many, cell)
	}
	x10, x100 := r.at("held", 10_000), r.at("renewed", 100_000)
	idle := r.at("waiters", 10_000)
	ps := r.at("processes", fleet)

	best := math.Inf(1) // p99 of a peer
	for _, p := range []string{rueidisN, redisson, bsmName} {
		if v := get("processes", p, ps, "p99"); v.N > 0 {
			best = min(best, v.Median)
		}
	}
	alive, dead := mastersDead(0), mastersDead(nodes-quorum)
	quickest, most := math.Inf(1), 0.0
	for _, p := range []string{syncName, eager, impatientN} {
		if v := get(alive, p, 1, "p50"); v.N > 0 {
			quickest = min(quickest, v.Median)
		}
		if v := get(alive, p, 64, "pairs/s"); v.N > 0 {
			most = max(most, v.Median)
		}
	}
	red := map[string]string{}
	for column, names := range map[string][]string{rawName: {floorName}, ours: {redLockName}, syncName: {syncName, eager, impatientN}} {
		var all []string
		for _, n := range names {
			if p50 := get(alive, n, 1, "p50"); p50.N > 0 {
				text := fmt.Sprintf("%s / %s", figure("p50", p50.Median), figure("pairs/s", get(alive, n, 64, "pairs/s").Median))
				if n != syncName && column == syncName {
					text = strings.TrimPrefix(n, "redsync, ") + ": " + text
				}
				all = append(all, text)
			}
		}
		red[column] = strings.Join(all, "; ")
	}
	deadRatio := stat{Median: get(dead, redLockName, 1, "p50").Median / get(alive, redLockName, 1, "p50").Median, N: get(dead, redLockName, 1, "p50").N}

	handOver := r.cells("handover", 0, "p50", "commands")
	handOver[rawName] = r.cells("handover", 0, "p50")[publishName] + " from PUBLISH to message"

	all := []row{
		{"pair", "lock + unlock, one caller, p50", r.cells("own", 1, "p50"), []goal{
			atMost("× raw", ratio("own", 1, "p50", ours, rawName), 1.3, times2),
			below("× redislock", ratio("own", 1, "p50", ours, bsmName), 1, times2),
		}},
		{"allocations", "allocations per pair, by a context that can be canceled", r.cells("own", 1, "allocs"), []goal{
			atMost("", own(ours, 1, "allocs"), 30, whole),
		}},
		{"throughput", fmt.Sprintf("%.0f callers, own keys, pairs/s", many), throughput, []goal{
			atLeast("× redislock", ratio("own", many, "pairs/s", ours, bsmName), 1.8, times2),
			atLeast("× raw, auto-pipelined", ratio("own", many, "pairs/s", ours, pipes), 0.65, times2),
			atLeast("2, 4 and 8 callers: × one caller", few, 1, times2),
		}},
		{"server", "server time per pair; commands inside the scripts", server, []goal{
			atMost("one caller: × raw", ratio("own", 1, "server µs", ours, rawName), 1.5, times2),
			atMost(fmt.Sprintf("%.0f callers: × raw", many), ratio("own", many, "server µs", ours, rawName), 1.5, times2),
			atMost("inside", own(ours, 1, "inside"), 9, tenth),
		}},
		{"one process", fmt.Sprintf("one key, %d goroutines, one process, hand-overs/s; commands each", crowdSize), r.cells("crowd", crowdSize, "hand-overs/s", "commands"), []goal{
			atLeast("", get("crowd", ours, crowdSize, "hand-overs/s"), 50_000, thousands),
			below("commands", get("crowd", ours, crowdSize, "commands"), 0.2, hundredth),
			atLeast("Jain", get("crowd", ours, crowdSize, "jain"), 0.99, thousandth),
			atMost("longest wait × mean", get("crowd", ours, crowdSize, "longest/mean"), 50, tenth),
		}},
		{"processes", fmt.Sprintf("one key, %.0f processes × %d, hand-overs/s; commands each; p99 wait", ps, threads), r.cells("processes", ps, "hand-overs/s", "commands", "p99"), []goal{
			atLeast("", get("processes", ours, ps, "hand-overs/s"), 8_000, thousands),
			atMost("commands", get("processes", ours, ps, "commands"), 2.5, hundredth),
			atLeast("Jain over processes", get("processes", ours, ps, "jain of processes"), 0.95, thousandth),
			atMost("p99 wait", get("processes", ours, ps, "p99"), best, seconds),
		}},
		{"hand-over", "release to the next waiter in another process, p50; commands a round", handOver, []goal{
			atMost("", get("handover", ours, 0, "p50"), 390e-6, seconds),
			below("× rueidislock", ratio("handover", 0, "p50", ours, rueidisN), 1, times2),
			atMost("commands", get("handover", ours, 0, "commands"), 5, tenth),
		}},
		{"held", fmt.Sprintf("%s held: bytes and goroutines each", thousands(x10)), r.cells("held", x10, "each", "goroutines"), []goal{
			atMost("", get("held", ours, x10, "each"), 400, bytesOf),
			atMost("goroutines", get("held", ours, x10, "goroutines"), 0.01, whole),
		}},
		{"renewed", fmt.Sprintf("%s held, %v lease: share of a core; renewals/s; lost; p99 of an acquire beside it, idle", thousands(x100), r.shortLease()), r.cells("renewed", x100, "cores", "renewals/s", "lost", "p99 beside", "p99 idle"), []goal{
			atMost("", get("renewed", ours, x100, "cores"), 0.20, percent),
			atMost("lost", get("renewed", ours, x100, "lost"), 0, whole),
			atMost("p99 beside × idle", r.within("renewed", ours, x100, "p99 beside", "p99 idle"), 2, times2),
		}},
		{"waiters", fmt.Sprintf("%s blocked waiters on %s keys, idle: commands/s; bytes each", thousands(idle), thousands(min(keysOf, idle))), r.cells("waiters", idle, "commands/s", "each"), []goal{
			atMost("commands/s", get("waiters", ours, idle, "commands/s"), 10, tenth),
		}},
		{"RedLock", "RedLock, five masters: p50 of one caller / pairs/s of 64", red, []goal{
			below("p50", get(alive, redLockName, 1, "p50"), quickest, seconds),
			{fmt.Sprintf("%s pairs/s (> %s)", thousands(get(alive, redLockName, 64, "pairs/s").Median), thousands(most)), get(alive, redLockName, 64, "pairs/s").Median > most, most > 0},
			atMost("two dead: p50 × all alive", deadRatio, 1.3, times2),
		}},
	}
	queues := row{"queues", fmt.Sprintf("FairLock / FairReadWriteLock (writers) / PriorityLock, %d goroutines, hand-overs/s; commands each", crowdSize), map[string]string{}, nil}
	var cells []string
	for _, q := range queued {
		rate, commands := get("types", q.name, crowdSize, "hand-overs/s"), get("types", q.name, crowdSize, "commands")
		if rate.N > 0 {
			cells = append(cells, figure("hand-overs/s", rate.Median)+"; "+figure("commands", commands.Median))
		}
		queues.goals = append(queues.goals, atLeast(q.name, rate, 3_000, thousands), atMost("commands", commands, q.most, hundredth))
	}
	queues.cells[ours] = strings.Join(cells, " / ")
	return append(all, queues)
}

func (r *results) shortLease() time.Duration {
	if r.Quick {
		return short / 4
	}
	return short
}

// within is one figure of a peer to another of the same rounds.
func (r *results) within(measure, peer string, x float64, metric, to string) stat {
	s := r.find(measure, peer, x)
	if s == nil {
		return statOf(nil)
	}
	var of []float64
	for i := range min(len(s.Values[metric]), len(s.Values[to])) {
		of = append(of, s.Values[metric][i]/s.Values[to][i])
	}
	return statOf(of)
}

func (w row) measured() bool {
	for _, g := range w.goals {
		if g.any {
			return true
		}
	}
	return false
}

func (w row) verdict() string {
	missed := 0
	for _, g := range w.goals {
		if g.any && !g.met {
			missed++
		}
	}
	switch {
	case !w.measured():
		return "not measured"
	case missed == 0:
		return "met"
	}
	return fmt.Sprintf("**%d of %d missed**", missed, len(w.goals))
}

// How figures look.

func whole(v float64) string      { return fmt.Sprintf("%.0f", math.RoundToEven(v)+0) } // no "-0"
func tenth(v float64) string      { return fmt.Sprintf("%.1f", v) }
func hundredth(v float64) string  { return fmt.Sprintf("%.2f", v) }
func thousandth(v float64) string { return fmt.Sprintf("%.3f", v) }
func times2(v float64) string     { return fmt.Sprintf("%.2f", v) }
func percent(v float64) string    { return fmt.Sprintf("%.0f %%", 100*v) }

func thousands(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case v >= 999_500:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 99_950:
		return fmt.Sprintf("%.0f k", v/1e3)
	case v >= 10_000:
		return fmt.Sprintf("%.1f k", v/1e3)
	case v >= 1_000:
		return fmt.Sprintf("%.2f k", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

// bytesOf shows bytes. A heap that shrank says nothing about what was added to it.
func bytesOf(v float64) string {
	if v < 0 {
		return "too few to measure"
	}
	if text := thousands(v); strings.Contains(text, " ") {
		return text + "B"
	}
	return thousands(v) + " B"
}

func seconds(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "?"
	case v < 100e-6:
		return fmt.Sprintf("%.1f µs", v*1e6)
	case v < 1e-3:
		return fmt.Sprintf("%.0f µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	}
	return fmt.Sprintf("%.2f s", v)
}

// figure shows a metric as its name asks for.
func figure(metric string, v float64) string {
	switch metric {
	case "pairs/s", "acquires/s", "hand-overs/s", "renewals/s":
		return thousands(v) + map[string]string{"renewals/s": " renewals/s"}[metric]
	case "commands/s":
		return tenth(v) + " commands/s"
	case "p50", "p99", "longest", "mean", "p99 beside", "p99 idle":
		return seconds(v)
	case "allocs", "hung", "failed", "violations":
		return whole(v)
	case "lost":
		return whole(v) + " lost"
	case "goroutines":
		return whole(v) + " goroutines"
	case "server µs", "client µs":
		return tenth(v) + " µs"
	case "commands":
		return hundredth(v) + " commands"
	case "inside":
		return tenth(v) + " inside"
	case "each", "heap", "stacks":
		return bytesOf(v)
	case "cores", "client cores", "server core":
		return percent(v)
	case "jain", "jain of processes":
		return thousandth(v)
	}
	return fmt.Sprintf("%.3g", v)
}
