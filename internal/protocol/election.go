package protocol

import (
	"cmp"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Election)(nil)

// Election is the protocol of an Election: a lock with a queue whose exclusive hold is the
// leadership, next to which its holder writes a value. Changes of either are announced.
type Election struct{ Queued }

// NewElection returns the protocol of an Election. Locks of its name have nothing to do with it.
func NewElection(site *Site, names *Names) *Election {
	q := queuedAt(site, names, "election", "rlock:election", exclusive)
	q.news = q.state[0] + ":news"
	return &Election{*q}
}

// Proclaim sets the value of the leader with an id. Later requests have higher numbers.
func (e *Election) Proclaim(id, value string, number int64) Request[Kept] {
	return e.site.about("election/proclaim", e.hold(), []any{id, value, number, e.site.how(), e.news})
}

// Inspect implements Protocol.
func (e *Election) Inspect() Request[State] {
	return looking(e.site, "election/inspect", e.state, nil, readLed)
}

// Candidates asks for the ids of those that wait to lead, in order.
func (e *Election) Candidates() Request[[]string] {
	return looking(e.site, "election/candidates", e.state, nil, func(a wire.Answer) (ids []string, err error) {
		list, ok := a.Val.([]any)
		if a.Err != nil || !ok {
			return nil, cmp.Or(a.Err, wire.ErrReply(a.Val))
		}
		for _, one := range list {
			id, ok := one.(string)
			if !ok {
				return nil, wire.ErrReply(a.Val)
			}
			ids = append(ids, id)
		}
		return ids, nil
	})
}

// View implements Protocol.
func (e *Election) View() any { return view{"election/inspect", e.state[0], e.news} }

// Listen implements Protocol. Those who only observe have a channel of their own.
func (e *Election) Listen(id string, notify func()) (end func()) {
	if id == "" {
		return e.site.listen(e.news, notify)
	}
	return e.Queued.Listen(id, notify)
}
