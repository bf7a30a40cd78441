package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Evidence is what a run has found.
type Evidence struct {
	Run    Run      `json:"run"`
	Tests  []Result `json:"tests"`
	isPart bool     // only some of the tests are run
}

// Run says when and where the tests ran, and with what.
type Run struct {
	Date    string  `json:"date"`
	Commit  string  `json:"commit"`
	CPU     string  `json:"cpu"`
	Cores   int     `json:"cores"`
	OS      string  `json:"os"`
	Go      string  `json:"go"`
	Redis   string  `json:"redis-server"`
	GoRedis string  `json:"go-redis"`
	Minutes float64 `json:"minutes"`
}

// Result says what one test has found, with its cases.
type Result struct {
	Folder  string   `json:"folder"`
	Name    string   `json:"name"`
	Result  string   `json:"result"`
	Commit  string   `json:"commit,omitempty"`  // of its run, if that was another one than the last
	Seconds float64  `json:"seconds"`           // of the test, or of its cases together if that is more
	Cases   int      `json:"cases,omitempty"`   // that ran
	Skipped int      `json:"skipped,omitempty"` // cases that did not run
	Log     []string `json:"log,omitempty"`     // the last lines that it wrote
	Cut     int      `json:"cut,omitempty"`     // lines before them
}

const (
	passed     = "pass"
	modelCheck = "check"
	mostLines  = 8
	mostRunes  = 160
)

// environment switches on what the tests leave out on an ordinary day, and makes what is missing a failure.
var environment = []string{"RLOCK_NIGHTLY=1", "RLOCK_THOROUGH=1", "RLOCK_REQUIRE_REDIS=1", "RLOCK_REQUIRE_INTEROP=1"}

// arguments has what the tests of a folder are called with.
var arguments = map[string][]string{"internal/sim": {"-args", "-sim.all"}}

func (e *Evidence) of(t Named) *Result {
	i := slices.IndexFunc(e.Tests, func(r Result) bool { return r.Folder == t.Folder && r.Name == t.Name })
	if i < 0 {
		return nil
	}
	return &e.Tests[i]
}

// byFolder returns the names of the tests that the promises need, each once.
func byFolder(promises []Promise) map[string][]string {
	all := map[string][]string{}
	for _, p := range promises {
		for _, t := range p.Tests {
			if !slices.Contains(all[t.Folder], t.Name) {
				all[t.Folder] = append(all[t.Folder], t.Name)
			}
		}
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// begin makes the evidence of a run. One of a part of the tests keeps what earlier runs have found, and of which commit.
func begin(dir string, last *Evidence, all map[string][]string, part bool) *Evidence {
	e := &Evidence{Run: describe(dir), isPart: part}
	if !part {
		return e
	}
	e.Run.Minutes = last.Run.Minutes
	for _, r := range last.Tests {
		if !slices.Contains(all[r.Folder], r.Name) {
			continue
		}
		if r.Commit = cmp.Or(r.Commit, last.Run.Commit); r.Commit == e.Run.Commit {
			r.Commit = ""
		}
		e.Tests = append(e.Tests, r)
	}
	return e
}

// run runs some tests of a folder. That one fails is in its result, and no error.
func (e *Evidence) run(dir, folder string, names []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, testArguments(folder, names)...)...)
	read := readTests
	if folder == "model" {
		cmd, read = exec.Command("./check"), readModel
	}
	cmd.Dir = filepath.Join(dir, folder)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stderr = os.Stderr
	start := time.Now()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	results := read(folder, out)
	err = cmd.Wait()
	took := time.Since(start)
	if folder == "model" {
		results[0].Seconds = round(took.Seconds())
		if err != nil {
			results[0].Result = "fail"
		}
	}
	fmt.Printf("%s: %d of %d tests in %.0f s: %v\n", folder, len(results), len(names), took.Seconds(), err)
	if !e.isPart { // the minutes are of a run of all tests
		e.Run.Minutes = round(e.Run.Minutes + took.Minutes())
	}
	e.Tests = slices.DeleteFunc(e.Tests, func(r Result) bool { return r.Folder == folder && slices.Contains(names, r.Name) })
	e.Tests = append(e.Tests, results...)
	slices.SortFunc(e.Tests, func(a, b Result) int { return cmp.Or(cmp.Compare(a.Folder, b.Folder), cmp.Compare(a.Name, b.Name)) })
	return nil
}

func testArguments(folder string, names []string) []string {
	args := []string{"-count=1", "-timeout=60m", "-run", "^(" + strings.Join(names, "|") + ")$", "."}
	return append(args, arguments[folder]...)
}

// part is a test or one of its cases, as go test -json reports it.
type part struct {
	name, result, output string
	seconds              float64
	lines                []string // written by t.Log
}

var logLine = regexp.MustCompile(`^ *\w+\.go:\d+: (.*)`)

// readTests reads what go test -json writes.
func readTests(folder string, from io.Reader) (results []Result) {
	var parts []*part
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			fmt.Fprint(os.Stderr, e.Output) // such as the errors of a build
			continue
		}
		i := slices.IndexFunc(parts, func(p *part) bool { return p.name == e.Test })
		if i < 0 {
			i, parts = len(parts), append(parts, &part{name: e.Test})
		}
		p := parts[i]
		p.output += e.Output
		if m := logLine.FindStringSubmatch(e.Output); m != nil {
			p.lines = append(p.lines, m[1])
		}
		if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
			p.result, p.seconds = e.Action, e.Elapsed
		}
		if e.Action == "fail" {
			fmt.Fprint(os.Stderr, p.output)
		}
	}
	for _, p := range parts {
		if !strings.Contains(p.name, "/") && p.result != "" {
			results = append(results, p.with(folder, parts))
		}
	}
	return results
}

// with returns the result of a test and its cases. One whose cases were all skipped was skipped.
func (p *part) with(folder string, parts []*part) Result {
	r := Result{Folder: folder, Name: p.name, Result: p.result}
	seconds := 0.0
	r.addLog("", p.lines)
	for _, c := range parts {
		of, inside := strings.CutPrefix(c.name, p.name+"/")
		if !inside || slices.ContainsFunc(parts, func(o *part) bool { return strings.HasPrefix(o.name, c.name+"/") }) {
			if inside {
				r.addLog(of, c.lines)
			}
			continue
		}
		if c.result == "skip" {
			r.Skipped++
			continue
		}
		r.Cases++
		seconds += c.seconds
		r.addLog(of, c.lines)
	}
	if r.Result == passed && r.Skipped > 0 && r.Cases == 0 {
		r.Result = "skip"
	}
	r.Seconds = round(max(seconds, p.seconds))
	return r
}

// readModel keeps the table of model/check.
func readModel(folder string, from io.Reader) []Result {
	text, _ := io.ReadAll(from)
	r := Result{Folder: folder, Name: modelCheck, Result: passed}
	for line := range strings.Lines(string(text)) {
		r.Log = append(r.Log, escaped(strings.TrimRight(line, "\n")))
	}
	return []Result{r}
}

var (
	figures  = regexp.MustCompile(`\d+`)
	ofSeeds  = regexp.MustCompile(`^\d+ seeds: `)
	unsigned = func(line string) string { return figures.ReplaceAllString(line, "#") }
)

// addLog adds what a case wrote, up to the bound. The counts of simulations are added up over the cases.
func (r *Result) addLog(of string, lines []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, "=== ") { // of a process that the test has started
			continue
		}
		if ofSeeds.MatchString(line) {
			same := func(other string) bool { return unsigned(other) == unsigned(line) }
			if i := slices.IndexFunc(r.Log, same); i >= 0 {
				r.Log[i] = sum(r.Log[i], line)
				continue
			}
		} else if of != "" {
			line = escaped(of + ": " + line)
		} else {
			line = escaped(line)
		}
		r.Log = append(r.Log, line)
	}
	if more := len(r.Log) - mostLines; more > 0 {
		r.Log, r.Cut = r.Log[more:], r.Cut+more
	}
}

// sum adds the figures of two lines that differ in nothing else.
func sum(a, b string) string {
	others := figures.FindAllString(b, -1)
	return figures.ReplaceAllStringFunc(a, func(figure string) string {
		x, _ := strconv.Atoi(figure)
		y, _ := strconv.Atoi(others[0])
		others = others[1:]
		return strconv.Itoa(x + y)
	})
}

// escaped bounds a line, and writes what would end a block of code or cannot be printed in another form.
func escaped(line string) string {
	var b strings.Builder
	for i, r := range []rune(strings.ReplaceAll(line, "```", "'''")) {
		switch {
		case i == mostRunes:
			return b.String() + " …"
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

func round(x float64) float64 { return math.Round(x*10) / 10 }

// describe says where this run is.
func describe(dir string) Run {
	output := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(out))
	}
	in := func(file, pattern string) string {
		text, _ := os.ReadFile(file)
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return "unknown"
	}
	commit := output("git", "rev-parse", "--short=12", "HEAD")
	if output("git", "status", "--porcelain", "--", ".", ":!"+resultsFile, ":!"+pageFile) != "" {
		commit += ", with changes"
	}
	redis := regexp.MustCompile(`v=(\S+)`).FindStringSubmatch(output("redis-server", "--version") + " v=unknown")
	return Run{
		Date: time.Now().UTC().Format("2 January 2006"), Commit: commit,
		CPU: in("/proc/cpuinfo", `model name\s*: (.*)`), Cores: runtime.NumCPU(),
		OS: in("/etc/os-release", `PRETTY_NAME="?([^"\n]*)`) + ", " + runtime.GOOS + "/" + runtime.GOARCH,
		Go: output("go", "env", "GOVERSION"), Redis: redis[1],
		GoRedis: output("go", "list", "-m", "-f", "{{.Version}}", "github.com/redis/go-redis/v9"),
	}
}
