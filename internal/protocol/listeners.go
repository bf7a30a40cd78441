package protocol

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// listened is an Inspect of a type whose waiters leave nothing in Redis but their subscription to
// one channel.
type listened struct {
	site    *Site
	channel string
	ask     func(how string) *asked[State]
}

// listening makes an inspect script count those who listen on a channel.
func listening(s *Site, script string, keys []string, channel string, read func(wire.Answer) (State, error), args ...any) Request[State] {
	return listened{s, channel, func(how string) *asked[State] {
		return looking(s, script, keys, append(args, channel, how), read)
	}}
}

// Do implements Request. The own subscription does not count: the client knows its waiters. An
// unsubscribe that was sent may not be done yet.
func (q listened) Do(ctx context.Context, budget time.Duration) Result[State] {
	began := time.Now()
	if q.site.Wire.PublishCommand() == "" {
		// Without an answer nobody is counted, and the request fails too.
		asking, cancel := context.WithTimeout(ctx, budget)
		_ = q.site.Wire.Ready(asking)
		cancel()
		budget = max(budget-time.Since(began), time.Millisecond)
	}
	own := q.site.MayBeSubscribed(q.channel)
	r := q.ask(q.site.listenersBy()).Do(ctx, budget)
	if r.Outcome.Listeners > 0 && (own || q.site.MayBeSubscribed(q.channel)) {
		r.Outcome.Listeners--
	}
	return r
}

// listenersBy is the command with which a script can count subscriptions; silent if it cannot. A node of
// a cluster knows only its own subscribers to a channel that is not sharded.
func (s *Site) listenersBy() string {
	switch command := s.Wire.PublishCommand(); {
	case command == "", command == "publish" && (s.Wire.Slotted() || s.Wire.IsCluster()):
		return silent
	default:
		return command
	}
}
