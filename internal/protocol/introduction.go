package protocol

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// A client introduces itself under a key of its own: a text that says which process it is. Nothing
// depends on the key. It has a slot of its own, so each command is about this key only.

// clientName is the name of such keys, without prefix and client.
const clientName = "rlock:client:"

// clientPart is how much of a client's id its key has: what the id of a permit has of it too.
const clientPart = 2*nineBytes + 3

// ClientKey is the key under which a client introduces itself to those with the same prefix.
func ClientKey(prefix, client string) string {
	return prefix + clientName + client[:min(clientPart, len(client))]
}

// ClientOf is the beginning of the id of the client of this module that has made the id of a hold, or of
// a permit, as far as its key has it; "": none has.
func ClientOf(holdID string) string {
	part := holdID[:min(clientPart, len(holdID))]
	switch {
	case len(holdID) == 2*permitLen:
		part = holdID[:8] + "-" + holdID[8:12] + "-" + holdID[12:16] + "-" + holdID[16:18]
	case !Ours(holdID):
		return ""
	}
	for i := range len(part) {
		c := part[i]
		switch {
		case i == 8 || i == 13 || i == 18:
			if c != '-' {
				return ""
			}
		case i == 14 && c != '0'+UUIDVersion, !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f'):
			return ""
		}
	}
	return part
}

// MaxIntroduction is how much of an introduction is read, in bytes: anybody who may write to Redis can
// have put anything there.
const MaxIntroduction = 4096

// Introduce makes the request that writes a text under the key of the client, on its own server, for a time.
func (s *Site) Introduce(key, text string, ttl time.Duration) Task {
	return &introduction{task{s.Wire, wire.Request{Keys: []string{key}, Args: []any{"set", key, text, "px", ttl.Milliseconds()}}}}
}

// introduction is a task whose reply is no number.
type introduction struct{ task }

func (i *introduction) result(a wire.Answer) Result[Kept] {
	return result(i.on, &i.r, a, func(a wire.Answer) (Kept, error) { return Done, a.Err })
}

// Do implements Request.
func (i *introduction) Do(ctx context.Context, budget time.Duration) Result[Kept] {
	return i.result(i.on.Do(ctx, budget, &i.r))
}

// Send implements Task.
func (i *introduction) Send(d Dispatch) {
	to := d.Recipient // not all of d
	d.Round.Add(&i.r, func(sent time.Time, a wire.Answer) { to.Done(sent, i.result(a)) })
}

// WhoIs adds questions to a round: what is under each of the keys. done is called once for each, with
// its number, and an empty text if there is nothing, or nothing that can be read.
func WhoIs(keys []string, round *wire.Round, done func(i int, text string, err error)) {
	for i, key := range keys {
		round.Add(&wire.Request{Keys: keys[i : i+1], Args: []any{"getrange", key, 0, MaxIntroduction - 1}}, func(_ time.Time, a wire.Answer) {
			text, _ := a.Val.(string)
			done(i, text, a.Err)
		})
	}
}
