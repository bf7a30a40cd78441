// Package presence says in Redis which process a client is, and finds out which ones others are. Nothing depends on
// it but the words of an error or a log: what is not known in time is left out.
package presence

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/notify"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wire"
)

// A client that holds a lock, or waits for one, keeps a small key in Redis that says which process it
// is. The watchdog writes it in the background, and again each introduceEvery for as long as the client
// is in use. After a flush or a failover it so comes back. It goes with Close, or by itself when the
// process has died or the client is idle. On a node of a RedLock it also goes when the client that
// connects to that node ends: afterwards nobody may be able to delete it.
const (
	introduceEvery = time.Minute
	introduceFor   = 5 * time.Minute // outlasts an outage, and most leases of a dead process
	introduceAgain = 10 * time.Second
	takeBackWithin = time.Second
)

// Config is what an Introduction needs.
type Config struct {
	Site   *protocol.Site
	Timers *timers.Timers
	Queue  *notify.Queue // is told, once, if Redis refuses it
	Calls  *wire.Tally   // acquires and unlocks under way
	Seed   uint64
	Prefix string
	Self   Process
}

// Introduction is the task that writes that key. Who is the home of RedLocks writes it on all their nodes: any
// of them may be asked. A nil Introduction is that of a client that does not introduce itself.
type Introduction struct {
	Config
	own   protocol.Place
	key   string
	text  string
	entry timers.Entry
	told  sync.Once   // of logging that Redis refuses it
	idle  atomic.Bool // the client is not in use, as far as that is known: see Use

	mu      sync.Mutex        // guards the rest
	others  []*protocol.Place // where else it is written
	hosts   []*Guests         // the clients that connect to these
	begins  bool              // it is written even if the client is not in use any more
	next    clock.Instant     // when it is written again
	turn    int               // how often it was
	written bool              // it may be in Redis
	over    bool
}

var _ timers.Task = (*Introduction)(nil)

// New returns an Introduction that begins when the client is in use.
func New(c Config) *Introduction {
	p := &Introduction{Config: c, own: protocol.Place{On: c.Site.Wire}, begins: true}
	p.key, p.text = protocol.ClientKey(c.Prefix, c.Site.Client), c.Self.Text(c.Site.Client)
	p.idle.Store(true)
	p.entry.Task = p
	p.Timers.AddBackground(&p.entry)
	return p
}

// Use is called when a hold, a wait or a clean-up has begun: the key is written from now on, for as long as the
// client is in use.
func (p *Introduction) Use() {
	if p != nil && p.idle.Load() && p.idle.CompareAndSwap(true, false) {
		p.Timers.Hurry(&p.entry)
	}
}

// AlsoOn has it written on a node of a RedLock too, as long as the client of the node is not closed.
func (p *Introduction) AlsoOn(node *Guests) {
	if p != nil && node.On != p.Site.Wire && node.admit(p) {
		p.Timers.Move(&p.entry, p.Timers.Now())
	}
}

func (p *Introduction) writesOn(host *Guests) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = append(p.others, &protocol.Place{On: host.On})
	p.hosts = append(p.hosts, host)
	p.next = 0
}

// inUse reports whether the client holds, waits for, or cleans up anything.
func (p *Introduction) inUse() bool { return !p.Timers.Idle() || !p.Calls.None() }

// Due implements timers.Task.
func (p *Introduction) Due(now clock.Instant, slack time.Duration) (timers.Do, clock.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
		return timers.Do{}, 0
	case p.idle.Load(): // the client shuts down
		return timers.Do{}, now.Add(seam.FarAway)
	case p.next.After(now.Add(slack)): // it shuts down, or was used while this found out whether it is in use
		return timers.Do{}, p.next
	case !p.begins:
		p.idle.Store(true) // first: what begins after the look below has it called again
		if !p.inUse() {
			p.begins = true
			return timers.Do{}, now.Add(seam.FarAway)
		}
		p.idle.Store(false)
	}
	p.begins, p.written = false, true
	p.next = now.Add(p.Site.CommandTimeout + introduceAgain) // if no answer comes
	return timers.Do{Task: p.Site.Introduce(p.key, p.text, introduceFor, &p.own, p.others)}, p.next
}

// Answered implements timers.Task.
func (p *Introduction) Answered(_ timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == 0 { // there are more nodes meanwhile
		return p.Timers.Now()
	}
	// Clients that begin together do not go on writing together.
	p.next = sent.Add(introduceEvery - seam.Jitter(p.Seed, 0, p.turn, introduceEvery/8))
	p.turn++
	switch {
	case r.Err == nil:
	case wire.IsReply(r.Err) && !wire.Transient(r.Err):
		p.told.Do(func() {
			p.Queue.Later(func() {
				p.Queue.Logger.Warn("rlock: Redis does not permit the client to say who it is: others see its id only", "client.id", p.Site.Client, "error", r.Err)
			})
		})
	default:
		p.next = p.Timers.Now().Add(introduceAgain)
	}
	return p.next
}

// TakeBack deletes the key when nothing is held any more. It waits for that, but not for long.
func (p *Introduction) TakeBack(ctx context.Context) {
	if p == nil {
		return
	}
	p.mu.Lock()
	written, on, hosts := p.written, append(p.others, &p.own), p.hosts
	p.written, p.over, p.others, p.hosts = false, true, nil, nil
	p.mu.Unlock()
	for _, h := range hosts {
		h.dismiss(p)
	}
	if !written {
		return
	}
	var all sync.WaitGroup
	for _, at := range on {
		p.takeBackFrom(ctx, at, &all)
	}
	all.Wait()
}

// leave deletes the key on the node of a client that ends, and does not write it there any more. It is done
// when all is.
func (p *Introduction) leave(ctx context.Context, host *Guests, all *sync.WaitGroup) {
	p.mu.Lock()
	i := slices.Index(p.hosts, host)
	if i < 0 {
		p.mu.Unlock()
		return // it has left
	}
	at, written := p.others[i], p.written
	p.others, p.hosts = slices.Delete(p.others, i, i+1), slices.Delete(p.hosts, i, i+1)
	p.mu.Unlock()
	if written {
		p.takeBackFrom(ctx, at, all)
	}
}

// takeBackFrom deletes the key in one place; all waits for that. If it is not known that the server answers, a
// PING tells; one that did not answer the last PING either has little time for it.
func (p *Introduction) takeBackFrom(ctx context.Context, at *protocol.Place, all *sync.WaitGroup) {
	all.Go(func() {
		within := takeBackWithin
		if at.On.IsDead(protocol.GiveUpGrace) {
			within = protocol.GiveUpGrace
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		if at.On.Reachable(ctx, within, nil) == nil {
			p.delete(ctx, at)
		}
	})
}

func (p *Introduction) delete(ctx context.Context, at *protocol.Place) {
	if at.Under.Wait(ctx) != nil {
		return // that write would come after the end
	}
	if err := protocol.TakeBack(ctx, at.On, p.key, takeBackWithin); err != nil && ctx.Err() == nil {
		at.On.Failed(err) // it costs the next client no time to find that out
	}
}

// Guests are the homes of RedLocks that introduce themselves on the server of a client.
type Guests struct {
	On *wire.Deployment // the server of the client

	mu   sync.Mutex // guards the rest; before that of an Introduction
	all  []*Introduction
	over bool // the client ends
}

// admit has p written there, unless the client ends. It reports whether that is new.
func (g *Guests) admit(p *Introduction) (more bool) {
	g.mu.Lock() // leave finds it, or it finds that all have left
	defer g.mu.Unlock()
	if g.over || slices.Contains(g.all, p) {
		return false
	}
	g.all = append(g.all, p)
	p.writesOn(g)
	return true
}

// dismiss forgets a home that has ended.
func (g *Guests) dismiss(p *Introduction) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *Introduction) bool { return other == p })
}

// Leave has all leave, and waits for that.
func (g *Guests) Leave(ctx context.Context) {
	g.mu.Lock()
	who := g.all
	g.all, g.over = nil, true
	g.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range who {
		p.leave(ctx, g, &all)
	}
	all.Wait()
}

// Drain implements timers.Task: what is held is still somebody's.
func (p *Introduction) Drain() {}
