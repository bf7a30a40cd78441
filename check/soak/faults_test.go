//go:build linux

package soak

import (
	"math/rand/v2"
	"time"
)

var faults = []string{
	"reset", "lost replies", "black hole", "stopped server", "scripts flushed", "subscribers killed", "restart with data", "flush",
}

// strike lets a fault happen, to one server or to the way of one client. It returns when that is over.
func (h *house) strike(rnd *rand.Rand, fault string) {
	node := rnd.IntN(len(h.servers))
	s, l := h.servers[node], h.members[rnd.IntN(len(h.members))].links[node]
	switch fault {
	case "reset":
		l.ResetAll()
	case "lost replies":
		l.loses.Store(true)
		time.Sleep(lease / 3)
		l.loses.Store(false)
	case "black hole": // swallows requests and replies, until the connections are reset
		l.Blackhole(true)
		time.Sleep(lease / 2)
		l.Blackhole(false)
	case "stopped server":
		s.Pause()
		time.Sleep(time.Second)
		s.Resume()
	case "scripts flushed":
		h.command(node, "script", "flush")
	case "subscribers killed":
		h.command(node, "client", "kill", "type", "pubsub")
	case "restart with data":
		s.Kill()
		s.Restart()
	case "flush":
		h.command(node, "flushall")
	default:
		panic("no fault " + fault)
	}
	h.struck[fault]++
}

// command sends one to a server, past all proxies.
func (h *house) command(node int, args ...any) {
	h.t.Helper()
	if err := h.direct[node].Do(bg, args...).Err(); err != nil {
		h.t.Errorf("%v: %v", args, err)
	}
}
