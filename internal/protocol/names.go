package protocol

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/go-rlock/rlock/internal/wire"
)

// MaxNameLength is the longest name of a lock, in bytes, prefix included. Redis takes far
// longer keys, but each request carries the name, so a very long one is probably a
// mistake.
const MaxNameLength = 64 << 10

// Names are the keys and the channel of one lock. They follow Redisson, so that Java
// processes can share the lock: a derived name has the lock's name in braces,
// unless the name already has a brace.
type Names struct {
	Lock string // key of the hash: the name of the lock
	// derived has names that each hold needs, or nil. A lock that is acquired only once does not keep
	// them while it is held: a client may have very many such locks.
	derived atomic.Pointer[derived]
}

// derived has the names that Names caches. For clock see Site.clock.
type derived struct{ channel, clock string }

// Derive checks the name of a lock, and makes n its Names. It fails if the name is empty
// or too long, if it is reserved, or if its keys would be in different slots of a cluster.
func (n *Names) Derive(name string) error {
	switch {
	case name == "":
		return errors.New("the lock has no name")
	case len(name) > MaxNameLength:
		return fmt.Errorf("the lock's name is %d bytes long, longer than %d", len(name), MaxNameLength)
	}
	slot := wire.Slot(name)
	if wire.Slot(suffixed(name, "x", "")) != slot || wire.Slot(prefixed("x", name)) != slot {
		// In a cluster its keys would be in different slots. The name would work on one
		// server and fail in a cluster, so it is refused everywhere.
		return fmt.Errorf("the lock's name %.100q has a brace but no usable hash tag such as {tag}: its keys would not share a cluster slot", name)
	}
	if why := reserved(name); why != "" {
		return fmt.Errorf("the lock's name %.100q %s", name, why)
	}
	n.Lock = name
	return nil
}

// redissonPrefixes has the prefixes of Redisson's additional keys of a lock. After the prefix, such a key has the
// name of the lock, with a brace.
var redissonPrefixes = []string{
	"redisson_lock__channel:", "redisson_lock_queue:", "redisson_lock_timeout:", "redisson_lock_token:", "redisson_unlock_latch:",
	"redisson_rwlock:", "redisson_sc:", "redisson_countdownlatch__channel__{",
}

// reserved returns why no lock may have a name, or "". A name is reserved if it has the form of a key or channel that
// belongs to another lock, or to all locks. Names often come from user input, and a lock with such a name could block
// the other lock, or be mistaken for it.
func reserved(name string) (why string) {
	const common = "is reserved for a key that all locks with a prefix share"
	const form = "has the form of a key or channel of another lock, which it could block: "
	if strings.Contains(name, clockName+":{") {
		return common
	}
	if strings.Contains(name, clientName) {
		return "is reserved for the key of a client"
	}
	for _, suffix := range []string{clockName, servedKey, "rlock:red:highest", "rlock:red:admitted", "rlock:red:since"} {
		if strings.HasSuffix(name, suffix) {
			return common
		}
	}
	brace := strings.IndexByte(name, '{')
	if brace < 0 {
		return "" // all other reserved names have a brace
	}
	for _, prefix := range redissonPrefixes {
		if strings.HasPrefix(name, prefix) {
			return form + "it begins with " + prefix
		}
	}
	for _, part := range []string{":rlock:", ":rwlock_timeout:"} {
		if strings.Contains(name[brace:], part) {
			return form + "it has a brace, and " + part + " after that"
		}
	}
	switch {
	case strings.HasSuffix(name, ":timeout"):
		return form + "it has a brace, and ends with :timeout"
	case endsWithID(name):
		return form + "it has a brace, and ends with the id of a client or hold"
	case brace == 0 && strings.LastIndexByte(name, '{') == 0 && strings.HasSuffix(name, "}"):
		return "is all in braces: what is in them is the name of another lock that has the same keys beside it"
	}
	return ""
}

// endsWithID reports whether a name ends with a colon and the id of a client or hold of this
// module. A release of a lock with such a name would be published on the channel of that client, or of the
// waiter with that id, and the lock's waiters would be counted as subscribers of that channel.
func endsWithID(name string) bool {
	at := strings.LastIndexByte(name, ':')
	if number := name[at+1:]; at > 0 && number != "" && strings.Trim(number, "0123456789") == "" {
		name = name[:at]
		at = strings.LastIndexByte(name, ':')
	}
	id := name[at+1:]
	return at >= 0 && len(id) == 36 && id[8] == '-' && id[13] == '-' && id[14] == '0'+UUIDVersion && id[18] == '-' && id[23] == '-'
}

// Channel returns the channel on which a release is published.
func (n *Names) Channel() string { return n.keep().channel }

// keep derives the names that each hold needs, and caches them. The first release calls it, because
// more may follow. A type that caches other names anyway calls it in its constructor.
func (n *Names) keep() *derived {
	d := n.derived.Load()
	if d == nil { // two concurrent callers make equal values
		d = &derived{channel: prefixed("redisson_lock__channel", n.Lock)}
		n.derived.Store(d)
	}
	return d
}

// slot returns the slot of all keys of the lock. It is not cached.
func (n *Names) slot() int { return wire.Slot(n.Lock) }

// Tombstone returns the key that records that a hold has ended.
func (n *Names) Tombstone(id string) string { return suffixed(n.Lock, "rlock:gone:", id) }

// standBy returns the key that has the waiter that stands by.
func (n *Names) standBy() string { return n.Derived("rlock:next") }

// grants returns the channel on which grants to waiters of a client are published.
func (n *Names) grants(client string) string { return n.Channel() + ":" + client }

// Derived returns a key or channel in the lock's slot.
func (n *Names) Derived(suffix string) string { return suffixed(n.Lock, suffix, "") }

func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

func suffixed(name, suffix, id string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix + id
	}
	return "{" + name + "}:" + suffix + id
}

// keys are the first keys of each script of a type.
type keys []string

// and returns a copy of k with more keys appended.
func (k keys) and(more ...string) []string { return append(k[:len(k):len(k)], more...) }

// UUIDVersion is the version of the client ids of this module, the version for custom use.
// Redisson's ids have version 4, so a hold id shows which library made it.
const UUIDVersion = 8

// Ours reports whether a client of this module made a hold id.
func Ours(id string) bool {
	return len(id) > 36 && id[36] == ':' && id[14] == '0'+UUIDVersion
}
