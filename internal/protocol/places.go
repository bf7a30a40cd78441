package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Places)(nil)

// Places is the protocol of a DoubleBarrier. A hold is a place in it, which its members take
// together, and leave one by one.
type Places struct {
	located
	eachWaits
	state   keys // see scripts/shared/places.lua
	channel string
	members int
}

// NewPlaces returns the protocol of a DoubleBarrier with so many members.
func NewPlaces(site *Site, names *Names, members int) *Places {
	names.keep()
	base := names.Derived("rlock:double")
	return &Places{located: located{site, names}, state: []string{base, base + ":places"}, channel: base + ":changed", members: members}
}

// Enter implements Protocol.
func (p *Places) Enter(e *Acquire) Request[Entered] {
	// A waiter looks each third of a waiter lease. But it does not lose its place sooner
	// than it would when it has entered: the others may rely on it.
	wait := max(e.Lease, p.site.WaiterLease)
	return entering(p.site, "places/enter", p.state.and(p.names.Tombstone(e.ID), p.site.clock(p.names)),
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
	e.Inside, e.Others = e.Others, 0 // members, none of which keeps others out alone
	return e, err
}

// Release implements Protocol.
func (p *Places) Release(id string, n int) Task {
	return p.site.releasing("places/release", n, p.state, []any{id, p.channel, p.site.how()})
}

// Abandon implements Protocol.
func (p *Places) Abandon(id string, late bool) Task {
	return p.site.leaving("places/abandon", p.state.and(p.names.Tombstone(id)), []any{id, keep(late), p.channel, p.site.how()})
}

// Renew implements Protocol.
func (p *Places) Renew(id string, lease time.Duration) Task {
	return p.site.renewing("places/renew", lease, p.state, []any{id, lease.Milliseconds()})
}

// ForceUnlock implements Protocol.
func (p *Places) ForceUnlock(holdID string) Request[bool] {
	return p.site.forcing("places/force_unlock", holdID, p.state, []any{holdID, p.channel, p.site.how()})
}

// Inspect implements Protocol.
func (p *Places) Inspect() Request[State] {
	return looking(p.site, "places/inspect", p.state, nil, readState)
}

// Probe implements Protocol.
func (p *Places) Probe(id string) Request[Probed] {
	return looking(p.site, "places/probe", p.state, []any{id}, readProbed)
}

// Generation is the members that have entered together.
type Generation struct {
	of    *Places
	token int64
}

// Generation is the one with a token.
func (p *Places) Generation(token int64) *Generation { return &Generation{p, token} }

// Listen has notify called when somebody has left.
func (g *Generation) Listen(notify func()) (end func()) { return g.of.Listen("", notify) }

// Remaining asks how many are still in, and for how long, unless they prolong that.
func (g *Generation) Remaining() Request[Remaining] {
	p := g.of
	return looking(p.site, "places/left", p.state, []any{g.token, p.channel, p.site.how()}, func(a wire.Answer) (Remaining, error) {
		n, rest, _, err := a.Pair()
		return Remaining{n, max(millis(rest), time.Millisecond)}, err
	})
}

// View implements Protocol.
func (p *Places) View() any { return view{"places/inspect", p.state[0], p.channel} }

// Listen implements Protocol. All listen to one channel: a message concerns all who wait.
func (p *Places) Listen(_ string, notify func()) (end func()) {
	return p.site.listen(p.channel, notify)
}

// Listening implements Queue.
func (p *Places) Listening(string) bool { return false }
