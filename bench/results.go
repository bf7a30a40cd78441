package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// results are all that a run has measured.
type results struct {
	Date     time.Time
	Seconds  float64
	Quick    bool
	Slice    time.Duration
	Rounds   int
	Machine  string
	Go       string
	Redis    string
	Commit   string
	Versions map[string]string // of modules
	Again    string            `json:",omitempty"` // what later runs have replaced, and when
	Series   []*series
}

// series is what one peer did at one point of one measure: each figure in each round.
type series struct {
	Measure, Peer string
	X             float64
	Values        map[string][]float64
}

func newResults(p plan) *results {
	r := &results{
		Date: time.Now(), Quick: p.quick, Slice: p.slice, Rounds: p.rounds,
		Machine: machine(), Go: runtime.Version(), Redis: output("redis-server", "--version"),
		Commit: output("git", "describe", "--always", "--dirty"), Versions: map[string]string{},
	}
	if _, v, ok := strings.Cut(r.Redis, "v="); ok {
		r.Redis, _, _ = strings.Cut(v, " ")
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			for _, p := range peers {
				if p.module == d.Path {
					r.Versions[d.Path] = d.Version
				}
			}
		}
	}
	return r
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func machine() string {
	model, memory := runtime.GOARCH, ""
	for _, line := range procLines("/proc/cpuinfo") {
		if k, v, _ := strings.Cut(line, ":"); strings.TrimSpace(k) == "model name" {
			model = strings.TrimSpace(v)
			break
		}
	}
	for _, line := range procLines("/proc/meminfo") {
		var kib int
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			memory = fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
		}
	}
	return fmt.Sprintf("%s, %d cores%s, %s", model, runtime.NumCPU(), memory, runtime.GOOS)
}

func procLines(path string) []string {
	text, _ := os.ReadFile(path)
	return strings.Split(string(text), "\n")
}

func (r *results) find(measure, peer string, x float64) *series {
	for _, s := range r.Series {
		if s.Measure == measure && s.Peer == peer && s.X == x {
			return s
		}
	}
	return nil
}

func (r *results) add(measure, peer string, x float64, values sample) {
	s := r.find(measure, peer, x)
	if s == nil {
		s = &series{measure, peer, x, map[string][]float64{}}
		r.Series = append(r.Series, s)
	}
	for k, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) { // JSON has none of them
			s.Values[k] = append(s.Values[k], v)
		}
	}
}

// replace puts what a later run on the same machine has measured in place of those measures here.
func (r *results) replace(later *results) error {
	if later.Machine != r.Machine || later.Redis != r.Redis || later.Quick != r.Quick {
		return fmt.Errorf("-into: measured on another machine, by another Redis, or quickly: %s, %s", r.Machine, r.Redis)
	}
	var measures []string
	for _, s := range later.Series {
		if !slices.Contains(measures, s.Measure) {
			measures = append(measures, s.Measure)
		}
	}
	r.Series = slices.DeleteFunc(r.Series, func(s *series) bool { return slices.Contains(measures, s.Measure) })
	r.Series = append(r.Series, later.Series...)
	again := fmt.Sprintf("%s (%s, %s)", strings.Join(measures, " and "), later.Date.Format("2 January 2006"), later.Commit)
	r.Again = strings.TrimPrefix(r.Again+"; "+again, "; ")
	return nil
}

// get is a figure over the rounds; it has N 0 if it was not measured.
func (r *results) get(measure, peer string, x float64, metric string) stat {
	if s := r.find(measure, peer, x); s != nil {
		return statOf(s.Values[metric])
	}
	return statOf(nil)
}

// ratio is a peer's figure to another's, round by round: what changes from round to
// round meets both.
func (r *results) ratio(measure string, x float64, metric, peer, to string) stat {
	a, b := r.find(measure, peer, x), r.find(measure, to, x)
	if a == nil || b == nil {
		return statOf(nil)
	}
	var of []float64
	for i := range min(len(a.Values[metric]), len(b.Values[metric])) {
		of = append(of, a.Values[metric][i]/b.Values[metric][i])
	}
	return statOf(of)
}

// points are where a measure was taken, in order.
func (r *results) points(measure string) (xs []float64) {
	for _, s := range r.Series {
		if s.Measure == measure {
			xs = append(xs, s.X)
		}
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

// at is the point that the table wants, or the last that there is.
func (r *results) at(measure string, x float64) float64 {
	xs := r.points(measure)
	if len(xs) == 0 || slices.Contains(xs, x) {
		return x
	}
	return xs[len(xs)-1]
}

// peersOf returns the peers of a measure, in the order of the table.
func (r *results) peersOf(measure string) (names []string) {
	for _, s := range r.Series {
		if s.Measure == measure && !slices.Contains(names, s.Peer) {
			names = append(names, s.Peer)
		}
	}
	place := func(name string) int {
		for i, p := range peers {
			if p.name == name {
				return i
			}
		}
		return len(peers)
	}
	slices.SortStableFunc(names, func(a, b string) int { return place(a) - place(b) })
	return names
}

// line is a figure of all peers.
func (r *results) line(measure string, x float64, metric string) string {
	var text []string
	for _, p := range r.peersOf(measure) {
		if v := r.get(measure, p, x, metric); v.N > 0 {
			text = append(text, fmt.Sprintf("%s %s", p, figure(metric, v.Median)))
		}
	}
	return metric + ": " + strings.Join(text, ", ")
}

// violations lists where two owners were inside at the same time.
func (r *results) violations() (where []string) {
	for _, s := range r.Series {
		n := 0.0
		for _, v := range s.Values["violations"] {
			n += v
		}
		if n > 0 {
			where = append(where, fmt.Sprintf("%s at %s, %v: %v times", s.Peer, s.Measure, s.X, n))
		}
	}
	return where
}

// losses says where holds were lost, though nothing failed.
func (r *results) losses() (where []string) {
	for _, s := range r.Series {
		if v := statOf(s.Values["lost"]); v.N > 0 && v.Most > 0 {
			where = append(where, fmt.Sprintf("%s, %s: up to %.0f of %.0f holds", s.Peer, s.Measure, v.Most, s.X))
		}
	}
	return where
}

func load(path string) (*results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	return r, json.Unmarshal(text, r)
}

// write prints the texts, or writes them, the charts and the results below the root of a tree.
func (r *results) write(out string) error {
	if out == "" {
		fmt.Print(r.page() + "\n" + r.text())
		return nil
	}
	for _, dir := range []string{chartsIn(out), filepath.Dir(resultsIn(out))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	all, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(chartsIn(out), "results.json"), append(compact(all), '\n'), 0o644); err != nil {
		return err
	}
	for _, c := range curves {
		svg := c.svg(r)
		if svg == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(chartsIn(out), c.file+".svg"), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(pageIn(out), []byte(r.page()), 0o644), os.WriteFile(resultsIn(out), []byte(r.text()), 0o644))
}

// cores is how many the machine has that has measured.
func (r *results) cores() float64 {
	for _, part := range strings.Split(r.Machine, ", ") {
		var n float64
		if found, _ := fmt.Sscanf(part, "%f cores", &n); found == 1 {
			return n
		}
	}
	return float64(runtime.NumCPU())
}

// compact puts each list of numbers on one line.
func compact(text []byte) []byte {
	var out []byte
	for i := 0; i < len(text); i++ {
		b := text[i]
		if b == '[' && i+1 < len(text) && text[i+1] == '\n' {
			end := i
			for end < len(text) && text[end] != ']' && text[end] != '{' {
				end++
			}
			if end < len(text) && text[end] == ']' {
				out = append(out, strings.Join(strings.Fields(string(text[i:end+1])), "")...)
				i = end
				continue
			}
		}
		out = append(out, b)
	}
	return out
}
