package main

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/internal/loopback"
)

// network is a relay to a server that takes half of the delay in each direction, whatever is under
// way at a time. It is a separate process: to wait so exactly takes the processors from goroutines
// in the same process, the more so the more connections a peer has.
func (b *bench) network(s *server, delay time.Duration) (addr string) {
	var a answer
	b.host.must(b.process().do(order{Op: "network", Addr: s.Addr(), For: delay / 2}, &a))
	return a.Addr
}

// piece is what one read returned, and when it arrives; nothing if the connection has ended.
type piece struct {
	due  time.Time
	to   net.Conn
	data []byte
}

// delayAll is the network in its own process. All that is under way takes equally long: so it
// arrives in the order in which it was sent, whatever connection it belongs to.
func delayAll(addr string, delay time.Duration) (string, error) {
	ln, err := loopback.Listen()
	if err != nil {
		return "", err
	}
	runtime.GOMAXPROCS(4) // one is with the goroutine that waits
	pieces := make(chan piece, 1<<16)
	go func() {
		runtime.LockOSThread()
		for p := range pieces {
			sleepUntil(p.due)
			if p.data == nil {
				_ = p.to.Close()
			} else {
				send(p.to, p.data)
			}
		}
	}()
	carry := func(from, to net.Conn) {
		pass(from, func(p []byte) { pieces <- piece{time.Now().Add(delay), to, bytes.Clone(p)} })
		pieces <- piece{time.Now().Add(delay), to, nil}
	}
	go relay(ln, addr, func(client, up net.Conn) {
		var wg sync.WaitGroup
		wg.Go(func() { carry(client, up) })
		wg.Go(func() { carry(up, client) })
		wg.Wait()
	})
	return ln.Addr().String(), nil
}

// sleepUntil is more exact than time.Sleep, which is up to a millisecond late where nothing else
// happens.
func sleepUntil(due time.Time) {
	if d := time.Until(due); d > 0 {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil)
	}
}
