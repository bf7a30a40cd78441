package protocol

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/go-rlock/rlock/internal/wire"
)

// Whatever a proxy or another server replies: it is read, or it is an error.
func TestNoReplyPanics(t *testing.T) {
	reads := map[string]func(a wire.Answer){
		"entered":      func(a wire.Answer) { _, _ = readEntered(a) },
		"stood":        func(a wire.Answer) { _, _ = readStood(a) },
		"kept":         func(a wire.Answer) { _, _ = readKept(a) },
		"all kept":     func(a wire.Answer) { _, _ = readAllKept(2)(a) },
		"bool":         func(a wire.Answer) { _, _ = readBool(a) },
		"probed":       func(a wire.Answer) { _, _ = readProbed(a) },
		"led":          func(a wire.Answer) { _, _ = readLed(a) },
		"state":        func(a wire.Answer) { _, _ = readState(a) },
		"glance":       func(a wire.Answer) { _, _ = readGlance(2)(a) },
		"placed":       func(a wire.Answer) { _, _ = readPlaced(a) },
		"counted":      func(a wire.Answer) { _, _ = readCounted(a) },
		"fair counted": func(a wire.Answer) { _, _ = readFairCounted(a) },
		"taken":        func(a wire.Answer) { _, _ = readTaken(a) },
		"set":          func(a wire.Answer) { _, _ = readSet(a) },
		"permitted":    func(a wire.Answer) { _, _ = readPermitted(a) },
		"drained":      func(a wire.Answer) { _, _ = readDrained(a) },
		"count":        func(a wire.Answer) { _, _ = readCount(a) },
	}
	item := rapid.OneOf(
		rapid.Map(rapid.Int64Range(-6, 6), func(n int64) any { return n }),
		rapid.Map(rapid.Int64(), func(n int64) any { return n }),
		rapid.Map(rapid.SampledFrom([]string{"", "1", "-1", "x", "exclusive"}), func(s string) any { return s }),
		rapid.Just[any](nil),
		rapid.Just[any]([]any{}),
		rapid.Just[any]([]any{int64(1), int64(-1)}),
	)
	reply := rapid.OneOf(item, rapid.Map(rapid.SliceOfN(item, 0, 9), func(list []any) any { return list }))
	rapid.Check(t, func(t *rapid.T) {
		a := wire.Answer{Val: reply.Draw(t, "reply")}
		for _, read := range reads {
			read(a)
		}
	})
}
