// Package faultproxy is a TCP proxy for tests, between a Redis client and a server. It
// understands RESP, so it can lose, repeat, delay or hold single commands and replies:
// the faults that decide whether a lock is safe, which a proxy of plain bytes can only hit
// by luck. It knows Redis commands, and no locks.
package faultproxy

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/loopback"
)

// DefaultErrorText is what a server says that has just been restarted: clients
// may repeat the command, as it did not run.
const DefaultErrorText = "-LOADING Redis is loading the dataset in memory"

// Action is what happens to one command.
type Action int

const (
	// Pass executes the command and returns its reply.
	Pass Action = iota

	// SwallowReply executes the command and drops the reply. The connection
	// stays open, and replies to later commands follow. TCP never loses bytes
	// in the middle of a stream, so in a pipeline use it on the last command
	// only: a client takes the next reply for the missing one.
	SwallowReply

	// ResetAfter executes the command, waits for the reply as proof, then
	// resets the client's connection instead of returning it.
	ResetAfter

	// ResetBefore resets the client's connection, and the command does not run.
	ResetBefore

	// Duplicate executes the command twice, back to back, and returns the
	// first reply when both have run: what a retry at a lower layer does.
	Duplicate

	// Error answers with Proxy.ErrorText, and the command does not run.
	Error

	// Hold parks the command until Release. The client gets no reply, ever.
	Hold
)

// Proxy forwards connections to one Redis server. Its methods may be called at
// any time, from any goroutine, and from the functions given to Handle and
// Delay, except for Close.
type Proxy struct {
	// ErrorText is the reply of Error, without the line's end. To be set
	// before the first connection.
	ErrorText string

	addr   string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // one per client connection

	listening sync.Mutex // serializes Refuse and Close; guards ln
	ln        *listener

	mu        sync.Mutex // guards everything below
	closed    bool
	upstream  string
	handle    func(Command) Action
	delay     func(Command) time.Duration
	log       []Command
	held      []Command
	conns     map[*conn]struct{}
	lastID    int
	blackhole bool
	mute      bool
}

// listener is a socket and the goroutine that accepts from it.
type listener struct {
	net.Listener
	done chan struct{}
}

// New starts a proxy to upstream, a host:port or the path of a Unix socket. It
// is closed when the test ends.
func New(t testing.TB, upstream string) *Proxy {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		ErrorText: DefaultErrorText,
		ctx:       ctx,
		cancel:    cancel,
		upstream:  upstream,
		conns:     make(map[*conn]struct{}),
	}
	ln, err := loopback.Listen()
	if err != nil {
		t.Fatalf("faultproxy: %v", err)
	}
	p.addr = ln.Addr().String()
	addrs.Store(p.addr, true)
	p.serve(ln)
	t.Cleanup(p.Close)
	return p
}

var addrs sync.Map // of all proxies that there were

// Is reports whether an address belongs to a proxy.
func Is(addr string) bool {
	_, is := addrs.Load(addr)
	return is
}

// Addr is the address for clients. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Handle sets the function that decides on each command, nil to pass all. It
// is called when a command is about to be forwarded, in order per connection
// and concurrently for different ones. It may wait, which holds back its
// connection, but must return before the test ends.
func (p *Proxy) Handle(fn func(Command) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle = fn
}

// Delay sets the function that says how long after its arrival a command is
// forwarded, nil for immediately. Order on a connection is kept. A delayed command
// runs even if its client has given up and closed the connection meanwhile; it
// does not run after a reset by the proxy.
func (p *Proxy) Delay(fn func(Command) time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = fn
}

// Commands returns what clients have sent since New or ResetLog, in order of
// arrival, their handshakes and lost commands included.
func (p *Proxy) Commands() []Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Command(nil), p.log...)
}

// ResetLog forgets the recorded commands.
func (p *Proxy) ResetLog() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = nil
}

// Count returns how many of the recorded commands match.
func (p *Proxy) Count(match func(Command) bool) int {
	n := 0
	for _, c := range p.Commands() {
		if match(c) {
			n++
		}
	}
	return n
}

// Blackhole makes the network lose everything: bytes are accepted and
// discarded, both ways, also the news that a side has closed. Connections can
// be made and get nothing. Commands that were forwarded before it still run,
// their replies are lost. When it ends, connections that lost something are
// reset, as there is no way to go on with them; the others never notice.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	p.blackhole = on
	var broken []*conn
	for c := range p.conns {
		if !on && c.lossy {
			broken = append(broken, c)
		}
	}
	p.mu.Unlock()
	for _, c := range broken {
		c.reset()
	}
}

// lost reports whether what c just received is lost, and marks c as broken if
// so. Under the lock of Blackhole, so that a connection is either reset by the
// end of the black hole or has not lost anything.
func (p *Proxy) lost(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.lossy = c.lossy || p.blackhole
	return c.lossy
}

// Refuse closes the listener, so that dialing fails immediately, and resets the
// existing connections. Off, it listens again on the same port, trying
// until it gets it or the proxy is closed: another process may have taken the
// port for a moment as the source of a connection of its own.
func (p *Proxy) Refuse(on bool) {
	p.listening.Lock()
	defer p.listening.Unlock()
	if on {
		p.unlisten()
		p.ResetAll()
		return
	}
	for p.ln == nil && p.ctx.Err() == nil {
		ln, err := net.Listen("tcp", p.addr)
		if err == nil {
			p.serve(ln)
			return
		}
		select {
		case <-p.ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ResetAll resets every client connection. Commands on their way may or may
// not run.
func (p *Proxy) ResetAll() {
	p.mu.Lock()
	var all []*conn
	for c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.reset()
	}
}

// DropMessages loses published messages on their way to subscribers, and
// nothing else: subscriptions and PINGs are confirmed as ever, so the client
// cannot see it.
func (p *Proxy) DropMessages(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = on
}

// Upstream redirects connections made from now on, including those that Release and Replay make,
// included, to another server.
func (p *Proxy) Upstream(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = addr
}

// Close resets all connections and returns when no goroutine is left. It does
// not wait for delays, held commands or the server. The end of the test calls
// it; more calls do nothing.
func (p *Proxy) Close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listening.Lock()
	p.unlisten()
	p.listening.Unlock()
	p.ResetAll()
	p.wg.Wait()
}

// serve accepts from ln until it is closed. Needs p.listening, or New.
func (p *Proxy) serve(ln net.Listener) {
	l := &listener{Listener: ln, done: make(chan struct{})}
	p.ln = l
	go func() {
		defer close(l.done)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.accept(client)
		}
	}()
}

// unlisten closes the listener and waits for its goroutine, so that every
// connection it let in is registered when ResetAll follows.
func (p *Proxy) unlisten() {
	if p.ln == nil {
		return
	}
	p.ln.Close()
	<-p.ln.done
	p.ln = nil
}

func (p *Proxy) accept(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		client.Close()
		return
	}
	p.lastID++
	c := newConn(p, p.lastID, client)
	p.conns[c] = struct{}{}
	p.wg.Go(c.serve)
}

func (p *Proxy) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// arrived records a command and returns how long it is to be delayed.
func (p *Proxy) arrived(cmd Command) time.Duration {
	p.mu.Lock()
	p.log = append(p.log, cmd)
	delay := p.delay
	p.mu.Unlock()
	if delay == nil {
		return 0
	}
	return delay(cmd)
}

func (p *Proxy) action(cmd Command) Action {
	p.mu.Lock()
	handle := p.handle
	p.mu.Unlock()
	if handle == nil {
		return Pass
	}
	return handle(cmd)
}

func (p *Proxy) hold(cmd Command) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, cmd)
}

func (p *Proxy) muted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mute
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	addr := p.upstream
	p.mu.Unlock()
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}
