package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock/internal/seam"
)

// Host is a client machine with one process on it. Its faults add up: a second
// pause during a first one ends when the later of the two ends.
type Host struct {
	Name string
	w    *World

	mu    sync.Mutex // guards all below; never held while waiting
	dials map[int]int
	pause time.Time             // the process is stopped until then
	stall stall                 // the latest one, which pause may not have yet
	cut   map[int]time.Time     // server index: unreachable until then
	slow  time.Time             // the network is slow until then
	far   map[int]time.Duration // server index: how much longer each way takes

	atGate func() // is called at the next gate ...
	gate   string // ... whose name begins so

	pubsubDials int // as far as we can tell; the test of rule 1
}

// stall is a pause that begins at a gate, after the instant from: who acts at that instant, as what the
// same event has woken may, does so whether it is the first to run or not (rule 3).
type stall struct{ from, until time.Time }

// Pause stops the process for d: it sends nothing, notices nothing that
// arrives, and passes no gate. Goroutines cannot be frozen, so code under test
// goes on until it reads from the network or asks Gate.
func (h *Host) Pause(d time.Duration) {
	h.w.count(func(s *Stats) { s.Pauses++ })
	h.until(&h.pause, d)
}

// Partition cuts the host off for d. Established connections lose nothing: what
// was sent arrives afterwards, as TCP retransmits it, even if its sender has
// closed the connection since.
func (h *Host) Partition(d time.Duration) {
	h.w.count(func(s *Stats) { s.Partitions++ })
	for i := range h.w.servers {
		h.cutFrom(i, d)
	}
}

// PartitionFrom cuts the host off from one server.
func (h *Host) PartitionFrom(server int, d time.Duration) {
	h.w.count(func(s *Stats) { s.Partitions++ })
	h.cutFrom(server, d)
}

// Slow makes all latencies a hundred times longer for d.
func (h *Host) Slow(d time.Duration) {
	h.w.count(func(s *Stats) { s.Slows++ })
	h.until(&h.slow, d)
}

// Far has whatever goes to a server, or comes from it, take d more.
func (h *Host) Far(server int, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.far[server] = d
}

// Reset breaks every connection of the host. Requests and replies on the wire
// are lost, so a request may or may not have run.
func (h *Host) Reset() {
	h.w.count(func(s *Stats) { s.Resets++ })
	now := time.Now()
	for _, l := range h.w.established() {
		if l.host == h {
			l.reset(now, false)
		}
	}
}

// Gate takes an instant, and blocks while the process is paused. Code under test calls it wherever a
// real process could be stopped: after a timer, after a reply, inside of a
// critical section. With Rates.Stall it may also start a pause right there.
func (h *Host) Gate(point string) {
	h.mu.Lock()
	arrive := h.atGate
	if arrive != nil && strings.HasPrefix(point, h.gate) {
		h.atGate = nil
	} else {
		arrive = nil
	}
	h.mu.Unlock()
	if arrive != nil {
		arrive()
	}
	arrived := time.Now()
	r := h.w.Rates()
	if h.w.chance(r.Stall, "stall "+h.Name+" "+point, arrived) {
		h.w.count(func(s *Stats) { s.Stalls++ })
		d := time.Duration(float64(r.StallFor) * h.w.unit("stall for "+h.Name+" "+point, arrived))
		h.stalls(d)
	}
	// Each goes on at its own instant (rule 3), as if the scheduler took a while
	// to come round to it: what one event wakes, such as the next waiter and the
	// watchdog, would otherwise race for the connections of the pool. When it
	// came is part of the name, because several goroutines may stand at one
	// point.
	off := max(time.Duration(h.w.unit("gate "+h.Name+" "+point, arrived)*float64(spread)), 1)
	for {
		d := time.Until(latest(arrived, h.resumesAt()).Add(off))
		if d <= 0 {
			return
		}
		time.Sleep(d)
	}
}

// AtGate has f called, once, by the next goroutine of the process that comes to a gate
// whose name begins with point, before it passes. It replaces what was asked for before;
// nil: nothing.
func (h *Host) AtGate(point string, f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate, h.atGate = point, f
}

// Sleep is time.Sleep in a process that can be paused. No two goroutines may
// sleep to the same instant (rule 3), so d has a random part.
func (h *Host) Sleep(who string, d time.Duration) {
	time.Sleep(d)
	h.Gate(who)
}

// Env is what the library under test sees of this host. Its clock is the real
// one, which in a bubble is the bubble's.
func (h *Host) Env() seam.Env { return h.env(h.Name) }

// EnvOf is Env for the client of one server, of several: each has an id of its
// own, which ends in the number of the server.
func (h *Host) EnvOf(server int) seam.Env {
	e := h.env(fmt.Sprint(h.Name, ">", server))
	e.ClientID = e.ClientID[:len(e.ClientID)-1] + strconv.Itoa(server)
	return e
}

func (h *Host) env(name string) seam.Env {
	r := h.w.Rand("env " + name)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], h.w.Seed)
	binary.LittleEndian.PutUint64(seed[8:], hash(name))
	hi, lo := r.Uint64(), r.Uint64()
	hi = hi&^0xf000 | 0x4000            // version 4
	lo = lo&^(0b11<<62) | uint64(1)<<63 // RFC 9562 variant
	return seam.Env{
		ClientID: fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xffff, lo>>48, lo&(1<<48-1)),
		Seed:     r.Uint64(),
		Random:   rand.NewChaCha8(seed),
		Gate:     h.Gate,
		// Nothing depends on introductions. Their requests would only move those that matter, and say
		// which process of the machine plays the seed.
		Anonymous: true,
	}
}

// Options are for a client of the given server. Retries inside go-redis are
// off, since they hide faults; a test of them sets MaxRetries itself.
func (h *Host) Options(server int) *redis.Options {
	return &redis.Options{
		Addr:                     h.w.servers[server].addr,
		Dialer:                   h.Dial,
		MaxRetries:               -1,
		MinRetryBackoff:          time.Millisecond,
		MaxRetryBackoff:          time.Millisecond, // equal: no jitter (rule 4)
		DialTimeout:              400 * time.Millisecond,
		DialerRetries:            1,
		ReadTimeout:              400 * time.Millisecond,
		WriteTimeout:             400 * time.Millisecond,
		ContextTimeoutEnabled:    true,
		PoolSize:                 256, // more than any run has at a time (rule 4)
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Dial is a Dialer for go-redis.
//
// PubSub dials, greets and subscribes again while it holds its mutex, so for it
// a dial succeeds or fails immediately, and the handshake takes no virtual time
// (rule 1).
func (h *Host) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "sim", Addr: addr(address), Err: err}
	}
	sv := h.w.serverAt(address)
	if sv == nil {
		return fail(syscall.ENETUNREACH)
	}
	h.mu.Lock()
	h.dials[sv.index]++
	// The count is per server: dials of one host to several start together.
	l := &link{name: fmt.Sprintf("%s>%d#%d", h.Name, sv.index, h.dials[sv.index]), host: h, server: sv}
	h.mu.Unlock()
	blocked := func() time.Duration { return time.Until(latest(h.resumesAt(), h.reaches(sv.index))) }
	if dialedByPubSub() {
		l.name += "p"
		h.mu.Lock()
		h.pubsubDials++
		h.mu.Unlock()
		if blocked() > 0 {
			return fail(syscall.EHOSTUNREACH)
		}
		l.fast.Store(true)
	} else {
		off := h.w.offset("dial " + l.name)
		for d := h.latency(sv.index, h.w.Rand("dial "+l.name)); d > 0; {
			if !sleep(ctx, d) {
				return fail(os.ErrDeadlineExceeded)
			}
			if d = blocked(); d > 0 {
				d += off
			}
		}
	}
	if sv.isDown() {
		return fail(syscall.ECONNREFUSED)
	}
	l.up, l.down = newStream(l, "up", false), newStream(l, "down", true)
	l.fates, l.losses = h.w.Rand(l.name+" fates"), h.w.Rand(l.name+" losses")
	l.delays = h.w.Rand(l.name + " delays")
	client, server := l.ends()
	h.w.remember(l)
	sv.srv.ServeConn(server)
	return client, nil
}

func dialedByPubSub() bool {
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

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// latency is the latency of a data center, with a tail, plus what Far has added.
func (h *Host) latency(server int, r *rand.Rand) time.Duration {
	d := 50*time.Microsecond + time.Duration(r.Int64N(int64(400*time.Microsecond)))
	if r.IntN(200) == 0 {
		d += time.Duration(r.Int64N(int64(40 * time.Millisecond)))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.slow) {
		d *= 100
	}
	return d + h.far[server]
}

func (h *Host) until(t *time.Time, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*t = latest(*t, time.Now().Add(d))
}

func (h *Host) stalls(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.pause = h.pauseAt(now)
	if !h.stall.from.Equal(now) {
		h.stall = stall{from: now}
	}
	h.stall.until = latest(h.stall.until, now.Add(d))
}

// pauseAt is until when the process is stopped at an instant. The caller holds the mutex.
func (h *Host) pauseAt(now time.Time) time.Time {
	if h.stall.from.Before(now) {
		return latest(h.pause, h.stall.until)
	}
	return h.pause
}

func (h *Host) cutFrom(server int, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut[server] = latest(h.cut[server], time.Now().Add(d))
}

func (h *Host) resumesAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pauseAt(time.Now())
}

// reaches is when the host is connected to the server again.
func (h *Host) reaches(server int) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cut[server]
}

// healthyAt is when the faults of the host that have a length are over.
func (h *Host) healthyAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := latest(latest(h.pause, h.stall.until), h.slow)
	for _, c := range h.cut {
		t = latest(t, c)
	}
	return t
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
