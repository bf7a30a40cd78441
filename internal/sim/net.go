package sim

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// segment is what one write put on the wire. Towards the server it is exactly
// one request, so that each can have its own fate.
type segment struct {
	at    time.Time
	b     []byte
	read  int // bytes of b that the reader has already
	fate  fate
	delay time.Duration // in addition to the latency
}

// stream is one direction of a connection: a queue without a bound whose
// segments become readable, in order, at a chosen virtual time. Writers never
// block (rule 1): miniredis writes replies and go-redis writes subscriptions
// with a mutex held.
type stream struct {
	link     *link
	toClient bool
	off      time.Duration // when this reader notices what all notice (rule 3)

	mu       sync.Mutex // guards all below; never held while waiting
	q        []*segment
	wake     chan struct{}
	lastAt   time.Time
	eofAt    time.Time // the writer closed
	rstAt    time.Time // the connection was reset
	closed   bool      // the reader closed
	deadline time.Time
	rng      *rand.Rand
}

func newStream(l *link, dir string, toClient bool) *stream {
	label := l.name + " " + dir
	return &stream{
		link: l, toClient: toClient, off: l.host.w.offset(label),
		wake: make(chan struct{}, 1), rng: l.host.w.Rand(label),
	}
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write puts segments on the wire, all with one latency: they left in one
// packet. It fails on a connection that was reset; bytes for a peer that closed
// vanish, as they do on a socket.
func (s *stream) write(segs ...*segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.rstAt.IsZero() {
		return syscall.EPIPE
	}
	if s.closed {
		return nil
	}
	at := time.Now()
	if !s.link.fast.Load() {
		if resume := s.link.host.resumesAt(); !s.toClient && resume.After(at) {
			at = resume // a goroutine without a gate ran in a paused process
		}
		at = at.Add(s.link.host.latency(s.link.server.index, s.rng))
		if !at.After(s.lastAt) {
			at = s.lastAt.Add(1)
		}
	}
	for _, g := range segs {
		at = at.Add(g.delay)
		g.at, s.lastAt = at, at
		s.q = append(s.q, g)
		at = at.Add(1)
	}
	s.poke()
	return nil
}

func (s *stream) closeWrite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eofAt.IsZero() {
		s.eofAt = time.Now().Add(s.link.host.latency(s.link.server.index, s.rng))
		if !s.eofAt.After(s.lastAt) {
			s.eofAt = s.lastAt.Add(1)
		}
	}
	s.poke()
}

func (s *stream) reset(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rstAt.IsZero() || at.Before(s.rstAt) {
		s.rstAt = at
	}
	s.poke()
}

// closeRead reports whether this call closed the stream.
func (s *stream) closeRead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.closed
	s.closed = true
	s.poke()
	return !was
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.poke()
}

// read waits for data, EOF, a reset, the deadline or a close. Every wait is on
// a channel or a timer, so it is durable, and every instant it waits for lies in
// the future, so virtual time advances. The segment is returned with its first
// bytes only.
func (s *stream) read(p []byte) (int, *segment, error) {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return 0, nil, net.ErrClosed
		}
		n, g, next, err := s.poll(p, time.Now())
		s.mu.Unlock()
		if n > 0 || err != nil {
			return n, g, err
		}
		if next.IsZero() {
			<-s.wake
			continue
		}
		t := time.NewTimer(time.Until(next))
		select {
		case <-s.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// poll returns what has happened by now or, if nothing has, when the next thing
// will, as far as is known.
func (s *stream) poll(p []byte, now time.Time) (n int, first *segment, next time.Time, err error) {
	var pause, hold time.Time // nothing is noticed before, no data arrives before
	if !s.link.fast.Load() {
		if s.toClient {
			pause = s.link.host.resumesAt().Add(s.off)
		}
		hold = s.link.heldUntil(s.toClient).Add(s.off)
	}
	due := func(at, hold time.Time) bool {
		if at.IsZero() {
			return false
		}
		if at.Before(hold) {
			at = hold
		}
		if !now.Before(at) {
			return true
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
		return false
	}
	switch {
	case due(s.rstAt, pause):
		return 0, nil, next, syscall.ECONNRESET
	case !s.dataBeatsDeadline(now, pause, hold) && due(s.deadline, pause):
		return 0, nil, next, os.ErrDeadlineExceeded
	case len(s.q) > 0:
		g := s.q[0]
		if !due(g.at, hold) {
			return 0, nil, next, nil
		}
		if g.read == 0 {
			first = g
		}
		n = copy(p, g.b[g.read:])
		if g.read += n; g.read == len(g.b) {
			s.q = s.q[1:]
		}
		return n, first, next, nil
	case due(s.eofAt, hold):
		return 0, nil, next, io.EOF
	}
	return 0, nil, next, nil
}

// dataBeatsDeadline decides what a process sees first that slept through both
// the arrival of a reply and the end of its patience. A real one may see either,
// and the reply is the dangerous one: an old success that looks fresh.
func (s *stream) dataBeatsDeadline(now, pause, hold time.Time) bool {
	if s.deadline.IsZero() || !s.deadline.Before(pause) || len(s.q) == 0 ||
		s.q[0].at.After(pause) || now.Before(hold) {
		return false
	}
	return s.link.host.w.chance(0.5, s.link.name, pause)
}

// conn is one end of a link, as a net.Conn.
type conn struct {
	*link
	client bool
	rd, wr *stream

	in, out []byte // bytes of a request or reply that is not complete yet
}

// Read on the server's side is where a request arrives.
func (c *conn) Read(p []byte) (int, error) {
	n, g, err := c.rd.read(p)
	if g != nil && !c.client {
		if !c.arrived(g) {
			return 0, syscall.ECONNRESET
		}
	}
	return n, err
}

// Write cuts the bytes into requests or replies and lets each meet its fate. It
// never blocks (rule 1). Calls on one end do not overlap: go-redis and miniredis
// each serialize them.
func (c *conn) Write(p []byte) (int, error) {
	buf := &c.out
	if c.client {
		buf = &c.in
	}
	*buf = append(*buf, p...)
	var segs []*segment
	for {
		n := elementLen(*buf)
		if n == 0 {
			break
		}
		b := (*buf)[:n:n]
		*buf = (*buf)[n:]
		if c.client {
			segs = append(segs, c.request(sortChannels(b))...)
		} else if c.passes(b) {
			segs = append(segs, &segment{b: b})
		}
	}
	if len(*buf) == 0 {
		*buf = nil // the segments own the memory now
	}
	if len(segs) == 0 {
		return len(p), nil
	}
	if err := c.wr.write(segs...); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *conn) Close() error {
	if c.rd.closeRead() {
		c.wr.closeWrite()
		// Only the server's end: it may still have requests of a client that has
		// closed, and a restart must not let it run them.
		if !c.client {
			c.host.w.forget(c.link)
		}
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr                { return addr(c.name) }
func (c *conn) RemoteAddr() net.Addr               { return addr(c.server.addr) }
func (c *conn) SetDeadline(t time.Time) error      { return c.SetReadDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { c.rd.setDeadline(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { return nil }

type addr string

func (addr) Network() string  { return "sim" }
func (a addr) String() string { return string(a) }
