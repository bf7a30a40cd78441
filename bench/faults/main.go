// Command faults disturbs this library and others with the same faults, and writes docs/peers.md.
//
//	go run ./faults                           prints the page
//	go run ./faults -out ..                   writes docs/peers.md and docs/benchmarks/peers.json
//	go run ./faults -from ../docs/benchmarks/peers.json -out ..    writes the page again
//	go run ./faults -k 1 -only cut,kill -libraries 'redsync;redislock'
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// plan is what is tried.
type plan struct {
	lease     time.Duration
	tries     int // of each library in each scenario
	parallel  int // tries at the same time; each sleeps most of its time
	libraries []library
	scenarios []scenario
	say       func(format string, args ...any)
}

func main() {
	err := error(nil)
	if isChild() {
		err = serve(os.Stdin, os.Stdout)
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run() error {
	k := flag.Int("k", 5, "tries of each library in each scenario")
	lease := flag.Duration("lease", 6*time.Second, "lease of all locks")
	parallel := flag.Int("parallel", 6, "tries at the same time")
	only := flag.String("only", "", "scenarios, separated by commas; empty: all")
	few := flag.String("libraries", "", "libraries, separated by semicolons; empty: all")
	from := flag.String("from", "", "write the page from these results, and try nothing")
	out := flag.String("out", "", "root of a tree for docs/peers.md and docs/benchmarks/peers.json; empty: print the page")
	flag.Parse()
	redis.SetLogger(quiet{})

	var r *results
	var err error
	if *from != "" {
		r, err = load(*from)
	} else {
		p := plan{lease: *lease, tries: *k, parallel: *parallel, say: func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, format+"\n", args...)
		}}
		if p.libraries, err = choose(libraries, *few, ";", func(l library) string { return l.Name }); err != nil {
			return err
		}
		if p.scenarios, err = choose(scenarios, *only, ",", func(s scenario) string { return s.id }); err != nil {
			return err
		}
		r, err = p.run()
	}
	if err != nil {
		return err
	}
	return r.write(*out)
}

// choose returns those that are named, or all.
func choose[T any](all []T, names, separator string, name func(T) string) (chosen []T, err error) {
	if names == "" {
		return all, nil
	}
	for n := range strings.SplitSeq(names, separator) {
		i := slices.IndexFunc(all, func(one T) bool { return name(one) == n })
		if i < 0 {
			return nil, fmt.Errorf("there is no %q", n)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// attempts is how often a try is made whose fault does not hit.
const attempts = 3

// run fails if a library has a scenario in which too few tries count.
func (p plan) run() (*results, error) {
	for _, l := range p.libraries {
		if l.java {
			if err := buildJava(l.older); err != nil {
				return nil, err
			}
		}
	}
	r := newResults(p)
	var wg sync.WaitGroup
	slots := make(chan struct{}, p.parallel)
	for range p.tries {
		for _, s := range p.scenarios {
			for _, l := range p.libraries {
				if s.quorum != (l.nodes > 1) {
					continue
				}
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					for range attempts {
						rec := try(l, s, p.lease)
						p.say("%-40s %-10s %s", l.Name, s.id, rec)
						r.add(rec)
						if rec.Invalid == "" {
							return
						}
					}
				})
			}
		}
	}
	wg.Wait()
	r.sort()
	return r, r.complete(p)
}
