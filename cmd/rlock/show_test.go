//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The demo needs nothing, and others can look at it.
func TestDemo(t *testing.T) {
	t.Parallel()
	tl := toolAt(t, "redis://127.0.0.1:1")
	cmd := tl.command("rlock", "demo", "--for", "300")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	until := func(pattern string) string {
		t.Helper()
		for re := regexp.MustCompile(pattern); lines.Scan(); {
			if m := re.FindStringSubmatch(lines.Text()); m != nil {
				return m[len(m)-1]
			}
		}
		t.Fatalf("no line has %s", pattern)
		return ""
	}
	url := until(`(redis://\S+),`)
	until("billing +has it, with token")
	until("reports +waits: invoices is held by billing@")
	until("reports +has it, with token")
	r := tl.run("--redis", url, "-n", "invoices", "true")
	if r.code != 0 && r.code != exitBusy {
		t.Error(r)
	}
	tl.want(0, "--redis", url, "invoices", "true")
	_ = cmd.Process.Signal(unix.SIGINT)
	for lines.Scan() {
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 128+2 {
		t.Error(cmd.ProcessState)
	}
	tl.want(0, "demo", "--for", "0.1")
	tl.want(exitUsage, "demo", "x")
	tl.want(exitUnavailable, "demo", "--port", "1000000")
}

func TestTop(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	free := tl.hold("--label", "billing", "invoices")
	cmd := tl.with("TERM=xterm").command("rlock", "top", "--interval", "0.1")
	s := onTerminal(t, cmd)
	s.shows("invoices")
	s.shows("billing@")
	s.shows("1 held")
	if text := s.read(); strings.Contains(text, "…") {
		t.Errorf("it does not fit in 80 columns: %q", text)
	}
	tl.want(0, "acquire", "deploy", "--holder", "ann", "--lease", "1")
	s.shows("deploy")
	s.shows("ann@")
	s.shows("1 lost")
	tl.want(0, "unlock", "invoices", "--force")
	tl.want(0, "acquire", "invoices", "--holder", "bob")
	s.shows("bob@")
	srv.Pause()
	s.shows("no answer: ")
	srv.Resume()
	s.types("w")
	s.types("q")
	s.shows("\x1b[?1049l")
	write(t, tl.path("free"), "")
	_ = free

	if r := tl.want(0, "top", "--once"); !strings.Contains(r.out, "bob@") || strings.Contains(r.out, "\x1b") {
		t.Error(r)
	}
	var h holding
	if err := json.Unmarshal([]byte(tl.want(0, "top", "--json").out), &h); err != nil || h.Name != "invoices" {
		t.Error(err, h)
	}
	tl.want(exitUsage, "top")
	tl.want(exitUsage, "top", "--interval", "0")
	tl.want(exitUnavailable, "--redis", "redis://127.0.0.1:1", "top", "--once")
}

// What is lost and what changes hands, between two looks.
func TestTopCounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := &topView{locks: map[string]*shownLock{}}
	see := func(after time.Duration, all ...*holding) {
		v.all = all
		v.compare(now.Add(after), now.Add(after))
	}
	held := func(name, id string, left time.Duration) *holding {
		return &holding{Name: name, LeftMS: left.Milliseconds(), Holders: []holder{{HoldID: id}}}
	}
	see(0, held("a", "1", 30*time.Second), held("b", "2", time.Second))
	see(time.Second, held("a", "1", 29*time.Second)) // b has run out
	see(2*time.Second, held("a", "3", 30*time.Second))
	see(3 * time.Second) // a was unlocked
	see(4*time.Second, held("a", "4", 30*time.Second))
	if v.hands != 1 || v.losses != 1 {
		t.Errorf("%d hand-overs, %d lost", v.hands, v.losses)
	}
}

func TestHelpFitsInEightyColumns(t *testing.T) {
	t.Parallel()
	for _, cmd := range append(newRoot(&app{}).Commands(), newRoot(&app{})) {
		for _, of := range append(cmd.Commands(), cmd) {
			for line := range strings.Lines(of.Long + "\n" + of.UsageString()) {
				if len(strings.TrimSuffix(line, "\n")) > 80 {
					t.Errorf("%s: %s", of.CommandPath(), line)
				}
			}
			if of.Short == "" {
				t.Errorf("%s says nothing", of.CommandPath())
			}
		}
	}
}

func TestManualAndCompletion(t *testing.T) {
	t.Parallel()
	tl := toolAt(t, "")
	page := tl.want(0, "man").out
	has(t, page, ".TH RLOCK 1", `\fB\-n\fR, \fB\-\-nonblock\fR`, "EXIT STATUS", ".BR rlock\\-once (1)")
	tl.want(0, "man", "--dir", "pages")
	pages, err := os.ReadDir(tl.path("pages"))
	if err != nil || len(pages) < 18 {
		t.Error(err, pages)
	}
	for _, page := range pages {
		if _, err := exec.LookPath("groff"); err != nil {
			break
		}
		cmd := exec.Command("groff", "-man", "-Tascii", "-ww", "-z", filepath.Join(tl.path("pages"), page.Name()))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", page.Name(), err, out)
		}
	}
	for text, want := range map[string]string{
		"--a \\ b": `\-\-a \e b`, ".TH x\n'quote\na.b": "\\&.TH x\n\\&'quote\na.b",
	} {
		if got := troff(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	tl.want(exitUsage, "man", "nonsense")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := tl.want(0, "completion", shell).out
		has(t, script, "rlock")
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		write(t, tl.path(shell), script)
		if out, err := exec.Command(shell, "-n", tl.path(shell)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	has(t, tl.want(0, "__complete", "ac").out, "acquire")
	has(t, tl.want(0, "version").out, "rlock ", "go1.")
	var v struct{ Platform string }
	if err := json.Unmarshal([]byte(tl.want(0, "version", "--json").out), &v); err != nil || v.Platform == "" {
		t.Error(err)
	}
	has(t, tl.want(0, "help").out, "Usage:", "acquire", "75")
	has(t, tl.want(0, "help", "once").out, "--takeover")
	has(t, tl.want(0, "--help").out, "Usage:")
}
