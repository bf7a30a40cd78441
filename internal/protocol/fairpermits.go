package protocol

import (
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var (
	_ Growing       = (*FairPermits)(nil)
	_ PermitCounter = (*FairPermits)(nil)
	_ PermitCounter = (*Permits)(nil)
)

// FairPermits is the protocol of taking n permits of a PermitSemaphore WithFairness at a
// time. Its waiters stand in a queue in Redis, and only the first of them may enter.
type FairPermits struct {
	*fairSemaphore
	eachWaits
	n int
}

// fairSemaphore is what all FairPermits of one PermitSemaphore share.
type fairSemaphore struct {
	located
	stateKeys keys   // see scripts/shared/permitqueue.lua
	channels  string // prefix of the channels of clients with waiters
	initial   int    // permits to set if no number is set, or 0
}

// NewFairPermits returns the protocol of taking one permit at a time. initial is the number of permits to set if no
// number is set, or 0.
func NewFairPermits(site *Site, names *Names, initial int) *FairPermits {
	names.keep()
	base := names.Derived("rlock:permits")
	return &FairPermits{n: 1, fairSemaphore: &fairSemaphore{
		located:   located{site, names},
		stateKeys: []string{base, base + ":ends", base + ":queue", base + ":alive", base + ":line"},
		channels:  base + ":turn:",
		initial:   initial,
	}}
}

// Of implements PermitCounter.
func (p *FairPermits) Of(n int) Protocol {
	if n == p.n {
		return p
	}
	return &FairPermits{fairSemaphore: p.fairSemaphore, n: n}
}

// more returns the channel of waiters that request more permits than exist.
func (s *fairSemaphore) more() string { return s.stateKeys[0] + ":more" }

// hold returns the keys of the state that an existing hold needs: see Queued.hold.
func (s *fairSemaphore) hold() []string { return s.stateKeys[:2:2] }

// waking appends the arguments with which a script wakes waiters.
func (s *fairSemaphore) waking(args ...any) []any {
	return append(args, s.site.WaiterLease.Milliseconds(), s.channels, s.site.how())
}

// Enter implements Protocol.
func (p *FairPermits) Enter(e *Acquire) Request[Entered] {
	keys := p.stateKeys.and(p.names.Tombstone(e.ID), p.site.clock(p.names), p.names.Lock)
	args := []any{e.ID, p.site.millis(e.Lease), p.n, p.site.WaiterLease.Milliseconds(), flag(e.Wait), p.channels, p.site.how()}
	if p.initial > 0 {
		keys, args = append(keys, p.names.setting()), append(args, p.initial)
	}
	return newEnterRequest(p.site, "fairpermits/enter", keys, args, readPermits).draw(p.names)
}

// Release implements Protocol.
func (p *FairPermits) Release(id string, n int) Task {
	return p.site.newReleaseTask("fairpermits/release", n, p.stateKeys, p.waking(id))
}

// Abandon implements Protocol.
func (p *FairPermits) Abandon(id string, lateCopies bool) Task {
	return p.site.newEndTask("fairpermits/abandon", p.stateKeys.and(p.names.Tombstone(id)), p.waking(id, tombstoneArg(lateCopies)))
}

// Renew implements Protocol.
func (p *FairPermits) Renew(id string, lease time.Duration) Task {
	return p.site.newRenewTask("fairpermits/renew", lease, p.hold(), []any{id, p.site.millis(lease)})
}

// ForceUnlock implements Protocol. Waiters keep their places.
func (p *FairPermits) ForceUnlock(holdID string) Request[bool] {
	return p.site.newForceRequest("fairpermits/force_unlock", holdID, p.stateKeys, p.waking(holdID))
}

// Inspect implements Protocol.
func (p *FairPermits) Inspect() Request[State] { return counts(p.inspect(true), stateOf) }

// Probe implements Protocol.
func (p *FairPermits) Probe(id string) Request[Probed] { return probing(p.inspect(true), id) }

// Count implements PermitCounter.
func (p *FairPermits) Count(holds bool) Request[Counted] { return p.inspect(holds) }

func (p *FairPermits) inspect(holds bool) *scriptRequest[Counted] {
	return newRequest(p.site, "fairpermits/inspect", p.stateKeys, []any{flag(holds)}, readFairCounted)
}

func readFairCounted(a wire.Answer) (Counted, error) {
	set, free, list, err := a.Pair()
	if err != nil {
		return Counted{}, err
	}
	if len(list)%3 != 2 {
		return Counted{}, wire.ErrReply(a.Val)
	}
	now, ok1 := list[0].(int64)
	waiters, ok2 := list[1].(int64)
	if !ok1 || !ok2 {
		return Counted{}, wire.ErrReply(a.Val)
	}
	c := Counted{Set: set == 1, Free: int(free), Waiters: int(waiters)}
	for list = list[2:]; len(list) > 0; list = list[3:] {
		var text [3]string
		for i := range text {
			text[i], _ = list[i].(string)
		}
		n, err1 := strconv.Atoi(text[1])
		end, err2 := strconv.ParseFloat(text[2], 64)
		if text[0] == "" || err1 != nil || err2 != nil {
			return Counted{}, wire.ErrReply(a.Val)
		}
		c.Held = append(c.Held, HeldPermits{text[0], n, time.Duration(max(end-float64(now), 0)) * time.Millisecond})
	}
	return c, nil
}

// Change implements PermitCounter.
func (s *fairSemaphore) Change(op Op, how PermitChange, n int) Request[bool] {
	args := []any{op.Number, n}
	if how != TrySetPermits { // before the number is set, there are no waiters
		args = s.counts(args...)
	}
	return newRequest(s.site, "fairpermits"+string(how), s.stateKeys.and(s.names.record(op.Page.ID), s.names.Lock, s.names.setting()), args, readSet)
}

// Delete implements PermitCounter.
func (s *fairSemaphore) Delete(op Op) Request[bool] {
	return newRequest(s.site, "fairpermits/delete", s.stateKeys.and(s.names.record(op.Page.ID), s.names.Lock), s.counts(op.Number), readBool)
}

// Undo implements PermitCounter.
func (p *FairPermits) Undo(op Op) Task {
	return p.site.newTask("fairpermits/undo", p.stateKeys.and(p.names.record(op.Page.ID), p.names.setting()), p.counts(op.Number))
}

// counts returns the arguments of a script that changes the number of permits.
func (s *fairSemaphore) counts(args ...any) []any {
	return append(args, s.site.WaiterLease.Milliseconds(), s.channels, s.site.howOrBoth(), s.more())
}

// Takes implements Taking.
func (p *FairPermits) Takes() int { return p.n }

// View implements Protocol.
func (p *FairPermits) View() any { return view{"fairpermits/inspect", p.stateKeys[0], p.channels} }

// Listen implements Protocol: see Queued.
func (p *FairPermits) Listen(id string, notify func()) (end func()) {
	if id == "" {
		return nil
	}
	return p.site.listenFor(p.channels+clientOf(id), id, notify)
}

// ListenForMore implements Growing.
func (p *FairPermits) ListenForMore(notify func()) (end func()) {
	return p.site.listen(p.more(), notify)
}

// Listening implements Queue.
func (p *FairPermits) Listening(id string) bool {
	return p.site.Listening(p.channels, clientOf(id))
}
