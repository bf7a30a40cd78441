//go:build unix

package locktest

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// ChildPatience bounds every wait for a child process, and for all of its work. It may start while the
// machine is busy with many others.
const ChildPatience = 4 * time.Minute

// Child is an operating system process of its own: this test binary again,
// which runs one mode of TestChildProcess. The two talk in lines: what the
// parent writes is an order, what the child writes after "> " is a report.
type Child struct {
	t       testing.TB
	cmd     *exec.Cmd
	orders  io.WriteCloser
	reports chan string
	done    chan struct{} // closed when the process has been waited for

	mu   sync.Mutex // guards the rest
	part []byte     // a line that is not complete yet
	rest bytes.Buffer
}

// StartChild runs a mode in a process that is dead when the test ends.
func StartChild(t testing.TB, mode string, args ...string) *Child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{t: t, reports: make(chan string, 1024), done: make(chan struct{})}
	c.cmd = exec.Command(exe, append([]string{"-test.run=^TestChildProcess$", "-test.timeout=5m", "--"}, args...)...)
	c.cmd.Env = append(os.Environ(), childEnv+"="+mode)
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.SysProcAttr = dieWithParent()
	if c.orders, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		// The parent death signal is sent when the thread that forked the
		// child ends. This goroutine keeps its thread until the child is gone.
		runtime.LockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // the exit status is in ProcessState
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		if t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Logf("%s, process %d, %v, wrote:\n%s%s", mode, c.cmd.Process.Pid, c.cmd.ProcessState, c.rest.Bytes(), c.part)
		}
	})
	return c
}

// Write takes what the child prints.
func (c *Child) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.part = append(c.part, b...)
	for {
		line, after, ok := bytes.Cut(c.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if report, ok := strings.CutPrefix(string(line), "> "); ok {
			select {
			case c.reports <- report:
			default:
				fmt.Fprintf(&c.rest, "(nobody reads) %s\n", report)
			}
		} else {
			fmt.Fprintf(&c.rest, "%s\n", line)
		}
		c.part = after
	}
}

// Order writes a line for the child.
func (c *Child) Order(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.orders, line+"\n"); err != nil {
		c.t.Fatalf("a child does not take orders: %v", err)
	}
}

// Report waits for the child's next report, which must be of the kind asked
// for, and returns what follows the kind.
func (c *Child) Report(kind string) string {
	c.t.Helper()
	var line string
	select {
	case line = <-c.reports:
	default:
		select {
		case line = <-c.reports:
		case <-c.done:
			select {
			case line = <-c.reports: // its last words
			default:
				c.t.Fatalf("a child ended (%v) before it reported %q", c.cmd.ProcessState, kind)
			}
		case <-time.After(ChildPatience):
			c.t.Fatalf("waited too long for a child to report %q", kind)
		}
	}
	got, rest, _ := strings.Cut(line, " ")
	if got != kind {
		c.t.Fatalf("a child reported %q instead of %q", line, kind)
	}
	return rest
}

// Finish waits until the child has ended, with success.
func (c *Child) Finish() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(ChildPatience):
		c.t.Fatal("waited too long for a child to end")
	}
	if !c.cmd.ProcessState.Success() {
		c.t.Errorf("a child failed: %v", c.cmd.ProcessState)
	}
}

// Signal reaches this child or nobody.
func (c *Child) Signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// Pid is the number of the process.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Kill ends the child, a stopped one too, and returns when it is gone.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// Parent is the other end, in the child.
type Parent struct {
	Orders chan string
	mu     sync.Mutex // keeps reports whole
}

// Report reports to the parent: a kind, and what belongs to it.
func (p *Parent) Report(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("> "+format+"\n", args...)
}

// Await waits for an order; the process ends when the parent does.
func (p *Parent) Await(order string) {
	if got := <-p.Orders; got != order {
		panic(fmt.Sprintf("the parent wants %q, not %q", got, order))
	}
}

// ChildClient is a Client in a child. It is not closed: processes just end.
func ChildClient(t *testing.T, addr string, opts ...rlock.Option) (*rlock.Client, *redis.Client) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	c, err := rlock.New(rdb, append([]rlock.Option{rlock.WithCommandTimeout(timeout), rlock.WithUnlockTimeout(timeout)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c, rdb
}

// ChildMode is what a child does. Its arguments are the server's address and whatever
// the mode takes.
type ChildMode = func(t *testing.T, p *Parent, addr string, args []string)

// RunChild runs the mode that the parent of this process asked for. It is all that the
// TestChildProcess of a package does.
func RunChild(t *testing.T, modes map[string]ChildMode) {
	mode := os.Getenv(childEnv)
	if mode == "" {
		t.Skip("run by other tests, in processes of their own")
	}
	p := &Parent{Orders: make(chan string)}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			p.Orders <- lines.Text()
		}
		os.Exit(3) // the parent is gone
	}()
	args := flag.Args()
	modes[mode](t, p, args[0], args[1:])
}
