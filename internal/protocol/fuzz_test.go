package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/go-rlock/rlock/internal/wire"
)

// replyOf makes a reply of go-redis from bytes: numbers, texts, nil, other types of RESP3, and lists of these.
func replyOf(b []byte, depth int) (reply any, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	kind, n := b[0]%9, int(b[0]/9)
	b = b[1:]
	switch kind {
	case 0:
		return int64(n) - 8, b
	case 1:
		if len(b) < 8 {
			return int64(n), b
		}
		return int64(binary.BigEndian.Uint64(b)), b[8:]
	case 2:
		n = min(n, len(b))
		return string(b[:n]), b[n:]
	case 3:
		return nil, b
	case 4:
		return float64(n), b
	case 5:
		return n%2 == 0, b
	case 6:
		return map[any]any{int64(n): "x"}, b
	case 7:
		return errors.New("an error in a list"), b
	}
	list := []any{}
	for range n % 12 {
		var item any
		if depth < 3 {
			item, b = replyOf(b, depth+1)
		}
		list = append(list, item)
	}
	return list, b
}

// grants reports whether a reply is a grant of an enter script: a token alone, or the code and a number.
func grants(reply any) bool {
	if token, ok := reply.(int64); ok {
		return token > 0
	}
	list, _ := reply.([]any)
	if len(list) < 2 || list[0] != int64(codeGranted) {
		return false
	}
	_, ok := list[1].(int64)
	return ok
}

// A reply that is no grant is never read as one, and each is read or is an error that callers can tell apart.
func FuzzReplies(f *testing.F) {
	for _, b := range [][]byte{{}, {0}, {81}, {1, 1, 2, 3, 4, 5, 6, 7, 8}, {3}, {26, 81, 81}, {26, 72, 81}, {26, 81, 20, 'a', 'b'}, {44, 81, 81, 81, 81}, {53, 72, 90, 3, 3, 3}, {98, 0, 1, 2, 3, 4, 5, 6, 7}} {
		f.Add(b)
	}
	entered := map[string]func(a wire.Answer) (Entered, error){
		"entered": readEntered, "permits": readPermits, "placed": readPlaced, "stood": readStood,
	}
	others := map[string]func(a wire.Answer) error{
		"kept":         func(a wire.Answer) error { _, err := readKept(a); return err },
		"all kept":     func(a wire.Answer) error { _, err := readAllKept(2)(a); return err },
		"bool":         func(a wire.Answer) error { _, err := readBool(a); return err },
		"text":         func(a wire.Answer) error { _, err := readText(a); return err },
		"probed":       func(a wire.Answer) error { _, err := readProbed(a); return err },
		"led":          func(a wire.Answer) error { _, err := readLed(a); return err },
		"state":        func(a wire.Answer) error { _, err := readState(a); return err },
		"fenced":       func(a wire.Answer) error { _, err := readFenced(a); return err },
		"glance":       func(a wire.Answer) error { _, err := readGlance(2)(a); return err },
		"counted":      func(a wire.Answer) error { _, err := readCounted(a); return err },
		"fair counted": func(a wire.Answer) error { _, err := readFairCounted(a); return err },
		"taken":        func(a wire.Answer) error { _, err := readTaken(a); return err },
		"set":          func(a wire.Answer) error { _, err := readSet(a); return err },
		"permitted":    func(a wire.Answer) error { _, err := readPermitted(a); return err },
		"drained":      func(a wire.Answer) error { _, err := readDrained(a); return err },
		"count":        func(a wire.Answer) error { _, err := readCount(a); return err },
		"remaining":    func(a wire.Answer) error { _, err := readRemaining(a); return err },
		"adoption":     func(a wire.Answer) error { _, err := readAdoption(a); return err },
		"claimed":      func(a wire.Answer) error { _, err := readClaimed(a); return err },
		"peeked":       func(a wire.Answer) error { _, err := readPeeked(a); return err },
		"outcome":      func(a wire.Answer) error { _, err := readOutcome(a); return err },
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		reply, _ := replyOf(b, 0)
		a := wire.Answer{Val: reply}
		for name, read := range entered {
			e, err := read(a)
			if err == nil && e.Verdict == Granted && !grants(reply) {
				t.Errorf("%s: %#v is read as a grant", name, reply)
			}
			if name == "entered" && grants(reply) && (err != nil || e.Verdict != Granted) {
				t.Errorf("%s: the grant %#v is read as %+v, %v", name, reply, e, err)
			}
			if err != nil && !errors.Is(err, wire.ErrRefused) {
				t.Errorf("%s: the error of %#v is of no kind: %v", name, reply, err)
			}
		}
		for name, read := range others {
			if err := read(a); err != nil && !errors.Is(err, wire.ErrRefused) {
				t.Errorf("%s: the error of %#v is of no kind: %v", name, reply, err)
			}
		}
	})
}

// A message is a grant to a waiter that stands by only if it has an id and four numbers.
func FuzzGrantMessage(f *testing.F) {
	for _, message := range []string{"", "1", uuid + ":1 2 3 4 5", uuid + ":1 2 3 4", " 1 2 3 4", "x 1 2 3 99999999999999999999", "x  1 2 3", "x -1 -2 -3 -4", "x 0x1 2 3 4"} {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message string) {
		g, ok := readGrant(message)
		if !ok {
			return
		}
		message = fmt.Sprintf("%s %d %d %d %d", g.ID, g.Token, g.Reserved, g.InRow, g.Poll)
		if again, ok := readGrant(message); !ok || again != g {
			t.Errorf("%q is read as %+v, whose message is read as %+v", message, g, again)
		}
	})
}
