package rlock

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-rlock/rlock/internal/protocol"
)

// handle is what Client.Adopt needs to know of a hold. As a text it is opaque: handleVersion, and in
// base64 for URLs a checksum and the fields, each of which but the last ends with a line feed.
type handle struct {
	kind  string // in handled
	id    string
	token int64
	name  string // of the lock, with the prefix
}

// handleVersion begins each handle. A later form will begin in another way.
const handleVersion = "rlock1-"

// handled are the types whose holds can be adopted. The kind tells all that their scripts have to
// agree about.
var handled = map[string]struct {
	family string
	side   side
	asks   func(site *protocol.Site, names *protocol.Names) protocol.Adoptable
}{
	"lock": {hashFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable { return protocol.NewLock(s, n) }},
	"fair": {hashFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable { return protocol.NewFair(s, n) }},
	"fenced": {hashFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable {
		return protocol.NewFenced(s, n)
	}},
	"spin": {hashFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable {
		return protocol.NewSpin(s, n, nil) // nobody waits with it
	}},
	"read": {rwFamily, shared, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable {
		return protocol.NewReadSide(s, n, false)
	}},
	"write": {rwFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable {
		return protocol.NewWriteSide(s, n, false)
	}},
	"fairread":  {fairRWFamily, shared, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable { return protocol.NewFairReadSide(s, n) }},
	"fairwrite": {fairRWFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable { return protocol.NewFairWriteSide(s, n) }},
	"priority":  {priorityFamily, exclusive, func(s *protocol.Site, n *protocol.Names) protocol.Adoptable { return protocol.NewPriority(s, n, 0) }},
}

// kindOf is the kind of a lock; empty: its holds cannot be adopted.
func kindOf(l *core) string {
	switch l.asks.(type) {
	case *protocol.Lock:
		return "lock"
	case *protocol.Fair:
		return "fair"
	case *protocol.Fenced:
		return "fenced"
	case *protocol.Spin:
		return "spin"
	case *protocol.ReadSide:
		return "read"
	case *protocol.WriteSide:
		return "write"
	case *protocol.Queued:
		switch {
		case l.family == priorityFamily:
			return "priority"
		case l.family == fairRWFamily && l.side == shared:
			return "fairread"
		case l.family == fairRWFamily:
			return "fairwrite"
		}
	}
	return ""
}

func (h handle) String() string {
	body := strings.Join([]string{h.kind, h.id, strconv.FormatInt(h.token, 10), h.name}, "\n")
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
	h = handle{kind: fields[0], id: fields[1], name: fields[3]}
	h.token, err = strconv.ParseInt(fields[2], 10, 64)
	of, known := handled[h.kind]
	switch {
	case !known:
		return h, invalid("the handle is of a type of lock that this version does not know")
	case !handleID.MatchString(h.id):
		return h, invalid("the handle has no id of a hold")
	case err != nil || h.token < 0 || (of.side == exclusive) != (h.token > 0):
		return h, invalid("the handle has no fencing token")
	}
	return h, nil
}
