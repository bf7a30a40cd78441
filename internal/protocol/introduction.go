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

// Place is a server on which a client introduces itself.
type Place struct {
	On    *wire.Deployment
	Under wire.Tally // introductions without an answer yet: Introduce adds one, the answer takes it away
}

// Introduction writes who a client is, on its own server and on others. A second copy writes the same;
// one that comes after TakeBack lasts as long as the TTL.
type Introduction struct {
	own    *Place
	others []introducing
	r      wire.Request
	within time.Duration
}

var _ Task = (*Introduction)(nil)

// introducing is an introduction on another server. It implements wire.Errand.
type introducing struct {
	*Introduction
	at *Place
}

// Introduce makes the request that writes a text under the key, for a time. It is to be sent once.
func (s *Site) Introduce(key, text string, ttl time.Duration, own *Place, others []*Place) *Introduction {
	i := &Introduction{own: own, r: wire.Request{Keys: []string{key}, Args: []any{"set", key, text, "px", ttl.Milliseconds()}}, within: s.CommandTimeout}
	own.Under.Add(1)
	for _, at := range others {
		at.Under.Add(1)
		i.others = append(i.others, introducing{i, at})
	}
	return i
}

func readIntroduced(a wire.Answer) (Kept, error) { return Done, a.Err }

// Do implements Request. It writes to the client's own server only.
func (i *Introduction) Do(ctx context.Context, budget time.Duration) Result[Kept] {
	return result(i.own.On, &i.r, i.own.On.Do(ctx, budget, &i.r), readIntroduced)
}

// Name implements Task.
func (i *Introduction) Name() string { return i.r.Name() }

// OfQuorum implements Task.
func (i *Introduction) OfQuorum() bool { return false }

// Send implements Task. The outcome is that of the client's own server.
func (i *Introduction) Send(d Dispatch) {
	to := d.Recipient // not all of d
	d.Round.Add(&i.r, func(sent time.Time, a wire.Answer) {
		i.own.Under.Add(-1)
		to.Done(sent, result(i.own.On, &i.r, a, readIntroduced))
	})
	for n := range i.others {
		i.others[n].at.On.Put(i.own.On, &i.others[n])
	}
}

func (i *introducing) Context() context.Context { return i.own.On.Context() }
func (i *introducing) Request() (*wire.Request, error) {
	return &wire.Request{Keys: i.r.Keys, Args: i.r.Args, FailFast: true, NoResend: true}, nil
}
func (i *introducing) Answered(time.Time, wire.Answer) { i.at.Under.Add(-1) }
func (i *introducing) Timeout() time.Duration          { return i.within }
func (i *introducing) Wanted() bool                    { return true }

// TakeBack deletes the key, on one server. It is not sent again to one that cannot be reached.
func TakeBack(ctx context.Context, on *wire.Deployment, key string, within time.Duration) error {
	return on.Do(ctx, within, &wire.Request{Keys: []string{key}, Args: []any{"del", key}, FailFast: true}).Err
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
