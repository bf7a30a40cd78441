//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock/internal/faultproxy"
)

// A lock around a lock: when the outer one passes on, the command of the inner one has ended, though it is not of the
// group of the outer command. It ignores SIGTERM.
func TestOuterLockOutlivesTheInnerCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(outer *started, inner int, cut func())
		code    int // of the outer
	}{
		"the inner wrapper is killed":  {func(_ *started, inner int, _ func()) { _ = unix.Kill(inner, unix.SIGKILL) }, 128 + 9},
		"the inner wrapper is stopped": {func(_ *started, inner int, cut func()) { _ = unix.Kill(inner, unix.SIGSTOP); cut() }, exitLost},
		"the outer wrapper is stopped": {func(outer *started, _ int, _ func()) { _ = outer.Process.Signal(unix.SIGSTOP) }, exitLost},
		"the outer wrapper is killed":  {func(outer *started, _ int, _ func()) { _ = outer.Process.Kill() }, -1},
		"Redis is cut off":             {func(_ *started, _ int, cut func()) { cut() }, exitLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl, srv := newTool(t)
			tl = tl.marked()
			proxy := faultproxy.New(t, srv.Addr())
			// The inner lock has a lease that is much longer: its own guard comes too late.
			outer := tl.with("REDIS_URL=redis://"+proxy.Addr()).start("--lease", "20", "--grace", "1", "a", "--", "sh", "-c",
				fmt.Sprintf(`echo $$ > pid; exec rlock --lease 300 --grace 60 b -- sh -c 'stamp %s below on & stamp %s above on; wait' >/dev/null 2>&1`, stampCommand, stampCommand))
			tl.eventually("the inner command runs", func() bool { return full(tl.path("above")) && full(tl.path("below")) })
			next := tl.start("a", "--", "stamp", stampCommand, "next", "once")
			watchWaiters(t, tl, "a", 1)
			c.happens(outer, number(t, tl.path("pid")), func() { proxy.Blackhole(true) })
			if r := tl.finish(next); r.code != 0 {
				t.Fatal(r)
			}
			_ = outer.Process.Signal(unix.SIGCONT)
			if r := tl.finish(outer); r.code != c.code {
				t.Errorf("the outer: %v, want exit %d", r, c.code)
			}
			endedBefore(t, tl.path("next"), tl.path("above"), tl.path("below"))
		})
	}
}

// A machine that is busy may take seconds to read /proc: SIGKILL comes on time all the same, also to what has left the
// group, if it was found before.
func TestGuardKillsOnTimeWhileProcIsRead(t *testing.T) {
	t.Parallel()
	tl := toolAt(t, "redis://127.0.0.1:1").marked()
	self, ended := make([]int, 2), make([]chan struct{}, 2)
	for i, name := range []string{"in", "out"} {
		cmd := tl.command(tl.path("bin/stamp"), stampCommand, name, "on")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		s := tl.begin(cmd)
		self[i], ended[i] = s.Process.Pid, s.done
		tl.eventually("it runs", func() bool { return full(tl.path(name)) })
	}
	out, ok := readRelative(self[1])
	if !ok {
		t.Fatal("it is not in /proc")
	}
	_, lost, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	reads, slow := 0, make(chan struct{})
	defer close(slow)
	w := &watch{group: self[0], lost: lost, killAt: monotonic() + int64(time.Second), find: func() []relative {
		if reads++; reads > 1 {
			<-slow
		}
		return []relative{out}
	}}
	go w.end(w.left(), make(chan string))
	for i := range ended {
		select {
		case <-ended[i]:
		case <-time.After(patience):
			t.Fatalf("process %d waits until /proc was read", i)
		}
	}
}

// Linux shares the processors by sessions, if it has autogroups: it has let a guard in a session of its own wait for 12 s,
// while the command ran in another.
func TestGuardSharesTheSessionOfItsCommand(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	tl = tl.marked()
	free := tl.hold("a")
	guard := guardOf(t, "RLOCK_TEST_MARK="+tl.dir)
	of, err1 := unix.Getsid(guard)
	own, err2 := unix.Getsid(0)
	group, err3 := unix.Getpgid(guard)
	if err := errors.Join(err1, err2, err3); err != nil || of != own || group != guard {
		t.Errorf("session %d, want %d; group %d, want %d: %v", of, own, group, guard, err)
	}
	free()
}

// What the guard was told of a deadline stays as it was, also if its clock has gone on and that of Go has not: the
// machine has slept.
func TestGuardCountsTheSleepOfTheMachine(t *testing.T) {
	t.Parallel()
	in, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer told.Close()
	c := &child{guard: &guardian{in: told}}
	lines := bufio.NewScanner(in)
	tell := func(deadline time.Time) (until int64) {
		c.keep(deadline)
		lines.Scan()
		_, _ = fmt.Sscanf(lines.Text(), "until %d", &until)
		return until
	}
	deadline := time.Now().Add(time.Minute)
	first := tell(deadline)
	c.sharedDeadline -= int64(time.Hour) // as if the clock had gone on for so long since
	if again := tell(deadline); again != first-int64(time.Hour) {
		t.Errorf("told again, the same deadline is %v later", time.Duration(again-first)+time.Hour)
	}
	if moved := tell(deadline.Add(time.Second)); moved < first+int64(time.Second)-int64(patience) || moved > first+int64(time.Second+patience) {
		t.Errorf("a renewal moved it by %v", time.Duration(moved-first))
	}
}

// marked is the tool with processes that are killed at the end of the test, whatever becomes of their parents.
func (tl *tool) marked() *tool {
	mark := "RLOCK_TEST_MARK=" + tl.dir
	tl.t.Cleanup(func() {
		for _, p := range processes(tl.t, mark) {
			pid, _ := strconv.Atoi(p)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return tl.with(mark)
}

// What has left the group of the command ends with the lock too, unless it is to be left.
func TestProcessesOutsideOfTheGroup(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	tl = tl.marked()
	const daemon = "(setsid stamp " + stampCommand + " left on >/dev/null 2>&1 &) & while [ ! -s left ]; do sleep 0.02; done; exit 4"
	tl.want(4, "--grace", "0.2", "a", "--", "sh", "-c", daemon)
	tl.want(0, "a", "--", "stamp", stampCommand, "next", "once")
	if last, first := lastStamp(t, tl.path("left")), stamps(t, tl.path("next"))[0]; last >= first {
		t.Errorf("it ran until %v, and the next from %v", last, first)
	}
	// One that is asked ends before it is killed.
	tl.want(0, "--grace", "60", "--lease", "120", "a", "--", "sh", "-c", `(setsid sh -c 'trap "echo asked > asked; exit" TERM; echo > waits; while :; do sleep 0.02; done' >/dev/null 2>&1 &) & while [ ! -e waits ]; do sleep 0.02; done`)
	if !exists(tl.path("asked")) {
		t.Error("it was not asked to end")
	}
	if r := tl.sh(`rlock -o a -c '(setsid sleep 300 >/dev/null 2>&1 & echo $!)' > pid; kill $(cat pid) && echo was alive`); r.out != "was alive\n" {
		t.Error(r)
	}
	// The children of a shell that has become rlock are not those of the command.
	if r := tl.sh(`sleep 300 >/dev/null 2>&1 & echo $! > pid; rlock a -- true; (sleep 300 >/dev/null 2>&1 & echo $! > pid2; exec rlock a -- true); kill $(cat pid) $(cat pid2) && echo were alive`); r.out != "were alive\n" {
		t.Error(r)
	}
}
