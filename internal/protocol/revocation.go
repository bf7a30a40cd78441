package protocol

import (
	"context"
	"time"
)

// Revocation is how the holders of a lock are asked to release it. A request consists of a
// key in the slot of the lock for each hold that is meant, and a message on a channel of the
// lock that somebody was asked. The key has the id of the hold, so that it never concerns
// another one, and expires. It costs nothing for a holder that does not listen.
type Revocation interface {
	// Ready is called before RequestRelease and Listen: it finds out how to publish.
	Ready(ctx context.Context) error
	// RequestRelease asks the holders with these ids, MostAsked at the most.
	RequestRelease(ids []string) Request[bool]
	// Asked asks whether the holder with an id was asked: Done, or Removed if it was not.
	Asked(id string) Task
	// Listen has notify called when somebody may have been asked. It returns nil as long as
	// it is not known how to publish.
	Listen(notify func()) (end func())
}

// RequestStands is how long a holder that does not listen yet can still learn of a request: far
// longer than the moments before it begins to, and than a connection is broken without
// anybody noticing.
const RequestStands = 10 * time.Minute

// MostAsked is how many holders one request asks.
const MostAsked = 500

// AskedKey is the key that says that the holder with an id was asked.
func (n *Names) AskedKey(id string) string { return n.Derived("rlock:asked:" + id) }

// AskedChannel is the channel on which holders are notified of requests to release.
func (n *Names) AskedChannel() string { return n.Derived("rlock:asked") }

// revocation is the Revocation of the types with one server, or a node for each slot.
type revocation struct {
	site  *Site
	names *Names
}

func (r revocation) Ready(ctx context.Context) error { return r.site.Wire.Ready(ctx) }

func (r revocation) RequestRelease(ids []string) Request[bool] {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = r.names.AskedKey(id)
	}
	return looking(r.site, "lock/request_release", keys,
		[]any{RequestStands.Milliseconds(), r.names.AskedChannel(), r.site.how()}, readBool)
}

func (r revocation) Asked(id string) Task {
	return r.site.about("lock/asked", []string{r.names.AskedKey(id)}, nil)
}

func (r revocation) Listen(notify func()) (end func()) {
	return r.site.listen(r.names.AskedChannel(), notify)
}

// Revocation implements Revocable.
func (l *ownedLock) Revocation() Revocation { return revocation{l.site, l.names} }
func (l *readWrite) Revocation() Revocation { return revocation{l.site, l.names} }
func (q *Queued) Revocation() Revocation    { return revocation{q.site, q.names} }
