package protocol

import (
	"context"
	"strings"

	"github.com/go-rlock/rlock/internal/wire"
)

// Fenced is the protocol of a FencedLock: a Lock that takes its tokens from Redisson's
// counter.
type Fenced struct {
	standByLock
	counter string // the key
}

// NewFenced returns the protocol of a FencedLock.
func NewFenced(site *Site, names *Names) *Fenced {
	return &Fenced{standByLock{newOwnedLock(site, names)}, prefixed("redisson_lock_token", names.Lock)}
}

// NewID implements Protocol. The number in the id is negative. That marks a hold that raises
// the counter.
func (l *Fenced) NewID() HoldID {
	id := l.HashLock.NewID()
	at := strings.LastIndexByte(id.ID, ':') + 1
	return HoldID{id.ID[:at] + "-" + id.ID[at:], -id.Number}
}

// Ready implements Protocol. The fencing clock is not used.
func (l *Fenced) Ready(ctx context.Context) error { return l.site.Wire.Ready(ctx) }

// Enter implements Protocol. Tokens come from the counter.
func (l *Fenced) Enter(e *Acquire) Request[Entered] { return l.enter(e, l.counter, "counter") }

// ReleaseNext implements StandBy.
func (l *Fenced) ReleaseNext(id string, token int64, inRow int) Task {
	return l.releaseNext(id, token, inRow, l.counter)
}

// counted reports whether the id of a hold shows that it has raised the counter.
func counted(id string) bool { return !Ours(id) || strings.Contains(id, ":-") }

// Inspect implements Protocol. It returns the counter as the token, except for a hold of this module
// that did not raise the counter.
func (l *Fenced) Inspect() Request[State] {
	return newListenerCount(l.site, "lock/inspect", []string{l.names.Lock, l.counter}, l.names.Channel(), readFenced)
}

func readFenced(a wire.Answer) (State, error) {
	s, err := readState(a)
	for _, h := range s.Holders {
		if !counted(h.HoldID) {
			s.Token = 0
		}
	}
	return s, err
}

// View implements Protocol.
func (l *Fenced) View() any {
	return struct{ view, tokens any }{l.HashLock.View(), l.counter}
}

// Counter requests the value of the counter.
func (l *Fenced) Counter() Request[int64] {
	return newRequest(l.site, "lock/inspect", []string{l.names.Lock, l.counter}, nil, func(a wire.Answer) (int64, error) {
		_, token, _, err := a.Pair()
		return token, err
	})
}
