package protocol

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// listenerCount is an Inspect of a type whose waiters leave no trace in Redis except their subscription to
// one channel.
type listenerCount struct {
	site    *Site
	channel string
	request func(how string) *scriptRequest[State]
}

// newListenerCount makes a request that also counts the subscribers of a channel.
func newListenerCount(s *Site, script string, keys []string, channel string, read func(wire.Answer) (State, error), args ...any) Request[State] {
	return listenerCount{s, channel, func(how string) *scriptRequest[State] {
		return newRequest(s, script, keys, append(args, channel, how), read)
	}}
}

// Do implements Request. It does not count the subscription of this client, which counts its waiters itself. An
// unsubscribe that was sent may not have taken effect.
func (q listenerCount) Do(ctx context.Context, budget time.Duration) Result[State] {
	began := time.Now()
	if q.site.Wire.PublishCommand() == "" {
		// Without a reply no subscriber is counted, and the request below fails too.
		asking, cancel := context.WithTimeout(ctx, budget)
		_ = q.site.Wire.Ready(asking)
		cancel()
		budget = max(budget-time.Since(began), time.Millisecond)
	}
	own := q.site.MayBeSubscribed(q.channel)
	r := q.request(q.site.listenersBy()).Do(ctx, budget)
	if r.Outcome.Listeners > 0 && (own || q.site.MayBeSubscribed(q.channel)) {
		r.Outcome.Listeners--
	}
	return r
}

// listenersBy returns the publish command whose subscriptions a script can count, or silent if it cannot. A node of
// a cluster counts only its own subscribers to a channel that is not sharded.
func (s *Site) listenersBy() string {
	switch command := s.Wire.PublishCommand(); {
	case command == "", command == "publish" && (s.Wire.Slotted() || s.Wire.IsCluster()):
		return silent
	default:
		return command
	}
}
