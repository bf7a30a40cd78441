package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// duty is something that the watchdog must do in time: renew a hold and end it at its
// deadline, or send a clean-up. The watchdog calls a duty from one goroutine at a time,
// except answered, which may come late and concurrently.
type duty interface {
	// due is called at about the time that was asked for, perhaps a slack too
	// early. It returns what to do now, if anything, and when to be called
	// again; the zero time ends the duty.
	due(now clock.Instant, slack time.Duration) (chore, clock.Instant)
	// answered is called with the result of a chore that was sent at sent, if there ever is
	// one. It returns when to be called again.
	answered(did chore, sent clock.Instant, r protocol.Result[protocol.Kept]) clock.Instant
	// drain is called when the client shuts down. The duty is due then.
	drain()
	// holds returns what is held: the lock, the number, and the token if the hold is
	// exclusive. The name is empty if nothing is.
	holds() (lock string, number, token int64)
	// nodes tells which nodes are asked for a hold of a RedLock.
	nodes() string
	// askNow asks Redis whether the hold is still there, and waits for the answer.
	askNow()
}

// chore is something to send.
type chore struct {
	task   protocol.Task // nil: nothing
	renews bool          // it confirms a watchdog lease
	asks   bool          // it asks whether the holder was asked to release the lock
	looks  bool          // it asks whether another client has adopted the hold
	known  bool          // its answer tells of an adoption: see handle.go
}

// entry is a duty's place in the agenda of the watchdog.
type entry struct {
	duty    duty
	at      clock.Instant // guarded by watchdog.mu, as the rest
	index   int32         // in the agenda, or -1
	drained bool
	hurried bool // it is due now, and has not been called since
	ended   bool
}

// duties returns those that have not ended, in no order.
func (w *watchdog) duties() []duty {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]duty, 0, len(w.agenda)+len(w.taken))
	for _, e := range w.agenda {
		all = append(all, e.duty)
	}
	for _, e := range w.taken { // some may be back already
		if e.index < 0 && !e.ended {
			all = append(all, e.duty)
		}
	}
	return all
}

// check asks Redis about the client's holds of a lock, as a renewal would; see
// seam.Env.
func (w *watchdog) check(lock string) {
	for _, d := range w.duties() {
		if name, _, _ := d.holds(); name == lock {
			d.askNow()
		}
	}
}
