package rlock

import (
	"cmp"
	"time"

	"github.com/go-rlock/rlock/internal/pubsub"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wait"
	"github.com/go-rlock/rlock/internal/wire"
)

// Channels without waiters stay subscribed for a while: see wait.Config.
const (
	keepListening = 3 * time.Second
	mostKept      = 1000
)

// newHub returns the subscriptions of a client; name is the name of its connections. Listeners are:
//   - the head of a line, to the channel of its lock, where each release is announced (internal/wait); a waiter whose
//     order Redis keeps, to a name or channel of its own (internal/protocol/queued.go, fair.go);
//   - a watch, to the same channel (watch.go);
//   - a holder that can be asked to release, to a second channel of its lock (revocation.go).
func newHub(env *seam.Env, d *wire.Deployment, events *events, name string) *pubsub.Hub {
	return pubsub.New(pubsub.Config{
		Env: env, Wire: d, Queue: events.Queue, Name: name, Subscribed: events.subscription,
		AskAgain: DefaultLongestPoll, Keep: keepListening, MostKept: mostKept,
	})
}

// newLines returns the lines in which the calls of a client wait.
func newLines(c *Client) *wait.Lines {
	return wait.New(wait.Config{
		Env: &c.env, Timeline: &c.timeline, Wire: c.wire, Running: &c.running, Closing: c.closing, Closed: ErrClosed, Seed: c.seed,
		LongestPoll: c.cfg.longestPoll, GlanceWithin: c.cfg.commandTimeout, LongestOutage: c.cfg.watchdogLease,
		Keep: cmp.Or(c.env.Keep, keepListening), MostKept: mostKept, StatusOf: statusOf, Transient: worthRepeating,
	})
}
