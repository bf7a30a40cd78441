package world

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// network is the network between one process and Redis: connections in memory, which can be cut.
type network struct {
	serve func(net.Conn)

	mu    sync.Mutex // guards the rest; never held while waiting
	cut   bool       // nothing gets through
	stuck bool       // the process is stopped, and reads nothing
	lose  bool       // the reply to the next acquire is lost
	ends  map[*pipe]struct{}
}

func newNetwork(serve func(net.Conn)) *network {
	return &network{serve: serve, ends: map[*pipe]struct{}{}}
}

// dial implements Dialer of go-redis.
func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
	}
	up, down := newStream(), newStream()
	down.stuck = n.stuck
	client := &pipe{network: n, in: down, out: up, client: true}
	n.ends[client] = struct{}{}
	n.serve(&pipe{network: n, in: up, out: down})
	return client, nil
}

// setCut cuts the network, or heals it. A reply under way is lost, and its command may have run.
func (n *network) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for p := range n.ends {
			p.breakOff()
		}
	}
}

func (n *network) setStuck(stuck bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = stuck
	for p := range n.ends {
		p.in.change(func(s *stream) { s.stuck = stuck })
	}
}

// loseReply makes the network lose the reply to the next acquire, and the connection with it.
func (n *network) loseReply() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose = true
}

// losing reports whether the reply to this request will be lost.
func (n *network) losing(request []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, sha := seam.Script("lock/enter")
	return n.lose && (bytes.Contains(request, []byte(sha)) || bytes.Contains(request, []byte(text[:min(len(text), 200)])))
}

// lost reports whether a reply is the one to lose, and loses no other.
func (n *network) lost(reply []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.lose || bytes.HasPrefix(reply, []byte("-NOSCRIPT")) { // the script has not run: it is sent again in full
		return false
	}
	n.lose = false
	return true
}

func (n *network) forget(p *pipe) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ends, p)
}

// pipe is one end of a connection. Writers never block, because miniredis writes messages with its lock held.
type pipe struct {
	network *network
	in, out *stream
	client  bool
}

func (p *pipe) Read(b []byte) (int, error) { return p.in.read(b) }

func (p *pipe) Write(b []byte) (int, error) {
	if p.client && p.network.losing(b) {
		p.in.change(func(s *stream) { s.doomed = true })
	}
	if !p.client && p.out.isDoomed() && p.network.lost(b) {
		p.breakOff()
		return len(b), nil
	}
	return p.out.write(b)
}

func (p *pipe) breakOff() {
	p.in.finish(syscall.ECONNRESET)
	p.out.finish(syscall.ECONNRESET)
}

func (p *pipe) Close() error {
	p.in.finish(net.ErrClosed)
	p.out.finish(io.EOF)
	if p.client {
		p.network.forget(p)
	}
	return nil
}

func (p *pipe) LocalAddr() net.Addr              { return address{} }
func (p *pipe) RemoteAddr() net.Addr             { return address{} }
func (p *pipe) SetDeadline(t time.Time) error    { return p.SetReadDeadline(t) }
func (*pipe) SetWriteDeadline(_ time.Time) error { return nil }

func (p *pipe) SetReadDeadline(t time.Time) error {
	p.in.change(func(s *stream) { s.setDeadline(t) })
	return nil
}

// address is reserved for documentation. A name would be resolved.
const redisAddress = "192.0.2.1:6379"

type address struct{}

func (address) Network() string { return "tcp" }
func (address) String() string  { return redisAddress }

// stream is one direction of a connection.
type stream struct {
	mu       sync.Mutex // guards the rest
	changed  *sync.Cond
	bytes    []byte
	stuck    bool
	doomed   bool  // the next reply may be the one that is lost
	err      error // io.EOF is returned after the bytes, other errors before them
	deadline time.Time
	alarm    *time.Timer // wakes the reader at the deadline
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) change(how func(s *stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s)
	s.changed.Broadcast()
}

func (s *stream) isDoomed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doomed
}

func (s *stream) setDeadline(t time.Time) {
	if s.alarm != nil {
		s.alarm.Stop()
	}
	if s.deadline = t; !t.IsZero() {
		s.alarm = time.AfterFunc(time.Until(t), func() { s.change(func(*stream) {}) })
	}
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err == net.ErrClosed:
			return 0, s.err
		case s.stuck: // a stopped process notices nothing
		case s.err != nil && s.err != io.EOF:
			return 0, s.err
		case len(s.bytes) > 0:
			n := copy(b, s.bytes)
			s.bytes = s.bytes[n:]
			return n, nil
		case s.err == io.EOF:
			return 0, io.EOF
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		s.changed.Wait()
	}
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.err {
	case nil:
		s.bytes = append(s.bytes, b...)
		s.changed.Broadcast()
	case io.EOF, syscall.ECONNRESET:
		return 0, syscall.EPIPE
	}
	return len(b), nil // bytes to a closed end vanish
}

func (s *stream) finish(err error) {
	s.change(func(s *stream) {
		if s.err == nil || s.err == io.EOF {
			s.err = err
		}
		if s.alarm != nil && s.err != nil && s.err != io.EOF {
			s.alarm.Stop()
		}
	})
}
