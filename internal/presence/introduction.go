// Package presence stores in Redis which process a client is, and finds out the processes of other clients. Only the
// texts of errors and logs depend on it: a process that is not known in time is left out.
//
// The key of a client is written while the client is in use, and expires ten minutes after the last write. After a
// flush or a failover it is missing for up to three minutes.
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

// A client that holds a lock, or waits for one, keeps a small key on its server that names its process. The watchdog
// writes it in the background, every introduceEvery while the client is in use, so it comes back after a flush or a
// failover. It is never deleted: it expires introduceFor after the last write.
const (
	introduceFor   = 10 * time.Minute // outlasts an outage, and most leases of a dead process
	introduceEvery = introduceFor / 3
	introduceAgain = 10 * time.Second
)

// Config configures an Introduction.
type Config struct {
	Site   *protocol.Site
	Timers *timers.Timers
	Queue  *notify.Queue // gets one line if Redis refuses the key
	Calls  *wire.Tally   // acquires and unlocks under way
	Seed   uint64
	Prefix string
	Self   Process
}

// Introduction is the task that writes the key of a client. It may be nil: then the client does not introduce itself.
type Introduction struct {
	Config
	writeKey protocol.Task
	entry    timers.Entry
	logged   sync.Once    // logs that Redis refuses the key
	isIdle   atomic.Bool  // the client is not known to be in use: see Use
	writeAt  atomic.Int64 // when the key is written next, a clock.Instant
}

var _ timers.Task = (*Introduction)(nil)

// New returns an Introduction, which begins when the client is in use.
func New(c Config) *Introduction {
	p := &Introduction{Config: c}
	p.writeKey = c.Site.Introduce(protocol.ClientKey(c.Prefix, c.Site.Client), c.Self.Text(c.Site.Client), introduceFor)
	p.isIdle.Store(true)
	p.entry.Task = p
	p.Timers.AddBackground(&p.entry)
	return p
}

// Use is called when a hold, a wait or a clean-up begins. From now on the key is written, while the client is in use.
func (p *Introduction) Use() {
	if p != nil && p.isIdle.Load() && p.isIdle.CompareAndSwap(true, false) {
		p.Timers.Hurry(&p.entry)
	}
}

// Due implements timers.Task.
func (p *Introduction) Due(now clock.Instant, slack time.Duration) (timers.Do, clock.Instant) {
	if p.isIdle.Load() { // the client shuts down
		return timers.Do{}, now.Add(seam.FarAway)
	}
	next := clock.Instant(p.writeAt.Load())
	if next.After(now.Add(slack)) { // the client shuts down, or was idle only for a moment
		return timers.Do{}, next
	}
	p.isIdle.Store(true) // first, so that a Use after the check below calls Due again
	if !p.Timers.Idle() || !p.Calls.None() {
		p.isIdle.Store(false)
	}
	next = now.Add(p.Site.CommandTimeout + introduceAgain) // if there is no reply
	p.writeAt.Store(int64(next))
	return timers.Do{Task: p.writeKey}, next
}

// Answered implements timers.Task.
func (p *Introduction) Answered(_ timers.Do, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant {
	// The jitter spreads clients that began together.
	next := sent.Add(introduceEvery - seam.Jitter(p.Seed, 0, 0, introduceEvery/8))
	switch {
	case r.Err == nil:
	case wire.IsReply(r.Err) && !wire.Transient(r.Err):
		p.logged.Do(func() {
			p.Queue.Later(func() {
				p.Queue.Logger.Warn("rlock: Redis does not permit the client to say who it is: others see its id only", "client.id", p.Site.Client, "error", r.Err)
			})
		})
	default:
		next = p.Timers.Now().Add(introduceAgain)
	}
	p.writeAt.Store(int64(next))
	return next
}

// Drain implements timers.Task. The key stays: others may still wait for holds of this client.
func (p *Introduction) Drain() {}
