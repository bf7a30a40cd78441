//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock/internal/faultproxy"
)

// Between two holders: the processes of the first, which ignore SIGTERM, have ended when the next begins.
func TestNextBeginsWhenTheFirstHasEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(tl *tool, s *started, cut func())
		code    int // of the first
	}{
		"Redis is cut off":       {func(_ *tool, _ *started, cut func()) { cut() }, exitLost},
		"the wrapper is stopped": {func(_ *tool, s *started, _ func()) { _ = s.Process.Signal(unix.SIGSTOP) }, exitLost},
		"the wrapper is killed":  {func(_ *tool, s *started, _ func()) { _ = s.Process.Kill() }, -1},
		"cut off and stopped": {func(_ *tool, s *started, cut func()) {
			cut()
			_ = s.Process.Signal(unix.SIGSTOP)
		}, exitLost},
		"the wrapper is stopped, its command too": {func(tl *tool, s *started, _ func()) {
			_ = s.Process.Signal(unix.SIGSTOP)
			_ = unix.Kill(number(tl.t, tl.path("pid")), unix.SIGSTOP)
		}, exitLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl, srv := newTool(t)
			proxy := faultproxy.New(t, srv.Addr())
			first := tl.with("REDIS_URL=redis://"+proxy.Addr()).start("--lease", "20", "--grace", "1", "a", "--", "sh", "-c",
				fmt.Sprintf(`trap '' TERM; echo $$ > pid; stamp %s below on & stamp %s above on; wait`, stampCommand, stampCommand))
			tl.eventually("the first runs", func() bool { return full(tl.path("above")) && full(tl.path("below")) })
			next := tl.start("a", "--", "stamp", stampCommand, "next", "once")
			watchWaiters(t, tl, "a", 1)

			c.happens(tl, first, func() { proxy.Blackhole(true) })
			if r := tl.finish(next); r.code != 0 {
				t.Fatal(r)
			}
			_ = first.Process.Signal(unix.SIGCONT)
			if r := tl.finish(first); r.code != c.code {
				t.Errorf("the first: %v, want exit %d", r, c.code)
			} else if c.code == exitLost {
				has(t, r.err, "rlock: a was lost while the command ran: ")
			}
			endedBefore(t, tl.path("next"), tl.path("above"), tl.path("below"))
		})
	}
}

// endedBefore checks that the next began after the last stamp of each of the others. All stamps are of one clock. On a
// machine that is busy the process that ends them may be held as long as they themselves were, between two stamps.
func endedBefore(t *testing.T, next string, others ...string) {
	t.Helper()
	begins := stamps(t, next)[0]
	for _, path := range others {
		at := stamps(t, path)
		last, held := at[len(at)-1], time.Duration(0)
		for i := range at[1:] {
			held = max(held, at[i+1]-at[i])
		}
		t.Logf("%s has ended %v before the next began; the longest pause between two of its stamps was %v", filepath.Base(path), begins-last, held)
		if last >= begins+held {
			t.Errorf("%s ran until %v, and the next from %v", filepath.Base(path), last, begins)
		}
	}
}

func full(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() > 0
}

func number(t *testing.T, path string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A command that wants to clean up hears of the loss by its descriptor, and gets SIGTERM.
func TestCommandHearsOfTheLoss(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(tl *tool, s *started, cut func(bool), remove func()){
		"cut off": func(_ *tool, _ *started, cut func(bool), _ func()) { cut(true) },
		"removed": func(_ *tool, _ *started, _ func(bool), remove func()) { remove() },
		"killed":  func(_ *tool, s *started, _ func(bool), _ func()) { _ = s.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl, srv := newTool(t)
			proxy := faultproxy.New(t, srv.Addr())
			rdb := srv.Client()
			// What runs below the command hears of it also if the command itself was killed with its parent.
			s := tl.with("REDIS_URL=redis://"+proxy.Addr()).start("--lease", "9", "--grace", "4", "a", "--", "sh", "-c",
				`(trap 'echo term >> told' TERM; echo > runs; read line < /dev/fd/$RLOCK_LOST_FD; echo "fd $line" >> told; while ! grep -q term told; do sleep 0.02; done) & wait; wait`)
			tl.eventually("it runs", func() bool { return exists(tl.path("runs")) })
			happens(tl, s, proxy.Blackhole, func() {
				if err := rdb.Del(t.Context(), "a").Err(); err != nil {
					t.Error(err)
				}
			})
			r := tl.finish(s)
			if want := map[string]int{"killed": -1}[name]; want == 0 && r.code != exitLost || want != 0 && r.code != want {
				t.Error(r)
			}
			tl.eventually("it is told", func() bool {
				return exists(tl.path("told")) && strings.Contains(read(t, tl.path("told")), "fd lost") && strings.Contains(read(t, tl.path("told")), "term")
			})
		})
	}
}

func TestOutageWhileWaiting(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	free := tl.hold("--lease", "60", "a")
	waiting := tl.start("-w", "3", "a", "--", "true")
	watchWaiters(t, tl, "a", 1)
	srv.Pause()
	r := tl.finish(waiting)
	if r.code != exitUnavailable {
		t.Error(r)
	}
	has(t, r.err, "no lock from Redis: ")
	if strings.Contains(r.err, "is held by") {
		t.Error(r)
	}
	srv.Resume()
	free()
}

// Nobody confirms the release, and the command has ended well.
func TestReleaseThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	s := tl.start("a", "--", "sh", "-c", "echo > runs; while [ ! -e go ]; do sleep 0.02; done; exit 6")
	tl.eventually("it runs", func() bool { return exists(tl.path("runs")) })
	srv.Kill()
	write(t, tl.path("go"), "")
	r := tl.finish(s)
	if r.code != 6 {
		t.Error(r)
	}
	has(t, r.err, "did not confirm the release")
}

// Nothing is left of a command: neither a process, nor a guard, nor a key.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	mark := "RLOCK_TEST_MARK=" + tl.dir
	tl.with(mark).want(0, "a", "--", "sh", "-c", "sleep 300 & true")
	s := tl.with(mark).start("--lease", "100", "a", "--", "sh", "-c", "echo > runs; sleep 300")
	tl.eventually("it runs", func() bool { return exists(tl.path("runs")) })
	_ = s.Process.Kill()
	tl.finish(s)
	tl.eventually("no process is left", func() bool { return len(processes(t, mark)) == 0 })
	if left := srv.Client().PTTL(t.Context(), "a").Val(); runtime.GOOS == "linux" && left < 20*time.Second {
		t.Errorf("what a killed wrapper has left ended with the lease only, of which there was %v", left)
	}
	keys, err := srv.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys { // of the killed one: the lock, its note, and who it was
		if key != "a" && key != "rlock:clock" && !strings.HasPrefix(key, "rlock:c") {
			t.Errorf("key %s is left", key)
		}
	}
}

// processes are those with this in their environment; where there is no /proc, none.
func processes(t *testing.T, mark string) (pids []string) {
	t.Helper()
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if env, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil && strings.Contains(string(env), mark) {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// guardOf is the guard among the processes with a mark.
func guardOf(t *testing.T, mark string) (pid int) {
	t.Helper()
	eventually(t, "there is a guard", func() bool {
		for _, p := range processes(t, mark) {
			if line, err := os.ReadFile("/proc/" + p + "/cmdline"); err == nil && strings.Contains(string(line), guardCommand) {
				pid, _ = strconv.Atoi(p)
				return true
			}
		}
		return false
	})
	return pid
}

// Without its guard a command is what it is elsewhere; and if both are killed, the kernel ends it.
func TestGuardIsKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a command whose parent was killed")
	}
	tl, _ := newTool(t)
	mark := "RLOCK_TEST_MARK=" + tl.dir
	s := tl.with(mark).start("a", "--", "sh", "-c", "echo > runs; while [ ! -e go ]; do sleep 0.02; done; exit 4")
	tl.eventually("it runs", func() bool { return exists(tl.path("runs")) })
	_ = unix.Kill(guardOf(t, mark), unix.SIGKILL)
	write(t, tl.path("go"), "")
	if r := tl.finish(s); r.code != 4 || r.err != "" {
		t.Error(r)
	}

	s = tl.with(mark).start("b", "--", "stamp", stampCommand, "both", "on")
	tl.eventually("it runs", func() bool { return full(tl.path("both")) })
	_ = unix.Kill(guardOf(t, mark), unix.SIGKILL)
	_ = s.Process.Kill()
	tl.finish(s)
	tl.eventually("the command has ended", func() bool { return len(processes(t, mark)) == 0 })
}
