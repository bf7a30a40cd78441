package rlock

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// handle is what Client.Adopt needs to know of a hold. As a text it is opaque: handleVersion, and in
// base64 for URLs a checksum and the fields, each of which but the last ends with a line feed.
type handle struct {
	kind  *protocol.Kind
	id    string
	token int64
	name  string // of the lock, with the prefix
}

// handleVersion begins each handle. A later form will begin in another way.
const handleVersion = "rlock1-"

func (h handle) String() string {
	body := strings.Join([]string{h.kind.ID, h.id, strconv.FormatInt(h.token, 10), h.name}, "\n")
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(body)))
	return handleVersion + base64.RawURLEncoding.EncodeToString(append(sum, body...))
}

var handleID = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}:-?[1-9][0-9]{0,18}$`)

// readHandle reads a handle. The error says what is wrong with the text, and never repeats it: who has
// it can take the lock.
func readHandle(text string) (h handle, err error) {
	coded, ok := strings.CutPrefix(text, handleVersion)
	if !ok {
		return h, invalid("the handle does not begin with %s: it is none, or of another version", handleVersion)
	}
	if base64.RawURLEncoding.DecodedLen(len(coded)) > protocol.MaxNameLength+1024 {
		return h, invalid("the handle is too long")
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	if err != nil || len(body) < 4 || binary.BigEndian.Uint32(body) != crc32.ChecksumIEEE(body[4:]) {
		return h, invalid("the handle is damaged: it was cut off or changed")
	}
	fields := strings.SplitN(string(body[4:]), "\n", 4)
	if len(fields) != 4 {
		return h, invalid("the handle lacks a field")
	}
	h = handle{kind: protocol.KindNamed(fields[0]), id: fields[1], name: fields[3]}
	h.token, err = strconv.ParseInt(fields[2], 10, 64)
	switch {
	case h.kind == nil || !h.kind.Adoptable:
		return h, invalid("the handle is of a type of lock that this version does not know")
	case !handleID.MatchString(h.id):
		return h, invalid("the handle has no id of a hold")
	case err != nil || h.token < 0 || (h.kind.Side == protocol.Exclusive) != (h.token > 0):
		return h, invalid("the handle has no fencing token")
	}
	return h, nil
}

// A hold that others may adopt: see adoption.go.

// adoptionListener is of a hold whose handle others have. The guard of the hold guards it.
type adoptionListener struct {
	periodic
	listens bool
}

// exposeHandle notes that others may adopt the hold. listens: it subscribes to adoptions. If the lease has ended, it
// returns why.
func (h *hold) exposeHandle(l *Lease, listens bool) error {
	c := h.core.c
	h.lock()
	h.checkLocked(c.now())
	if l.err != nil {
		defer h.unlock()
		return l.err
	}
	k, _ := h.rareLocked().adoption.(*adoptionListener)
	if k == nil {
		k = &adoptionListener{periodic: periodic{h: h, next: c.now().Add(c.cfg.watchdogLease / 3)}}
		h.adoption, h.renew, h.missed = k, k.renewLocked, k.missedLocked
		h.rare.addLocked(k)
		h.batch = nil
		c.watchdog.Hurry(&h.Entry)
	}
	listens = listens && !k.listens
	k.listens = k.listens || listens
	h.unlock()
	if !listens {
		return nil
	}
	if end := protocol.HearAdoption(h.core.proto.(protocol.Adoptable), k.askSoon); end != nil {
		k.keepSubscription(end)
	}
	return nil
}

// renewLocked is the request to renew the hold; with a lease of 0, to look. Its answer tells of an adoption.
func (k *adoptionListener) renewLocked(lease time.Duration) protocol.Task {
	c := k.h.core.c
	k.next = c.now().Add(c.cfg.watchdogLease / 3)
	if lease > 0 && redis.HasErrorPrefix(k.h.failureLocked(), "TRYAGAIN") {
		// While a cluster moves the slot, it refuses a request of whose keys one does not exist, as the tombstone
		// may not. It refuses an adoption for the same reason.
		return k.h.core.proto.Renew(k.h.id(), lease)
	}
	return protocol.RenewKnown(k.h.core.proto.(protocol.Adoptable), k.h.id(), lease)
}

// missedLocked is called when a request has not found the hold. The request may have been sent before others had the
// handle, and then its answer does not tell of an adoption: the watchdog looks again.
func (k *adoptionListener) missedLocked(now clock.Instant, found protocol.Kept) (looks bool) {
	if found == protocol.Adopted {
		return false
	}
	k.next = now
	return true
}

func (k *adoptionListener) dueLocked(clock.Instant) protocol.Task { return k.renewLocked(0) }
