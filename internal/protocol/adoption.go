package protocol

import (
	"context"
	"crypto/sha1"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Adoptable is a protocol whose detached holds other clients can adopt, by the functions below: see
// scripts/shared/adoption.lua.
type Adoptable interface {
	Protocol
	adoption() adoption
}

// adoption has the parts of the requests about an adoption.
type adoption struct {
	site      *Site
	names     *Names
	script    string   // script that adopts
	stateKeys []string // first keys of the script
	suffix    string   // suffix of an id in the name of a tombstone
	mode      []any    // mode of the hold; only for a Queued
	timers    []any    // prefix of the timers' names; only for a ReadSide
}

func (a *adoption) tombstone(id string) string { return a.names.Tombstone(id + a.suffix) }

// Secret permits its owner to adopt a detached hold. Redis has its hash.
type Secret [16]byte

// Adoption is the outcome of an Adopt.
type Adoption struct {
	Verdict   Verdict       // Granted, Gone, Entangled, Withdrawn or Quarantined
	Token     int64         // Granted; 0 for a shared hold
	Rest      time.Duration // Quarantined: how long the quarantine lasts
	TakenOver bool          // Gone: others hold the lock
}

func readAdoption(a wire.Answer) (Adoption, error) {
	code, n, rest, err := a.Pair()
	if err != nil {
		return Adoption{}, err
	}
	switch code {
	case codeGranted:
		if len(rest) == 1 {
			text, _ := rest[0].(string)
			if token, err := strconv.ParseInt(text, 10, 64); err == nil {
				return Adoption{Verdict: Granted, Token: token}, nil
			}
		}
	case codeBusy:
		return Adoption{Verdict: Gone, TakenOver: n != 0}, nil
	case codeWithdrawn:
		return Adoption{Verdict: Withdrawn}, nil
	case codeQuarantined:
		return Adoption{Verdict: Quarantined, Rest: millis(n)}, nil
	case codeEntangled:
		return Adoption{Verdict: Entangled}, nil
	}
	return Adoption{}, wire.ErrReply(a.Val)
}

// Detach offers a hold to anyone who has the secret, and then reports whether the hold exists. The hold is not renewed
// any more, and ends within rest.
func Detach(p Adoptable, id string, secret Secret, token int64, rest time.Duration) Task {
	a := p.adoption()
	hash := fmt.Sprintf("%x", sha1.Sum(secret[:]))
	offer := newRequest(a.site, "adoption/offer", []string{a.stateKeys[0], a.tombstone(id)}, []any{id, hash, token, rest.Milliseconds()}, readNumber)
	offer.r.Acked = a.site.acks()
	return &inTurn{a.site, id, offer, func(int64) Task { return p.Renew(id, 0) }}
}

// FindDetached finds a detached hold for a caller that has its handle and is about to renew the hold for a lease, or to
// end it. The outcome is the current id of the hold, or empty if the hold does not exist.
func FindDetached(p Adoptable, old string, secret Secret, lease time.Duration) Request[string] {
	a := p.adoption()
	args := []any{secret[:], lease.Milliseconds(), tombstoneMillis}
	return newRequest(a.site, "adoption/find", []string{a.stateKeys[0], a.tombstone(old)}, args, readText)
}

// Adopt gives the detached hold with the id old a new id, and makes it last for lease. As with an acquire, a server in
// quarantine refuses it, and replicas confirm it if the client requires that.
func Adopt(p Adoptable, id, old string, secret Secret, lease time.Duration) Request[Adoption] {
	a := p.adoption()
	keys := append(slices.Clone(a.stateKeys), a.tombstone(old), a.tombstone(id))
	if len(a.timers) > 0 {
		keys = append(keys, timer(a.names.Derived(""), old, 1), timer(a.names.Derived(""), id, 1))
	}
	args := slices.Concat([]any{id, secret[:], lease.Milliseconds(), tombstoneMillis}, a.mode, a.timers)
	return newEnterRequest(a.site, a.script, keys, args, readAdoption)
}

// GiveBack undoes an Adopt, no matter whether it succeeded: the hold is detached again. If its lease has run out, it ends.
func GiveBack(p Adoptable, id, old string, lease time.Duration) Task {
	a := p.adoption()
	keys := []string{a.stateKeys[0], a.tombstone(old), a.tombstone(id)}
	undo := newRequest(a.site, "adoption/give_back", keys, []any{id, lease.Milliseconds(), tombstoneMillis}, readNumber)
	return &inTurn{a.site, id, undo, func(rest int64) Task {
		switch {
		case rest > 0:
			return p.Renew(id, millis(rest))
		case rest < 0:
			return p.Abandon(id, true)
		}
		return nil
	}}
}

func (l *ownedLock) adoption() adoption {
	return adoption{site: l.site, names: l.names, script: "lock/adopt", stateKeys: []string{l.names.Lock}}
}

func (l *WriteSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, script: "rw/write_adopt", stateKeys: []string{l.names.Lock}, suffix: writes}
}

func (l *ReadSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, script: "rw/read_adopt", stateKeys: []string{l.names.Lock}, timers: []any{l.timers}}
}

func (q *Queued) adoption() adoption {
	a := adoption{site: q.site, names: q.names, script: "queue/adopt", stateKeys: q.hold(), mode: []any{q.mode}}
	if q.mode == shared {
		a.suffix = reads
	}
	return a
}

// inTurn sends a request, and a second task after the reply. Its outcome is the outcome of the second task, or Done if
// there is no second task.
type inTurn struct {
	site  *Site
	id    string // hold that both requests are about
	first *scriptRequest[int64]
	then  func(n int64) Task
}

// Name implements Task.
func (t *inTurn) Name() string { return t.first.r.Name() }

// OfQuorum implements Task.
func (t *inTurn) OfQuorum() bool { return false }

// Do implements Request.
func (t *inTurn) Do(ctx context.Context, budget time.Duration) Result[Kept] {
	until := time.Now().Add(budget)
	r := t.first.Do(ctx, budget)
	return t.follow(ctx, r, max(time.Until(until), time.Millisecond))
}

func (t *inTurn) follow(ctx context.Context, r Result[int64], budget time.Duration) Result[Kept] {
	if r.Err == nil && r.TooFew == nil {
		if then := t.then(r.Outcome); then != nil {
			return then.Do(ctx, budget)
		}
	}
	return t.onlyFirst(r)
}

// onlyFirst returns the result if no task follows the first request.
func (t *inTurn) onlyFirst(r Result[int64]) Result[Kept] {
	if r.Err != nil && overwritten(&t.first.r, r.Err) {
		return Result[Kept]{Outcome: Overwritten}
	} else if r.TooFew != nil {
		r.Err, r.Unsure = wire.Because(wire.ErrUnreachable, r.TooFew), true
	}
	return Result[Kept]{Err: r.Err, Unsure: r.Unsure}
}

// Send implements Task.
func (t *inTurn) Send(d Dispatch) {
	d.Round.Add(&t.first.r, func(sent time.Time, a wire.Answer) {
		r := t.first.result(a)
		if r.Err != nil || r.TooFew != nil {
			d.Done(sent, t.onlyFirst(r))
			return
		}
		w := t.site.Wire
		w.Go(func() {
			w.Gate("then " + t.id) // the replies to several requests come in the same instant
			d.Done(sent, t.follow(w.Context(), r, t.site.CommandTimeout))
		})
	})
}
