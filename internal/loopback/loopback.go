// Package loopback hands out TCP ports on 127.0.0.1 for servers of tests.
//
// If the kernel chose the port, it could be the former port of a server whose clients still dial it: they would connect to
// the server of another test. So a process hands out each port once, two processes that run at the same time hand out
// different ports, and the ports are outside of the range from which the kernel takes the source ports of connections.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports from first on, below the ephemeral ones of Linux (32768) and of the IANA
// (49152), are claimed in blocks. A process has a block as long as it listens on its
// first port; the kernel ends that with the process.
const (
	first  = 10000
	size   = 64
	blocks = (32768 - first) / size
)

var (
	mu       sync.Mutex // guards the rest
	claims   []net.Listener
	nextPort int // port to hand out
	end      int // end of the current block
	started  = rand.IntN(blocks)
	tried    int
)

var errNone = errors.New("loopback: no free ports are left")

// Port returns a port that was free a moment ago.
func Port() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for {
		for nextPort < end {
			port := nextPort
			nextPort++
			if l, err := listen(port); err == nil {
				return port, l.Close()
			}
		}
		if err := claimLocked(); err != nil {
			return 0, err
		}
	}
}

// Listen listens on a new port.
func Listen() (net.Listener, error) {
	for {
		port, err := Port()
		if err != nil {
			return nil, err
		}
		if l, err := listen(port); err == nil {
			return l, nil
		}
	}
}

// claimLocked claims another block.
func claimLocked() error {
	for ; tried < blocks; tried++ {
		begin := first + (started+tried)%blocks*size
		if l, err := listen(begin); err == nil {
			claims = append(claims, l)
			nextPort, end = begin+1, begin+size
			tried++
			return nil
		}
	}
	return fmt.Errorf("%w: %d blocks are in use, %d of them by this process", errNone, blocks, len(claims))
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
