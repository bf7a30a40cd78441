//go:build unix

package interop

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for a process. The slowest thing waited for takes
// some ten seconds on an idle machine; this one may be busy with many others.
const patience = 2 * time.Minute

// language is what a peer is written in.
type language string

const (
	golang language = "Go"
	java   language = "Java"
)

func (l language) other() language {
	if l == java {
		return golang
	}
	return java
}

// peer is a process with one client, of this library or of Redisson. Both kinds
// take the same requests; see java/src/main/java/rlock/interop/Driver.java for
// their form, and Commands.java for what there is. What Redisson calls a thread
// is an owner of this library.
type peer struct {
	language language
	version  string // of Redisson

	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when the process has been waited for and its output read

	mu      sync.Mutex // guards the rest
	calls   int
	pending map[string]chan reply
	stderr  bytes.Buffer
}

// reply is what became of a request.
type reply struct {
	outcome string // ok, no, failed, or dead: the process ended
	values  []string
}

// time is the time of day that a reply begins with.
func (r reply) time() time.Time {
	micros, _ := strconv.ParseInt(r.values[0], 10, 64)
	return time.UnixMicro(micros)
}

func (r reply) String() string { return r.outcome + " " + strings.Join(r.values, " ") }

// startPeer runs a process that is dead, and waited for, when the test ends.
func startPeer(t testing.TB, l language, a *arena) *peer {
	t.Helper()
	p := &peer{language: l, t: t, done: make(chan struct{}), pending: map[string]chan reply{}}
	args := append([]string{a.kind, strconv.FormatInt(cmp.Or(a.lease, watchdog).Milliseconds(), 10)}, a.addrs...)
	switch l {
	case java:
		options := []string{"-cp", classPath, "-Xmx192m", "-XX:+UseSerialGC"}
		if !a.optimizes {
			// Many of these share a machine, and none lives long.
			options = append(options, "-XX:TieredStopAtLevel=1")
		}
		p.cmd = exec.Command("java", slices.Concat(options, []string{"rlock.interop.Driver"}, args)...)
	case golang:
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		p.cmd = exec.Command(exe)
		p.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(args, " "))
	}
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Stderr = lockedWriter{&p.mu, &p.stderr}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	ready := &call{p: p, what: "start", reply: p.expect("0")}
	started := make(chan error, 1)
	go p.run(out, started)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("%s, process %d, %v, wrote: %s", l, p.cmd.Process.Pid, p.cmd.ProcessState, p.stderr.Bytes())
		}
	})
	if r := ready.must(t, "ok"); len(r.values) > 0 {
		p.version = r.values[0]
	}
	return p
}

// run owns the process. Its thread is the one whose end would be a signal for the
// process, so it stays until that is gone.
func (p *peer) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20) // a race writes each wait of a thread, in one line
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		p.mu.Lock()
		c, ok := p.pending[fields[0]]
		delete(p.pending, fields[0])
		if !ok || len(fields) < 2 {
			fmt.Fprintf(&p.stderr, "(not a reply) %s\n", lines.Text())
		}
		p.mu.Unlock()
		if ok && len(fields) > 1 {
			c <- reply{fields[1], fields[2:]}
		}
	}
	_ = p.cmd.Wait() // the exit status is in ProcessState
	close(p.done)
}

func (p *peer) expect(id string) chan reply {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan reply, 1)
	p.pending[id] = c
	return c
}

// kill ends the process as a crash would, and returns when it is gone.
func (p *peer) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// call is a request under way.
type call struct {
	p     *peer
	what  string
	sent  time.Time
	reply chan reply
}

// send has a thread of the peer execute a request.
func (p *peer) send(t testing.TB, thread, verb string, args ...any) *call {
	t.Helper()
	fields := []string{thread, verb}
	for _, arg := range args {
		if d, ok := arg.(time.Duration); ok {
			arg = d.Milliseconds()
		}
		fields = append(fields, fmt.Sprint(arg))
	}
	p.mu.Lock()
	p.calls++
	id := strconv.Itoa(p.calls)
	p.mu.Unlock()
	c := &call{p: p, what: strings.Join(fields, " "), sent: time.Now(), reply: p.expect(id)}
	// One write, so that lines of several goroutines do not mix.
	if _, err := io.WriteString(p.in, id+"\t"+strings.Join(fields, "\t")+"\n"); err != nil {
		t.Fatalf("%s does not take %q: %v", p.language, c.what, err)
	}
	return c
}

// wait returns the reply, whatever it is.
func (c *call) wait(t testing.TB) reply {
	t.Helper()
	select {
	case r := <-c.reply:
		return r
	case <-c.p.done:
		select {
		case r := <-c.reply: // its last words
			return r
		default:
			return reply{outcome: "dead"}
		}
	case <-time.After(patience):
		t.Fatalf("%s: %q is not answered", c.p.language, c.what)
		return reply{}
	}
}

// must returns the reply, which must be of the given outcome.
func (c *call) must(t testing.TB, outcome string) reply {
	t.Helper()
	r := c.wait(t)
	if r.outcome != outcome {
		t.Fatalf("%s: %q is answered %q, want %s", c.p.language, c.what, r, outcome)
	}
	return r
}

// pending reports whether there is no reply yet.
func (c *call) pending() bool { return len(c.reply) == 0 }

// do is send and must.
func (p *peer) do(t testing.TB, thread, verb string, args ...any) reply {
	t.Helper()
	return p.send(t, thread, verb, args...).must(t, "ok")
}

// refuses is do for what must be answered no.
func (p *peer) refuses(t testing.TB, thread, verb string, args ...any) {
	t.Helper()
	p.send(t, thread, verb, args...).must(t, "no")
}

// state is what a peer sees of a lock: whether it is locked by anybody, how often
// by this thread, and the rest of its lease.
func (p *peer) state(t testing.TB, thread, kind, name string) (locked bool, count int, ttl time.Duration) {
	t.Helper()
	v := p.do(t, thread, "state", kind, name).values
	count, _ = strconv.Atoi(v[1])
	ms, _ := strconv.ParseInt(v[2], 10, 64)
	return v[0] == "true", count, time.Duration(ms) * time.Millisecond
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
