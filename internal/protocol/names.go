package protocol

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-rlock/rlock/internal/wire"
)

// MaxNameLength is the longest name of a lock, in bytes, prefix included. Redis takes far
// longer keys, but each request carries the name, so a very long one is probably a
// mistake.
const MaxNameLength = 64 << 10

// Names are the keys and the channel of one lock. They follow Redisson, so that Java
// processes can share the lock: a derived name carries the lock's name in braces,
// unless that has a brace of its own.
type Names struct {
	Lock    string // the hash; it has the name of the lock
	Channel string // where a release is published
	Clock   string // fencing clock of the lock's slot
	gone    string // prefix of tombstones
}

// DeriveNames checks the name of a lock and derives its keys and channel. It fails if the
// name is empty or too long, or if its keys would be in different slots of a cluster.
func DeriveNames(name string) (Names, error) {
	switch {
	case name == "":
		return Names{}, errors.New("the lock has no name")
	case len(name) > MaxNameLength:
		return Names{}, fmt.Errorf("the lock's name is %d bytes long, longer than %d", len(name), MaxNameLength)
	}
	slot := wire.Slot(name)
	if wire.Slot(suffixed(name, "x")) != slot || wire.Slot(prefixed("x", name)) != slot {
		// In a cluster its keys would be in different slots. The name would work on one
		// server and fail in a cluster, so it is refused everywhere.
		return Names{}, fmt.Errorf("the lock's name %.100q has a brace but no usable hash tag such as {tag}: its keys would not share a cluster slot", name)
	}
	return Names{
		Lock:    name,
		Channel: prefixed("redisson_lock__channel", name),
		Clock:   clockKey(slot),
		gone:    suffixed(name, "rlock:gone:"),
	}, nil
}

// Tombstone is the key that says that a hold has ended.
func (n Names) Tombstone(id string) string { return n.gone + id }

// Derived returns a key or channel in the lock's slot.
func (n Names) Derived(suffix string) string { return suffixed(n.Lock, suffix) }

func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// clockKey is the key of the fencing clock of a slot. All locks of the slot share it, so
// that no key remains for each name. Its hash tag is the smallest decimal number that
// hashes to the slot.
func clockKey(slot int) string {
	return "rlock:clock:{" + strconv.Itoa(int(slotTags()[slot])) + "}"
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

// UUIDVersion is the version of the client ids of this module: the one for custom use.
// Those of Redisson have version 4, so a hold id tells whose client made it.
const UUIDVersion = 8

// Ours reports whether a client of this module made a hold id.
func Ours(id string) bool {
	return len(id) > 36 && id[36] == ':' && id[14] == '0'+UUIDVersion
}
