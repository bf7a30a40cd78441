package protocol

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// located has the deployment and the keys of a lock.
type located struct {
	site  *Site
	names *Names
}

// NewID implements Protocol.
func (l *located) NewID() HoldID { return l.site.NewID() }

// Ready implements Protocol.
func (l *located) Ready(ctx context.Context) error { return l.site.ready(ctx, l.names) }

// Prepare implements Protocol.
func (l *located) Prepare() { l.site.Wire.Prepare(l.names.Lock) }

// HashLock is embedded by the types whose state is a hash with one field for the only hold. It has only the methods
// that all of them share.
type HashLock struct{ located }

func newHashLock(site *Site, names *Names) HashLock { return HashLock{located{site, names}} }

// ownedLock is a HashLock that its owner can enter again, whose holder can get a request to release it, and whose hold
// another client can adopt.
type ownedLock struct{ HashLock }

func newOwnedLock(site *Site, names *Names) ownedLock { return ownedLock{newHashLock(site, names)} }

// standByLock is an ownedLock whose waiters can stand by, and that glances can poll for them.
type standByLock struct{ ownedLock }

// Lock is the protocol of a Lock.
type Lock struct{ standByLock }

// NewLock returns the protocol of a Lock.
func NewLock(site *Site, names *Names) *Lock { return &Lock{standByLock{newOwnedLock(site, names)}} }

// HandsOver implements HandedOver.
func (l *Lock) HandsOver() {}

// Glanced implements Polled.
func (l *standByLock) Glanced() *HashLock { return &l.HashLock }

// Enter implements Protocol. Tokens come from the fencing clock of the slot.
func (l *HashLock) Enter(e *Acquire) Request[Entered] {
	return l.enter(e, l.site.clockWord(l.names), e.Reserve).draw(l.names) // boxing a small number does not allocate
}

// StandsBy implements StandBy. A release can check only on a single server whether the waiter's client is
// subscribed.
func (l *standByLock) StandsBy() bool {
	return l.site.Wire.AnySlots() && l.site.Wire.PublishCommand() == "publish" && l.site.grantsAtOnce()
}

// standByMost is how long a waiter stands by after a request; or a third of its lease, if that is
// less.
const standByMost = 3 * time.Second

// standBy is enter for a waiter that stands by.
func (l *HashLock) standBy(e *Acquire, tokens string, source any) *scriptRequest[Entered] {
	within := min(standByMost, e.Lease/3)
	return newRequest(l.site, "lock/stand_by",
		[]string{l.names.Lock, l.names.Tombstone(e.ID), tokens, l.names.standBy()},
		[]any{e.ID, e.Lease.Milliseconds(), source, within.Milliseconds(), l.site.Client + ":", e.Tries}, readStood)
}

// ReleaseNext implements StandBy.
func (l *standByLock) ReleaseNext(id string, token int64, inRow int) Task {
	return l.releaseNext(id, token, inRow)
}

func (l *standByLock) releaseNext(id string, token int64, inRow int, counter ...string) Task {
	return l.site.newReleaseTask("lock/release_next", 0,
		append([]string{l.names.Lock, l.names.standBy()}, counter...),
		[]any{id, token, l.names.Channel(), l.site.how(), l.names.grants(""), inRow})
}

// SubscribeToGrants implements StandBy.
func (l *standByLock) SubscribeToGrants(granted func(Grant)) (end func()) {
	if !l.site.Wire.PublishKnown() {
		return nil
	}
	return l.site.ListenTo(l.names.grants(l.site.Client), nil, func(message string) {
		if g, ok := readGrant(message); ok {
			granted(g)
		}
	})
}

// Identify implements Identified, with the channel of the grants.
func (l *standByLock) Identify() (end func()) { return l.site.identify(l.names.Channel()) }

func readGrant(message string) (g Grant, ok bool) {
	words := strings.Split(message, " ")
	if len(words) != 5 || words[0] == "" {
		return g, false
	}
	var numbers [4]int64
	for i, word := range words[1:] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return g, false
		}
		numbers[i] = n
	}
	if numbers[0] < 1 { // no token is
		return g, false
	}
	return Grant{words[0], numbers[0], numbers[1], int(numbers[2]), int(numbers[3])}, true
}

// enter is Enter with the key of the tokens, a string, and the kind of that key.
func (l *HashLock) enter(e *Acquire, tokens, source any) *scriptRequest[Entered] {
	if e.StandBy {
		return l.standBy(e, tokens.(string), source)
	}
	q := newEnterRequest(l.site, "lock/enter", nil, nil, readEntered)
	q.r.Put(3, l.names.Lock, l.names.Tombstone(e.ID), tokens, e.ID, l.site.millis(e.Lease), source)
	return q
}

// Reenter implements Reentrant.
func (l *ownedLock) Reenter(id string, lease time.Duration, n int, confirm bool) Request[Kept] {
	return l.site.newReenterTask("lock/reenter", confirm, []string{l.names.Lock}, []any{id, lease.Milliseconds(), n})
}

// Release implements Protocol.
func (l *HashLock) Release(id string, n int) Task { return l.release(id, n, l.site.how()) }

func (l *HashLock) release(id string, n int, how any) Task {
	t := l.site.newReleaseTask("lock/release", n, nil, nil)
	t.r.Put(1, l.names.Lock, id, n, l.names.Channel(), how)
	return t
}

// Abandon implements Protocol. It always leaves a tombstone.
func (l *HashLock) Abandon(id string, _ bool) Task { return l.abandon(id, l.site.how()) }

func (l *HashLock) abandon(id string, how any) Task {
	return l.site.newEndTask("lock/abandon",
		[]string{l.names.Lock, l.names.Tombstone(id), l.names.standBy()},
		[]any{id, tombstoneMillis, l.names.Channel(), how})
}

// Renew implements Protocol.
func (l *HashLock) Renew(id string, lease time.Duration) Task {
	t := l.site.newRenewTask("lock/renew", lease, nil, nil)
	t.r.Put(1, l.names.Lock, id, l.site.millis(lease))
	return t
}

// ForceUnlock implements Protocol.
func (l *HashLock) ForceUnlock(holdID string) Request[bool] {
	return l.forceUnlock(holdID, l.site.how())
}

func (l *HashLock) forceUnlock(holdID string, how any) Request[bool] {
	return l.site.newForceRequest("lock/force_unlock", holdID, []string{l.names.Lock}, []any{holdID, l.names.Channel(), how})
}

// Inspect implements Protocol.
func (l *HashLock) Inspect() Request[State] {
	return newListenerCount(l.site, "lock/inspect", []string{l.names.Lock}, l.names.Channel(), readState)
}

// Probe implements Protocol.
func (l *HashLock) Probe(id string) Request[Probed] {
	return newRequest(l.site, "lock/probe", []string{l.names.Lock}, []any{id}, readProbed)
}

// view is the View of most types: the script and the key of Inspect, and the channel that announces changes.
type view struct{ script, lock, channel string }

// View implements Protocol.
func (l *HashLock) View() any { return view{"lock/inspect", l.names.Lock, l.names.Channel()} }

// Listen implements Protocol.
func (l *HashLock) Listen(_ string, notify func()) (end func()) {
	return l.site.listen(l.names.Channel(), notify)
}
