package sim

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Rates are the chances, from 0 to 1, that single requests and messages meet a
// fault. Handshakes and subscriptions are left alone.
type Rates struct {
	// Swallow: the request runs, its reply never arrives, and nothing else
	// arrives on that connection, which stays open. The client can only time out.
	Swallow float64
	// ResetBefore and ResetAfter: the connection is reset before the request
	// runs, or after it ran and before its reply arrived. The client cannot tell
	// which.
	ResetBefore, ResetAfter float64
	// Late is the chance that a request whose reply was lost to one of the three
	// above runs (again) later, when its caller has long gone on: at most
	// LateWithin later, half of the time within a twentieth of that.
	Late       float64
	LateWithin time.Duration // default 4 s
	// Again: an answered request runs twice, back to back.
	Again float64
	// Slow is the chance that a request takes SlowFor longer to come to its server, or up to a fifth
	// less than that. What is sent after it on the same connection comes after it.
	Slow    float64
	SlowFor time.Duration
	// DropMessage: one pub/sub message is lost.
	DropMessage float64
	// Deafen: a pub/sub connection delivers nothing from now on, and stays open.
	Deafen float64
	// Stall is the chance that a call of Host.Gate finds its process stopped just
	// there, for at most StallFor. Pauses at random times hardly ever fall
	// between the arrival of a reply and its use; these do.
	Stall    float64
	StallFor time.Duration // default 4 s
}

// Harsh has every fault often enough to be seen within some hundred requests.
var Harsh = Rates{
	Swallow: 0.02, ResetBefore: 0.02, ResetAfter: 0.02, Late: 0.5, Again: 0.03,
	DropMessage: 0.1, Deafen: 0.01, Stall: 0.005,
}

type loss int

const (
	answered loss = iota
	swallowed
	resetBefore
	resetAfter
)

// fate is what happens to one request; it is drawn when the client sends it.
type fate struct {
	loss  loss
	late  time.Duration // if not 0, it runs this much after its reply was lost
	extra bool          // second run of an answered request: its reply is dropped
}

// link is a connection between a host and a server, seen from neither end.
type link struct {
	name   string
	host   *Host
	server *server
	up     *stream // to the server
	down   *stream // to the client
	fates  *rand.Rand
	losses *rand.Rand // of messages
	delays *rand.Rand // of requests

	// fast: nothing takes virtual time, which go-redis needs while it sets up a
	// pub/sub connection (rule 1).
	fast atomic.Bool

	mu      sync.Mutex // guards all below; never held while waiting
	tx      bool       // between MULTI and EXEC
	pubsub  bool
	dead    bool   // no reply or message is delivered any more
	pending []fate // of requests that the server has and did not answer
	late    []late // fates of requests that run late
	seq     int
}

// late is a request that runs when its reply is gone.
type late struct {
	after time.Duration
	words []string
}

func (l *link) ends() (client, server *conn) {
	return &conn{link: l, client: true, rd: l.down, wr: l.up}, &conn{link: l, rd: l.up, wr: l.down}
}

// heldUntil is when the next segment can be delivered at the earliest.
func (l *link) heldUntil(toClient bool) time.Time {
	t := l.host.reaches(l.server.index)
	if toClient {
		return latest(t, l.host.resumesAt())
	}
	return latest(t, l.server.thawsAt())
}

// reset breaks both directions. What is on the wire is lost, so a request may
// or may not have run. A server that goes down notices immediately, or it would run
// requests while it is down; otherwise each end notices at its own instant.
func (l *link) reset(now time.Time, serverAtOnce bool) {
	l.down.reset(now.Add(l.down.off))
	if !serverAtOnce {
		now = now.Add(l.up.off)
	}
	l.up.reset(now)
}

// request makes the segments of one request that the client sends. The number
// of draws is the same for every request, so that a rate of one fault does not
// shift the others.
func (l *link) request(b []byte) []*segment {
	v := verb(b)
	g := &segment{b: b}
	if isHandshake(v) {
		return []*segment{g}
	}
	l.fast.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if isSubscription(v) {
		l.pubsub = true
	}
	if l.pubsub {
		return []*segment{g}
	}
	if v == "MULTI" {
		l.tx = true
	}
	repeat := mayRepeat(v) && !l.tx
	r := l.host.w.Rates()
	if l.delays.Float64() < r.Slow {
		g.delay = time.Duration((1 - 0.2*l.delays.Float64()) * float64(r.SlowFor))
	}
	if v == "EXEC" || v == "DISCARD" {
		l.tx = false
	}

	u, lateU, shortU, delayU, againU := l.fates.Float64(), l.fates.Float64(), l.fates.Float64(), l.fates.Float64(), l.fates.Float64()
	switch {
	case u < r.Swallow:
		g.fate.loss = swallowed
	case u < r.Swallow+r.ResetBefore:
		g.fate.loss = resetBefore
	case u < r.Swallow+r.ResetBefore+r.ResetAfter:
		g.fate.loss = resetAfter
	case repeat && againU < r.Again:
		return []*segment{g, {b: b, fate: fate{extra: true}}}
	}
	if g.fate.loss != answered && repeat && lateU < r.Late {
		within := float64(r.LateWithin)
		if shortU < 0.5 {
			within /= 20
		}
		g.fate.late = 1 + time.Duration(delayU*within)
	}
	return []*segment{g}
}

// arrived is called when a request reaches the server, and reports whether the
// connection still stands.
func (l *link) arrived(g *segment) bool {
	w := l.host.w
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.fate.loss == resetBefore {
		w.count(func(s *Stats) { s.ResetsBefore++ })
		if g.fate.late > 0 {
			w.count(func(s *Stats) { s.OnlyLate++ })
			w.runLate(l, late{g.fate.late, words(g.b)})
		}
		l.reset(time.Now(), true)
		return false
	}
	l.seq++
	w.record(event{at: w.Elapsed(), who: l.name, seq: l.seq, b: g.b})
	if l.pubsub {
		return true
	}
	l.pending = append(l.pending, g.fate)
	if g.fate.late > 0 {
		l.late = append(l.late, late{g.fate.late, words(g.b)})
	}
	return true
}

// passes reports whether one reply or message of the server goes on to the
// client.
func (l *link) passes(b []byte) bool {
	w := l.host.w
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return l.messagePasses(b)
	}
	f := l.pending[0]
	l.pending = l.pending[1:]
	if f.late > 0 {
		w.runLate(l, l.late[0])
		l.late = l.late[1:]
	}
	switch {
	case f.extra:
		w.count(func(s *Stats) { s.Again++ })
		return false
	case f.loss == swallowed:
		w.count(func(s *Stats) { s.Swallowed++ })
		l.dead = true
	case f.loss == resetAfter:
		w.count(func(s *Stats) { s.ResetsAfter++ })
		l.dead = true
		l.reset(time.Now(), false)
	}
	return !l.dead
}

// messagePasses does the same for what comes without a request, which is all
// there is on a pub/sub connection after its handshake.
func (l *link) messagePasses(b []byte) bool {
	if l.dead || !l.pubsub {
		return !l.dead
	}
	w := l.host.w
	r := w.Rates()
	dropU, deafU := l.losses.Float64(), l.losses.Float64()
	if deafU < r.Deafen {
		w.count(func(s *Stats) { s.Deafened++ })
		l.dead = true
		return false
	}
	if dropU < r.DropMessage && (b[0] == '>' || b[0] == '*') {
		switch ws := words(b); ws[0] {
		case "message", "pmessage", "smessage":
			w.count(func(s *Stats) { s.DroppedMessages++ })
			return false
		}
	}
	return true
}
