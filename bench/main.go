// Command bench measures the library and others, on the same servers and in the same
// run. It is a module of its own, so that nobody who uses the library has the others in
// his module graph.
//
// It starts its own servers on free loopback ports and stops exactly those. The peers of
// a measurement take turns in short slices, several rounds of them, so that what else
// the machine does meets all alike. Each figure is the median of the rounds, with the
// least and the greatest.
//
//	go run . -quick                        all of it in small, tables on the terminal
//	go run . -only own,crowd               some measurements
//	go run . -quick -only own -peers "rlock;raw" -cpuprofile own.pprof
//	go run . -out ..                       writes docs/benchmarks.md, its charts, and bench/RESULTS.md
//	go run . -from ../docs/benchmarks/results.json -out ..    writes them again
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// measurements are what can be measured, in the order in which it is.
var measurements = []struct {
	name, about string
	run         func(b *bench)
}{
	{"own", "each caller has a key of its own: rows 1 to 3, and the curve of callers", (*bench).ownKeys},
	{"crowd", "one key, 64 goroutines of one process: row 4", (*bench).crowd},
	{"processes", "one key, several processes: row 5, and the curve of processes", (*bench).processes},
	{"handover", "from a release to the next waiter in another process: row 6", (*bench).handOver},
	{"held", "held locks: rows 7 and 8, and the curve of held locks", (*bench).held},
	{"waiters", "idle waiters: row 9, and the curve of waiters", (*bench).waiters},
	{"masters", "RedLock on five masters: row 10", (*bench).masters},
	{"types", "the types that keep their waiters in Redis: row 11", (*bench).types},
	{"multi", "2, 5 and 10 locks of one server at once, free and contended", (*bench).multi},
	{"delay", "a network that takes 1, 5 and 10 ms: the curve of delays", (*bench).delays},
}

// plan is how much is measured.
type plan struct {
	quick  bool
	rows   bool          // only the points that the table needs
	slice  time.Duration // of one peer, before the next has its turn
	rounds int
	peers  []string // none: all
	far    *far     // nil: all of held
}

func main() {
	if isChild() {
		serve(orders(), os.Stdout)
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	var names []string
	for _, m := range measurements {
		names = append(names, m.name)
	}
	only := flag.String("only", "", "what to measure, of: "+strings.Join(names, ", ")+"; rows: of all of it, or of those named beside it, only what the table needs")
	quick := flag.Bool("quick", false, "small numbers and short slices: two minutes, and figures that say little")
	far := flag.String("far", "", "of held only this: locks held over a network, such as 1000000,30s,1ms: how many, their lease, and a round trip")
	few := flag.String("peers", "", "which peers, separated by semicolons; empty: all. RedLocks and the types of row 11 are measured with all")
	profile := flag.String("cpuprofile", "", "file for a CPU profile of this process, for -only and -peers")
	out := flag.String("out", "", "root of a tree, for docs/benchmarks.md, its charts and results.json, and bench/RESULTS.md; empty: print the texts")
	into := flag.String("into", "", "results.json of an earlier run, in which what -only measures is replaced")
	from := flag.String("from", "", "write the texts from this results.json, and measure nothing")
	flag.Parse()

	if *from != "" {
		r, err := load(*from)
		if err != nil {
			return err
		}
		return r.write(*out)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	b := newBench(plan{quick: *quick})
	if *far != "" {
		if b.far, err = parseFar(*far); err != nil {
			return fmt.Errorf("-far: %w", err)
		}
	}
	if *few != "" {
		b.peers = strings.Split(*few, ";")
		for _, name := range b.peers {
			if !slices.ContainsFunc(peers, func(p peer) bool { return p.name == name }) {
				return fmt.Errorf("-peers: there is no %q", name)
			}
		}
	}
	want := names
	if *only != "" {
		want = strings.Split(*only, ",")
		if b.rows = slices.Contains(want, "rows"); b.rows {
			want = slices.DeleteFunc(want, func(n string) bool { return n == "rows" })
		}
		if len(want) == 0 {
			want = names
		}
	}
	for _, n := range want {
		if !slices.Contains(names, n) {
			return fmt.Errorf("-only: there is no %q; there are %s, and rows", n, strings.Join(names, ", "))
		}
	}

	defer b.host.cleanUp()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fatal:
			err = p
		default:
			b.host.cleanUp()
			panic(p)
		}
	}()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		b.host.cleanUp()
		os.Exit(130)
	}()

	for _, m := range measurements {
		if !slices.Contains(want, m.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", m.name, m.about)
		start := time.Now()
		m.run(b)
		fmt.Fprintf(os.Stderr, "%s: took %v\n", m.name, time.Since(start).Round(100*time.Millisecond))
	}
	b.results.Seconds = time.Since(b.results.Date).Seconds()
	written := b.results
	if *into != "" {
		if written, err = load(*into); err == nil {
			err = written.replace(b.results)
		}
		if err != nil {
			return err
		}
	}
	if err := written.write(*out); err != nil {
		return err
	}
	if v := b.results.violations(); len(v) > 0 {
		return fmt.Errorf("two owners at once: %s", strings.Join(v, ", "))
	}
	// The figures of peers stand as they are.
	if lost := slices.DeleteFunc(b.results.losses(), func(s string) bool { return !strings.HasPrefix(s, ours+", ") }); len(lost) > 0 {
		return fmt.Errorf("holds were lost, though nothing failed: %s", strings.Join(lost, ", "))
	}
	return nil
}

// bench is one run.
type bench struct {
	plan
	host    *host
	results *results
	say     func(format string, args ...any)
}

func newBench(p plan) *bench {
	p.slice, p.rounds = time.Second/2, 5
	if p.quick {
		p.slice, p.rounds = 100*time.Millisecond, 2
	}
	return &bench{plan: p, host: &host{}, results: newResults(p), say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "  "+format+"\n", args...)
	}}
}

// choose is the points of a curve that this run measures: those that the table needs if
// only these are wanted, and few when quick.
func (b *bench) choose(all, rows, quick []int) []int {
	switch {
	case b.quick && b.rows:
		return slices.DeleteFunc(slices.Clone(quick), func(n int) bool { return !slices.Contains(rows, n) && n != quick[len(quick)-1] })
	case b.quick:
		return quick
	case b.rows:
		return rows
	}
	return all
}

// wanted returns the peers among some that this run measures.
func (b *bench) wanted(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return len(b.peers) > 0 && !slices.Contains(b.peers, n) })
}

// job is what one peer does in its turn.
type job struct {
	measure, peer string
	x             float64
	run           func() sample
}

// interleave gives each job its turn in each round; each round begins with another.
func (b *bench) interleave(rounds int, jobs []job) {
	for round := range rounds {
		for i := range jobs {
			j := jobs[(i+round)%len(jobs)]
			b.results.add(j.measure, j.peer, j.x, j.run())
		}
	}
}

// sample is the figures of one slice.
type sample map[string]float64

func (s sample) String() string {
	var text []string
	for _, k := range slices.Sorted(maps.Keys(s)) {
		text = append(text, fmt.Sprintf("%s %.4g", k, s[k]))
	}
	return strings.Join(text, ", ")
}

// pageIn, chartsIn and resultsIn return where a run writes, below the root of a tree: the page, its charts, and all figures.
func pageIn(out string) string    { return filepath.Join(out, "docs", "benchmarks.md") }
func chartsIn(out string) string  { return filepath.Join(out, "docs", "benchmarks") }
func resultsIn(out string) string { return filepath.Join(out, "bench", "RESULTS.md") }

func (b *bench) ctx() context.Context { return context.Background() }
