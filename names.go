package rlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// MaxNameLength is the longest lock name, in bytes, prefix included. Redis
// takes far longer keys; a name travels in every request, so a very long one
// is more likely a mistake.
const MaxNameLength = 64 << 10

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// names are the keys and the channel of one lock. They follow Redisson, so
// that Java processes can share the lock: a derived name carries the lock's
// name in braces, unless that has a brace of its own.
type names struct {
	lock    string // the hash
	channel string // where a release is published
	clock   string // fencing clock of the lock's slot
	gone    string // what a tombstone begins with
}

// deriveNames checks a lock name and derives what belongs to it.
func deriveNames(name string) (names, error) {
	switch {
	case name == "":
		return names{}, invalid("the lock has no name")
	case len(name) > MaxNameLength:
		return names{}, invalid("the lock's name is %d bytes long, longer than %d", len(name), MaxNameLength)
	}
	slot := hashSlot(name)
	if hashSlot(suffixed(name, "x")) != slot || hashSlot(prefixed("x", name)) != slot {
		// In a cluster its keys would lie in different slots, and what works
		// on one server would fail there. So it is refused everywhere.
		return names{}, invalid("the lock's name %.100q has a brace but no usable hash tag such as {tag}: its keys would not share a cluster slot", name)
	}
	return names{
		lock:    name,
		channel: prefixed("redisson_lock__channel", name),
		clock:   clockKey(slot),
		gone:    suffixed(name, "rlock:gone:"),
	}, nil
}

// tombstone is the key that says that a stay has ended.
func (n names) tombstone(stay string) string { return n.gone + stay }

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

// clockKey is the fencing clock of a slot: one key for all locks of the slot,
// so that nothing is left behind per lock name. Its hash tag is the smallest
// decimal number that hashes to the slot.
func clockKey(slot int) string {
	return "rlock:clock:{" + strconv.Itoa(int(slotTags()[slot])) + "}"
}

var slotTags = sync.OnceValue(func() *[slots]int32 {
	var tags [slots]int32
	for i := range tags {
		tags[i] = -1
	}
	for n, left := int32(0), slots; left > 0; n++ {
		if s := hashSlot(strconv.Itoa(int(n))); tags[s] < 0 {
			tags[s] = n
			left--
		}
	}
	return &tags
})

// hashSlot is Redis Cluster's key hash: CRC16 (XMODEM) of the hash tag, or of
// the whole key if it has none.
func hashSlot(key string) int {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if end := strings.IndexByte(key[open+1:], '}'); end > 0 {
			key = key[open+1 : open+1+end]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return int(crc) % slots
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidArgument, fmt.Sprintf(format, args...))
}
