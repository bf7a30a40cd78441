//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

// The binary of the tests is the program too, so that it runs under the race detector, and one of the commands that it runs.
const beTheProgram = "RLOCK_TEST_IS_THE_PROGRAM"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == stampCommand {
		stamp(os.Args[2:])
		return
	}
	if os.Getenv(beTheProgram) != "" {
		os.Exit(execute(os.Args[1:]))
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil { // most of them wait
		panic(err)
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what has to come, on a machine that is much slower than usual.
const patience = time.Minute

// A tool is the program for one test, in a folder of its own, with a Redis.
type tool struct {
	t      *testing.T
	dir    string
	env    []string
	client *rlock.Client // of the same Redis
}

func newTool(t *testing.T) (*tool, *redistest.Server) {
	srv := redistest.Start(t)
	tl := toolAt(t, "redis://"+srv.Addr())
	tl.client = newClient(t, srv)
	return tl, srv
}

func toolAt(t *testing.T, urls string) *tool {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o700), os.Symlink(self, filepath.Join(bin, "rlock")), os.Symlink(self, filepath.Join(bin, "stamp"))); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "SHELL=/bin/sh", "REDIS_URL=" + urls, beTheProgram + "=1", "GORACE=atexit_sleep_ms=0", "GOCOVERDIR=" + dir}
	return &tool{t: t, dir: dir, env: env}
}

// with is the same tool with other variables.
func (tl *tool) with(env ...string) *tool {
	more := *tl
	more.env = append(append([]string{}, tl.env...), env...)
	return &more
}

func (tl *tool) path(name string) string { return filepath.Join(tl.dir, name) }

func (tl *tool) command(name string, args ...string) *exec.Cmd {
	path := name
	if name == "rlock" {
		path = tl.path("bin/rlock")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = tl.dir, tl.env
	return cmd
}

// A result is what a command has printed, and its exit status.
type result struct {
	out, err string
	code     int
}

func (r result) String() string { return fmt.Sprintf("exit %d, out %q, err %q", r.code, r.out, r.err) }

// run runs rlock to its end.
func (tl *tool) run(args ...string) result {
	tl.t.Helper()
	return tl.finish(tl.begin(tl.command("rlock", args...)))
}

// sh runs a script.
func (tl *tool) sh(script string) result {
	tl.t.Helper()
	return tl.finish(tl.begin(tl.command("/bin/sh", "-c", script)))
}

// A started command is killed when the test ends, unless it has ended.
type started struct {
	*exec.Cmd
	out, err bytes.Buffer
	done     chan struct{}
}

func (tl *tool) start(args ...string) *started {
	tl.t.Helper()
	return tl.begin(tl.command("rlock", args...))
}

func (tl *tool) begin(cmd *exec.Cmd) *started {
	tl.t.Helper()
	s := &started{Cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &s.out, &s.err
	if err := cmd.Start(); err != nil {
		tl.t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	tl.t.Cleanup(func() {
		select {
		case <-s.done:
		default:
			_ = unix.Kill(cmd.Process.Pid, unix.SIGCONT)
			_ = unix.Kill(cmd.Process.Pid, unix.SIGTERM)
			select {
			case <-s.done:
			case <-time.After(patience):
				_ = cmd.Process.Kill()
				<-s.done
			}
		}
	})
	return s
}

func (tl *tool) finish(s *started) result {
	tl.t.Helper()
	select {
	case <-s.done:
	case <-time.After(2 * patience):
		tl.t.Fatalf("%v does not end", s.Args)
	}
	code := s.ProcessState.ExitCode()
	if ws, ok := s.ProcessState.Sys().(interface{ Signaled() bool }); ok && ws.Signaled() {
		code = -1
	}
	return result{s.out.String(), s.err.String(), code}
}

// want runs rlock, and checks its exit status.
func (tl *tool) want(code int, args ...string) result {
	tl.t.Helper()
	r := tl.run(args...)
	if r.code != code {
		tl.t.Fatalf("rlock %q: %v, want exit %d", args, r, code)
	}
	return r
}

// hold has a lock held until the returned function is called.
func (tl *tool) hold(args ...string) (free func()) {
	tl.t.Helper()
	held, release := tl.path("held"), tl.path("free")
	args = append(args, "--", "sh", "-c", `echo > held; while [ ! -e free ]; do sleep 0.02; done`)
	s := tl.start(args...)
	tl.eventually("the lock is held", func() bool { return exists(held) })
	return func() {
		tl.t.Helper()
		write(tl.t, release, "")
		if r := tl.finish(s); r.code != 0 {
			tl.t.Fatalf("the holder: %v", r)
		}
	}
}

func (tl *tool) eventually(what string, ok func() bool) {
	tl.t.Helper()
	eventually(tl.t, what, ok)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in %q", part, text)
		}
	}
}

func jsonOf(t *testing.T, text string, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
}

const stampCommand = "--stamp"

// stamp is a command that shows when it has run: it writes the time to a file, again and again for ever, or once.
// It ignores SIGTERM, unless it is told to be polite.
func stamp(args []string) {
	file, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(99)
	}
	if args[1] != "polite" {
		signal.Ignore(unix.SIGTERM)
	}
	for {
		fmt.Fprintln(file, monotonic())
		if args[1] == "once" {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stamps are the times in a file of stamp.
func stamps(t *testing.T, path string) (at []time.Duration) {
	t.Helper()
	lines := strings.Fields(read(t, path))
	if len(lines) == 0 {
		t.Fatalf("%s is empty", path)
	}
	for _, text := range lines {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, time.Duration(n))
	}
	return at
}

func lastStamp(t *testing.T, path string) time.Duration {
	t.Helper()
	at := stamps(t, path)
	return at[len(at)-1]
}

// newClient is a client as a Go program has it.
func newClient(t *testing.T, srv *redistest.Server) *rlock.Client {
	t.Helper()
	c, err := rlock.New(srv.Client(), rlock.WithLabel("tests"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // what was freed by others is none of its business
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Shutdown(ctx)
	})
	return c
}
