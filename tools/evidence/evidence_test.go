package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fires is a test of faults that are drawn. It writes a table with a row of each case.
const fires = `package check

import (
	"flag"
	"strings"
	"testing"
)

var long = flag.Bool("long", false, "")

func TestFire(t *testing.T) {
	t.Logf("again: go test . -args -long=%t -seed=7", *long)
	t.Log("| where | lost | faults |")
	for _, where := range []string{"one_server", "<two>"} {
		t.Run(where, func(t *testing.T) {
			t.Log("another round")
			t.Logf("| %s | 0 of 9 | %s cut 3 |", where, strings.Repeat("kill 1, ", 40))
		})
	}
}
`

// repository writes a small one whose promises all have a run that passed.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":             "module example.com/small\n\ngo 1.25\n",
		"a_test.go":          "package small\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) { t.Log(\"3 faults\") }\n\nfunc TestLeft(t *testing.T) { t.Skip(\"not today\") }\n",
		"test/b_test.go":     "package b\n\nimport \"testing\"\n\nfunc TestTwo(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Skip() }); t.Run(\"y\", func(t *testing.T) {}) }\n\nfunc TestRed(t *testing.T) { t.Fatal(\"no\") }\n",
		"model/m.pml":        "init { skip }\n",
		"model/check":        "#!/bin/sh\necho no error\n",
		"check/go.mod":       "module example.com/check\n\ngo 1.25\n",
		"check/c_test.go":    fires,
		"tools/go.mod":       "module example.com/tools\n\ngo 1.25\n",
		mutantsFile:          "# What is planted.\n\npromise: Two holds\n\na.go\n-a\n+b\n. ^TestTwo$\n\na.go\n-c\n+d\n. ^TestTwo$\n",
		"tools/mutants/m.go": "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Print(\"2 mutants, 1 in Lua and 1 in Go\\nall 2 mutants were noticed\\n\") }\n",
		"README.md":          "## Promises\n\n1. One holds. [`TestOne`](a_test.go)\n",
		"docs/guarantees.md": "## All\n\n| what | shown by |\n|---|---|\n| Two holds | [`TestTwo`](../test/b_test.go), and a [model](../model/m.pml) |\n| Three holds | [`TestFire`](../check/c_test.go) |\n\n| other | table |\n|---|---|\n| no | promise |\n",
		recordFile:           "# Record\n\n| date | commit | what went wrong | shown by |\n|---|---|---|---|\n| today | `1` | It broke | [`TestOne`](../../a_test.go) |\n",
	} {
		write(t, dir, name, text)
	}
	if err := os.Chmod(filepath.Join(dir, "model/check"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := evidence(dir, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace changes a text in a file, which is there.
func replace(t *testing.T, dir, name, old, instead string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s has no %q: %v", name, old, err)
	}
	write(t, dir, name, strings.ReplaceAll(string(text), old, instead))
}

func TestCheckFindsEachFault(t *testing.T) {
	dir := repository(t)
	if faults, err := check(dir); err != nil || len(faults) > 0 {
		t.Fatalf("of a repository without faults: %q, %v", faults, err)
	}
	const row = "| Two holds |"
	for name, c := range map[string]struct{ file, old, instead, want string }{
		"a promise without a run":        {"docs/guarantees.md", row, "| New | [`TestRed`](../test/b_test.go) |\n" + row, "TestRed of test has no run"},
		"a promise without a test":       {"docs/guarantees.md", row, "| New | nothing |\n" + row, "no test is named: New"},
		"a promise of the README":        {"README.md", "## Promises\n", "## Promises\n\n1. New.\n", "README.md: no test is named: New."},
		"a test that does not exist":     {"a_test.go", "TestOne", "TestOther", "a_test.go has no TestOne"},
		"a fault whose test is gone":     {recordFile, "TestOne", "TestGone", "a_test.go has no TestGone: It broke"},
		"a page that was edited by hand": {pageFile, "TestTwo", "TestTwoo", pageFile + " is not the page of"},
		"a promise in other words":       {"docs/guarantees.md", row, "| Two never holds |", pageFile + " is not the page of"},
		"a run that failed":              {resultsFile, `"pass"`, `"fail"`, "the last run of TestOne of .: fail: One holds."},
		"figures that are cut":           {resultsFile, "\n   \"log\": [", "\n   \"cut\": 3,\n   \"log\": [", "3 lines of TestFire of check are cut: Three holds"},
		"figures without a seed":         {resultsFile, `"again: `, `"`, "TestFire of check does not say with which seed it ran: Three holds"},
		"a mistake without a run":        {resultsFile, `"mutants"`, `"mutant"`, "mutants of tools has no run"},
		"a mistake that is not noticed":  {resultsFile, "\"name\": \"mutants\",\n   \"result\": \"pass\"", "\"name\": \"mutants\",\n   \"result\": \"fail\"", "the last run of mutants of tools: fail"},
		"another mistake":                {mutantsFile, "-c\n", "-c\n+d\n. ^TestTwo$\n\na.go\n-e\n", pageFile + " is not the page of"},
		"a test that was skipped":        {resultsFile, `"pass"`, `"skip"`, "the last run of TestTwo of test: skip: Two holds"},
	} {
		t.Run(name, func(t *testing.T) {
			was, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			defer write(t, dir, c.file, string(was))
			replace(t, dir, c.file, c.old, c.instead)
			faults, err := check(dir)
			if err != nil || !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("%q, %v; want %q", faults, err, c.want)
			}
		})
	}
}

func TestRunKeepsWhatTheTestsFound(t *testing.T) {
	dir := repository(t)
	page, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	hits := strings.Repeat("kill 1, ", 40) + " cut 3 |\n"
	for _, want := range []string{
		"| Two holds | [`TestTwo`](../test/b_test.go)<br>[`model/check`](../model/m.pml)<br>2 planted | pass, 1 of 2 cases, ",
		"go test -C . -count=1 -timeout=60m -v -run \"^(\\\nTestOne)$\" .\n```\n\n**TestOne**: pass, 0.0 s\n\n```text\n  3 faults\n```\n",
		"```sh\n(cd model && ./check)\n```\n\n**check**: pass, 0.0 s\n\n```text\n  no error\n```\n",
		"```sh\n(cd tools && go run ./mutants -dir ..)\n```\n\n```text\n  2 mutants, 1 in Lua and 1 in Go\n  all 2 mutants were noticed\n```\n",
		"  again: go test . -args -long=true -seed=7\n  one_server: another round\n",
		"\n\n| where | lost |\n|---|---|\n| one\\_server | 0 of 9 |\n| &lt;two&gt; | 0 of 9 |\n",
		"\n\n| where | faults |\n|---|---|\n| one\\_server | " + hits + "| &lt;two&gt; | " + hits,
		"| It broke | [`TestOne`](../a_test.go) | pass, ",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	// A test that fails, one that is skipped, and one whose cases are all skipped.
	replace(t, dir, "docs/guarantees.md", "| Two holds |", "| New | [`TestRed`](../test/b_test.go), [`TestLeft`](../a_test.go) |\n| Two holds |")
	replace(t, dir, "test/b_test.go", `t.Run("y", func(t *testing.T) {})`, "")
	if err := evidence(dir, ""); err != nil {
		t.Fatal(err)
	}
	faults, err := check(dir)
	if err != nil || len(faults) != 3 {
		t.Errorf("%q, %v; want three faults", faults, err)
	}
	for i, want := range []string{"TestRed of test: fail", "TestLeft of .: skip", "TestTwo of test: skip"} {
		if i < len(faults) && !strings.Contains(faults[i], want) {
			t.Errorf("%q; want %q", faults[i], want)
		}
	}
}

// A run of a part keeps the other results, and what the run of all says of itself. Its own results say where it differs.
func TestRunOfAPart(t *testing.T) {
	dir := repository(t)
	replace(t, dir, resultsFile, `"pass"`, `"fail"`)
	if err := evidence(dir, "^test/"); err != nil {
		t.Fatal(err)
	}
	one, two := Named{Folder: ".", Name: "TestOne"}, Named{Folder: "test", Name: "TestTwo"}
	if e, err := load(dir); err != nil || len(e.Tests) != 5 || e.of(one).Result != "fail" || e.of(two).Result != passed || e.of(two).Commit != "" {
		t.Errorf("%+v, %v", e, err)
	}
	replace(t, dir, resultsFile, "unknown, with changes", "another")
	replace(t, dir, resultsFile, `"date": "`, `"date": "long ago, on `)
	replace(t, dir, resultsFile, `"redis-server": "`, `"redis-server": "1.`)
	was, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := evidence(dir, "^test/"); err != nil {
		t.Fatal(err)
	}
	e, err := load(dir)
	if err != nil || e.Run != was.Run || len(e.Tests) != 5 || e.of(one).Commit != "" {
		t.Errorf("%+v, %v", e, err)
	}
	now := describe(dir)
	if r := e.of(two); r.Commit != now.Commit || r.Date != now.Date || r.With != "redis-server "+now.Redis {
		t.Errorf("%+v", r)
	}
	text, err := os.ReadFile(filepath.Join(dir, pageFile))
	want := "at `" + now.Commit + "`, " + now.Date + ", with redis-server " + now.Redis
	if err != nil || strings.Count(string(text), want) != 1 || !strings.Contains(string(text), "| date | long ago, on "+now.Date+" |") {
		t.Errorf("%q is not in %s, %v", want, text, err)
	}
}

// The minutes are those of a run of all, also if it was ended and runs of parts have done the rest.
func TestMinutes(t *testing.T) {
	e := begin(Run{Date: "today"}, &Evidence{}, nil, false)
	for _, one := range []struct {
		name string
		want float64
	}{{"a", 2}, {"b", 4}, {"b", 4}} {
		e.add([]Result{{Folder: "x", Name: one.name}}, "x", []string{one.name}, 2*time.Minute)
		if e.Run.Minutes != one.want {
			t.Errorf("%s: %v minutes, want %v", one.name, e.Run.Minutes, one.want)
		}
	}
}

func TestLogLinesAreBoundedAndEscaped(t *testing.T) {
	var r Result
	r.addLog("a", []string{"2 seeds: 10 holds; {Lost:1}", "```\x1b[31m" + strings.Repeat("long ", mostRunes)})
	r.addLog("b", []string{"3 seeds: 5 holds; {Lost:0}", "again: go test"})
	if r.Log[0] != "5 seeds: 15 holds; {Lost:1}" {
		t.Errorf("not added up: %q", r.Log[0])
	}
	if line := r.Log[1]; !strings.HasPrefix(line, `a: '''\x1b[31mlong`) || len(line) > mostRunes+20 || r.Cut != 1 {
		t.Errorf("not escaped and bounded: %q, %d cut", line, r.Cut)
	}
	for line := range strings.Lines(wrapped(r.Log[1] + strings.Repeat("x", 200))) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	command := again + "go test -run '^TestOne$' ./chaos -args " + strings.Repeat("-seed=1 ", 20) + "-seed=2"
	if joined := strings.ReplaceAll(wrapped(command), "\\\n    ", ""); joined != "  "+command+"\n" {
		t.Errorf("not one line of a shell: %s", joined)
	}
	r.addLog("", make([]string, mostLines))
	if len(r.Log) != mostLines || r.Cut != 4 || r.Log[0] != "b: again: go test" {
		t.Errorf("%d lines, %d cut, first %q", len(r.Log), r.Cut, r.Log[0])
	}
	r.addLog("", slices.Repeat([]string{again}, 2*mostLines))
	if len(r.Log) != mostLines {
		t.Errorf("%d lines", len(r.Log))
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestLongFiguresAreFolded(t *testing.T) {
	for n, folded := range map[int]bool{openLines: false, openLines + 1: true} {
		text := figuresIn(&Result{Log: slices.Repeat([]string{"1 hold"}, n)})
		if strings.Contains(text, "<details") != folded || strings.Count(text, "1 hold\n") != n {
			t.Errorf("%d lines: %s", n, text)
		}
	}
}

// Each figure of a wide table is in one of its tables, next to the name of its row.
func TestWideTablesAreSplit(t *testing.T) {
	r := Result{Log: []string{"| n | a | b | c | d | e | f |", "| one | 1 | 2 | 3 | 4 | 5 | 6 | 7 |", "| two | 1 |"}}
	want := "\n| n | a | b | c | d |\n|---|---|---|---|---|\n| one | 1 | 2 | 3 | 4 |\n| two | 1 |  |  |  |\n" +
		"\n| n | e | f |  |\n|---|---|---|---|\n| one | 5 | 6 | 7 |\n| two |  |  |  |\n"
	if got := figuresIn(&r); got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if text := figuresIn(&Result{Log: []string{"| one |"}}); text != "\n```text\n  | one |\n```\n" {
		t.Errorf("%q", text)
	}
}
