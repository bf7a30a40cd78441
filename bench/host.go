package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/loopback"
	"github.com/go-rlock/rlock/internal/redistest"
)

// host stands in for the test that package redistest starts its servers for.
type host struct {
	testing.TB // the methods that redistest does not call

	mu    sync.Mutex // guards later
	later []func()
}

// fatal is what host panics with, and what run returns.
type fatal struct{ error }

func (h *host) Helper()                           {}
func (h *host) Failed() bool                      { return false }
func (h *host) Name() string                      { return "bench" }
func (h *host) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (h *host) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (h *host) Error(args ...any)                 { h.Log(args...) }
func (h *host) Errorf(format string, args ...any) { h.Logf(format, args...) }
func (h *host) Fatal(args ...any)                 { panic(fatal{errors.New(fmt.Sprint(args...))}) }
func (h *host) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }
func (h *host) Skip(args ...any)                  { h.Fatal(args...) }

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.later = append(h.later, f)
}

// cleanUp ends what has been started since, the latest first.
func (h *host) cleanUp() {
	for {
		h.mu.Lock()
		n := len(h.later)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		f := h.later[n-1]
		h.later = h.later[:n-1]
		h.mu.Unlock()
		f()
	}
}

func (h *host) must(err error) {
	if err != nil {
		h.Fatal(err)
	}
}

// server is a redis-server and a connection that only asks for its figures.
type server struct {
	*redistest.Server
	ask *redis.Client
}

func (b *bench) server() *server { return b.servers(1)[0] }

func (b *bench) servers(n int) (all []*server) {
	for _, s := range redistest.StartMasters(b.host, n) {
		all = append(all, &server{s, s.Client(func(o *redis.Options) { o.PoolSize = 1 })})
	}
	return all
}

// direct are the commands that clients send in any case; a peer adds others
// (peer.direct). All other commands run inside scripts.
var direct = []string{"evalsha", "eval", "fcall", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "psubscribe", "ping", "hello", "script|load", "script|exists"}

// counts are the figures of a server since its start.
type counts struct {
	calls map[string]float64
	micro map[string]float64
	cpu   time.Duration // of the thread that runs commands
}

func (s *server) counts() counts {
	c := counts{map[string]float64{}, map[string]float64{}, 0}
	info, err := s.ask.Info(context.Background(), "commandstats", "cpu").Result()
	if err != nil {
		panic(fatal{err})
	}
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name, ok := strings.CutPrefix(key, "cmdstat_"); ok {
			fields := map[string]float64{}
			for f := range strings.SplitSeq(value, ",") {
				k, v, _ := strings.Cut(f, "=")
				fields[k], _ = strconv.ParseFloat(v, 64)
			}
			c.calls[name], c.micro[name] = fields["calls"], fields["usec"]
		} else if key == "used_cpu_user_main_thread" || key == "used_cpu_sys_main_thread" {
			seconds, _ := strconv.ParseFloat(value, 64)
			c.cpu += time.Duration(seconds * float64(time.Second))
		}
	}
	return c
}

// work is what a server did in between.
type work struct {
	commands float64 // that clients sent
	inside   float64 // that scripts called
	micro    float64 // time in commands
	cpu      time.Duration
}

func (c counts) until(later counts, alsoDirect []string) (w work) {
	w.cpu = later.cpu - c.cpu
	for name, calls := range later.calls {
		calls -= c.calls[name]
		if name == "info" || strings.HasPrefix(name, "config") || strings.HasPrefix(name, "client|") {
			continue // ours, and handshakes of new connections
		}
		if contains(direct, name) || contains(alsoDirect, name) {
			w.commands += calls
			w.micro += later.micro[name] - c.micro[name]
		} else {
			w.inside += calls
		}
	}
	return w
}

func contains(all []string, name string) bool {
	for _, a := range all {
		if a == name {
			return true
		}
	}
	return false
}

// usage is what this process has used.
type usage struct {
	cpu     time.Duration
	mallocs uint64
	bytes   uint64
}

func used() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{cpuTime(), m.Mallocs, m.TotalAlloc}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(fatal{err})
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// link is a relay to a server that counts the commands that clients send.
type link struct {
	addr     string
	commands atomic.Int64
}

// link is in place until the run ends.
func (b *bench) link(s *server) *link {
	ln, err := loopback.Listen()
	b.host.must(err)
	b.host.Cleanup(func() { _ = ln.Close() })
	l := &link{addr: ln.Addr().String()}
	go relay(ln, s.Addr(), func(client, up net.Conn) {
		var c commandCounter
		var wg sync.WaitGroup
		wg.Go(func() { pass(client, func(p []byte) { l.commands.Add(c.count(p)); send(up, p) }); _ = up.Close() })
		wg.Go(func() { pass(up, func(p []byte) { send(client, p) }); _ = client.Close() })
		wg.Wait()
	})
	return l
}

// relay carries what comes to a listener to an address, and back.
func relay(ln net.Listener, addr string, carry func(client, up net.Conn)) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		go carry(client, up)
	}
}

// pass passes on what comes until the connection ends.
func pass(from net.Conn, to func(p []byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			to(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func send(to net.Conn, p []byte) {
	if _, err := to.Write(p); err != nil {
		_ = to.Close()
	}
}

// commandCounter counts the commands in a stream of requests, which are arrays of bulk
// strings, whatever pieces it comes in.
type commandCounter struct {
	line []byte // of a header that is not complete
	skip int    // bytes of a bulk string, with its line end, that are to come
}

func (c *commandCounter) count(p []byte) (n int64) {
	for len(p) > 0 {
		if c.skip > 0 {
			k := min(c.skip, len(p))
			c.skip, p = c.skip-k, p[k:]
			continue
		}
		b := p[0]
		p = p[1:]
		if b != '\n' {
			c.line = append(c.line, b)
			continue
		}
		header := strings.TrimSuffix(string(c.line), "\r")
		c.line = c.line[:0]
		switch {
		case strings.HasPrefix(header, "*"):
			n++
		case strings.HasPrefix(header, "$"):
			size, _ := strconv.Atoi(header[1:])
			c.skip = size + 2
		}
	}
	return n
}

// countsOf are the counts of several servers together.
func countsOf(servers []*server) counts {
	sum := servers[0].counts()
	for _, s := range servers[1:] {
		c := s.counts()
		for name := range c.calls {
			sum.calls[name] += c.calls[name]
			sum.micro[name] += c.micro[name]
		}
		sum.cpu += c.cpu
	}
	return sum
}
