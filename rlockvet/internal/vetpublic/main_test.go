package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
)

var testRules = `
mutex \(\*program.example/app/locks\.Mutex\)\.(Try)?Lock \(\*program.example/app/locks\.Mutex\)\.Unlock(With)?
mutex program.example/app/locks\.Acquire program.example/app/locks\.Release
func program.example/app/locks\.(Guard|Try)
lease \(\*program.example/app/locks\.Client\)\.Obtain \(\*program.example/app/locks\.Lease\)\.Release
lease \(\*program.example/app/locks\.Client\)\.Enter \(\*program.example/app/locks\.Client\)\.Leave
`

// A program with each form that is ported compiles before and after, each of its lines keeps its number, and rlockvet
// finds what it does wrong. Nothing is fetched.
func TestPort(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/program.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	want := ""
	for _, f := range archive.Files {
		if f.Name == "want" {
			want = string(f.Data)
			continue
		}
		name := filepath.Join(dir, "app", f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	// The sums of what rlock imports.
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(dir, "app")
	if err := os.WriteFile(filepath.Join(app, "go.sum"), sums, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOPROXY", "off")
	if err := writeHelper(dir); err != nil {
		t.Fatal(err)
	}
	if err := require(app, map[string]string{helper: filepath.Join(dir, "ported"), "github.com/go-rlock/rlock": root}); err != nil {
		t.Fatal(err)
	}
	rules, _, err := parse(testRules)
	if err != nil {
		t.Fatal(err)
	}
	got, err := checkModule(app, rules, []string{"./..."}, false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(app, "app.go"))
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("the ported program is\n%s", text)
	}
	if got.locks != 9 || !slices.Equal(got.left, []string{"app.go:61"}) {
		t.Errorf("locks %d, left %v", got.locks, got.left)
	}
	slices.Sort(got.findings)
	// m.Unlock drops its error; locks.Release has none.
	if findings := []string{"app.go:18 unlock-error", "app.go:23 lost-lease", "app.go:58 outer-context"}; !slices.Equal(got.findings, findings) {
		t.Errorf("findings %v, want %v", got.findings, findings)
	}
}

// A finding that is not listed is a difference, and so is a listed one that is gone, or another number of locks.
func TestCompare(t *testing.T) {
	_, programs, err := parse("module a.example/a v1.0.0\n\tin ./...\n\tlocks 2\n\ttrue a.go:1 lost-lease leak\n")
	if err != nil {
		t.Fatal(err)
	}
	got := &result{locks: 3, findings: []string{"a.go:2 lost-lease"}, messages: []string{"the lease is dropped"}}
	want := []string{"gone: a.go:1 lost-lease", "locks 3, listed 2", "not listed: a.go:2 lost-lease the lease is dropped"}
	if lines := programs[0].compare(got); !slices.Equal(lines, want) {
		t.Errorf("%q", lines)
	}
	if lines := programs[0].compare(&result{locks: 2, findings: []string{"a.go:1 lost-lease"}}); len(lines) > 0 {
		t.Errorf("%q", lines)
	}
}

func TestListOfPrograms(t *testing.T) {
	text, err := os.ReadFile("programs.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules, programs, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) == 0 || len(programs) < 20 {
		t.Errorf("%d rules, %d programs", len(rules), len(programs))
	}
	for _, wrong := range []string{"mutex a\n", "mutex ( b\n", "module a v1\n\tin .\n", "module a v1\n\tin .\n\tlocks x\n", "module a v1\n\tin .\n\tlocks 1\n\ttrue a.go:1 lost-lease\n"} {
		if _, _, err := parse(wrong); err == nil {
			t.Errorf("no error of %q", wrong)
		}
	}
}
