package main

import (
	"cmp"
	"fmt"
	"strings"
)

// reasons say of rows that were missed why, as profiles showed it, and what would be
// needed. A row that is met does not print its reason.
var reasons = map[string]string{
	"pair": "The server needs 4 µs more for a pair than for one of redislock: a token, a hash with a TTL, and a message for those who wait. In the client, go-redis takes some 15 µs, and the attempt, the hold and its renewal 20 µs, no function more than 1 % of it. " +
		"The caller sends its requests itself, with 0.5 futex calls a pair (strace); redislock has 1.0, raw 0.2. The ratios depend on the host: a virtual machine that is idle wakes its threads slowly, and is quicker for a library whose second goroutine keeps the other processor awake, as redsync's does. Needed: the next row.",
	"throughput": "The clients need 11 µs and the server 9 µs a pair, on two cores that they share; with the time of the kernel that is all there is. " +
		"Auto-pipelined raw commands need 5 µs and 3 µs. Most of the server's part is the seven commands inside the two scripts; see the next row.",
	"server": "An empty script takes 1.6 µs, our enter 6.3 µs, our release 3.2 µs; in a script for many, 4.4 µs and 2.4 µs. What remains are the commands inside, at 0.5 to 0.9 µs each: " +
		"the look for a tombstone, the time, the token, the hash and its TTL that Redisson reads, the end of the hold and PUBLISH. Raw has two and no token, no re-entry, no wake-up. " +
		"Shared closures, a single MGET, MSET or DEL for a batch were tried and won nothing. Needed: another wire than Redisson's, or locks without tokens.",
	"hand-over": "A waiter that is waited for again and again is granted the lock by the release; one message says so, and it need not look. What is left above PUBLISH is the script (six commands and two messages, 60 to 70 µs when it finds its caches cold, as here after 6 ms of rest; 8 µs in a row), " +
		"and the wake-up of the goroutine that waits. Needed: fewer commands in the script, or a quicker wake-up by the host.",
	"held": "320 to 325 B of the heap at 10,000 and at 100,000 holds; the rest are stacks of the goroutines that took them, which Go keeps for a while.",
	"renewed": "While pipelines of renewals follow each other, they keep the server and the client busy on the two cores that the caller needs too, and one acquire of a hundred waits for both. It is so with the collector off, and where 200 renewals are due at a time in place of 5,000. Pauses of 0.2 ms between pipelines take the 99th percentile down by a third, and cost 5 to 10 % of a core. " +
		"Renewals at half of the lease, not a third, would take a third off; but they would also leave a hold half of its lease to outlast an outage, not two thirds. Of the processor time, a sixth is Go's collector, and another is go-redis. Needed: a core of its own for the server.",
	"RedLock": "Each node runs two scripts with eight commands, which keep tokens in the order of holds (7.1 µs and 3.4 µs in a row; two to three times that when five servers and the client take turns on two cores, and find their caches cold): 225 µs of processor time of all servers for a pair, where redsync needs 152 and, failing fast, 135. redsync as it comes is a few µs before or behind from run to run. The fail-fast redsync sends one SET, and a script with two. " +
		"Needed: more cores, or RedLocks without ordered tokens.",
	"queues": "A hand-over is three scripts: a waiter joins the queue, the holder releases, and the waiter takes the lock after the message of that release. They call 47 commands. A waiter of a FairLock also subscribes to a channel of its own, as Redisson's do, and looks once more when that is confirmed: 57 commands inside. " +
		"Each hand-over is also two round trips, one after the other. Needed: a quiet host.",
}

// summary is a row of docs/benchmarks.md: one figure of the library, of its best peer, and of what does no more
// than the commands.
type summary struct {
	what, measure string
	x             float64
	metric        string
	more          bool // is better
	floor         string
}

// short are these rows: as many as fit on a screen.
func (r *results) short() []summary {
	ps, many := r.at("processes", fleet), r.at("own", 512)
	alive := mastersDead(0)
	return []summary{
		{"lock and unlock, one caller: median", "own", 1, "p50", false, rawName},
		{"the server's time for that", "own", 1, "server µs", false, rawName},
		{fmt.Sprintf("pairs a second, %.0f callers, each with a key of its own", many), "own", many, "pairs/s", true, rawName},
		{fmt.Sprintf("one key, %.0f processes of %d goroutines: hand-overs a second", ps, threads), "processes", ps, "hand-overs/s", true, ""},
		{"99 % of the waits there end within", "processes", ps, "p99", false, ""},
		{"from a release to the next waiter, in another process: median", "handover", 0, "p50", false, publishName},
		{"memory of a held lock", "held", r.at("held", 10_000), "each", false, ""},
		{fmt.Sprintf("%s waiters that are idle: commands a second", thousands(r.at("waiters", 10_000))), "waiters", r.at("waiters", 10_000), "commands/s", false, ""},
		{"`RedLock` on five masters, one caller: median", alive, 1, "p50", false, floorName},
		{"`RedLock`: pairs a second, 64 callers", alive, 64, "pairs/s", true, floorName},
	}
}

// best is the best figure of another library in a row, and its name.
func (r *results) best(s summary) (name string, best stat) {
	for _, p := range r.peersOf(s.measure) {
		switch p {
		case ours, redLockName, rawName, autoName, batchName, publishName, floorName:
			continue
		}
		if v := r.get(s.measure, p, s.x, s.metric); v.N > 0 && (best.N == 0 || s.more && v.Median > best.Median || !s.more && v.Median < best.Median) {
			name, best = p, v
		}
	}
	return name, best
}

const written = "<!-- Written by bench/ (make bench). Do not edit: change the program, and let it write. -->\n"

// page is docs/benchmarks.md: what a reader wants to see. The rest is in text.
func (r *results) page() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Benchmarks\n")
	p(written)
	p("rlock beside its peers: on the same servers, in the same run. Measured on %s, with Redis %s, on this machine: %s. Clients and servers share it, over loopback. Only ratios and counts carry over to another machine: `make bench` measures on yours. [RESULTS.md](../bench/RESULTS.md) has who is compared, all figures, and the goals of the project with those that were missed.\n",
		r.Date.Format("2 January 2006"), r.Redis, r.Machine)
	if v := r.violations(); len(v) > 0 {
		p("**Two owners at once:** %s.\n", strings.Join(v, "; "))
	} else if n := r.contended(); n > 0 {
		p("No two owners were inside at once, in %s contended sections.\n", thousands(n))
	}
	if lost := r.losses(); len(lost) > 0 {
		p("**Holds were lost, though nothing failed:** %s.\n", strings.Join(lost, "; "))
	}
	p("## Charts\n")
	for _, c := range curves {
		if c.file != "" && len(r.points(c.measure)) > 1 {
			p("### %s\n\n%s\n\n![%s](benchmarks/%s.svg)\n", c.title, c.shows, c.title, c.file)
		}
	}
	p("## Ten figures\n")
	p("| what | rlock | best peer | commands alone |\n|---|---:|---:|---:|")
	for _, s := range r.short() {
		mine := ours
		if s.floor == floorName {
			mine = redLockName
		}
		v := r.get(s.measure, mine, s.x, s.metric)
		if v.N == 0 {
			continue
		}
		peer, floor := "", ""
		if name, best := r.best(s); best.N > 0 {
			peer = name + " " + bare(s.metric, best.Median)
		}
		if f := r.get(s.measure, s.floor, s.x, s.metric); f.N > 0 {
			floor = bare(s.metric, f.Median)
		}
		p("| %s | **%s** | %s | %s |", s.what, bare(s.metric, v.Median), peer, floor)
	}
	p("\nredisson-style is a plain port of Redisson's lock. Commands alone are `SET NX PX` and a script that deletes, without a token, a renewal or a wait; of a release, PUBLISH until the message is there.\n")
	p("%s", method)
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// text is bench/RESULTS.md: all figures.
func (r *results) text() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Results\n")
	p(written)
	p("All that `make bench` has measured. The charts, ten of the figures and the method are in [docs/benchmarks.md](../docs/benchmarks.md).\n")
	p("| | |\n|---|---|")
	p("| date | %s, %.0f minutes |", r.Date.Format("2 January 2006"), r.Seconds/60)
	p("| machine | %s; clients and servers share it, over loopback |", r.Machine)
	p("| Redis, Go | %s, %s |", r.Redis, strings.TrimPrefix(r.Go, "go"))
	p("| rlock | %s |", r.Commit)
	for _, peer := range peers {
		if v := r.Versions[peer.module]; v != "" {
			p("| %s | %s |", strings.TrimPrefix(peer.module, "github.com/"), v)
		}
	}
	if r.Again != "" {
		p("| measured again | %s |", r.Again)
	}
	p("| rounds | %d (3 at points that no row of the table needs; 1 of held locks and of waiters), in slices of %v for each peer in turn (twice that where a key is contended); medians%s |", r.Rounds, r.Slice, map[bool]string{true: ", **in a quick run, whose figures say little**"}[r.Quick])
	p("")

	if lost := r.losses(); len(lost) > 0 {
		p("**Holds were lost, though nothing failed:** %s.\n", strings.Join(lost, "; "))
	}
	if v := r.violations(); len(v) > 0 {
		p("**Two owners at once:** %s.\n", strings.Join(v, "; "))
	} else if n := r.contended(); n > 0 {
		p("In each contended run, owners wrote into memory that all share, outside of Redis: no two were inside at once, in %s sections.\n", thousands(n))
	}

	p("## The table\n")
	p("| scenario | %s | must reach, in this run | |", strings.Join(columns, " | "))
	p("|---|%s---|---|", strings.Repeat("---|", len(columns)))
	for _, w := range r.rows() {
		if !w.measured() {
			continue
		}
		line := "| " + w.scenario + " |"
		for _, c := range columns {
			cell := w.cells[c]
			if c == ours && cell != "" {
				cell = "**" + cell + "**"
			}
			line += " " + cell + " |"
		}
		var goals []string
		for _, g := range w.goals {
			if text := strings.TrimSpace(g.text); g.any && !g.met {
				goals = append(goals, "**"+text+"**")
			} else if g.any {
				goals = append(goals, text)
			}
		}
		p("%s %s | %s |", line, strings.Join(goals, "; "), w.verdict())
	}
	p("\nA goal in bold was missed. Ratios are medians of the ratios of each round.\n")
	for _, w := range r.rows() {
		if text := reasons[w.name]; text != "" && w.verdict() != "met" && w.measured() {
			p("- **%s**: %s", w.scenario, text)
		}
	}

	p("\n## Who is compared\n")
	for _, peer := range peers {
		p("- **%s**: %s.", peer.name, peer.about)
	}
	p("\nAll have the defaults of their libraries, but for leases of %v. Of RedLocks: a floor, which is `SET NX PX` on all nodes at once until a quorum has answered, and its release by a script in the same way; and redsync as it comes, with `WithFailFast`, and with that on connections that neither repeat a command nor a dial.\n", lease)

	p("## Curves\n")
	for _, measure := range sections() {
		if len(r.points(measure)) < 2 {
			continue
		}
		for _, c := range curves {
			if c.measure == measure {
				p("### %s\n", c.title)
				p("%s", r.grid(c))
			}
		}
		if bends := r.bends(measure); len(bends) > 0 {
			p("Where it bends:\n\n- %s\n", strings.Join(bends, "\n- "))
		}
	}

	p("## All figures\n")
	p("Median, and from the least to the greatest of the rounds. [results.json](../docs/benchmarks/results.json) has each round.\n")
	for _, measure := range []string{"own", "crowd", "processes", "types", typesApart, "handover", "renewed", renewedAway, "held", "waiters", mastersDead(0), mastersDead(nodes - quorum), multiFree, multiContended} {
		r.figures(p, measure, measure)
	}
	r.figures(p, delayedCrowd, "one key over a network that takes time, by ms")
	for _, callers := range []int{1, 64, 512} {
		of := delayMeasure(callers)
		r.figures(p, of, "a network that takes time, by ms: "+strings.TrimPrefix(of, "delay, "))
		r.figures(p, of+" of RedLock", "RedLock over a network that takes time, by ms: "+strings.TrimPrefix(of, "delay, "))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// contended is the number of critical sections that were checked.
func (r *results) contended() (n float64) {
	for _, s := range r.Series {
		if len(s.Values["violations"]) > 0 {
			for _, done := range s.Values["done"] {
				n += done
			}
		}
	}
	return n
}

// grid is the points of a curve.
func (r *results) grid(c curve) string {
	xs := r.points(c.measure)
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", c.x)
	for _, x := range xs {
		fmt.Fprintf(&b, " %s |", short1(x))
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(xs)))
	for _, peer := range r.peersOf(c.measure) {
		fmt.Fprintf(&b, "| %s |", peer)
		for _, x := range xs {
			if v := r.get(c.measure, peer, x, c.metric); v.N > 0 {
				fmt.Fprintf(&b, " %s |", strings.TrimSuffix(figure(c.metric, v.Median), " commands/s"))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// shown are the metrics of each measure in the last tables.
var shown = map[string][]string{
	"own":       {"pairs/s", "p50", "p99", "longest", "allocs", "client µs", "server µs", "commands", "inside", "hung"},
	"crowd":     {"hand-overs/s", "mean", "p99", "longest", "jain", "commands", "inside", "hung"},
	"processes": {"hand-overs/s", "mean", "p99", "longest", "jain", "jain of processes", "commands", "inside", "hung"},
	"types":     {"hand-overs/s", "mean", "p99", "longest", "jain", "commands", "inside", "hung"},
	"handover":  {"p50", "p99", "longest", "commands", "inside", "server µs"},
	"renewed":   {"acquires/s", "heap", "stacks", "goroutines", "cores", "server core", "renewals/s", "commands/s", "lost", "p99 idle", "p99 beside"},
	"held":      {"acquires/s", "heap", "stacks", "goroutines", "cores", "server core", "renewals/s", "commands/s", "lost", "p99 idle", "p99 beside"},
	"waiters":   {"commands/s", "heap", "stacks", "goroutines", "settled after"},
	"multi":     {"pairs/s", "hand-overs/s", "p50", "p99", "commands", "inside", "server µs", "client µs", "hung"},
	"delay":     {"pairs/s", "p50", "p99", "commands"},
	"masters":   {"pairs/s", "p50", "p99", "allocs", "client µs", "server µs", "commands", "inside"},
}

func (r *results) figures(p func(string, ...any), measure, title string) {
	xs := r.points(measure)
	if len(xs) == 0 {
		return
	}
	metrics := shown[strings.Split(measure, ",")[0]]
	p("<details><summary>%s</summary>\n", cmp.Or(map[string]string{
		"own": "own keys, by callers", "crowd": "one key, one process", "processes": "one key, by processes", "types": "the types that keep their waiters in Redis", typesApart: "the same, by processes",
		"handover": "from a release to the next waiter in another process", "renewed": "held with a short lease", renewedAway: "held with a short lease, by a server 10 ms away", "held": "held, by number", "waiters": "idle waiters, by number",
		mastersDead(0): "RedLock, all masters alive, by callers", mastersDead(nodes - quorum): "RedLock, two of five masters dead, by callers",
		multiFree: "several locks at once, one caller, by locks", multiContended: fmt.Sprintf("the same locks, wanted by %d goroutines, by locks", multiCallers),
	}[measure], title))
	p("| | peer | %s |\n|---:|---|%s", strings.Join(metrics, " | "), strings.Repeat("---:|", len(metrics)))
	for _, x := range xs {
		for _, peer := range r.peersOf(measure) {
			s := r.find(measure, peer, x)
			if s == nil {
				continue
			}
			line := fmt.Sprintf("| %s | %s |", short1(x), peer)
			for _, m := range metrics {
				cell := ""
				if v := statOf(s.Values[m]); v.N > 0 {
					cell = bare(m, v.Median)
					if low, high := bare(m, v.Least), bare(m, v.Most); v.N > 1 && low != high {
						cell += fmt.Sprintf(" (%s–%s)", low, high)
					}
					if m == "lost" && v.Most > 0 {
						cell = "**" + cell + "**"
					}
				}
				line += " " + cell + " |"
			}
			p("%s", line)
		}
	}
	p("\n</details>\n")
}

// bare is a figure without the word that the column has already.
func bare(metric string, v float64) string {
	text := figure(metric, v)
	for _, word := range []string{" commands/s", " commands", " renewals/s", " goroutines", " inside", " lost"} {
		text = strings.TrimSuffix(text, word)
	}
	return text
}

const method = `## How it is measured

- The program starts redis-server on free loopback ports, without persistence, and one client per peer and process with default options.
- Peers take turns in short slices, in changing order. A figure is the median of the rounds.
- **Own keys**: each caller acquires and releases a lock of its own without a pause, with a context that can be canceled. Allocations are all of the process, and CPU is user and
  system time of the process, divided by the pairs.
- **Commands** are differences of INFO commandstats: those that clients send, and those that scripts call ("inside"). Handshakes of connections and the
  program's own INFO are left out. The server's time is what commandstats has of the commands that clients sent.
- **One key**: each goroutine acquires, enters a critical section without work, and releases, without a pause. In the section it writes its number into memory that all
  processes map, if nobody else's is there, raises a counter without an atomic addition, and takes its number away. Who finds another's number, or a counter that lost a step, has found two owners.
  A hand-over is a section; commands are divided by all sections. Jain's index is over the sections of goroutines, or of processes. A wait is the time of Lock. What ends after its slice counts among the waits, and not among the hand-overs.
- **Release to the next waiter**: a holder releases when the waiter in another process has had 6 ms to begin to wait; the time is from the call of Unlock until the waiter's Lock has returned,
  by the clock of the machine. A round is two pairs. The floor is PUBLISH, until a subscriber in another process has the message.
- **Held**: a process of its own acquires the locks and does nothing else for half a lease. Then its CPU time and renewals are counted for a lease (for three of the short ones). Its bytes:
  heap and stacks after a garbage collection then, less what they were before the first lock. At last, where the table wants it, one caller acquires and releases beside it, each 2 ms,
  as it did before the first was held.
- **Waiters**: a process holds the keys and renews them, and the waiters of another are idle when their commands have become few. They talk to the server through a relay that counts their commands.
- **Several locks**: 2, 5 or 10 at once, of one caller; then eight want the same.
- **RedLock**: five masters; then two of them are killed, and all peers have had time to notice.
- **Delay**: the relay holds what it gets back for half of the round trip, in each direction, without keeping what comes behind it waiting.
`
