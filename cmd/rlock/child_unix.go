//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that this process passes on to the command.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

func shellCommand(line string) []string {
	shell := os.Getenv("SHELL") // as flock does
	if shell == "" {
		shell = "/bin/sh"
	}
	return []string{shell, "-c", line}
}

// child is a command in a separate process group, with a guard process.
type child struct {
	pid      int
	leave    bool              // processes outside of the group may outlive the lock
	signaled map[relative]bool // processes outside of the group that were asked to end
	exited   chan struct{}     // closed when the command itself has ended
	code     int               // valid once exited is closed
	status   unix.WaitStatus   // valid once exited is closed

	stopped   chan struct{}  // the command was stopped, as by Ctrl-Z
	continued chan os.Signal // this process was continued, as by fg

	guard          *guardian
	sentDeadline   time.Time // deadline of the lease that was last sent to the guard
	sharedDeadline int64     // that deadline on the clock that the guard shares
	lostPipe       *os.File  // closing it, or the end of this process, makes the other end readable
	tty            int       // the terminal that the command has in the foreground, or -1
}

// start starts a command. env gets the number of the descriptor that becomes readable on loss.
//
// The process begins as this program, and becomes the command when the guard has its id. So a command whose parent was
// killed always has a guard.
func start(t *runTask, env func(lostFD int) []string, margin time.Duration, deadline time.Time) (c *child, err error) {
	lostFD, lostPipe, err := inheritedPipe()
	if err != nil {
		return nil, err
	}
	defer unix.Close(lostFD)
	beginFD, begin, err := inheritedPipe()
	if err != nil {
		lostPipe.Close()
		return nil, err
	}
	defer unix.Close(beginFD)
	defer begin.Close() // without a byte written: the process ends
	c = &child{leave: t.leave, signaled: map[relative]bool{}, exited: make(chan struct{}), stopped: make(chan struct{}, 1), continued: make(chan os.Signal, 1), lostPipe: lostPipe, tty: foreground()}
	if c.guard, err = startGuard(t.grace, margin, lostPipe); err != nil {
		lostPipe.Close()
		return nil, err
	}
	attr := &os.ProcAttr{Env: env(lostFD), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	dieWithParent(attr.Sys)
	argv := append([]string{os.Args[0], execCommand, strconv.Itoa(beginFD), t.path}, t.argv...)
	if c.pid, err = family.start(executable(), argv, attr, c.changed); err != nil {
		c.guard.close()
		lostPipe.Close()
		return nil, err
	}
	c.keep(deadline)
	c.guard.send("group %d", c.pid)
	if c.leave = c.leave || !family.ownsChildren; !c.leave {
		c.guard.send("parent %d %s", os.Getpid(), t.hold)
	}
	signal.Notify(c.continued, unix.SIGCONT)
	c.toForeground()
	_, err = begin.WriteString("now")
	return c, err
}

// inheritedPipe returns a pipe. Started processes inherit its reading end under the same number as here. That number is
// free there too, so the descriptors that the caller of rlock lets them inherit keep their numbers.
func inheritedPipe() (read int, write *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	read, err = unix.Dup(int(r.Fd())) // without close-on-exec
	if err != nil {
		w.Close()
		return 0, nil, err
	}
	return read, w, nil
}

const execCommand = "--command-with-a-guard"

// execLater is the process that waits, and then becomes the command.
func execLater(args []string) int {
	if len(args) < 3 {
		return exitUsage
	}
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return exitUsage
	}
	begin := os.NewFile(uintptr(fd), "begin")
	if n, _ := begin.Read(make([]byte, 8)); n == 0 {
		return exitInternal // its parent has died
	}
	begin.Close()
	path, argv := args[1], args[2:]
	err = syscall.Exec(path, argv, os.Environ())
	if err == syscall.ENOEXEC { // a script without an interpreter line: run it by a shell, as shells and flock do
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), os.Environ())
	}
	var why *failure
	errors.As(notStarted(argv[0], err), &why)
	line(os.Stderr, "rlock: %s", why.text)
	return why.code
}

// changed is called by the family when the command has ended or was stopped.
func (c *child) changed(ws unix.WaitStatus) {
	switch {
	case ws.Stopped():
		select {
		case c.stopped <- struct{}{}:
		default:
		}
		return
	case ws.Signaled():
		c.code = exitSignal + int(ws.Signal())
	default:
		c.code = ws.ExitStatus()
	}
	c.status = ws
	close(c.exited)
}

func (c *child) signal(sig os.Signal) {
	_ = unix.Kill(-c.pid, sig.(syscall.Signal))
	_ = unix.Kill(-c.pid, unix.SIGCONT) // a stopped process would not get the signal
}

func (c *child) terminate() { c.signal(unix.SIGTERM) }

func (c *child) kill() {
	_ = unix.Kill(-c.pid, unix.SIGKILL)
	for _, p := range c.outside() {
		p.signal(unix.SIGKILL)
	}
}

// groupAlive reports whether the group has a process. EPERM means a live process of another user.
func (c *child) groupAlive() bool { return unix.Kill(-c.pid, 0) != unix.ESRCH }

// alive reports whether the command has left a process, in its group or elsewhere. It reads /proc twice, because a process
// whose parent ends during the first reading may be missed.
func (c *child) alive() bool { return c.groupAlive() || len(c.outside()) > 0 || len(c.outside()) > 0 }

// outside returns the processes of the command that have left its group.
func (c *child) outside() []relative {
	if c.leave {
		return nil
	}
	return outside(os.Getpid(), c.pid, c.guard.pid)
}

// askOrphans signals processes outside of the group to end, each once, when the processes that started them are gone.
func (c *child) askOrphans() {
	for _, p := range c.outside() {
		if p.parent == os.Getpid() && !c.signaled[p] {
			c.signaled[p] = true
			p.signal(unix.SIGTERM)
		}
	}
}

// keep sends the guard the end of the lease. A known deadline is sent again in the same way: the machine may have
// slept since, and the clock of Go's deadlines does not count that.
func (c *child) keep(deadline time.Time) {
	if !deadline.Equal(c.sentDeadline) {
		at := monotonic() // before the rest of the lease is measured: if this process is stopped in between, the guard acts early
		c.sentDeadline, c.sharedDeadline = deadline, at+time.Until(deadline).Nanoseconds()
	}
	c.guard.send("until %d", c.sharedDeadline)
}

func (c *child) ending() { c.guard.send("ending") }

func (c *child) lost() { _, _ = c.lostPipe.WriteString("lost\n") }

// close is called when the group has ended. It reports whether the guard has ended it.
func (c *child) close() (guarded bool) {
	signal.Stop(c.continued)
	c.fromForeground()
	guarded = c.guard.close()
	c.lostPipe.Close()
	return guarded
}

// foreground returns the terminal whose foreground group this process is in, or -1. A command in a separate group could
// not read that terminal.
func foreground() int {
	if pgrp, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err == nil && pgrp == unix.Getpgrp() {
		return 0
	}
	return -1
}

// toForeground gives the command the terminal. If the command has read from it before, it was stopped, and is continued.
func (c *child) toForeground() {
	if c.tty >= 0 {
		_ = unix.IoctlSetPointerInt(c.tty, unix.TIOCSPGRP, c.pid)
		_ = unix.Kill(-c.pid, unix.SIGCONT)
	}
}

func (c *child) fromForeground() {
	if c.tty >= 0 {
		signal.Ignore(unix.SIGTTOU) // we are in the background
		_ = unix.IoctlSetPointerInt(c.tty, unix.TIOCSPGRP, unix.Getpgrp())
		signal.Reset(unix.SIGTTOU)
	}
}

// suspend is called when the command was stopped. After Ctrl-Z this process stops too, so that the shell gets its terminal
// back. The lease is then not renewed, and at its end the guard ends the command.
func (c *child) suspend() {
	if c.tty < 0 {
		return
	}
	switch pgrp, err := unix.IoctlGetInt(c.tty, unix.TIOCGPGRP); {
	case err == nil && pgrp == unix.Getpgrp(): // the command has read before it had the terminal
		c.toForeground()
		return
	case err != nil || pgrp != c.pid:
		return // it runs in the background
	}
	c.fromForeground()
	// Kill may return before this process stops: only SIGCONT shows that it continues.
	goes := make(chan os.Signal, 1)
	signal.Notify(goes, unix.SIGCONT)
	defer signal.Stop(goes)
	_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
	<-goes
	if foreground() >= 0 { // fg; after bg the command runs without the terminal
		c.toForeground()
	} else {
		_ = unix.Kill(-c.pid, unix.SIGCONT)
	}
}

// resume is called when this process continues: fg may have brought it from the background.
func (c *child) resume() {
	if fd := foreground(); fd >= 0 {
		c.tty = fd
		c.toForeground()
	}
}

// interrupted returns SIGINT if Ctrl-C has ended the command, or nil. Only the command was in the foreground, so a script
// that has started this process did not get the signal.
func (c *child) interrupted() os.Signal {
	if c.tty >= 0 && c.status.Signaled() && c.status.Signal() == unix.SIGINT {
		return unix.SIGINT
	}
	return nil
}

// dieBy ends the process group of this process by a signal, as the terminal would have.
func dieBy(sig os.Signal) {
	signal.Reset(sig)
	_ = unix.Kill(0, sig.(syscall.Signal))
	time.Sleep(time.Second) // the signal comes immediately
}

// family starts processes, and waits for them and for their orphans: this process is process 1 in a container, and a
// subreaper on Linux. The group of a command has ended only when all its processes have been waited for.
var family = &kin{callbacks: map[int]func(unix.WaitStatus){}, requests: make(chan func())}

type kin struct {
	once         sync.Once
	ownsChildren bool       // all children of this process belong to the command
	mu           sync.Mutex // guards callbacks and isReaping
	callbacks    map[int]func(unix.WaitStatus)
	isReaping    bool
	requests     chan func()
}

// start starts a process, and reports when it stops and ends.
func (k *kin) start(path string, argv []string, attr *os.ProcAttr, callback func(unix.WaitStatus)) (pid int, err error) {
	k.once.Do(func() {
		k.ownsChildren = !hasChildren()
		adoptOrphans()
		go func() { // lives as long as the process
			// The signal that a command gets at the death of its parent is sent when the thread that has started it ends.
			runtime.LockOSThread()
			for request := range k.requests {
				request()
			}
		}()
	})
	done := make(chan struct{})
	k.requests <- func() {
		defer close(done)
		k.mu.Lock() // the process may end before it is recorded here
		defer k.mu.Unlock()
		var p *os.Process
		if p, err = os.StartProcess(path, argv, attr); err != nil {
			return
		}
		pid = p.Pid
		_ = p.Release() // wait waits for the process
		k.callbacks[pid] = callback
		if !k.isReaping {
			k.isReaping = true
			go k.wait()
		}
	}
	<-done
	return pid, err
}

// wait waits for all children, and ends when there is none.
func (k *kin) wait() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WUNTRACED, nil)
		if err == unix.EINTR {
			continue
		}
		k.mu.Lock()
		if err != nil {
			if len(k.callbacks) == 0 {
				k.isReaping = false
				k.mu.Unlock()
				return
			}
			// A process was started since.
			k.mu.Unlock()
			continue
		}
		callback := k.callbacks[pid]
		if !ws.Stopped() {
			delete(k.callbacks, pid)
		}
		k.mu.Unlock()
		if callback != nil {
			callback(ws)
		}
	}
}

// The guard.

const guardCommand = "--guard-of-a-command"

// guardian is the guard of a command, from the side of the command's parent.
type guardian struct {
	pid      int
	in       *os.File
	ended    chan struct{}
	hasActed bool // valid once ended is closed
}

func startGuard(grace, margin time.Duration, lost *os.File) (*guardian, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		write.Close()
		return nil, err
	}
	defer null.Close()
	g := &guardian{in: write, ended: make(chan struct{})}
	g.pid, err = family.start(executable(), []string{os.Args[0], guardCommand, grace.String(), margin.String()}, &os.ProcAttr{
		Files: []*os.File{read, null, null, lost},
		// Neither Ctrl-Z nor the end of the terminal reaches the group. Not a session: Linux may share the processors by
		// sessions (autogroup), and has run a guard in one of its own 12 s late on a busy machine.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	}, func(ws unix.WaitStatus) {
		if ws.Stopped() {
			return
		}
		g.hasActed = ws.Exited() && ws.ExitStatus() == guardActed
		close(g.ended)
	})
	if err != nil {
		write.Close()
		return nil, err
	}
	return g, nil
}

// send does not block: a stopped guard is of no use anyway.
func (g *guardian) send(format string, args ...any) {
	_ = g.in.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = fmt.Fprintf(g.in, format+"\n", args...)
}

func (g *guardian) close() (acted bool) {
	g.send("done")
	g.in.Close()
	select {
	case <-g.ended:
		return g.hasActed
	case <-time.After(10 * time.Second): // the guard was stopped
		return false
	}
}

// guardActed is the exit status of a guard that has ended the command.
const guardActed = 3

// guard is the main function of the guard process. It reads lines on standard input, and ends the command's group if the
// lease ends without a renewal, or if the renewing process ends. It then also writes the loss to descriptor 3.
func guard(args []string) int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if len(args) != 2 {
		return exitUsage
	}
	grace, err1 := time.ParseDuration(args[0])
	margin, err2 := time.ParseDuration(args[1])
	if err1 != nil || err2 != nil {
		return exitUsage
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
	}()
	w := &watch{grace: grace, margin: margin / 2, lost: os.NewFile(3, "lost")}
	w.find = w.inProc
	return w.run(lines)
}

type watch struct {
	grace, margin time.Duration
	lost          *os.File
	group         int
	parent        int               // our parent, if processes that have left the group are ended too; otherwise 0
	holdMark      string            // mark in the environment of processes that the command has started
	find          func() []relative // reads /proc for processes that have left the group
	strays        map[relative]bool // processes that have left the group
	killAt        int64             // on the clock that all processes share; 0 if not known yet
	isEnding      bool              // the parent ends the group
}

// left returns the time until the group is killed.
func (w *watch) left() time.Duration { return time.Duration(w.killAt-monotonic()) - w.margin }

func (w *watch) run(lines <-chan string) int {
	timer := time.NewTimer(time.Hour)
	for {
		select {
		case line, open := <-lines:
			if !open { // the parent is gone
				return w.end(min(w.grace, w.left()), nil)
			}
			if line == "done" {
				return 0
			}
			_, _ = fmt.Sscanf(line, "group %d", &w.group)
			_, _ = fmt.Sscanf(line, "parent %d %s", &w.parent, &w.holdMark)
			_, _ = fmt.Sscanf(line, "until %d", &w.killAt)
			w.isEnding = w.isEnding || line == "ending"
		case <-timer.C:
		}
		if w.killAt == 0 || w.group == 0 {
			continue
		}
		begin := w.left() - w.grace
		if w.isEnding || begin <= 0 {
			return w.end(w.left(), lines)
		}
		timer.Reset(min(begin, time.Second)) // a timer does not count while the machine sleeps
	}
}

// end ends the group: SIGTERM now, unless the parent has sent it, and SIGKILL when the time is over. lines has further
// messages of the parent.
//
// A busy machine needs a second or more to read /proc. So a separate goroutine reads it, and SIGKILL does not wait for that
// goroutine: processes found until then get SIGKILL on time, and the others when they are found.
func (w *watch) end(left time.Duration, lines <-chan string) (code int) {
	if w.group == 0 {
		return 0
	}
	if !w.isEnding {
		code = w.act()
		_ = unix.Kill(-w.group, unix.SIGTERM)
		_ = unix.Kill(-w.group, unix.SIGCONT)
	}
	looks, hurry := make(chan snapshot), make(chan struct{})
	go w.watchOutside(looks, hurry)
	hurried := sync.OnceFunc(func() { close(hurry) })
	kill := time.After(left)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	var last snapshot
	var killed, died time.Time // died: when the group was found to have ended
	for {
		select {
		case line, open := <-lines:
			if line == "done" {
				return code
			}
			if !open { // the parent is gone: the guard ends the remaining processes
				lines, kill, code = nil, time.After(min(w.grace, w.left())), w.act()
			}
		case last = <-looks:
			if !killed.IsZero() && last.takenAt.Sub(killed) > 10*time.Second { // a process waits in the kernel
				return code
			}
		case <-kill:
			killed, code = time.Now(), w.act()
		case <-poll.C:
		}
		if died.IsZero() && unix.Kill(-w.group, 0) == unix.ESRCH {
			died = time.Now()
		}
		if !killed.IsZero() {
			w.kill(last, died.IsZero())
		}
		if !killed.IsZero() || !died.IsZero() {
			hurried()
		}
		if !died.IsZero() && last.takenAt.After(died) && len(last.outside) == 0 {
			return code
		}
	}
}

// act signals the command that it has lost the lock. It returns guardActed.
func (w *watch) act() int {
	_, _ = w.lost.WriteString("lost\n")
	return guardActed
}

func (w *watch) kill(snap snapshot, group bool) {
	if group {
		_ = unix.Kill(-w.group, unix.SIGKILL)
	}
	for _, p := range snap.outside {
		p.signal(unix.SIGKILL)
	}
}

// A snapshot is the list in /proc of the processes that have left the group.
type snapshot struct {
	takenAt time.Time
	outside []relative
}

// watchOutside sends snapshots for as long as the process lives: seldom, because reading /proc takes time from the rest of
// the guard, and more often after hurry.
func (w *watch) watchOutside(snapshots chan<- snapshot, hurry <-chan struct{}) {
	w.strays = map[relative]bool{}
	for {
		began := time.Now()
		snapshots <- snapshot{began, w.outside()}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-hurry:
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// outside returns the processes of the command that have left its group, including processes that were found before.
func (w *watch) outside() (left []relative) {
	for _, p := range w.find() {
		w.strays[p] = true
	}
	for p := range w.strays {
		if p.lives() {
			left = append(left, p)
		} else {
			delete(w.strays, p)
		}
	}
	return left
}

func (w *watch) inProc() []relative {
	switch {
	case w.parent == 0:
		return nil
	case os.Getppid() != w.parent: // the parent has ended: its descendants cannot be found any more
		return under(w.holdMark, w.group, os.Getpid())
	}
	return outside(w.parent, w.group, os.Getpid())
}

// monotonic returns the time on a clock that all processes share, and that counts while the machine sleeps.
func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(sharedClock, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// executable returns the path of this program.
func executable() string {
	const self = "/proc/self/exe" // works even if the file was replaced since
	if _, err := os.Stat(self); err == nil {
		return self
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}
