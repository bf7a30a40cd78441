package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// FencingClock gives the fencing tokens of a client. A server that is not in cluster mode has one
// clock, the single clock, for all locks with the prefix; it is a string. In cluster mode a script may
// only use keys of the lock's slot, so each slot has a clock.
//
// Two clients must draw the tokens of a lock from the same key. The server enforces this: in
// cluster mode the key of the single clock is a hash. A script that draws from the wrong key fails
// without a change. In cluster mode it fails because the key is a hash, or is in another slot; on a
// server that was part of a cluster before it fails because the key is still a hash. Then the client
// finds out again which mode the server is in, and draws from the right key: see scriptRequest.draw.
//
// The hash also has the floor: the last token that the single clock gave before the deployment became
// a cluster. A client raises the clock of a slot to the floor before it draws from that clock.
type FencingClock struct {
	prefix   string
	clockKey string // key of the single clock
	boxed    any    // clockKey
	// hasTag: the prefix has a hash tag, so all keys with the prefix are in one slot, and a single
	// clock is enough in a cluster too.
	hasTag bool

	split  wire.Shared // floor is known
	floor  atomic.Int64
	raised [wire.Slots / 64]atomic.Uint64 // bits of the slots whose clocks have been raised to floor
}

// NewFencingClock returns the clock of the locks with a prefix.
func NewFencingClock(prefix string) *FencingClock {
	f := &FencingClock{prefix: prefix, clockKey: prefix + clockName, hasTag: strings.Contains(prefix, "{")}
	f.boxed = f.clockKey
	return f
}

// clockName is the name of the fencing clock, without prefix.
const clockName = "rlock:clock"

// ofSlot returns the key of the clock of a slot. All locks of the slot share the clock, so
// that no key remains for each name. The hash tag of the key is the smallest decimal number that
// hashes to the slot.
func (f *FencingClock) ofSlot(slot int) string {
	return f.clockKey + ":{" + strconv.Itoa(int(slotTags()[slot])) + "}"
}

var slotTags = sync.OnceValue(func() *[wire.Slots]int32 {
	var tags [wire.Slots]int32
	for i := range tags {
		tags[i] = -1
	}
	for n, left := int32(0), wire.Slots; left > 0; n++ {
		if s := wire.Slot(strconv.Itoa(int(n))); tags[s] < 0 {
			tags[s] = n
			left--
		}
	}
	return &tags
})

// slotClocks reports whether each slot has a clock, as far as the mode of the server is known.
func (s *Site) slotClocks() bool { return s.Wire.Slotted() && !s.Clock.hasTag }

func (s *Site) clock(n *Names) string {
	if !s.slotClocks() {
		return s.Clock.clockKey
	}
	d := n.derived.Load()
	if d != nil && d.clock != "" {
		return d.clock
	}
	key := s.Clock.ofSlot(n.slot())
	if d != nil { // two concurrent callers make equal values
		n.derived.Store(&derived{d.channel, key})
	}
	return key
}

// clockWord is clock, boxed. The key of the single clock is boxed once.
func (s *Site) clockWord(n *Names) any {
	if !s.slotClocks() {
		return s.Clock.boxed
	}
	return s.clock(n)
}

// ready is called before a request that may draw a token or publish.
func (s *Site) ready(ctx context.Context, n *Names) error {
	if err := s.Wire.Ready(ctx); err != nil || !s.slotClocks() {
		return err
	}
	if f := s.Clock; !f.split.Known() {
		if err := f.split.Ask(ctx, s.Wire, s.splitClock); err != nil {
			return err
		}
	}
	return s.raise(ctx, n)
}

// clocksAgree is how far the clocks of the nodes of a cluster may differ from each other. A floor
// that is older than that is below the time of each node.
const clocksAgree = time.Hour

// splitClock makes the key of the single clock a hash, and reads the floor.
func (s *Site) splitClock(ctx context.Context) error {
	q := newRequest(s, "clock/split", []string{s.Clock.clockKey}, nil, func(a wire.Answer) (int64, error) {
		floor, now, _, err := a.Pair()
		if now-floor > clocksAgree.Microseconds() {
			floor = 0
		}
		return floor, err
	})
	// A *redis.Client reaches only the keys of its node, which may not include this key.
	q.r.FailFast = s.Wire.OneServer()
	r := q.Do(ctx, s.CommandTimeout)
	if q.r.FailFast && r.Err != nil {
		if moved(r.Err) {
			return nil
		}
		q.r.FailFast = false
		r = q.Do(ctx, s.CommandTimeout)
	}
	s.Clock.floor.Store(r.Outcome)
	return r.Err
}

// moved reports whether another node of the cluster has the key.
func moved(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && redis.HasErrorPrefix(reply, "MOVED")
}

// raise lifts the clock of a lock's slot to the floor, once.
func (s *Site) raise(ctx context.Context, n *Names) error {
	f := s.Clock
	floor, slot := f.floor.Load(), n.slot()
	word, bit := &f.raised[slot/64], uint64(1)<<(slot%64)
	if floor == 0 || word.Load()&bit != 0 {
		return nil
	}
	r := newRequest(s, "clock/raise", []string{f.ofSlot(slot)}, []any{floor}, readBool).Do(ctx, s.CommandTimeout)
	if r.Err == nil {
		word.Or(bit)
	}
	return r.Err
}

// mostMerged is how many clocks of slots one script merges at most: the server runs no other command
// meanwhile.
const mostMerged = 1024

// wrongClock is called when a request that draws a token has failed with err. It reports whether
// the request failed because it used the single clock, and should be sent again with the clock of the lock.
func (s *Site) wrongClock(ctx context.Context, n *Names, r *wire.Request, err error) (bool, error) {
	used := s.Clock.clockKey
	if s.Clock.hasTag || !r.Uses(used) {
		return false, nil
	}
	switch crossed := redis.HasErrorPrefix(err, "CROSSSLOT"); {
	case crossed:
		s.Wire.FoundSlots()
	case errors.Is(err, wire.ErrForeignKey) && strings.Contains(err.Error(), fmt.Sprintf("%.200q is a", used)):
		if err := s.mergeClocks(ctx); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	return true, s.ready(ctx, n)
}

// mergeClocks makes the key of the single clock a string again, and deletes the clocks of the slots,
// if the server is not in cluster mode any more.
func (s *Site) mergeClocks(ctx context.Context) error {
	switch r := s.merge(nil).Do(ctx, s.CommandTimeout); {
	case r.Err != nil:
		return r.Err
	case !r.Outcome:
		return nil // another client has done it meanwhile
	}
	if err := s.Wire.Greet(ctx); err != nil || s.Wire.Slotted() {
		return err
	}
	keys := make([]string, wire.Slots)
	for slot := range keys {
		keys[slot] = s.Clock.ofSlot(slot)
	}
	for some := range slices.Chunk(keys, mostMerged) {
		err := s.merge(some).Do(ctx, s.CommandTimeout).Err
		if err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") {
			s.Wire.FoundSlots()
			return nil
		} else if err != nil {
			return err
		}
	}
	return s.merge(nil, "whole").Do(ctx, s.CommandTimeout).Err
}

// merge reports whether the key of the single clock is a hash. It raises the floor in the hash, or the
// clock, to the clocks of some slots, and deletes these. With "whole" it makes the key a string again.
func (s *Site) merge(slots []string, whole ...any) Request[bool] {
	return newRequest(s, "clock/merge", append([]string{s.Clock.clockKey}, slots...), whole, readBool)
}
