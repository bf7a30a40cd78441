package main

import (
	"html"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	if isChild() {
		serve(orders(), os.Stdout)
		return
	}
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// tiny is a bench for a test: each peer has its turn, no figure says anything.
func tiny(t *testing.T) *bench {
	b := newBench(plan{quick: true, rows: true})
	b.slice, b.rounds, b.say = 30*time.Millisecond, 1, t.Logf
	t.Cleanup(b.host.cleanUp)
	return b
}

// All peers work, nobody is in a critical section of another, the exact figures are what
// they have to be, and the text and the charts can be written.
//
// On a slow machine some peer may do nothing in a slice of time, so this is for the night.
func TestAllThatIsMeasured(t *testing.T) {
	if os.Getenv("RLOCK_NIGHTLY") != "1" {
		t.Skip("a part of make nightly: RLOCK_NIGHTLY=1 runs it here")
	}
	b := tiny(t)
	b.ownKeys()
	b.crowd()
	b.processes()
	b.handOver()
	b.types()
	b.masters()
	b.multi()
	r := b.results
	if v := r.violations(); len(v) > 0 {
		t.Errorf("two owners at once: %v", v)
	}
	for _, s := range r.Series {
		// In a slice as short as this, some may end only after it, and peers are cut off where
		// the machine is slow: with hundreds of callers, or as rueidislock's may hang.
		late, mine := s.Values["hung"], strings.HasPrefix(s.Peer, "rlock")
		cut := !mine && len(late) > 0 && late[0] > 0
		if v, ok := s.Values["done"]; ok && v[0] <= 0 && !cut {
			t.Errorf("%s, %s at %v: nothing was done", s.Measure, s.Peer, s.X)
		}
		if v, ok := s.Values["failed"]; ok && v[0] > 0 && !cut && s.Peer != rueidisN && !strings.HasPrefix(s.Peer, syncName) {
			t.Errorf("%s, %s at %v: %v failed", s.Measure, s.Peer, s.X, v[0])
		}
		if mine && len(late) > 0 && late[0] > 0 {
			t.Errorf("%s, %s at %v: %v hung", s.Measure, s.Peer, s.X, late[0])
		}
	}
	for _, p := range []string{rawName, autoName, bsmName, syncName, redisson} {
		// A connection that is slow to come costs a command more.
		if got := r.get("own", p, 1, "commands").Median; math.Abs(got-2) > 0.1 {
			t.Errorf("a pair of %s takes %.2f commands", p, got)
		}
	}
	out := t.TempDir()
	if err := r.write(out); err != nil {
		t.Fatal(err)
	}
	for file, parts := range map[string][]string{
		pageIn(out):    {"| lock and unlock, one caller: median |", "callers-throughput.svg", "| `RedLock` on five masters"},
		resultsIn(out): {"| lock + unlock, one caller, p50 |", "| RedLock, five masters"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range parts {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q:\n%s", file, want, text)
			}
		}
	}
	again, err := load(filepath.Join(chartsIn(out), "results.json"))
	if err != nil || again.text() != r.text() || again.page() != r.page() {
		t.Errorf("the results that were written do not give the same texts: %v", err)
	}
	if svg, err := os.ReadFile(filepath.Join(chartsIn(out), "callers-throughput.svg")); err != nil || !strings.Contains(string(svg), "</svg>") {
		t.Errorf("no chart: %v", err)
	}
}

// The pages are what the program makes of the results beside them.
func TestPagesAreThoseOfTheResults(t *testing.T) {
	r, err := load(filepath.Join(chartsIn(".."), "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{pageIn(".."): r.page(), resultsIn(".."): r.text()} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is another (%v); go run . -from ../docs/benchmarks/results.json -out .. writes it", file, err)
		}
	}
	page := r.page()
	_, rows, _ := strings.Cut(page, "\n|---|---:|---:|---:|\n")
	rows, _, _ = strings.Cut(rows, "\n\n")
	if n := strings.Count(rows, "\n") + 1; n != 10 {
		t.Errorf("%d rows; want 10:\n%s", n, rows)
	}
	if charts, table := strings.Index(page, "\n## Charts\n"), strings.Index(page, "\n## Ten figures\n"); charts < 0 || table < charts {
		t.Error("the charts should come first")
	}
	if words := len(strings.Fields(page)); words > 1030 {
		t.Errorf("%d words; 1,030 are the bound", words)
	}
}

// label is a text of a chart.
var label = regexp.MustCompile(`<text(?: class="(\w*)")? x="([\d.]+)" y="([\d.]+)">([^<]*)</text>`)

// The charts are what the program makes of the results, and no label stands on another, in a font as wide as DejaVu Sans.
func TestLabelsOfChartsDoNotOverlap(t *testing.T) {
	r, err := load(filepath.Join(chartsIn(".."), "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	const size, wide = 15, 9.3 // of the font, and of a character
	for _, c := range curves {
		svg := c.svg(r)
		if svg == "" {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(chartsIn(".."), c.file+".svg")); err != nil || string(got) != svg {
			t.Errorf("%s.svg is another (%v); go run . -from ../docs/benchmarks/results.json -out .. writes it", c.file, err)
		}
		type box struct {
			text           string
			left, right, y float64
		}
		var all []box
		for _, m := range label.FindAllStringSubmatch(svg, -1) {
			text := html.UnescapeString(m[4])
			x, _ := strconv.ParseFloat(m[2], 64)
			y, _ := strconv.ParseFloat(m[3], 64)
			width := wide * float64(utf8.RuneCountInString(text))
			x -= width * map[string]float64{"mid": 0.5, "end": 1}[m[1]]
			for _, other := range all {
				if x < other.right && other.left < x+width && math.Abs(y-other.y) < size {
					t.Errorf("%s: %q stands on %q", c.file, text, other.text)
				}
			}
			all = append(all, box{text, x, x + width, y})
		}
		if n := strings.Count(svg, "<text"); n != len(all) || n < 10 {
			t.Errorf("%s: %d labels of %d", c.file, len(all), n)
		}
	}
}

// An owner that finds another inside counts, and so does a step that is lost.
func TestCellNoticesTwoOwners(t *testing.T) {
	var c cell
	if !c.inside(1) {
		t.Error("one owner alone counts as two")
	}
	c.owner.Store(2)
	if c.inside(1) {
		t.Error("an owner has not noticed another")
	}
}

// A link counts commands, in whatever pieces they come.
func TestCommandCounter(t *testing.T) {
	stream := "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$6\r\n*1\r\n$4\r\n*1\r\n$4\r\nPING\r\n"
	for size := 1; size <= len(stream); size++ {
		var c commandCounter
		n := int64(0)
		for from := 0; from < len(stream); from += size {
			n += c.count([]byte(stream[from:min(from+size, len(stream))]))
		}
		if n != 3 {
			t.Errorf("%d commands in pieces of %d bytes", n, size)
		}
	}
}

func TestTimes(t *testing.T) {
	h := newTimes()
	for i := range 10_000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for p, want := range map[float64]float64{50: 5e-3, 99: 9.9e-3, 100: 10e-3} {
		if got := h.percentile(p); math.Abs(got/want-1) > 0.02 {
			t.Errorf("percentile %v: %v, not %v", p, got, want)
		}
	}
	if h.Most != 10*time.Millisecond || h.N != 10_000 {
		t.Error(h.Most, h.N)
	}
}

func TestJain(t *testing.T) {
	if a, b := jain([]float64{3, 3, 3}), jain([]float64{9, 0, 0}); a != 1 || math.Abs(b-1.0/3) > 1e-9 {
		t.Error(a, b)
	}
}

// A run in which holds are lost says so on both pages, and fails.
func TestLossesAreMarked(t *testing.T) {
	r := newResults(plan{})
	r.add("held", ours, 1000, sample{"lost": 0, "each": -171})
	if lost := r.losses(); len(lost) > 0 {
		t.Error(lost)
	}
	r.add("renewed", ours, 100_000, sample{"lost": 3, "each": 371})
	const want = "rlock, renewed: up to 3 of 100000 holds"
	if lost := r.losses(); !slices.Equal(lost, []string{want}) {
		t.Error(lost)
	}
	for _, page := range []string{r.page(), r.text()} {
		if !strings.Contains(page, "**Holds were lost, though nothing failed:** "+want) {
			t.Errorf("it is not on the page:\n%s", page)
		}
		if strings.Contains(page, "-171") {
			t.Errorf("a hold has less than no bytes:\n%s", page)
		}
	}
}

// What a later run has measured takes the place of that measure, whole, and the page says so.
func TestLaterRunReplacesItsMeasures(t *testing.T) {
	r, later := newResults(plan{}), newResults(plan{})
	later.Commit = "abc1234"
	r.add("own", ours, 1, sample{"pairs/s": 1})
	r.add("types", "FairLock", 64, sample{"hand-overs/s": 7000})
	r.add("types", "FairLock", 8, sample{"hand-overs/s": 7000})
	later.add("types", "FairLock", 64, sample{"hand-overs/s": 3000})
	if err := r.replace(later); err != nil {
		t.Fatal(err)
	}
	if got := r.get("types", "FairLock", 64, "hand-overs/s"); got.N != 1 || got.Median != 3000 {
		t.Error(got)
	}
	if r.find("types", "FairLock", 8) != nil || r.find("own", ours, 1) == nil {
		t.Error("a point of the earlier run remains, or another measure has gone")
	}
	if !strings.Contains(r.text(), "| measured again | types (") || !strings.Contains(r.text(), "abc1234") {
		t.Error("the page does not say so")
	}
	later.Machine = "another"
	if r.replace(later) == nil {
		t.Error("figures of another machine were taken")
	}
}
