package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
		"README.md":          "## Promises\n\n1. One holds. [`TestOne`](a_test.go)\n",
		"docs/guarantees.md": "## All\n\n| what | shown by |\n|---|---|\n| Two holds | [`TestTwo`](../test/b_test.go), and a [model](../model/m.pml) |\n\n| other | table |\n|---|---|\n| no | promise |\n",
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
	for _, want := range []string{
		"| Two holds | [`TestTwo`](../test/b_test.go)<br>[`model/check`](../model/m.pml) | pass, 1 of 2 cases, ",
		"go test -C . -count=1 -timeout=60m -v -run \"^(\\\nTestOne)$\" .\n```\n\n```text\nTestOne\n  3 faults\n```\n",
		"```sh\nmodel/check\n```\n\n```text\ncheck\n  no error\n```\n",
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

// A run of a part keeps the other results, with their commit if it is another one.
func TestRunOfAPart(t *testing.T) {
	dir := repository(t)
	replace(t, dir, resultsFile, `"pass"`, `"fail"`)
	if err := evidence(dir, "^test/"); err != nil {
		t.Fatal(err)
	}
	if e, err := load(dir); err != nil || len(e.Tests) != 3 || e.of(Named{Folder: ".", Name: "TestOne"}).Result != "fail" || e.of(Named{Folder: "test", Name: "TestTwo"}).Result != passed {
		t.Errorf("%+v, %v", e, err)
	}
	replace(t, dir, resultsFile, "unknown, with changes", "another")
	if err := evidence(dir, "^test/"); err != nil {
		t.Fatal(err)
	}
	e, err := load(dir)
	if err != nil || len(e.Tests) != 3 || e.of(Named{Folder: ".", Name: "TestOne"}).Commit != "another" || e.of(Named{Folder: "test", Name: "TestTwo"}).Commit != "" {
		t.Errorf("%+v, %v", e, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil || strings.Count(string(text), "at `another`") != 3 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestLogLinesAreBoundedAndEscaped(t *testing.T) {
	var r Result
	r.addLog("a", []string{"2 seeds: 10 holds; {Lost:1}", "```\x1b[31m" + strings.Repeat("long ", 200)})
	r.addLog("b", []string{"3 seeds: 5 holds; {Lost:0}"})
	if r.Log[0] != "5 seeds: 15 holds; {Lost:1}" {
		t.Errorf("not added up: %q", r.Log[0])
	}
	if line := r.Log[1]; !strings.HasPrefix(line, `a: '''\x1b[31mlong`) || len(line) > mostRunes+20 {
		t.Errorf("not escaped and bounded: %q", line)
	}
	for line := range strings.Lines(wrapped(r.Log[1] + strings.Repeat("x", 200))) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	r.addLog("", make([]string, 20))
	if len(r.Log) != mostLines || r.Cut != 22-mostLines {
		t.Errorf("%d lines, %d cut", len(r.Log), r.Cut)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}
