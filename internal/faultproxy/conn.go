package faultproxy

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// conn is one client connection and its connection to the server. Four
// goroutines serve it, with unbounded queues between them:
//
//	client -> readClient -> cmds -> forward -> server
//	client <- writeClient <- out <- readUpstream <- server
//
// The server is always read, whatever the client does. Otherwise a client that
// writes a long pipeline before it reads would stop the server, the server the
// proxy, and the proxy the client.
type conn struct {
	p      *Proxy
	id     int
	client net.Conn
	ctx    context.Context // ends with the reset
	cancel context.CancelFunc
	lossy  bool // guarded by p.mu: something was lost in the black hole

	cmds *queue[arrival]
	out  *queue[[]byte] // nil: reset the client now

	mu         sync.Mutex // guards what follows, and the order of out
	up         net.Conn   // nil if made in the black hole
	want       []*reply
	kept       [][]byte // replies to the first of two copies
	subscriber bool
	resp3      bool
}

// arrival is a command and the time to forward it.
type arrival struct {
	cmd Command
	due time.Time
}

// fate is what becomes of a reply.
type fate int

const (
	deliver fate = iota
	drop
	keep    // until the next one comes
	instead // in its place go those that were kept
	resetClient
	synthetic // not from the server: due as soon as it is first in line
)

// reply is one that the client, or the proxy on its behalf, waits for.
type reply struct {
	fate  fate
	text  []byte // of a synthetic reply; nil resets the client
	hello bool   // it shows the protocol version
	kind  string // of the confirmations to a (un)subscribe, else ""
	left  int    // how many of them are to come
}

func newConn(p *Proxy, id int, client net.Conn) *conn {
	ctx, cancel := context.WithCancel(p.ctx)
	return &conn{
		p: p, id: id, client: client, ctx: ctx, cancel: cancel,
		cmds: newQueue[arrival](), out: newQueue[[]byte](),
	}
}

// serve returns when both connections are closed and no goroutine is left.
func (c *conn) serve() {
	defer c.p.forget(c)
	defer c.reset()
	var wg sync.WaitGroup
	if !c.p.lost(c) {
		up, err := c.p.dial(c.ctx)
		if err != nil {
			return
		}
		defer up.Close()
		c.mu.Lock()
		c.up = up
		c.mu.Unlock()
		// A reset during the dial did not see up.
		if c.ctx.Err() != nil {
			return
		}
		wg.Go(c.readUpstream)
	}
	wg.Go(c.readClient)
	wg.Go(c.forward)
	wg.Go(c.writeClient)
	wg.Wait()
}

// reset ends the connection immediately, with an RST to the client. It does not
// wait for the goroutines, as it may be called from one of them.
func (c *conn) reset() {
	c.cancel()
	if tcp, ok := c.client.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.client.Close()
	c.mu.Lock()
	if c.up != nil {
		c.up.Close()
	}
	c.mu.Unlock()
	c.cmds.abort()
	c.out.abort()
}

// readClient records commands as they arrive. When the client closes, what it
// has sent is still forwarded.
func (c *conn) readClient() {
	defer c.cmds.close()
	r := bufio.NewReader(c.client)
	var setup [][]byte
	for {
		cmd, err := readCommand(r)
		if err != nil {
			return
		}
		cmd.Conn = c.id
		cmd.setup = slices.Clip(setup)
		if cmd.isSetup() {
			setup = append(cmd.setup, cmd.Raw)
		}
		now := time.Now()
		c.cmds.push(arrival{cmd, now.Add(c.p.arrived(cmd))})
	}
}

// forward does to each command what the test asks for.
func (c *conn) forward() {
	for {
		a, ok := c.cmds.pop()
		if !ok {
			break
		}
		if !c.wait(a.due) {
			return
		}
		if c.p.lost(c) {
			continue
		}
		action := c.p.action(a.cmd)
		// The handler may have started the black hole.
		if c.p.lost(c) {
			continue
		}
		if !c.apply(a.cmd, action) {
			return
		}
	}
	// The server learns that the client has gone, after its last command.
	if half, ok := c.up.(interface{ CloseWrite() error }); ok && !c.p.lost(c) {
		half.CloseWrite()
	}
}

// wait returns false if the connection was reset before due.
func (c *conn) wait(due time.Time) bool {
	if d := time.Until(due); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-c.ctx.Done():
		case <-timer.C:
		}
	}
	return c.ctx.Err() == nil
}

// apply returns false if the connection is to be reset by this command. Those
// behind it in a pipeline do not run then, so that tests can rely on it.
func (c *conn) apply(cmd Command, action Action) bool {
	switch action {
	case Pass:
		c.send(cmd, deliver)
	case SwallowReply:
		c.send(cmd, drop)
	case ResetAfter:
		c.send(cmd, resetClient)
		return false
	case ResetBefore:
		c.say(nil)
		return false
	case Duplicate:
		c.send(cmd, keep, instead)
	case Error:
		c.say([]byte(c.p.ErrorText + "\r\n"))
	case Hold:
		c.p.hold(cmd)
	default:
		panic("faultproxy: unknown action")
	}
	return true
}

// send forwards cmd, once for each fate. Its reply is expected before it is written: the
// server may be faster than the lock.
func (c *conn) send(cmd Command, fates ...fate) {
	c.mu.Lock()
	for _, f := range fates {
		w := &reply{fate: f, hello: cmd.Name == "hello"}
		if n := cmd.confirmations(); n > 0 {
			w.kind, w.left = cmd.Name, n
		}
		c.want = append(c.want, w)
	}
	c.subscriber = c.subscriber || cmd.subscribes()
	c.mu.Unlock()
	c.up.Write(bytes.Repeat(cmd.Raw, len(fates))) // readUpstream sees a failure too, and ends the connection
}

// say puts a reply of the proxy's own, or a reset if nil, in its place behind
// the replies to earlier commands.
func (c *conn) say(text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = append(c.want, &reply{fate: synthetic, text: text})
	c.flush()
}

func (c *conn) readUpstream() {
	r := bufio.NewReader(c.up)
	for {
		frame, err := readFrame(r)
		if c.p.lost(c) {
			if err != nil {
				return // the client must not learn it
			}
			continue
		}
		if err != nil {
			c.out.close()
			return
		}
		c.settle(frame)
	}
}

// settle matches a frame with the reply it is and decides its fate.
func (c *conn) settle(frame []byte) {
	muted := c.p.muted()
	c.mu.Lock()
	defer c.mu.Unlock()

	// Out of band are pushes, which in RESP2 are arrays that only a subscriber
	// gets. Other arrays of a subscriber, as its PONG, are ordinary replies.
	push := frame[0] == '>'
	kind := ""
	if push || frame[0] == '*' && c.subscriber && !c.resp3 {
		kind = kindOf(frame)
	}
	switch {
	case isMessage(kind):
		if !muted {
			c.out.push(frame)
		}
	case isConfirmation(kind):
		if len(c.want) == 0 || c.want[0].kind != kind {
			c.out.push(frame) // the server's own, as when a slot moves
			return
		}
		w := c.want[0]
		w.left--
		if w.left > 0 && w.fate == resetClient {
			return // at the last one
		}
		if w.left == 0 {
			c.want = c.want[1:]
		}
		c.finish(w, frame)
	case push:
		c.out.push(frame)
	default:
		// A refused subscribe has one error for all channels. Anything else
		// that is not a confirmation belongs to a later command.
		for len(c.want) > 0 && c.want[0].kind != "" && !isError(frame) {
			c.want = c.want[1:]
		}
		if len(c.want) == 0 {
			c.out.push(frame) // unasked, as from MONITOR
			return
		}
		w := c.want[0]
		c.want = c.want[1:]
		c.finish(w, frame)
	}
}

// finish executes the fate of a reply. Needs c.mu.
func (c *conn) finish(w *reply, frame []byte) {
	if w.hello && !isError(frame) {
		c.resp3 = frame[0] == '%'
	}
	switch w.fate {
	case deliver:
		c.out.push(frame)
	case keep:
		c.kept = append(c.kept, frame)
	case instead:
		for _, frame := range c.kept {
			c.out.push(frame)
		}
		c.kept = nil
	case resetClient:
		c.out.push(nil)
	}
	c.flush()
}

// flush emits the proxy's own replies that are first in line. Needs c.mu.
func (c *conn) flush() {
	for len(c.want) > 0 && c.want[0].fate == synthetic {
		c.out.push(c.want[0].text)
		c.want = c.want[1:]
	}
}

// writeClient ends when the server has closed and all it said is delivered. A
// client that has gone does not end it: the server's side decides.
func (c *conn) writeClient() {
	defer c.client.Close()
	for {
		frame, ok := c.out.pop()
		if !ok {
			return
		}
		if frame == nil {
			c.reset()
			return
		}
		c.client.Write(frame)
	}
}
