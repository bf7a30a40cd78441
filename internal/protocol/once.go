package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Once)(nil)

// Once is the protocol of a Once: a Lock on separate keys, whose holder writes a
// result.
type Once struct {
	HashLock
	result string // key
	keep   time.Duration
}

// NewOnce returns the protocol of a Once that keeps a result for the duration keep. Locks with the same
// name are independent.
func NewOnce(site *Site, names *Names, keep time.Duration) *Once {
	base := names.Derived("rlock:once")
	own := &Names{Lock: base}
	own.derived.Store(&derived{channel: base + ":free"})
	return &Once{newHashLock(site, own), base + ":result", keep}
}

// Keep returns how long a result is kept.
func (o *Once) Keep() time.Duration { return o.keep }

// Glanced implements Polled.
func (o *Once) Glanced() *HashLock { return &o.HashLock }

// Fail ends the hold with an id, and writes the error of its function for waiters.
// If lateCopies is true, copies of its first request may still arrive.
func (o *Once) Fail(id, text string, lateCopies bool) Task {
	return o.site.newEndTask("once/fail",
		[]string{o.names.Lock, o.names.Tombstone(id), o.result},
		[]any{id, text, tombstoneMillis, tombstoneArg(lateCopies), o.names.Channel(), o.site.how()})
}

// Finish writes the result of the hold with an id and a token, and ends the hold. If lateCopies is true,
// copies of its first request may still arrive.
func (o *Once) Finish(id string, token int64, result string, lateCopies bool) Task {
	return o.site.newEndTask("once/finish",
		[]string{o.names.Lock, o.names.Tombstone(id), o.result},
		[]any{id, token, result, o.keep.Milliseconds(), tombstoneArg(lateCopies), o.names.Channel(), o.site.how()})
}

// Outcome is the outcome of the last run of a Once, as far as Redis keeps it.
type Outcome struct {
	Kept   bool          // Text is the result
	Failed bool          // the run has failed, and Text is the text of its error
	Ago    time.Duration // time since the failure, rounded down to ms
	Text   string
}

// Peek requests the outcome of the last run.
func (o *Once) Peek() Request[Outcome] {
	return newRequest(o.site, "once/peek", []string{o.result}, nil, readOutcome)
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
	return o.site.newForceRequest("once/forget", "", []string{o.result}, nil)
}
