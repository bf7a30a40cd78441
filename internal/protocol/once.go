package protocol

import (
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

var _ Protocol = (*Once)(nil)

// Once is the protocol of a Once: a Lock on keys of its own, beside which its holder leaves a
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

// Enter implements Protocol. It does not enter if there is a result.
func (o *Once) Enter(e *Acquire) Request[Entered] {
	var args []any
	if e.Waited > 0 {
		args = []any{e.Waited.Milliseconds()}
	}
	q := entering(o.site, "once/enter", nil, args, readEntered).draw(o.names)
	q.r.Put(4, o.names.Lock, o.names.Tombstone(e.ID), o.site.clockWord(o.names), o.result, e.ID, o.site.millis(e.Lease))
	return q
}

// Shares implements Sharing.
func (o *Once) Shares() {}

// Glanced implements Polled.
func (o *Once) Glanced() *HashLock { return &o.HashLock }

// Fail ends the hold with an id, and tells those who wait that its function has failed, and why.
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

// Peeked is the result that is kept, if there is one.
type Peeked struct {
	Result string
	Kept   bool
}

// Peek asks for the result.
func (o *Once) Peek() Request[Peeked] {
	return looking(o.site, "once/peek", []string{o.result}, nil, func(a wire.Answer) (Peeked, error) {
		kept, _, rest, err := a.Pair()
		switch {
		case err != nil || kept == 0:
			return Peeked{}, err
		case len(rest) == 1:
			if result, ok := rest[0].(string); ok {
				return Peeked{result, true}, nil
			}
		}
		return Peeked{}, wire.ErrReply(a.Val)
	})
}

// Forget deletes the result. It reports whether there was one.
func (o *Once) Forget() Request[bool] {
	return o.site.forcing("once/forget", "", []string{o.result}, nil)
}
