package faultproxy

import (
	"bufio"
	"context"
	"net"
)

// Held is how many commands are held, for Release. One for which the function given to Handle
// has returned Hold may not be among them yet.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// Release executes the held commands, oldest first, one after the other, and
// returns for how many a reply came. Commands of one client connection share a
// fresh connection that is logged in and set up like theirs. It reaches the
// server even if clients do not. A blocking command blocks it until Close.
func (p *Proxy) Release() int {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()

	fresh := make(map[int]*direct)
	n := 0
	for _, c := range held {
		d := fresh[c.Conn]
		if d == nil {
			var err error
			if d, err = p.direct(); err != nil {
				continue
			}
			defer d.close()
			fresh[c.Conn] = d
		}
		if d.do(c) == nil {
			n++
		}
	}
	return n
}

// Replay executes a command once more, on a fresh connection that is set up
// like its own was. The error is one of the connection: whatever the server
// replies, be it an error, is dropped.
func (p *Proxy) Replay(c Command) error {
	d, err := p.direct()
	if err != nil {
		return err
	}
	defer d.close()
	return d.do(c)
}

// direct is a connection of the proxy's own to the server, for late copies.
type direct struct {
	net.Conn
	r       *bufio.Reader
	stop    func() bool
	applied int // of the setup commands
}

func (p *Proxy) direct() (*direct, error) {
	up, err := p.dial(p.ctx)
	if err != nil {
		return nil, err
	}
	// Close must not wait for a server that does not answer.
	stop := context.AfterFunc(p.ctx, func() { up.Close() })
	return &direct{Conn: up, r: bufio.NewReader(up), stop: stop}, nil
}

func (d *direct) close() {
	d.stop()
	d.Conn.Close()
}

// do brings the connection to the state of cmd's own, executes cmd and waits
// for the reply.
func (d *direct) do(cmd Command) error {
	for ; d.applied < len(cmd.setup); d.applied++ {
		if err := d.roundTrip(cmd.setup[d.applied], false); err != nil {
			return err
		}
	}
	return d.roundTrip(cmd.Raw, cmd.confirmations() > 0)
}

// roundTrip takes a push for the reply only if the command is answered by one.
func (d *direct) roundTrip(raw []byte, pushed bool) error {
	if _, err := d.Write(raw); err != nil {
		return err
	}
	for {
		frame, err := readFrame(d.r)
		if err != nil {
			return err
		}
		if frame[0] != '>' || pushed {
			return nil
		}
	}
}
