package rlocktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// network is the network between the clients and a server: connections in memory, where a synctest
// bubble can wait, and connections through Addr.
type network struct {
	addr   address // address of the connections in memory
	bubble bool    // the server belongs to a synctest bubble
	serve  func(net.Conn)

	mu       sync.Mutex // guards the rest; never held while waiting
	state    condition
	ends     map[io.Closer]func() // the server's connections, with functions that break them
	listener net.Listener         // listener of Addr, or nil
	accepts  chan struct{}        // closed when the listener is not used any more
	changed  chan struct{}        // closed with each change of the state
}

// condition is the fault of a server.
type condition struct {
	cut  bool          // the server cannot be reached
	hung bool          // the server reads nothing
	slow time.Duration // the server reads so much later
}

// networks counts the networks of the process: each has a different address.
var networks atomic.Int32

func newNetwork(bubble bool) *network {
	// Addresses that are reserved for documentation. A name would be resolved.
	n := networks.Add(1)
	addr := fmt.Sprintf("192.0.2.%d:%d", 1+n%250, 6379+n/250%50_000)
	return &network{addr: address(addr), bubble: bubble, ends: map[io.Closer]func(){}, changed: make(chan struct{})}
}

// now returns the state, and a channel that is closed when the state changes.
func (n *network) now() (condition, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state, n.changed
}

// change changes the state.
func (n *network) change(how func(c *condition)) {
	n.mu.Lock()
	how(&n.state)
	close(n.changed)
	n.changed = make(chan struct{})
	var breaks []func()
	for end, broken := range n.ends {
		p, inMemory := end.(*pipe)
		if n.state.cut || n.state.hung && inMemory && p.in.pubsub {
			breaks = append(breaks, broken)
		}
	}
	n.mu.Unlock()
	for _, broken := range breaks {
		broken()
	}
}

// dial implements Dialer of go-redis.
func (n *network) dial(_ context.Context, _, _ string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: n.addr, Err: err}
	}
	if bubbled() != n.bubble {
		return fail(errors.New(wrongBubble))
	}
	state, _ := n.now()
	// go-redis holds a mutex while it opens a connection for messages. The time of a bubble does not
	// pass while a goroutine waits for that mutex, so nothing takes time there: while a server hangs,
	// such connections break, and new ones are refused.
	pubsub := dialedForMessages()
	if state.cut || state.hung && pubsub {
		return fail(syscall.ECONNREFUSED)
	}
	up, down := newStream(), newStream()
	up.network, up.pubsub = n, pubsub
	client, server := &pipe{in: down, out: up, at: n.addr}, &pipe{in: up, out: down, at: n.addr}
	server.closed = func() { n.remove(server) }
	if !n.serves(server, func() { up.reset(); down.reset() }) {
		return fail(syscall.ECONNREFUSED)
	}
	return client, nil
}

// serves passes a connection to the server, and records how to break it. It returns false if the server cannot be
// reached. Both are one step, so a server that is closed after its network gets no connection any more.
func (n *network) serves(end net.Conn, broken func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.cut {
		return false
	}
	n.ends[end] = broken
	n.serve(end)
	return true
}

func (n *network) remove(end io.Closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ends, end)
}

func dialedForMessages() bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "go-redis/v9.(*PubSub)") {
			return true
		}
		if !more {
			return false
		}
	}
}

// listen returns the host:port of the listener, and starts it if necessary.
func (n *network) listen() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		n.listener, n.accepts = l, make(chan struct{})
		go n.accept(l)
	}
	return n.listener.Addr().String(), nil
}

func (n *network) accept(l net.Listener) {
	defer close(n.accepts)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c := &socket{Conn: conn, network: n, over: make(chan struct{})}
		if !n.serves(c, func() { _ = c.Close() }) {
			_ = conn.Close()
		}
	}
}

// close ends the listener and all connections; a client that a test has left open gets no new ones.
func (n *network) close() {
	n.change(func(c *condition) { *c = condition{cut: true} })
	n.mu.Lock()
	l := n.listener
	n.mu.Unlock()
	if l != nil {
		_ = l.Close()
		<-n.accepts
	}
}

// socket is the server's end of a connection that came through Addr.
type socket struct {
	net.Conn
	network *network
	once    sync.Once
	over    chan struct{} // closed with it
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	for {
		state, changed := s.network.now()
		if !state.hung {
			if state.slow > 0 {
				wait := time.NewTimer(state.slow)
				defer wait.Stop()
				select {
				case <-wait.C:
				case <-s.over:
				}
			}
			return n, err
		}
		select {
		case <-changed:
		case <-s.over:
			return n, err
		}
	}
}

func (s *socket) Close() error {
	s.once.Do(func() {
		close(s.over)
		s.network.remove(s)
	})
	return s.Conn.Close()
}

// pipe is one end of a connection in memory. Writers never block, because miniredis writes messages
// with its lock held.
type pipe struct {
	in, out *stream
	at      address
	closed  func() // nil for the client's end
}

func (p *pipe) Read(b []byte) (int, error)  { return p.in.read(b) }
func (p *pipe) Write(b []byte) (int, error) { return p.out.write(b) }

func (p *pipe) Close() error {
	p.in.close()
	p.out.end()
	if p.closed != nil {
		p.closed()
	}
	return nil
}

func (p *pipe) LocalAddr() net.Addr              { return p.at }
func (p *pipe) RemoteAddr() net.Addr             { return p.at }
func (p *pipe) SetDeadline(t time.Time) error    { return p.SetReadDeadline(t) }
func (*pipe) SetWriteDeadline(_ time.Time) error { return nil }

func (p *pipe) SetReadDeadline(t time.Time) error {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.in.deadline = t
	p.in.poke()
	return nil
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// stream is one direction of a connection in memory.
type stream struct {
	network *network // nil towards the client, which reads in spite of faults
	pubsub  bool     // the connection is for messages

	wake chan struct{} // capacity 1

	mu       sync.Mutex // guards the rest; never held while waiting
	parts    []part
	err      error // io.EOF is returned after the parts, other errors before them
	deadline time.Time
}

// part has the bytes of one write.
type part struct {
	at    time.Time // when they can be read
	bytes []byte
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) write(b []byte) (int, error) {
	now := time.Now()
	if s.network != nil && !s.pubsub {
		state, _ := s.network.now()
		now = now.Add(state.slow)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.err {
	case nil:
		s.parts = append(s.parts, part{now, append([]byte(nil), b...)})
		s.poke()
	case io.EOF, syscall.ECONNRESET:
		return 0, syscall.EPIPE
	}
	return len(b), nil // bytes to a closed end vanish
}

// read waits only on channels, so that time passes in a bubble meanwhile.
func (s *stream) read(b []byte) (int, error) {
	for {
		var state condition
		var changed <-chan struct{}
		if s.network != nil && !s.pubsub {
			state, changed = s.network.now()
		}
		n, next, err := s.poll(b, state.hung)
		if n > 0 || err != nil {
			return n, err
		}
		if next.IsZero() {
			select {
			case <-s.wake:
			case <-changed:
			}
			continue
		}
		wait := time.NewTimer(time.Until(next))
		select {
		case <-s.wake:
		case <-changed:
		case <-wait.C:
		}
		wait.Stop()
	}
}

// poll reads what can be read now. Otherwise it returns when more can be read without a poke.
func (s *stream) poll(b []byte, hung bool) (n int, next time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.err != nil && s.err != io.EOF:
		return 0, next, s.err
	case len(s.parts) > 0 && !hung && !now.Before(s.parts[0].at):
		first := &s.parts[0]
		n = copy(b, first.bytes)
		if first.bytes = first.bytes[n:]; len(first.bytes) == 0 {
			s.parts = s.parts[1:]
		}
		return n, next, nil
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return 0, next, os.ErrDeadlineExceeded
	case len(s.parts) == 0 && s.err == io.EOF:
		return 0, next, io.EOF
	}
	next = s.deadline
	if len(s.parts) > 0 && !hung && (next.IsZero() || s.parts[0].at.Before(next)) {
		next = s.parts[0].at
	}
	return 0, next, nil
}

// close is called by the reader's side, end by the writer's; reset breaks the connection.
func (s *stream) close() { s.finish(net.ErrClosed) }
func (s *stream) end()   { s.finish(io.EOF) }
func (s *stream) reset() { s.finish(syscall.ECONNRESET) }

func (s *stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || s.err == io.EOF {
		s.err = err
	}
	s.poke()
}
