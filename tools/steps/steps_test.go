// Package steps tests .ci/steps: how the steps of .ci/run begin and end.
package steps

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// script is a run of steps. They share a pipe: its lines are what the test waits for, and its end says
// that none of them is left.
type script struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   bytes.Buffer
	lines *bufio.Reader
}

// begin runs a text as .ci/run does. Its steps write to file descriptor 3, and wait for each other with FIFOs: a step that has to wait for ever reads never.
func begin(t *testing.T, text string) *script {
	t.Helper()
	steps, err := filepath.Abs("../../.ci/steps")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"never", "go", "went"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	s := &script{t: t, lines: bufio.NewReader(r)}
	// Whoever runs the tests may ignore these, and bash cannot trap what was ignored when it began.
	s.cmd = exec.Command("env", "--default-signal=HUP,INT,TERM", "bash", "-c", "set -euo pipefail\nroot=$PWD tmp=$PWD\ntidy() { echo tidy; }\n. '"+steps+"'\n"+text)
	s.cmd.Dir, s.cmd.ExtraFiles = dir, []*os.File{w}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() { _ = s.cmd.Process.Signal(syscall.SIGTERM) }) // if the test has failed before its end
	return s
}

// reports waits for a line of each step that has to have begun.
func (s *script) reports(n int) {
	s.t.Helper()
	for range n {
		if _, err := s.lines.ReadString('\n'); err != nil {
			s.t.Fatal(err)
		}
	}
}

// ends waits until the script and all its processes have ended, and returns its output.
func (s *script) ends(code int) string {
	s.t.Helper()
	err := s.cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, s.lines); err != nil {
		s.t.Fatal(err)
	}
	out := s.out.String()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, not %d", got, code)
	}
	if s.t.Failed() {
		s.t.Log(out)
	}
	return out
}

// shows wants the parts in the output, in their order.
func shows(t *testing.T, out string, parts ...string) {
	t.Helper()
	rest := out
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("no %q where it is due in\n%s", part, out)
		}
		rest = after
	}
}

// forever is a step with a process of its own behind it, both of which stay until they are ended.
const forever = `bash -c 'cat never & echo >&3; cat never'`

func TestLaneIsPrintedWhenItIsJoined(t *testing.T) {
	// Each lane writes a line, lets the other go on, and waits for it.
	s := begin(t, `
back() { run . bash -c 'echo back 1; read <go; echo back 2; echo >went'; run . echo back 3; }
start_lane back
run . bash -c 'echo front 1; echo >go; read <went; echo front 2'
join_lane
run . echo front 3`)
	shows(t, s.ends(0), "+ back, in the background\n", "\nfront 1\nfront 2\n  ", "s: ok\n== in the background:\n+ bash -c", "back 1\n", "back 2\n", "+ echo back 3\nback 3\n", "+ echo front 3\nfront 3\n", "tidy\n== passed in ")
}

func TestStepOfTheLaneFails(t *testing.T) {
	for name, text := range map[string]string{
		"while another step runs": `back() { run . bash -c 'read <go; echo broken; exit 3'; run . echo too late; }
			start_lane back
			run . bash -c 'echo >go; exec cat never'`,
		"before another step runs": `back() { run . bash -c 'echo broken; exit 3'; run . echo too late; }
			start_lane back
			while :; do :; done
			run . echo too late`,
		"when it is joined": `back() { run . bash -c 'read <go; echo broken; exit 3'; run . echo too late; }
			start_lane back
			run . bash -c 'echo >go'
			join_lane
			run . echo too late`,
	} {
		t.Run(name, func(t *testing.T) {
			out := begin(t, text).ends(1)
			shows(t, out, "== in the background:\n", "broken\n", "s: exit status 3\n", "tidy\n== FAILED (1) after ")
			if strings.Contains(out, "too late\n") || strings.Count(out, "broken\n") != 1 {
				t.Error(out)
			}
		})
	}
}

func TestStepFailsWhileTheLaneRuns(t *testing.T) {
	s := begin(t, `
back() { run . `+forever+`; }
start_lane back
run . bash -c 'echo >&3; exit 4'
run . echo too late`)
	s.reports(1)
	out := s.ends(4)
	shows(t, out, "s: exit status 4\n", "== in the background:\n", "tidy\n== FAILED (4) after ", ": bash -c echo >&3; exit 4\n")
	if strings.Contains(out, "too late\n") {
		t.Error(out)
	}
}

func TestSignalEndsAllSteps(t *testing.T) {
	for signal, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s := begin(t, `
back() { run . `+forever+`; }
start_lane back
run . `+forever)
			s.reports(2)
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			shows(t, s.ends(code), "== in the background:\n", "+ bash -c", "tidy\n== FAILED (")
		})
	}
}

// Otherwise timeout leaves the process group of the lane, and its command goes on when the run has ended.
func TestTimeoutsOfTheRunAreInTheForeground(t *testing.T) {
	text, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`[ (]timeout -\S+`).FindAllString(string(text), -1)
	if len(all) == 0 {
		t.Error("no step has a timeout: this test is of no use")
	}
	for _, one := range all {
		if !strings.HasSuffix(one, "timeout --foreground") {
			t.Error(one)
		}
	}
	s := begin(t, `
back() { run . timeout --foreground 600 `+forever+`; }
start_lane back
read -r <go
exit 4`)
	s.reports(1)
	if err := os.WriteFile(filepath.Join(s.cmd.Dir, "go"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.ends(4)
}

func TestStepThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	const deaf = `bash -c 'trap "" TERM; echo >&3; read <never'`
	s := begin(t, `
back() { run . `+deaf+`; }
start_lane back
run . `+deaf)
	s.reports(2)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.ends(143)
}

func TestStepLeavesNoProcessBehind(t *testing.T) {
	for name, text := range map[string]string{
		"a step":   `run . bash -c 'cat never &'; run . echo done; echo >&3`,
		"the lane": `back() { run . bash -c 'cat never &'; }; start_lane back; join_lane; echo >&3`,
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, text)
			s.reports(1)
			shows(t, s.ends(0), "s: ok\n", "== passed in ")
		})
	}
}

// The pages of .ci/run, on machines that are made of scripts: what apt installs is in their folder bin.
func TestPagesAreTestedIfThereIsABrowser(t *testing.T) {
	text, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	functions := "updated=\nhave() { [ -e bin/$1 ]; }\n"
	for _, part := range []string{`(?m)^apt=\(.*\)$`, `(?ms)^apt_install\(\) \{.*?^\}$`, `(?m)^have_chromium\(\) \{.*\}$`, `(?ms)^pages\(\) \{.*?^\}$`} {
		found := regexp.MustCompile(part).Find(text)
		if found == nil {
			t.Fatalf(".ci/run has no %s", part)
		}
		functions += string(found) + "\n"
	}
	const installs = `case "$*" in *" install "*) cp works bin/chromium ;; *" purge "*) rm bin/chromium ;; esac`
	for _, c := range []struct {
		name, before, apt, works, tests string
		passes, tested, stays           bool
	}{
		{"apt installs it", "", installs, "true", "true", true, true, true},
		{"the tests fail", "", installs, "true", "false", false, true, true},
		{"what apt installs does not start", "", installs, "false", "true", true, false, false},
		{"apt has none", "", "exit 100", "true", "true", true, false, false},
		{"it was there", "cp works bin/chromium", "exit 100", "true", "true", true, true, true},
		{"it was there, and does not work", "cp works bin/chromium", "exit 100", "false", "false", false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, functions+`
mkdir bin rlockui playground
script() { printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod 755 "$1"; }
script works '`+c.works+`'; script bin/go 'echo tested; `+c.tests+`'; script bin/apt-get '`+c.apt+`'
for one in dpkg setpriv; do script bin/$one false; done
export PATH=$PWD/bin:$PATH
`+c.before+`
tidy() { ! have chromium || echo stays; }
start_lane pages
join_lane`)
			code := 1
			if c.passes {
				code = 0
			}
			out := s.ends(code)
			for text, want := range map[string]bool{"\ntested\n": c.tested, "the pages are not tested": !c.tested, "\nstays\n": c.stays} {
				if strings.Contains(out, text) != want {
					t.Errorf("%q: %v\n%s", text, !want, out)
				}
			}
		})
	}
}
