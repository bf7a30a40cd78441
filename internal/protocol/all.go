package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Slot is equal for Locks of one client whose keys one script may use: Locks of one server, or of one slot of a cluster.
// EnterAll and ReleaseAll require equal Slots.
type Slot struct {
	site *Site
	slot int
}

// Slot returns the Slot of a lock. The result may change when the server has reported that it is in cluster mode.
func (l *HashLock) Slot() Slot {
	if l.site.Wire.AnySlots() {
		return Slot{l.site, -1}
	}
	return Slot{l.site, l.names.slot()}
}

// EnterAll requests a hold of each of several Locks of one Slot, or of none of them. All
// holds have the same id and the same token.
func EnterAll(locks []*Lock, id string, lease time.Duration) Request[Entered] {
	keys := make([]string, 1, 2*len(locks)+2)
	keys[0] = locks[0].site.clock(locks[0].names)
	for _, l := range locks {
		keys = append(keys, l.names.Lock, l.names.Tombstone(id))
	}
	q := newEnterRequest(locks[0].site, "lock/enter_all", keys, []any{id, lease.Milliseconds()}, readEntered).draw(locks[0].names)
	q.r.Main, q.r.Step = 1, 2 // the locks
	return q
}

// Leaving is a hold of a Lock that is to end. If Late is set, copies of its requests may
// still arrive, and a tombstone stops them.
type Leaving struct {
	Lock *Lock
	ID   string
	Late bool
}

// ReleaseAll ends several holds of Locks of one Slot. The outcome has one item for each hold, in
// order. The request is not sent again to a server that cannot be reached: the caller can release
// each hold separately, by requests that are retried for longer.
func ReleaseAll(all []Leaving) Request[[]Kept] {
	site := all[0].Lock.site
	keys := make([]string, 0, 2*len(all))
	args := make([]any, 0, 3*len(all)+1)
	for _, one := range all {
		names := one.Lock.names
		keys = append(keys, names.Lock, names.Tombstone(one.ID))
		args = append(args, one.ID, tombstoneArg(one.Late), names.Channel())
	}
	return &scriptRequest[[]Kept]{on: site.Wire, r: wire.Request{
		Script:    site.Scripts["lock/release_all"],
		Keys:      keys,
		Args:      append(args, site.how()),
		Step:      2,
		OneEffect: true,
		Each:      true,
		FailFast:  true,
	}, read: readAllKept(len(all))}
}
