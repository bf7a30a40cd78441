// Package handle is the text by which a process goes on with a hold that another one has detached.
package handle

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Handle is what it takes to go on with a hold. Only the secret is one: the rest is printed in many places.
type Handle struct {
	Kind   *protocol.Kind // of lock
	HoldID string
	Name   string // of the lock, with the prefix
	Secret protocol.Secret
}

// version begins each handle. A later form will begin in another way.
const version = "rlock2-"

// String returns a text that is fit for a URL: version, and in base64 a checksum, the secret, and the other fields, each of
// which but the last ends with a line feed.
func (h Handle) String() string {
	body := append(h.Secret[:], strings.Join([]string{h.Kind.ID, h.HoldID, h.Name}, "\n")...)
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body))
	return version + base64.RawURLEncoding.EncodeToString(append(sum, body...))
}

var holdID = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}:-?[1-9][0-9]{0,18}$`)

// Parse reads a handle. The error says what is wrong with the text, and never repeats it: who has it can take the lock.
func Parse(text string) (h Handle, err error) {
	coded, ok := strings.CutPrefix(text, version)
	if !ok {
		return h, fmt.Errorf("the handle does not begin with %s: it is none, or of another version", version)
	}
	if base64.RawURLEncoding.DecodedLen(len(coded)) > protocol.MaxNameLength+1024 {
		return h, errors.New("the handle is too long")
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	if err != nil || len(body) < 4+len(h.Secret) || binary.BigEndian.Uint32(body) != crc32.ChecksumIEEE(body[4:]) {
		return h, errors.New("the handle is damaged: it was cut off or changed")
	}
	body = body[4:]
	copy(h.Secret[:], body)
	fields := bytes.SplitN(body[len(h.Secret):], []byte("\n"), 3)
	if len(fields) != 3 || !holdID.Match(fields[1]) {
		return h, errors.New("the handle has no id of a hold")
	}
	h.Kind, h.HoldID, h.Name = protocol.KindNamed(string(fields[0])), string(fields[1]), string(fields[2])
	if h.Kind == nil || !h.Kind.Adoptable {
		return h, errors.New("the handle is of a type of lock that this version does not know")
	}
	return h, nil
}
