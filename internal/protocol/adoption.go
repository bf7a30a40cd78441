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

// Adoptable is a protocol whose detached holds other clients can go on with, by the functions below: see
// scripts/shared/adoption.lua.
type Adoptable interface {
	Protocol
	adoption() adoption
}

// adoption is what the requests about it are made of.
type adoption struct {
	site   *Site
	names  *Names
	script string   // which adopts
	state  []string // the first keys of that
	suffix string   // of an id in the name of a tombstone
	mode   []any    // of a hold of a Queued
	timers []any    // of a ReadSide: the prefix of their names
}

func (a *adoption) tombstone(id string) string { return a.names.Tombstone(id + a.suffix) }

// Secret is what it takes to go on with a detached hold. Redis has its hash.
type Secret [16]byte

// Adoption is the outcome of an Adopt.
type Adoption struct {
	Verdict   Verdict       // Granted, Gone, Entangled, Withdrawn or Quarantined
	Token     int64         // Granted; 0 for a shared hold
	Rest      time.Duration // Quarantined: how long the quarantine lasts
	TakenOver bool          // Gone, and others hold the lock
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

// Detach offers a hold to anyone who has the secret, and then reports whether it is there. The hold is not renewed any
// more, and ends within rest.
func Detach(p Adoptable, id string, secret Secret, token int64, rest time.Duration) Task {
	a := p.adoption()
	hash := fmt.Sprintf("%x", sha1.Sum(secret[:]))
	offer := looking(a.site, "adoption/offer", []string{a.state[0], a.tombstone(id)}, []any{id, hash, token, rest.Milliseconds()}, readNumber)
	offer.r.Acked = a.site.acks()
	return &inTurn{a.site, id, offer, func(int64) Task { return p.Renew(id, 0) }}
}

// FindDetached finds a detached hold, for a caller that has its handle and is about to renew it for a lease, or to end it. The outcome
// is the id that it has in the lock; empty: there is none.
func FindDetached(p Adoptable, old string, secret Secret, lease time.Duration) Request[string] {
	a := p.adoption()
	args := []any{secret[:], lease.Milliseconds(), tombstoneMillis}
	return looking(a.site, "adoption/find", []string{a.state[0], a.tombstone(old)}, args, readText)
}

// Adopt asks for the detached hold with the id old to go on under another id, and to last for lease. As an acquire, a
// server in quarantine refuses it, and replicas confirm it, if the client wants that.
func Adopt(p Adoptable, id, old string, secret Secret, lease time.Duration) Request[Adoption] {
	a := p.adoption()
	keys := append(slices.Clone(a.state), a.tombstone(old), a.tombstone(id))
	if len(a.timers) > 0 {
		keys = append(keys, timer(a.names.Derived(""), old, 1), timer(a.names.Derived(""), id, 1))
	}
	args := slices.Concat([]any{id, secret[:], lease.Milliseconds(), tombstoneMillis}, a.mode, a.timers)
	return entering(a.site, a.script, keys, args, readAdoption)
}

// GiveBack undoes an Adopt, whatever became of it: the hold is as detached as before. If its time is over, it ends.
func GiveBack(p Adoptable, id, old string, lease time.Duration) Task {
	a := p.adoption()
	keys := []string{a.state[0], a.tombstone(old), a.tombstone(id)}
	undo := looking(a.site, "adoption/give_back", keys, []any{id, lease.Milliseconds(), tombstoneMillis}, readNumber)
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
	return adoption{site: l.site, names: l.names, script: "lock/adopt", state: []string{l.names.Lock}}
}

func (l *WriteSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, script: "rw/write_adopt", state: []string{l.names.Lock}, suffix: writes}
}

func (l *ReadSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, script: "rw/read_adopt", state: []string{l.names.Lock}, timers: []any{l.timers}}
}

func (q *Queued) adoption() adoption {
	a := adoption{site: q.site, names: q.names, script: "queue/adopt", state: q.hold(), mode: []any{q.mode}}
	if q.mode == shared {
		a.suffix = reads
	}
	return a
}

// inTurn is a request, and a task that is sent when the first is answered. Its outcome is the task's; without
// one, Done.
type inTurn struct {
	site  *Site
	id    string // of the hold that they are about
	first *asked[int64]
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
	return t.next(ctx, r, max(time.Until(until), time.Millisecond))
}

func (t *inTurn) next(ctx context.Context, r Result[int64], budget time.Duration) Result[Kept] {
	if r.Err == nil && r.TooFew == nil {
		if then := t.then(r.Outcome); then != nil {
			return then.Do(ctx, budget)
		}
	}
	return t.alone(r)
}

// alone is the result if no task follows the first request.
func (t *inTurn) alone(r Result[int64]) Result[Kept] {
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
			d.Done(sent, t.alone(r))
			return
		}
		w := t.site.Wire
		w.Go(func() {
			w.Gate("then " + t.id) // the answers to several come in the same instant
			d.Done(sent, t.next(w.Context(), r, t.site.CommandTimeout))
		})
	})
}
