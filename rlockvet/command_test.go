package rlockvet_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/rlockvet"
)

// build is the command, in a folder of the test.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rlockvet.exe")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/rlockvet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// in runs a command in a folder and returns what it writes, and whether it has succeeded.
func in(t *testing.T, dir, name string, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	var out, failures bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &failures
	cmd.Env = append(os.Environ(), "GOWORK=off")
	err := cmd.Run()
	if _, exit := err.(*exec.ExitError); err != nil && !exit {
		t.Fatal(err)
	}
	return out.String(), failures.String(), err == nil
}

// user is a module that uses rlock, with a program that drops a lease, in a package that is fine, and one without rlock.
func user(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.sum": string(sums),
		"main.go": `package main

import (
	"context"

	"github.com/go-rlock/rlock"
)

func main() {}

func job(ctx context.Context, l *rlock.Lock) error {
	_, err := l.TryLock(ctx)
	return err
}

func other(ctx context.Context, lease *rlock.Lease) {
	defer lease.Unlock(ctx)
}
`,
		"plain/plain.go": "// Package plain knows no lock.\npackage plain\n\nfunc F() int { return 1 }\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The requirements of the root, so that nothing has to be fetched.
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module github.com/go-rlock/rlock\n", "module user.example/program\n", 1) +
		"\nrequire github.com/go-rlock/rlock v0.0.0\n\nreplace github.com/go-rlock/rlock => " + filepath.ToSlash(root) + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The command alone, and as a tool of go vet, finds the same in a module of a user.
func TestCommand(t *testing.T) {
	program, dir := build(t), user(t)
	lost := "main.go:12:12: the lease of TryLock is dropped: nothing can unlock it, and the watchdog renews it: " +
		"https://go-rlock.github.io/rlock/latest/vet/#lost-lease"
	dropped := "main.go:17:8: the error of Unlock is dropped"

	for _, c := range []struct {
		name       string
		args       []string
		want, none []string
		ok         bool
	}{
		{"go", []string{"vet", "-vettool=" + program, "./..."}, []string{lost, dropped}, nil, false},
		{"go", []string{"vet", "-vettool=" + program, "-rlockvet.skip=" + rlockvet.UnlockError, "./..."}, []string{lost}, []string{dropped}, false},
		{"go", []string{"vet", "-vettool=" + program, "./plain"}, nil, []string{"rlockvet"}, true},
		{program, []string{"./..."}, []string{lost, dropped}, nil, false},
		{program, []string{"-rlockvet.skip=lost-lease,unlock-error", "./..."}, nil, []string{"lease"}, true},
		{program, []string{"-rlockvet.skip=lost", "./..."}, []string{`no category "lost"`}, []string{"main.go"}, false},
	} {
		t.Run(filepath.Base(c.name)+" "+strings.Join(c.args, " "), func(t *testing.T) {
			_, stderr, ok := in(t, dir, c.name, c.args...)
			if ok != c.ok {
				t.Errorf("success %v", ok)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in\n%s", want, stderr)
				}
			}
			for _, none := range c.none {
				if strings.Contains(stderr, none) {
					t.Errorf("%q in\n%s", none, stderr)
				}
			}
		})
	}

	stdout, stderr, _ := in(t, dir, program, "-json", ".")
	var found map[string]map[string][]struct{ Category string }
	if err := json.Unmarshal([]byte(stdout), &found); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	got := found["user.example/program"]["rlockvet"]
	if len(got) != 2 || got[0].Category != rlockvet.LostLease || got[1].Category != rlockvet.UnlockError {
		t.Error(stdout)
	}
}

// What this repository gives its users to copy has no findings: the examples, the adapters, the command line tool.
func TestOwnPrograms(t *testing.T) {
	program := build(t)
	modules := map[string][]string{"..": {"./examples/...", "./rlocktest/..."}, "../cmd/rlock": {"./..."}}
	for _, pattern := range []string{"../examples/*/go.mod", "../adapters/*/go.mod", "../rlock*/go.mod"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, found, err)
		}
		for _, mod := range found {
			modules[filepath.Dir(mod)] = []string{"./..."}
		}
	}
	for dir, patterns := range modules {
		t.Run(dir, func(t *testing.T) {
			_, stderr, ok := in(t, dir, "go", append([]string{"vet", "-vettool=" + program}, patterns...)...)
			if !ok {
				t.Error(stderr)
			}
		})
	}
	// In the examples of the documentation others drop a lease to show what its holder sees; all else is as in a program.
	if _, stderr, ok := in(t, "..", "go", "vet", "-vettool="+program, "-rlockvet.tests", "-rlockvet.skip="+rlockvet.LostLease, ".", "./test/documents", "./rlocktest"); !ok {
		t.Error(stderr)
	}
}
