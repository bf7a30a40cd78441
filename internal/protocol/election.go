package protocol

import (
	"cmp"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Election)(nil)

// Election is the protocol of an Election: a lock with a queue. Its exclusive hold is the
// leadership, and the holder writes a value. Changes of the leader or the value are announced.
type Election struct{ Queued }

// NewElection returns the protocol of an Election. Locks with the same name are independent.
func NewElection(site *Site, names *Names) *Election {
	q := queuedAt(site, names, "election", "rlock:election", exclusive)
	q.changes = q.stateKeys[0] + ":news"
	return &Election{*q}
}

// Proclaim sets the value of the leader with an id. A later request must have a higher number.
func (e *Election) Proclaim(id, value string, number int64) Request[Kept] {
	return e.site.newTask("election/proclaim", e.hold(), []any{id, value, number, e.site.how(), e.changes})
}

// Inspect implements Protocol.
func (e *Election) Inspect() Request[State] {
	return newRequest(e.site, "election/inspect", e.stateKeys, nil, readLed)
}

// Candidates requests the ids of the waiting candidates, in order.
func (e *Election) Candidates() Request[[]string] {
	return newRequest(e.site, "election/candidates", e.stateKeys, nil, func(a wire.Answer) (ids []string, err error) {
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
func (e *Election) View() any { return view{"election/inspect", e.stateKeys[0], e.changes} }

// Listen implements Protocol. Observers, with an empty id, share a separate channel.
func (e *Election) Listen(id string, notify func()) (end func()) {
	if id == "" {
		return e.site.listen(e.changes, notify)
	}
	return e.Queued.Listen(id, notify)
}
