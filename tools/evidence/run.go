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
	Run   Run      `json:"run"` // of all tests
	Tests []Result `json:"tests"`
	now   Run      // the run under way, of all tests or of some
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

// rows are what may differ between two runs of a commit.
func (r Run) rows() [][2]string {
	return [][2]string{
		{"machine", fmt.Sprintf("%s, %d cores", r.CPU, r.Cores)}, {"system", r.OS}, {"Go", r.Go}, {"go-redis", r.GoRedis}, {"redis-server", r.Redis},
	}
}

// Result says what one test has found, with its cases.
type Result struct {
	Folder  string   `json:"folder"`
	Name    string   `json:"name"`
	Result  string   `json:"result"`
	Commit  string   `json:"commit,omitempty"`  // of its run, if that was not the run of all tests
	Date    string   `json:"date,omitempty"`    // of that run
	With    string   `json:"with,omitempty"`    // what that run had instead of the machine, the system or the versions of the run of all
	Seconds float64  `json:"seconds"`           // of the test, or of its cases together if that is more
	Cases   int      `json:"cases,omitempty"`   // that ran
	Skipped int      `json:"skipped,omitempty"` // cases that did not run
	Log     []string `json:"log,omitempty"`     // the lines that it wrote
	Cut     int      `json:"cut,omitempty"`     // lines that are left out, or not whole
}

const (
	passed     = "pass"
	modelCheck = "check"
	again      = "again: " // begins the command that plays the same faults again
	mostLines  = 1000      // of a test; check refuses results that the bounds have cut
	mostRunes  = 5000      // of a line
)

// planted is the run of all mistakes of mutants.txt, which no page has to name.
var planted = Named{Folder: "tools", Name: "mutants"}

// commands has what is not a test, by its folder: what it prints are its figures.
var commands = map[string][]string{"model": {"./check"}, planted.Folder: {"go", "run", "./mutants", "-dir", ".."}}

// environment switches on what tests leave out on an ordinary day, and makes what is missing a failure.
var environment = []string{"RLOCK_NIGHTLY=1", "RLOCK_THOROUGH=1", "RLOCK_REQUIRE_REDIS=1", "RLOCK_REQUIRE_INTEROP=1"}

// arguments has what the tests of a folder are called with.
var arguments = map[string][]string{
	"internal/sim": {"-args", "-sim.all"},
	"check":        {"-args", "-long"},
	"check/chaos":  {"-args", "-long"},
	"check/soak":   {"-args", "-for=10m"},
}

// lacksSeed reports whether the test has figures of faults that were drawn, and not the line that plays them again.
func (r *Result) lacksSeed() bool {
	draws := r.Folder == "check" || strings.HasPrefix(r.Folder, "check/")
	return draws && len(r.Log) > 0 && !slices.ContainsFunc(r.Log, playsAgain)
}

func playsAgain(line string) bool { return strings.Contains(line, again) }

func (e *Evidence) of(t Named) *Result {
	i := slices.IndexFunc(e.Tests, func(r Result) bool { return r.Folder == t.Folder && r.Name == t.Name })
	if i < 0 {
		return nil
	}
	return &e.Tests[i]
}

// byFolder returns the names of the tests that the promises need, each once, and the planted mistakes.
func byFolder(promises []Promise) map[string][]string {
	all := map[string][]string{planted.Folder: {planted.Name}}
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

// begin makes the evidence of a run. A run of some tests keeps what the last run of all says of itself, and all results.
func begin(now Run, last *Evidence, all map[string][]string, part bool) *Evidence {
	if !part || last.Run.Date == "" {
		return &Evidence{Run: now, now: now}
	}
	kept := slices.DeleteFunc(last.Tests, func(r Result) bool { return !slices.Contains(all[r.Folder], r.Name) })
	return &Evidence{Run: last.Run, Tests: kept, now: now}
}

// run runs some tests of a folder. That one fails is in its result, and no error.
func (e *Evidence) run(dir, folder string, names []string) error {
	command, isCommand := commands[folder]
	if !isCommand {
		command = append([]string{"go", "test", "-json"}, testArguments(folder, names)...)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = filepath.Join(dir, folder)
	cmd.Stderr = os.Stderr
	if !isCommand {
		cmd.Env = append(os.Environ(), environment...)
	}
	start := time.Now()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	var results []Result
	if isCommand {
		results = []Result{readCommand(folder, names[0], out)}
	} else {
		results = readTests(folder, out)
	}
	err = cmd.Wait()
	took := time.Since(start)
	if isCommand {
		results[0].Seconds = round(took.Seconds())
		if err != nil {
			results[0].Result = "fail"
		}
	}
	fmt.Printf("%s: %d of %d tests in %.0f s: %v\n", folder, len(results), len(names), took.Seconds(), err)
	e.add(results, folder, names, took)
	return nil
}

// add puts results in the place of earlier ones. The minutes count what has none: all tests, and what was not reached when
// their run was ended.
func (e *Evidence) add(results []Result, folder string, names []string, took time.Duration) {
	before := len(e.Tests)
	e.Tests = slices.DeleteFunc(e.Tests, func(r Result) bool { return r.Folder == folder && slices.Contains(names, r.Name) })
	if len(e.Tests) == before {
		e.Run.Minutes = round(e.Run.Minutes + took.Minutes())
	}
	var others []string
	for i, row := range e.now.rows() {
		if row != e.Run.rows()[i] {
			others = append(others, row[0]+" "+row[1])
		}
	}
	for _, r := range results {
		if others != nil || e.now.Commit != e.Run.Commit || e.now.Date != e.Run.Date {
			r.Commit, r.Date, r.With = e.now.Commit, e.now.Date, strings.Join(others, ", ")
		}
		e.Tests = append(e.Tests, r)
	}
	slices.SortFunc(e.Tests, func(a, b Result) int { return cmp.Or(cmp.Compare(a.Folder, b.Folder), cmp.Compare(a.Name, b.Name)) })
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

// readCommand keeps what a command prints.
func readCommand(folder, name string, from io.Reader) Result {
	text, _ := io.ReadAll(from)
	r := Result{Folder: folder, Name: name, Result: passed}
	r.addLog("", strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
	return r
}

var (
	figures  = regexp.MustCompile(`\d+`)
	ofSeeds  = regexp.MustCompile(`^\d+ seeds: `)
	unsigned = func(line string) string { return figures.ReplaceAllString(line, "#") }
)

// addLog adds what a case wrote, up to the bound, and rather drops other lines than one that plays faults again. The counts
// of simulations are added up over the cases. A row of a table has no name of its case.
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
		} else if of != "" && !isRow(line) {
			line = of + ": " + line
		}
		line, isCut := escaped(line)
		r.Log = append(r.Log, line)
		if isCut {
			r.Cut++
		}
	}
	for len(r.Log) > mostLines {
		first := max(0, slices.IndexFunc(r.Log, func(line string) bool { return !playsAgain(line) }))
		r.Log, r.Cut = slices.Delete(r.Log, first, first+1), r.Cut+1
	}
}

// isRow reports whether a line is a row of a table: a name, and figures.
func isRow(line string) bool {
	return strings.HasPrefix(line, "| ") && strings.HasSuffix(line, " |") && strings.Count(line, " | ") > 0
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
func escaped(line string) (text string, isCut bool) {
	var b strings.Builder
	for i, r := range []rune(strings.ReplaceAll(line, "```", "'''")) {
		switch {
		case i == mostRunes:
			return b.String() + " …", true
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String(), false
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
