package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Places)(nil)

// Places is the protocol of a DoubleBarrier. A hold is a place in the barrier. The members take their places
// together, and leave one by one.
type Places struct {
	located
	eachWaits
	stateKeys keys // see scripts/shared/places.lua
	channel   string
	members   int
}

// NewPlaces returns the protocol of a DoubleBarrier with the given number of members.
func NewPlaces(site *Site, names *Names, members int) *Places {
	names.keep()
	base := names.Derived("rlock:double")
	return &Places{located: located{site, names}, stateKeys: []string{base, base + ":places"}, channel: base + ":changed", members: members}
}

// Enter implements Protocol.
func (p *Places) Enter(e *Acquire) Request[Entered] {
	// A waiter sends a request each third of a waiter lease. But its place lasts at least as long as it
	// would after it has entered, because the other members may rely on it.
	wait := max(e.Lease, p.site.WaiterLease)
	return newEnterRequest(p.site, "places/enter", p.stateKeys.and(p.names.Tombstone(e.ID), p.site.clock(p.names)),
		[]any{e.ID, e.Lease.Milliseconds(), wait.Milliseconds(), flag(e.Wait), p.members, p.channel, p.site.how()}, readPlaced).draw(p.names)
}

// readPlaced reads the reply of places/enter.
func readPlaced(a wire.Answer) (Entered, error) {
	code, n, rest, err := a.Pair()
	switch {
	case err == nil && code == codeOtherNumber:
		return Entered{Verdict: OtherNumber, Members: Members{Missing: n}}, nil
	case err == nil && code == codeBusy && len(rest) == 1:
		missing, ok := rest[0].(int64)
		if !ok {
			return Entered{}, wire.ErrReply(a.Val)
		}
		return Entered{Verdict: Busy, Rest: millis(n), Members: Members{Missing: missing}}, nil
	}
	e, err := readEntered(a)
	e.Inside, e.Others = e.Others, 0 // members, of which no single one keeps others out
	return e, err
}

// Release implements Protocol.
func (p *Places) Release(id string, n int) Task {
	return p.site.newReleaseTask("places/release", n, p.stateKeys, []any{id, p.channel, p.site.how()})
}

// Abandon implements Protocol.
func (p *Places) Abandon(id string, lateCopies bool) Task {
	return p.site.newEndTask("places/abandon", p.stateKeys.and(p.names.Tombstone(id)), []any{id, tombstoneArg(lateCopies), p.channel, p.site.how()})
}

// Renew implements Protocol.
func (p *Places) Renew(id string, lease time.Duration) Task {
	return p.site.newRenewTask("places/renew", lease, p.stateKeys, []any{id, lease.Milliseconds()})
}

// ForceUnlock implements Protocol.
func (p *Places) ForceUnlock(holdID string) Request[bool] {
	return p.site.newForceRequest("places/force_unlock", holdID, p.stateKeys, []any{holdID, p.channel, p.site.how()})
}

// Inspect implements Protocol.
func (p *Places) Inspect() Request[State] {
	return newRequest(p.site, "places/inspect", p.stateKeys, nil, readState)
}

// Probe implements Protocol.
func (p *Places) Probe(id string) Request[Probed] {
	return newRequest(p.site, "places/probe", p.stateKeys, []any{id}, readProbed)
}

// Generation has the members that have entered together.
type Generation struct {
	places *Places
	token  int64
}

// Generation returns the generation with a token.
func (p *Places) Generation(token int64) *Generation { return &Generation{p, token} }

// Listen calls notify when a member has left.
func (g *Generation) Listen(notify func()) (end func()) { return g.places.Listen("", notify) }

// Remaining requests how many members have not left, and how long their leases last unless they renew them.
func (g *Generation) Remaining() Request[Remaining] {
	p := g.places
	return newRequest(p.site, "places/left", p.stateKeys, []any{g.token, p.channel, p.site.how()}, func(a wire.Answer) (Remaining, error) {
		n, rest, _, err := a.Pair()
		return Remaining{n, max(millis(rest), time.Millisecond)}, err
	})
}

// View implements Protocol.
func (p *Places) View() any { return view{"places/inspect", p.stateKeys[0], p.channel} }

// Listen implements Protocol. All waiters share one channel, because a message concerns all of them.
func (p *Places) Listen(_ string, notify func()) (end func()) {
	return p.site.listen(p.channel, notify)
}

// Listening implements Queue.
func (p *Places) Listening(string) bool { return false }
