package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// results are what a run has shown, for docs/benchmarks/peers.json.
type results struct {
	Date     string
	Server   string // its version
	CPUs     int
	Versions map[string]string // of modules
	Lease    time.Duration
	Tries    int

	mu      sync.Mutex // guards Records
	Records []record
}

func newResults(p plan) *results {
	r := &results{Date: time.Now().Format("2 January 2006"), CPUs: runtime.NumCPU(), Lease: p.lease, Tries: p.tries, Versions: map[string]string{}}
	if v, err := exec.Command("redis-server", "--version").Output(); err == nil {
		r.Server = regexp.MustCompile(`v=(\S+)`).FindStringSubmatch(string(v))[1]
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			r.Versions[m.Path] = m.Version
		}
	}
	used := map[string]string{}
	for _, l := range p.libraries {
		if l.Module != "" && !l.java {
			used[l.Module] = r.Versions[l.Module]
		}
		if l.java {
			used[l.Module] = strings.TrimPrefix(used[l.Module]+" and "+redissonVersion(l.older), " and ")
		}
	}
	r.Versions = used
	return r
}

// redissonVersion is the one of a class path.
func redissonVersion(of string) string {
	m := regexp.MustCompile(`redisson-(\d[^/]*)\.jar`).FindStringSubmatch(classPaths[of])
	if m == nil {
		return ""
	}
	return m[1]
}

func (r *results) add(rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Records = append(r.Records, rec)
}

// sort brings the records into the order of the page.
func (r *results) sort() {
	place := func(rec record) int {
		s := slices.IndexFunc(scenarios, func(s scenario) bool { return s.id == rec.Scenario })
		l := slices.IndexFunc(libraries, func(l library) bool { return l.Name == rec.Library })
		return s*len(libraries) + l
	}
	slices.SortStableFunc(r.Records, func(a, b record) int { return place(a) - place(b) })
}

// of returns the tries of a library in a scenario that count.
func (r *results) of(l, s string) (all []record) {
	for _, rec := range r.Records {
		if rec.Library == l && rec.Scenario == s && rec.Invalid == "" {
			all = append(all, rec)
		}
	}
	return all
}

// complete returns an error for each library that has a scenario in which more than a fifth of the tries do not count.
func (r *results) complete(p plan) (err error) {
	for _, s := range p.scenarios {
		for _, l := range p.libraries {
			if s.quorum != (l.nodes > 1) {
				continue
			}
			if n := len(r.of(l.Name, s.id)); n < p.tries-p.tries/5 || n == 0 {
				err = errors.Join(err, fmt.Errorf("%s, %s: the fault hit in %d of %d tries", l.Name, s.id, n, p.tries))
			}
		}
	}
	return err
}

func load(file string) (*results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	return r, json.Unmarshal(text, r)
}

func pageIn(root string) string    { return filepath.Join(root, "docs/peers.md") }
func resultsIn(root string) string { return filepath.Join(root, "docs/benchmarks/peers.json") }

// write prints the page for an empty root.
func (r *results) write(root string) error {
	if root == "" {
		fmt.Print(r.page())
		return nil
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(resultsIn(root), append(text, '\n'), 0o666),
		os.WriteFile(pageIn(root), []byte(r.page()), 0o666))
}

// String has the fields that are set.
func (rec record) String() string {
	rec.Library, rec.Scenario = "", ""
	text, _ := json.Marshal(rec) // it has no value that JSON has not
	return strings.Replace(string(text), `"Library":"","Scenario":"",`, "", 1)
}
