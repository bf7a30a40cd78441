package rlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// A client that holds a lock, or waits for one, keeps a small key in Redis that says which process it
// is. The watchdog writes it in the background, and again each introduceEvery for as long as the client
// is in use. After a flush or a failover it so comes back. It goes with Close, or by itself when the
// process has died or the client is idle.
const (
	introduceEvery = time.Minute
	introduceFor   = 5 * time.Minute // outlasts an outage, and most leases of a dead process
	introduceAgain = 10 * time.Second
	takeBackWithin = time.Second
)

// presence is the duty to write that key. Who is the home of RedLocks writes it on all their nodes: any
// of them may be asked.
type presence struct {
	site     *protocol.Site
	watchdog *watchdog
	events   *events
	calls    *wire.Tally // acquires and unlocks under way
	seed     uint64
	key      string
	self     Process
	text     string
	entry    entry
	under    wire.Tally // writes without an answer yet
	told     sync.Once  // of logging that Redis refuses it

	mu      sync.Mutex         // guards the rest
	others  []*wire.Deployment // where else it is written
	begins  bool               // it is written even if the client is not in use any more
	next    instant            // when it is written again
	turn    int                // how often it was
	written bool               // it may be in Redis
	over    bool
}

var _ duty = (*presence)(nil)

// begin gives the watchdog the duty.
func (p *presence) begin(prefix, label string) {
	p.key, p.self, p.begins = protocol.ClientKey(prefix, p.site.Client), thisProcess(), true
	p.self.Label = label
	p.text = introduces(p.site.Client, p.self)
	p.entry = entry{duty: p, index: -1, ended: true}
	p.watchdog.self = &p.entry
}

// alsoOn has it written on the nodes of a RedLock too.
func (p *presence) alsoOn(nodes []*wire.Deployment) {
	if p != nil && p.writesOn(nodes) {
		p.watchdog.move(&p.entry, p.watchdog.now())
	}
}

func (p *presence) writesOn(nodes []*wire.Deployment) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range nodes {
		if n != p.site.Wire && !slices.Contains(p.others, n) {
			p.others = append(slices.Clone(p.others), n) // a request may have the others
			p.next, more = 0, true
		}
	}
	return more
}

// inUse reports whether the client holds, waits for, or cleans up anything.
func (p *presence) inUse() bool { return !p.watchdog.left.None() || !p.calls.None() }

// due implements duty.
func (p *presence) due(now instant, slack time.Duration) (chore, instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
		return chore{}, 0
	case p.next.After(now.Add(slack)): // the client shuts down
		return chore{}, p.next
	case !p.begins && !p.inUse():
		p.begins = true // the next time
		return chore{}, 0
	}
	p.begins, p.written = false, true
	p.next = now.Add(p.site.CommandTimeout + introduceAgain) // if no answer comes
	p.under.Add(1)
	return chore{task: p.site.Introduce(p.key, p.text, introduceFor, p.others)}, p.next
}

// answered implements duty.
func (p *presence) answered(_ chore, sent instant, r protocol.Result[protocol.Kept]) instant {
	p.under.Add(-1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == 0 { // there are more nodes meanwhile
		return p.watchdog.now()
	}
	// Clients that begin together do not go on writing together.
	p.next = sent.Add(introduceEvery - seam.Jitter(p.seed, 0, p.turn, introduceEvery/8))
	p.turn++
	switch {
	case r.Err == nil:
	case wire.IsReply(r.Err) && !wire.Transient(r.Err):
		p.told.Do(func() {
			p.events.later(func() {
				p.events.logger.Warn("rlock: Redis does not permit the client to say who it is: others see its id only", "client.id", p.site.Client, "error", r.Err)
			})
		})
	default:
		p.next = p.watchdog.now().Add(introduceAgain)
	}
	return p.next
}

// takeBack deletes the key when nothing is held any more. It waits for that, but not for long.
func (p *presence) takeBack(ctx context.Context) {
	if p == nil {
		return
	}
	p.mu.Lock()
	written, on := p.written, append(slices.Clone(p.others), p.site.Wire)
	p.written, p.over = false, true
	p.mu.Unlock()
	if !written {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, takeBackWithin)
	defer cancel()
	_ = p.under.Wait(ctx) // it would come after the end
	var all sync.WaitGroup
	for _, node := range on {
		all.Go(func() { _ = protocol.TakeBack(ctx, node, p.key, takeBackWithin) })
	}
	all.Wait()
}

// drain implements duty: what is held is still somebody's.
func (p *presence) drain() {}

// holds implements duty.
func (p *presence) holds() (lock string, number, token int64) { return "", 0, 0 }

// nodes implements duty.
func (p *presence) nodes() string { return "" }

// askNow implements duty.
func (p *presence) askNow() {}
