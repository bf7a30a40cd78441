package rlock

import "github.com/go-rlock/rlock/internal/pubsub"

// newHub returns what the client listens with; name is that of its connections. Listeners are:
//   - the head of a line, to the channel of its lock, where each release is announced (line.go), and one whose
//     order Redis keeps to its own name or channel there (queue.go);
//   - a watch, to the same channel (poller.go);
//   - a holder that can be asked to release, to a channel beside it (revocation.go).
func (c *Client) newHub(name string) *pubsub.Hub {
	return pubsub.New(pubsub.Config{
		Env: &c.env, Wire: c.wire, Queue: c.events.Queue, Name: name, Subscribed: c.events.subscription,
		AskAgain: DefaultLongestPoll, Keep: keepLine, MostKept: mostKept,
	})
}
