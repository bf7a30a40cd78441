package rlock

import (
	"github.com/go-rlock/rlock/internal/pubsub"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

// newHub returns what a client listens with; name is that of its connections. Listeners are:
//   - the head of a line, to the channel of its lock, where each release is announced (line.go), and one whose
//     order Redis keeps to its own name or channel there (queue.go);
//   - a watch, to the same channel (watch.go);
//   - a holder that can be asked to release, to a channel beside it (revocation.go).
func newHub(env *seam.Env, d *wire.Deployment, events *events, name string) *pubsub.Hub {
	return pubsub.New(pubsub.Config{
		Env: env, Wire: d, Queue: events.Queue, Name: name, Subscribed: events.subscription,
		AskAgain: DefaultLongestPoll, Keep: keepLine, MostKept: mostKept,
	})
}
