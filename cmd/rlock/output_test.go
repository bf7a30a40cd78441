//go:build unix

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// onto runs rlock with that standard output.
func (tl *tool) onto(out *os.File, args ...string) result {
	tl.t.Helper()
	cmd := tl.command("rlock", args...)
	s := &started{Cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, &s.err
	if err := cmd.Start(); err != nil {
		tl.t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	return tl.finish(s)
}

// Whatever cannot be printed is told by the status.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	tl, _ := newTool(t)
	handle := func(name string) string { return strings.TrimSpace(tl.want(0, "acquire", name, "--lease", "3600").out) }
	nodes := redistest.StartMasters(t, 3)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "redis://"+n.Addr())
	}
	red := tl.with("REDIS_URL=" + strings.Join(urls, " "))
	fresh := "redis://" + redistest.Start(t).Addr()
	handle("held")
	for _, args := range [][]string{
		{"ls"}, {"ls", "--json"}, {"inspect", "held"}, {"inspect", "held", "--json"}, {"watch", "held"}, {"watch", "held", "--json"}, {"top", "--once"}, {"top", "--json"},
		{"check"}, {"version"}, {"version", "--json"}, {"man"}, {"completion", "bash"}, {"help"}, {"--help"}, {"--version"}, {"help", "once"}, {"demo", "--for", "300"},
		{"acquire", "new"}, {"acquire", "new", "--json"}, {"renew", handle("b"), "--json", "--lease", "7200"},
		{"release", handle("c"), "--json"}, {"unlock", "held", "--force", "--json"},
	} {
		r := tl.onto(full, args...)
		if r.code != exitOutput || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%q: %v", args, r)
		}
		has(t, r.err, "no space left", "could not be printed")
	}
	for _, args := range [][]string{{"quorum", "status"}, {"quorum", "init", "--json"}, {"quorum", "replace", "--old", urls[0], "--new", fresh}} {
		if r := red.onto(full, args...); r.code != exitOutput {
			t.Errorf("%q: %v", args, r)
		}
	}
	for _, name := range []string{"new", "c", "held"} { // given back, released, freed
		tl.want(0, "wait", "-n", name)
	}
	var h holding
	jsonOf(t, tl.want(0, "inspect", "b", "--json").out, &h)
	if h.LeftMS < 3_700_000 { // renewed
		t.Errorf("%+v", h)
	}
	// The status of a command that is run is its own.
	if r := tl.onto(full, "a2", "--", "sh", "-c", "exit 5"); r.code != 5 {
		t.Error(r)
	}
}

// Nobody reads what it prints.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	read.Close()
	for _, args := range [][]string{{"acquire", "a"}, {"acquire", "a", "--json"}} {
		if r := tl.onto(write, args...); r.code != exitOutput || !strings.Contains(r.err, "given back") {
			t.Errorf("%q: %v", args, r)
		}
		tl.want(0, "wait", "-n", "a")
	}
	if r := tl.onto(write, "ls"); r.code != 128+13 || r.err != "" {
		t.Error(r)
	}
	// A command gets the signal as it does elsewhere.
	if r := tl.onto(write, "a", "--", "sh", "-c", "echo x; echo went on >&2"); r.code != 128+13 || r.err != "" {
		t.Error(r)
	}
}
