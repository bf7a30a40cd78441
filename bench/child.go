package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// A child is this program again, as another process that has one peer. It gets orders
// as lines of JSON, answers each with a line, and ends when there are no more.

const childEnv = "RLOCK_BENCH_CHILD"

func isChild() bool { return os.Getenv(childEnv) != "" }

type order struct {
	Op    string
	Peer  string
	Addr  string
	Lease time.Duration
	Name  string
	Cell  string // file of the cell
	First int64  // owner of the first goroutine in it
	N     int
	Keys  int
	Until time.Time
	For   time.Duration
}

type answer struct {
	Err   string
	Addr  string             `json:",omitempty"`
	Crowd *crowdResult       `json:",omitempty"`
	At    int64              `json:",omitempty"` // nanoseconds of the machine's clock
	Some  map[string]float64 `json:",omitempty"`
}

// child is the parent's end.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	enc     *json.Encoder
	answers chan answer // closed when it has ended
}

// child starts one, with a session of a peer.
func (b *bench) child(peer, addr string, lease time.Duration) *child {
	c := b.process()
	b.host.must(c.do(order{Op: "open", Peer: peer, Addr: addr, Lease: lease}, nil))
	return c
}

// process starts one.
func (b *bench) process() *child {
	exe, err := os.Executable()
	b.host.must(err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	b.host.must(err)
	out, err := cmd.StdoutPipe()
	b.host.must(err)
	b.host.must(cmd.Start())
	c := &child{cmd, in, json.NewEncoder(in), make(chan answer, 1)}
	go func() {
		defer close(c.answers)
		for dec := json.NewDecoder(bufio.NewReader(out)); ; {
			var a answer
			if dec.Decode(&a) != nil {
				return
			}
			c.answers <- a
		}
	}()
	b.host.Cleanup(c.stop)
	return c
}

// stop ends it immediately; its locks stay held until their leases are over.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) send(o order) error { return c.enc.Encode(o) }

func (c *child) receive(a *answer) error {
	var got answer
	var alive bool
	select {
	case got, alive = <-c.answers:
		if !alive {
			return errors.New("a child process has ended")
		}
	case <-time.After(3 * time.Minute): // above what any order takes
		return errors.New("a child process does not answer")
	}
	if got.Err != "" {
		return fmt.Errorf("child process: %s", got.Err)
	}
	if a != nil {
		*a = got
	}
	return nil
}

func (c *child) do(o order, a *answer) error {
	if err := c.send(o); err != nil {
		return err
	}
	return c.receive(a)
}

// The child's end.

type servant struct {
	session session
	rdb     *redis.Client
	heard   <-chan *redis.Message
	names   []string // of what it holds; there before it is measured, and after
	kept    []any
	handles map[string][]handle
	cells   map[string]*cell
	blank   memory // before there was anything to keep
}

// orders is the standard input. A read of it leaves the thread to others, as a read of a connection does: otherwise what is
// published for the process may be read only when the runtime notices that the thread is blocked, up to 10 ms later.
func orders() io.Reader {
	if syscall.SetNonblock(0, true) != nil {
		return os.Stdin
	}
	return os.NewFile(0, "orders")
}

func serve(in io.Reader, out io.Writer) {
	redis.SetLogger(quiet{})
	s := servant{handles: map[string][]handle{}, cells: map[string]*cell{}}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if dec.Decode(&o) != nil {
			return
		}
		a, err := s.obey(o)
		if err != nil {
			a.Err = o.Op + ": " + err.Error()
		}
		if enc.Encode(a) != nil {
			return
		}
	}
}

func (s *servant) obey(o order) (a answer, err error) {
	ctx := context.Background()
	switch o.Op {
	case "open":
		s.rdb = redis.NewClient(&redis.Options{Addr: o.Addr})
		s.session, err = openNamed(o.Peer, o.Addr, o.Lease)

	case "network":
		a.Addr, err = delayAll(o.Addr, o.For)

	case "crowd":
		c, err := s.cell(o.Cell)
		if err != nil {
			return a, err
		}
		r := contend(s.some(o.Name, o.N), c, o.First, o.Until)
		a.Crowd = &r

	case "take": // once it is free
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(2*hang, cancel).Stop()
		h := s.some(o.Name, 1)[0]
		if err = h.lock(ctx); err == nil {
			a.At = time.Now().UnixNano()
			err = h.unlock(ctx)
		}

	case "listen":
		ps := s.rdb.Subscribe(ctx, o.Name)
		_, err = ps.Receive(ctx)
		s.heard = ps.Channel()

	case "hear":
		<-s.heard
		a.At = time.Now().UnixNano()

	case "hold":
		return s.hold(o)

	case "watch":
		return s.watch(o)

	case "block":
		return s.block(o)

	case "memory":
		a.Some = s.blank.until(memoryNow())

	default:
		err = fmt.Errorf("no such order")
	}
	return a, err
}

// some are handles of a lock, the same each time.
func (s *servant) some(name string, n int) []handle {
	for len(s.handles[name]) < n {
		s.handles[name] = append(s.handles[name], s.session.handle(name))
	}
	return s.handles[name][:n]
}

func (s *servant) cell(path string) (*cell, error) {
	if c := s.cells[path]; c != nil {
		return c, nil
	}
	c, err := openCell(path)
	s.cells[path] = c
	return c, err
}

// newCell makes a cell that other processes can open.
func (b *bench) newCell() (path string, c *cell) {
	dir, err := os.MkdirTemp("", "rlock-bench-")
	b.host.must(err)
	b.host.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "cell")
	b.host.must(os.WriteFile(path, make([]byte, unsafe.Sizeof(cell{})), 0o600))
	c, err = openCell(path)
	b.host.must(err)
	return path, c
}

// openCell maps a file: the memory of all processes that do.
func openCell(path string) (*cell, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(cell{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*cell)(unsafe.Pointer(&m[0])), nil
}

// memory is what a process has in use.
type memory struct{ heap, stacks, goroutines float64 }

func memoryNow() memory {
	runtime.GC()
	debug.FreeOSMemory() // empties pools for good, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{float64(m.HeapAlloc), float64(m.StackInuse), float64(runtime.NumGoroutine())}
}

func (m memory) until(later memory) map[string]float64 {
	return map[string]float64{"heap": later.heap - m.heap, "stacks": later.stacks - m.stacks, "goroutines": later.goroutines - m.goroutines}
}

// hold acquires N locks within a time and keeps them.
func (s *servant) hold(o order) (a answer, err error) {
	keep := s.session.(keeper)
	ctx, cancel := context.WithCancel(context.Background())
	_ = cancel // some peers end with the context what was acquired with it: it ends with the process
	s.warmUp()
	s.names = make([]string, o.N)
	for i := range s.names {
		s.names[i] = fmt.Sprintf("%s:%07d", o.Name, i)
	}
	s.kept = make([]any, o.N)
	s.blank = memoryNow()
	start := time.Now()
	var next, got, failed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for time.Since(start) < o.For {
				i := int(next.Add(1)) - 1
				if i >= o.N {
					return
				}
				var err error
				if s.kept[i], err = keep.hold(ctx, s.names[i]); err != nil {
					failed.Add(1)
				} else {
					got.Add(1)
				}
			}
		})
	}
	took := progress(&wg, &got, start)
	a.Some = map[string]float64{"acquired": float64(got.Load()), "failed": float64(failed.Load()), "seconds": took.Seconds()}
	a.Some["hung"] = float64(min(int(next.Load()), o.N)) - float64(got.Load()+failed.Load())
	return a, nil
}

// warmUp opens as many connections as will be, and loads the scripts.
func (s *servant) warmUp() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(2*hang, cancel).Stop()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			h := s.session.handle(fmt.Sprint("warm:", i))
			for range 5 {
				if h.lock(ctx) == nil {
					_ = h.unlock(ctx)
				}
			}
		})
	}
	wg.Wait()
}

// progress waits until all are done, or until none has come further for twice as long
// as hung callers are waited for. It returns when the last did, since the start.
func progress(wg *sync.WaitGroup, got *atomic.Int64, start time.Time) time.Duration {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	last, at := got.Load(), time.Now()
	for {
		select {
		case <-done:
			return time.Since(start)
		case <-time.After(hang / 40):
			if n := got.Load(); n != last {
				last, at = n, time.Now()
			} else if time.Since(at) > 2*hang {
				return at.Sub(start)
			}
		}
	}
}

// watch is what the process spends while it does nothing but hold, and how long one
// caller takes meanwhile.
func (s *servant) watch(o order) (a answer, err error) {
	ctx := context.Background()
	t := newTimes()
	hung := 0.0
	cpu, start := cpuTime(), time.Now()
	if o.Name == "" { // only hold
		time.Sleep(o.For)
	} else {
		h := s.some(o.Name, 1)[0]
		for time.Since(start) < o.For {
			ctx, cancel := context.WithCancel(ctx)
			stop := time.AfterFunc(2*hang, cancel)
			begin := time.Now()
			if h.lock(ctx) == nil {
				t.add(time.Since(begin))
				_ = h.unlock(ctx)
			} else {
				hung++
			}
			stop.Stop()
			cancel()
			time.Sleep(2 * time.Millisecond)
		}
	}
	took := time.Since(start).Seconds()
	a.Some = map[string]float64{
		"cores": (cpuTime() - cpu).Seconds() / took, "lost": float64(s.session.(keeper).lost(s.kept)), "seconds": took, "hung": hung,
	}
	if t.N > 0 {
		a.Some["p50"], a.Some["p99"] = t.percentile(50), t.percentile(99)
	}
	return a, nil
}

// block lets N goroutines wait for some keys, for as long as the process lives.
func (s *servant) block(o order) (a answer, err error) {
	handles := make([]handle, o.N)
	for i := range handles {
		handles[i] = s.session.handle(fmt.Sprintf("%s:%d", o.Name, i%o.Keys))
	}
	ctx := context.Background()
	s.warmUp()
	s.blank = memoryNow()
	for _, h := range handles {
		go func() {
			if err := h.lock(ctx); err == nil {
				fmt.Fprintln(os.Stderr, "bench: a waiter has got a lock that another holds")
			}
		}()
	}
	return a, nil
}

// quiet drops what go-redis logs of servers that are dead on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
