package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Once)(nil)

// Once is the protocol of a Once: a Lock on separate keys, next to which its holder leaves a
// result.
type Once struct {
	HashLock
	result string // key
	keep   time.Duration
}

// NewOnce returns the protocol of a Once that keeps a result for so long. Locks of its name
// have nothing to do with it.
func NewOnce(site *Site, names *Names, keep time.Duration) *Once {
	base := names.Derived("rlock:once")
	own := &Names{Lock: base}
	own.derived.Store(&derived{channel: base + ":free"})
	return &Once{newHashLock(site, own), base + ":result", keep}
}

// Keep is how long a result is kept.
func (o *Once) Keep() time.Duration { return o.keep }

// Glanced implements Polled.
func (o *Once) Glanced() *HashLock { return &o.HashLock }

// Fail ends the hold with an id, and reports to waiters that its function has failed, and why.
// With late, copies of its first request may come late.
func (o *Once) Fail(id, text string, late bool) Task {
	return o.site.leaving("once/fail",
		[]string{o.names.Lock, o.names.Tombstone(id), o.result},
		[]any{id, text, tombstoneMillis, keep(late), o.names.Channel(), o.site.how()})
}

// Finish writes the result of the hold with an id and a token, and ends the hold. With late,
// copies of its first request may come late.
func (o *Once) Finish(id string, token int64, result string, late bool) Task {
	return o.site.leaving("once/finish",
		[]string{o.names.Lock, o.names.Tombstone(id), o.result},
		[]any{id, token, result, o.keep.Milliseconds(), keep(late), o.names.Channel(), o.site.how()})
}

// Outcome is the outcome of the last run of a Once, as far as Redis keeps it.
type Outcome struct {
	Kept   bool          // there is a result
	Failed bool          // there is none, and the run has failed
	Ago    time.Duration // since it failed, without the rest of a ms
	Text   string        // the result, or the text of the error
}

// Peek requests the outcome of the last run.
func (o *Once) Peek() Request[Outcome] {
	return looking(o.site, "once/peek", []string{o.result}, nil, readOutcome)
}

func readOutcome(a wire.Answer) (Outcome, error) {
	const kept, failed = 1, 2
	code, ago, rest, err := a.Pair()
	if err != nil || code == 0 {
		return Outcome{}, err
	}
	if len(rest) == 1 {
		if text, ok := rest[0].(string); ok {
			return Outcome{code == kept, code == failed, millis(ago), text}, nil
		}
	}
	return Outcome{}, wire.ErrReply(a.Val)
}

// Forget deletes the result. It reports whether there was one.
func (o *Once) Forget() Request[bool] {
	return o.site.forcing("once/forget", "", []string{o.result}, nil)
}
