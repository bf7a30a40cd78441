package protocol

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Adoptable is a protocol whose holds other clients can go on with, by the functions below: see
// scripts/shared/adoption.lua.
type Adoptable interface {
	Protocol
	adoption() adoption
}

// adoption is what the requests about it are made of.
type adoption struct {
	site    *Site
	names   *Names
	scripts string   // what their names begin with: "lock/"
	state   []string // the first keys of each
	suffix  string   // of an id in the name of a tombstone
	how     any      // to tell the holder
	mode    []any    // of a hold of a Queued
	timers  []any    // of a ReadSide: the prefix of their names
}

// keys returns the keys of a script that is about the holds with some ids.
func (a *adoption) keys(ids ...string) []string {
	keys := slices.Clone(a.state)
	for _, id := range ids {
		keys = append(keys, a.names.Tombstone(id+a.suffix))
	}
	for _, id := range ids {
		if len(a.timers) > 0 {
			keys = append(keys, timer(a.names.Derived(""), id, 1))
		}
	}
	return keys
}

// Adoption is the outcome of an Adopt.
type Adoption struct {
	Verdict Verdict // Granted, Gone, Entangled, Withdrawn or Quarantined
	// Rest is how long the holder before may still believe that it has the lock; 0: it has
	// left. Quarantined: how long the quarantine lasts.
	Rest      time.Duration
	TakenOver bool // Gone, and others hold the lock
}

func readAdoption(a wire.Answer) (Adoption, error) {
	code, n, _, err := a.Pair()
	if err != nil {
		return Adoption{}, err
	}
	switch code {
	case codeGranted:
		return Adoption{Verdict: Granted, Rest: millis(n)}, nil
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

// Adopt asks for a hold with the id old to go on under another id, and to last for lease from when its holder
// has ended. It is repeated until then. As an acquire, a server in quarantine refuses it, and replicas confirm
// it, if the client wants that.
func Adopt(p Adoptable, id, old string, lease time.Duration) Request[Adoption] {
	a := p.adoption()
	args := slices.Concat([]any{id, old, lease.Milliseconds(), tombstoneMillis, a.names.AskedChannel(), a.how}, a.mode, a.timers)
	return entering(a.site, a.scripts+"adopt", a.keys(old, id), args, readAdoption)
}

// GiveBack undoes an Adopt, whatever became of it: the hold is that of its holder again, or has ended if that
// has left. Then it ends what is left of the adoption.
func GiveBack(p Adoptable, id, old string) Task {
	a := p.adoption()
	undo := a.site.about(a.scripts+"give_back", a.keys(old, id), append([]any{id, old, tombstoneMillis}, a.mode...))
	return &inTurn{a.site, id, undo, p.Abandon(id, true)}
}

// Detach notes that a holder has left a hold for whoever adopts it, and tells whether it is there. The hold is
// not renewed any more, and ends within rest.
func Detach(p Adoptable, id string, rest time.Duration) Task {
	a := p.adoption()
	return a.site.about(a.scripts+"detach", a.keys(id), append([]any{id, rest.Milliseconds()}, a.mode...))
}

// RenewKnown is Renew of a hold that others may adopt.
func RenewKnown(p Adoptable, id string, lease time.Duration) Task {
	a := p.adoption()
	return a.site.renewing(a.scripts+"renew_known", lease, a.keys(id), slices.Concat([]any{id, lease.Milliseconds()}, a.mode, a.timers))
}

// HearAdoption has notify called when a hold of the lock may have been adopted. It returns nil if nobody is
// told, or it is not known how to publish.
func HearAdoption(p Adoptable, notify func()) (end func()) {
	a := p.adoption()
	if a.how == silent {
		return nil
	}
	return a.site.listen(a.names.AskedChannel(), notify)
}

func (l *ownedLock) adoption() adoption {
	return adoption{site: l.site, names: l.names, scripts: "lock/", state: []string{l.names.Lock}, how: l.site.how()}
}

func (l *Spin) adoption() adoption {
	a := l.ownedLock.adoption()
	a.how = silent
	return a
}

func (l *WriteSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, scripts: "rw/write_", state: []string{l.names.Lock}, suffix: writes, how: l.site.how()}
}

func (l *ReadSide) adoption() adoption {
	return adoption{site: l.site, names: l.names, scripts: "rw/read_", state: []string{l.names.Lock}, how: l.site.how(), timers: []any{l.timers}}
}

func (q *Queued) adoption() adoption {
	a := adoption{site: q.site, names: q.names, scripts: "queue/", state: q.hold(), how: q.site.how(), mode: []any{q.mode}}
	if q.mode == shared {
		a.suffix = reads
	}
	return a
}

// inTurn is a task and another one that is sent when the first is confirmed. Its outcome is that of
// the second.
type inTurn struct {
	site  *Site
	id    string // of the hold that they end
	first *task
	then  Task
}

// Name implements Task.
func (t *inTurn) Name() string { return t.first.Name() }

// OfQuorum implements Task.
func (t *inTurn) OfQuorum() bool { return false }

// Do implements Request.
func (t *inTurn) Do(ctx context.Context, budget time.Duration) Result[Kept] {
	r := t.first.Do(ctx, budget)
	if r.Err != nil {
		return r
	}
	return t.then.Do(ctx, budget)
}

// Send implements Task.
func (t *inTurn) Send(d Dispatch) {
	d.Round.Add(&t.first.r, func(sent time.Time, a wire.Answer) {
		r := t.first.result(a)
		if r.Err != nil {
			d.Done(sent, r)
			return
		}
		w := t.site.Wire
		w.Go(func() {
			w.Gate("then " + t.id) // the answers to several come in the same instant
			d.Done(sent, t.then.Do(w.Context(), t.site.CommandTimeout))
		})
	})
}
