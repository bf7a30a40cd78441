package protocol

import (
	"context"
	"time"
)

// Revocation requests that the holders of a lock release it. A request to release consists of a
// key in the slot of the lock for each hold, and a message on a channel of the
// lock. The name of the key has the id of the hold, so it never concerns another hold, and the key
// expires. A holder that does not subscribe has no cost.
type Revocation interface {
	// Ready is called before RequestRelease and Listen: it finds out how to publish.
	Ready(ctx context.Context) error
	// RequestRelease requests that the holders with these ids, at most MostAsked, release the lock.
	RequestRelease(ids []string) Request[bool]
	// Asked requests whether the holder with an id was asked to release. The outcome is Done if it was,
	// and Removed if it was not.
	Asked(id string) Task
	// Listen calls notify when a holder may have been asked to release. It returns nil until the publish
	// command is known.
	Listen(notify func()) (end func())
}

// RequestStands is how long a request to release lasts in Redis for a holder that is not subscribed. It is far
// longer than a holder takes to subscribe, and than a broken connection stays unnoticed.
const RequestStands = 10 * time.Minute

// MostAsked is how many holders one request can ask to release.
const MostAsked = 500

// AskedKey returns the key that records that the holder with an id was asked to release.
func (n *Names) AskedKey(id string) string { return n.Derived("rlock:asked:" + id) }

// AskedChannel returns the channel on which holders are notified of requests to release.
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
	return newRequest(r.site, "lock/request_release", keys,
		[]any{RequestStands.Milliseconds(), r.names.AskedChannel(), r.site.how()}, readBool)
}

func (r revocation) Asked(id string) Task {
	return r.site.newTask("lock/asked", []string{r.names.AskedKey(id)}, nil)
}

func (r revocation) Listen(notify func()) (end func()) {
	return r.site.listen(r.names.AskedChannel(), notify)
}

// Revocation implements Revocable.
func (l *ownedLock) Revocation() Revocation { return revocation{l.site, l.names} }
func (l *readWrite) Revocation() Revocation { return revocation{l.site, l.names} }
func (q *Queued) Revocation() Revocation    { return revocation{q.site, q.names} }
