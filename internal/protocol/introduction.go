package protocol

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// A client introduces itself by a key: a text that names its process. No lock depends on the key. The key of each
// client may be in a different slot, so a command uses only one of them.

// clientName is the name of these keys, without prefix and client.
const clientName = "rlock:client:"

// clientPart is how many bytes of a client's id its key has: the part that the id of a permit also has.
const clientPart = 2*nineBytes + 3

// ClientKey returns the key under which a client introduces itself to clients with the same prefix.
func ClientKey(prefix, client string) string {
	return prefix + clientName + client[:min(clientPart, len(client))]
}

// ClientOf returns the client that has made the id of a hold or of a permit: the part of its id that ClientKey
// uses. It returns "" if no client of this module made the id.
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

// MaxIntroduction is how many bytes of an introduction are read: any user who may write to Redis could
// have written any text.
const MaxIntroduction = 4096

// Introduce makes the request that writes a text at the key of the client, on the client's server, with a TTL.
func (s *Site) Introduce(key, text string, ttl time.Duration) Task {
	return &introduction{task{s.Wire, wire.Request{Keys: []string{key}, Args: []any{"set", key, text, "px", ttl.Milliseconds()}}}}
}

// introduction is a task whose reply is not a number.
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

// WhoIs adds requests for the text at each of the keys to a round. done is called once for each key, with
// its index. The text is empty if the key does not exist or cannot be read.
func WhoIs(keys []string, round *wire.Round, done func(i int, text string, err error)) {
	for i, key := range keys {
		round.Add(&wire.Request{Keys: keys[i : i+1], Args: []any{"getrange", key, 0, MaxIntroduction - 1}}, func(_ time.Time, a wire.Answer) {
			text, _ := a.Val.(string)
			done(i, text, a.Err)
		})
	}
}
