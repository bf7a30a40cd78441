//go:build unix

package main

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A screen is a pseudo-terminal on which a command runs, and all that it has written.
type screen struct {
	t   *testing.T
	tty io.ReadWriteCloser
	cmd *exec.Cmd

	mu   sync.Mutex
	text bytes.Buffer
	done chan struct{}
}

// onTerminal runs a command as the leader of a session, as a login shell is.
func onTerminal(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	return onTerminalOf(t, cmd, 80)
}

// onTerminalOf is onTerminal with so many columns.
func onTerminalOf(t *testing.T, cmd *exec.Cmd, columns uint16) *screen {
	t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, tty: tty, cmd: cmd, done: make(chan struct{})}
	go func() { // until the terminal is closed
		defer close(s.done)
		part := make([]byte, 4096)
		for {
			n, err := tty.Read(part)
			s.mu.Lock()
			s.text.Write(part[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGKILL)
		_ = cmd.Wait()
		tty.Close()
		<-s.done
	})
	return s
}

func (s *screen) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) shows(text string) {
	s.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(s.read(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%q is not on the terminal: %q", text, s.read())
		}
	}
}

func (s *screen) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		s.t.Fatal(err)
	}
}

// A shell on a terminal, with job control: the command reads the terminal, Ctrl-C is its own, Ctrl-Z and fg work.
func TestOnATerminal(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	cmd := tl.with("PS1=ready> ", "ENV=", "TERM=dumb").command("/bin/sh", "-i", "-m")
	s := onTerminal(t, cmd)
	s.shows("ready> ")
	s.types("rlock a -- sh -c 'echo asks; read x; echo \"got $x\"'\n")
	s.shows("asks\r\n")
	s.types("an-answer\n")
	s.shows("got an-answer")

	s.types("rlock a -- sh -c 'trap \"echo interrupted; exit 9\" INT; echo run\"\"s; while :; do sleep 0.02; done'; echo \"status $?\"\n")
	s.shows("runs\r\n")
	s.types("\x03")
	s.shows("interrupted")
	s.shows("status 9")

	s.types("rlock a -- sh -c 'echo begin\"\"s; read y; echo \"then $y\"'\n")
	s.shows("begins\r\n")
	s.types("\x1a")
	s.shows("Stopped")
	s.types("fg\n")
	s.types("more\n")
	s.shows("then more")
	s.types("exit\n")
}

// Ctrl-C ends a script too, as it does with flock, and a job from the background gets the terminal by fg.
func TestScriptOnATerminal(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	write(t, tl.path("script"), "#!/bin/sh\nrlock a -- sh -c 'echo run\"\"s; exec sleep 300'\necho went on\n")
	cmd := tl.with("PS1=ready> ", "ENV=", "TERM=dumb").command("/bin/sh", "-i", "-m")
	s := onTerminal(t, cmd)
	s.shows("ready> ")
	s.types("./script\n")
	s.shows("runs\r\n")
	s.types("\x03")
	s.shows("^C\r\nready> ")
	s.types("echo \"status $?\"\n")
	s.shows("status 130")
	if strings.Contains(s.read(), "went on") {
		t.Errorf("%q", s.read())
	}
	s.types("rlock a -- sh -c 'echo > started; read x; echo \"got $x\"' &\n")
	tl.eventually("it runs", func() bool { return exists(tl.path("started")) })
	s.types("fg\n")
	s.shows("fg\r\nrlock a")
	s.types("an-answer\n")
	s.shows("got an-answer")
	s.types("exit\n")
}

func TestProgressOnATerminalOnly(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	free := tl.hold("--label", "billing", "a")
	s := onTerminal(t, tl.command("rlock", "a", "--", "echo", "ran"))
	s.shows("waiting for billing@")
	quiet := tl.start("a", "--", "true")
	srv.Pause()
	s.shows("waiting for Redis: ")
	srv.Resume()
	free()
	s.shows("\r\x1b[Kran")
	if r := tl.finish(quiet); r.code != 0 || r.out+r.err != "" {
		t.Error(r)
	}
	waiting := onTerminal(t, tl.command("rlock", "-q", "b", "--", "echo", "ran"))
	waiting.shows("ran")
	if text := waiting.read(); strings.Contains(text, "waiting") {
		t.Errorf("%q", text)
	}
}
