// Package handle encodes a handle: the text with which a process adopts a hold that another process has detached.
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

// Handle identifies a detached hold. Only Secret is secret: the other fields are printed in many places.
type Handle struct {
	Kind   *protocol.Kind // kind of lock
	HoldID string
	Name   string // name of the lock, with the prefix
	Secret protocol.Secret
}

// version begins each handle. A later form will begin differently.
const version = "rlock2-"

// String returns a text that needs no escapes in a URL: version, and in base64 a checksum, the secret, and the other
// fields, separated by line feeds.
func (h Handle) String() string {
	body := append(h.Secret[:], strings.Join([]string{h.Kind.ID, h.HoldID, h.Name}, "\n")...)
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body))
	return version + base64.RawURLEncoding.EncodeToString(append(sum, body...))
}

var holdID = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}:-?[1-9][0-9]{0,18}$`)

// Parse reads a handle. The error describes what is wrong without repeating the text, which is a secret.
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
