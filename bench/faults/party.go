package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/internal/faultproxy"
)

// party is a process with one client of one library.
type party struct {
	h    *host
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when the process has been waited for
	note bytes.Buffer  // its error output, complete when done is closed

	version string // of Redisson
	silent  bool   // its library notifies no holder of a loss

	mu      sync.Mutex // guards the rest
	calls   int
	pending map[string]chan reply
}

// reply is what became of a request, and when this process read it: its clock is the one for all parties.
type reply struct {
	outcome string // ok, no, failed, or dead: the process ended
	text    string
	at      time.Time
}

// startLimit bounds the start of a process, on a machine that is busy with others.
const startLimit = 60 * time.Second

// start runs a process that is gone when the host cleans up.
func (h *host) start(l library, lease time.Duration, addrs ...string) *party {
	p := &party{h: h, silent: l.silent, done: make(chan struct{}), pending: map[string]chan reply{}}
	ms := strconv.FormatInt(lease.Milliseconds(), 10)
	if l.java {
		p.cmd = exec.Command("java", append([]string{"-cp", classPaths[l.older], "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			fmt.Sprint("-Drlock.timeout=", patience(lease).Milliseconds()), "rlock.interop.Driver", "single", ms}, addrs...)...)
	} else {
		exe, err := os.Executable()
		h.must(err)
		p.cmd = exec.Command(exe)
		p.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{l.Name, ms}, addrs...), "\t"))
	}
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Stderr = &p.note
	var err error
	p.in, err = p.cmd.StdinPipe()
	h.must(err)
	out, err := p.cmd.StdoutPipe()
	h.must(err)
	ready := &call{p, p.expect("0")}
	started := make(chan error, 1)
	go p.run(out, started)
	h.must(<-started)
	h.Cleanup(p.kill)
	r, ok := ready.wait(startLimit)
	if !ok || r.outcome != "ok" {
		p.kill()
		h.Fatalf("%s does not start: %s", l.Name, p.note.Bytes())
	}
	p.version = r.text
	return p
}

// run owns the process. The end of its thread would be the end of the process (dieWithParent).
func (p *party) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		now := time.Now()
		f := strings.SplitN(lines.Text(), "\t", 3)
		p.mu.Lock()
		c := p.pending[f[0]]
		delete(p.pending, f[0])
		p.mu.Unlock()
		if c != nil && len(f) > 1 {
			c <- reply{f[1], strings.Join(f[2:], " "), now}
		}
	}
	_ = p.cmd.Wait() // the exit status is in ProcessState
	close(p.done)
}

func (p *party) expect(id string) chan reply {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan reply, 1)
	p.pending[id] = c
	return c
}

// call is a request under way.
type call struct {
	p     *party
	reply chan reply
}

// send has a thread of the party execute a request.
func (p *party) send(thread, verb, name string) *call {
	p.mu.Lock()
	p.calls++
	id := strconv.Itoa(p.calls)
	p.mu.Unlock()
	c := &call{p, p.expect(id)}
	line := []string{id, thread, verb, "lock", name}
	if verb == "lock" {
		line = append(line, "0") // renewed
	}
	_, err := fmt.Fprintln(p.in, strings.Join(line, "\t"))
	p.h.must(err)
	return c
}

// wait returns false if there is no reply in time.
func (c *call) wait(limit time.Duration) (reply, bool) {
	select { // a reply that is there, for a limit of 0
	case r := <-c.reply:
		return r, true
	default:
	}
	select {
	case r := <-c.reply:
		return r, true
	case <-c.p.done:
		return reply{outcome: "dead", at: time.Now()}, true
	case <-time.After(limit):
		return reply{}, false
	}
}

// kill ends the process as a crash would, and returns when it is gone.
func (p *party) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop returns when the process stands still.
func (p *party) stop() {
	p.h.must(p.cmd.Process.Signal(syscall.SIGSTOP))
	for begin := time.Now(); !p.stopped(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > startLimit {
			p.h.Fatal("SIGSTOP has no effect")
		}
	}
}

func (p *party) stopped() bool { return stopped(p.cmd.Process.Pid) }

func (p *party) resume() { p.h.must(p.cmd.Process.Signal(syscall.SIGCONT)) }

// notice requests a reply for when the library notifies the holder of a loss.
func (p *party) notice() *call {
	if p.silent {
		return &call{p, make(chan reply)}
	}
	return p.send("main", "lost", key)
}

// ask requests whether the holder has been notified so far. Of a library that notifies nobody, no holder has.
func (p *party) ask() (told func() bool) {
	if p.silent {
		return func() bool { return false }
	}
	c := p.send("main", "told", key)
	return func() bool {
		r, ok := c.wait(startLimit)
		if !ok {
			p.h.Fatal("a process does not answer")
		}
		return r.outcome == "ok"
	}
}

// lastConn is the number of the newest connection of a proxy.
func lastConn(proxy *faultproxy.Proxy) (last int) {
	for _, c := range proxy.Commands() {
		last = max(last, c.Conn)
	}
	return last
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
