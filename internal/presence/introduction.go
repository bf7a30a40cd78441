// Package presence says in Redis which process a client is, and finds out which ones others are. Nothing depends on
// it but the words of an error or a log: what is not known in time is left out.
package presence

import (
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

// A client that holds a lock, or waits for one, keeps a small key on its server that says which process it is. The
// watchdog writes it in the background, and again each introduceEvery for as long as the client is in use: after a
// flush or a failover it so comes back. It is never deleted: it runs out introduceFor after the last write.
const (
	introduceFor   = 10 * time.Minute // outlasts an outage, and most leases of a dead process
	introduceEvery = introduceFor / 3
	introduceAgain = 10 * time.Second
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

// Introduction is the task that writes that key. A nil Introduction is that of a client that does not introduce
// itself.
type Introduction struct {
	Config
	task  protocol.Task
	entry timers.Entry
	told  sync.Once    // of logging that Redis refuses it
	idle  atomic.Bool  // the client is not in use, as far as that is known: see Use
	next  atomic.Int64 // when it is written again: a clock.Instant
}

var _ timers.Task = (*Introduction)(nil)

// New returns an Introduction that begins when the client is in use.
func New(c Config) *Introduction {
	p := &Introduction{Config: c}
	p.task = c.Site.Introduce(protocol.ClientKey(c.Prefix, c.Site.Client), c.Self.Text(c.Site.Client), introduceFor)
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

// Due implements timers.Task.
func (p *Introduction) Due(now clock.Instant, slack time.Duration) (timers.Do, clock.Instant) {
	if p.idle.Load() { // the client shuts down
		return timers.Do{}, now.Add(seam.FarAway)
	}
	next := clock.Instant(p.next.Load())
	if next.After(now.Add(slack)) { // it shuts down, or was idle for a moment only
		return timers.Do{}, next
	}
	p.idle.Store(true) // first: what begins after the look below has it called again
	if !p.Timers.Idle() || !p.Calls.None() {
		p.idle.Store(false)
	}
	next = now.Add(p.Site.CommandTimeout + introduceAgain) // if no answer comes
	p.next.Store(int64(next))
	return timers.Do{Task: p.task}, next
}

// Answered implements timers.Task.
func (p *Introduction) Answered(_ timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	// Clients that begin together do not go on writing together.
	next := sent.Add(introduceEvery - seam.Jitter(p.Seed, 0, 0, introduceEvery/8))
	switch {
	case r.Err == nil:
	case wire.IsReply(r.Err) && !wire.Transient(r.Err):
		p.told.Do(func() {
			p.Queue.Later(func() {
				p.Queue.Logger.Warn("rlock: Redis does not permit the client to say who it is: others see its id only", "client.id", p.Site.Client, "error", r.Err)
			})
		})
	default:
		next = p.Timers.Now().Add(introduceAgain)
	}
	p.next.Store(int64(next))
	return next
}

// Drain implements timers.Task: what is held is still somebody's.
func (p *Introduction) Drain() {}
