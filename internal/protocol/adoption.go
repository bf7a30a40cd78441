package protocol

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Adoptable is a protocol whose holds other clients can go on with: see
// scripts/shared/adoption.lua.
type Adoptable interface {
	Protocol
	// Adopt asks for a hold with the id old to go on under another id, and to last for lease from
	// when its holder has ended. It is repeated until then.
	Adopt(id, old string, lease time.Duration) Request[Adoption]
	// GiveBack undoes an Adopt, whatever became of it: the hold is that of its holder again, or
	// has ended if that has left.
	GiveBack(id, old string) Task
	// Detach notes that a holder has left a hold for whoever adopts it, and tells whether it is
	// there. The hold is not renewed any more, and ends within rest.
	Detach(id string, rest time.Duration) Task
	// RenewKnown is Renew of a hold that others may adopt.
	RenewKnown(id string, lease time.Duration) Task
	// Hear has notify called when a hold of the lock may have been adopted. It returns nil if
	// there is no channel to listen to, or it is not known how to publish.
	Hear(notify func()) (end func())
}

// Adoption is the outcome of an Adopt.
type Adoption struct {
	Verdict Verdict // Granted, Gone, Entangled, Withdrawn or Quarantined
	// Rest is how long the holder before may still believe that it has the lock; 0: it has
	// left. Quarantined: how long the quarantine lasts.
	Rest      time.Duration
	TakenOver bool // Gone, and others hold the lock
}

// readAdoption reads the reply of an adopt script.
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

// adopting makes the request of an adopt script. As an acquire, a server in quarantine refuses it,
// and replicas confirm it, if the client wants that.
func (s *Site) adopting(script, id, old string, lease time.Duration, names *Names, how any, keys []string, more ...any) Request[Adoption] {
	args := append([]any{id, old, lease.Milliseconds(), tombstoneMillis, names.AskedChannel(), how}, more...)
	if s.Quarantine > 0 {
		script += WhenServed
		keys = append(keys, s.Served)
		args = append(args, s.Quarantine.Milliseconds())
	}
	q := looking(s, script, keys, args, readAdoption)
	q.r.Acked = s.acks()
	return q
}

// givingBack makes the request of a script that undoes an adoption, and then the one that ends what
// is left of it.
func (s *Site) givingBack(script, id, old string, abandon Task, keys []string, more ...any) Task {
	return &inTurn{s, s.about(script, keys, append([]any{id, old, tombstoneMillis}, more...)), abandon}
}

// inTurn is a task and another one that is sent when the first is confirmed. Its outcome is that of
// the second.
type inTurn struct {
	site  *Site
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
		t.site.Wire.Go(func() { d.Done(sent, t.then.Do(t.site.Wire.Context(), t.site.CommandTimeout)) })
	})
}

// The types whose state is a hash with the hold.

func (l *ownedLock) adopt(id, old string, lease time.Duration, how any) Request[Adoption] {
	return l.site.adopting("lock/adopt", id, old, lease, l.names, how,
		[]string{l.names.Lock, l.names.Tombstone(old), l.names.Tombstone(id)})
}

// Adopt implements Adoptable.
func (l *ownedLock) Adopt(id, old string, lease time.Duration) Request[Adoption] {
	return l.adopt(id, old, lease, l.site.how())
}

func (l *ownedLock) giveBack(id, old string, abandon Task) Task {
	return l.site.givingBack("lock/give_back", id, old, abandon,
		[]string{l.names.Lock, l.names.Tombstone(old), l.names.Tombstone(id)})
}

// GiveBack implements Adoptable.
func (l *ownedLock) GiveBack(id, old string) Task { return l.giveBack(id, old, l.Abandon(id, true)) }

// Detach implements Adoptable.
func (l *ownedLock) Detach(id string, rest time.Duration) Task {
	return l.site.about("lock/detach", []string{l.names.Lock, l.names.Tombstone(id)}, []any{id, rest.Milliseconds()})
}

// RenewKnown implements Adoptable.
func (l *ownedLock) RenewKnown(id string, lease time.Duration) Task {
	return l.site.renewing("lock/renew_known", lease,
		[]string{l.names.Lock, l.names.Tombstone(id)}, []any{id, lease.Milliseconds()})
}

// Hear implements Adoptable.
func (l *ownedLock) Hear(notify func()) (end func()) {
	return l.site.listen(l.names.AskedChannel(), notify)
}

// GiveBack implements Adoptable.
func (l *Fair) GiveBack(id, old string) Task { return l.giveBack(id, old, l.Abandon(id, true)) }

// Adopt implements Adoptable.
func (l *Spin) Adopt(id, old string, lease time.Duration) Request[Adoption] {
	return l.adopt(id, old, lease, silent)
}

// GiveBack implements Adoptable.
func (l *Spin) GiveBack(id, old string) Task { return l.giveBack(id, old, l.Abandon(id, true)) }

// Hear implements Adoptable: nobody listens.
func (l *Spin) Hear(func()) (end func()) { return nil }

// Both sides of a ReadWriteLock.

// Hear implements Adoptable.
func (l *readWrite) Hear(notify func()) (end func()) {
	return l.site.listen(l.names.AskedChannel(), notify)
}

// Adopt implements Adoptable.
func (l *WriteSide) Adopt(id, old string, lease time.Duration) Request[Adoption] {
	return l.site.adopting("rw/write_adopt", id, old, lease, l.names, l.site.how(), l.adoption(id, old))
}

// GiveBack implements Adoptable.
func (l *WriteSide) GiveBack(id, old string) Task {
	return l.site.givingBack("rw/write_give_back", id, old, l.Abandon(id, true), l.adoption(id, old))
}

func (l *WriteSide) adoption(id, old string) (keys []string) {
	return []string{l.names.Lock, l.tombstone(old), l.tombstone(id)}
}

// Detach implements Adoptable.
func (l *WriteSide) Detach(id string, rest time.Duration) Task {
	return l.site.about("rw/write_detach", []string{l.names.Lock, l.tombstone(id)}, []any{id, rest.Milliseconds()})
}

// RenewKnown implements Adoptable.
func (l *WriteSide) RenewKnown(id string, lease time.Duration) Task {
	return l.site.renewing("rw/write_renew_known", lease,
		[]string{l.names.Lock, l.tombstone(id)}, []any{id, lease.Milliseconds()})
}

// Adopt implements Adoptable.
func (l *ReadSide) Adopt(id, old string, lease time.Duration) Request[Adoption] {
	return l.site.adopting("rw/read_adopt", id, old, lease, l.names, l.site.how(), l.adoption(id, old), l.timers)
}

// GiveBack implements Adoptable.
func (l *ReadSide) GiveBack(id, old string) Task {
	return l.site.givingBack("rw/read_give_back", id, old, l.Abandon(id, true), l.adoption(id, old))
}

func (l *ReadSide) adoption(id, old string) (keys []string) {
	return []string{l.names.Lock, l.names.Tombstone(old), l.names.Tombstone(id), l.timer(old, 1), l.timer(id, 1)}
}

// Detach implements Adoptable.
func (l *ReadSide) Detach(id string, rest time.Duration) Task {
	return l.site.about("rw/read_detach",
		[]string{l.names.Lock, l.names.Tombstone(id), l.timer(id, 1)}, []any{id, rest.Milliseconds()})
}

// RenewKnown implements Adoptable.
func (l *ReadSide) RenewKnown(id string, lease time.Duration) Task {
	return l.site.renewing("rw/read_renew_known", lease,
		[]string{l.names.Lock, l.timer(id, 1), l.names.Tombstone(id)}, []any{id, lease.Milliseconds(), l.timers})
}

// FairReadWriteLock and PriorityLock.

// Adopt implements Adoptable.
func (q *Queued) Adopt(id, old string, lease time.Duration) Request[Adoption] {
	return q.site.adopting("queue/adopt", id, old, lease, q.names, q.site.how(), q.adoption(id, old), q.mode)
}

// GiveBack implements Adoptable.
func (q *Queued) GiveBack(id, old string) Task {
	return q.site.givingBack("queue/give_back", id, old, q.Abandon(id, true), q.adoption(id, old), q.mode)
}

func (q *Queued) adoption(id, old string) (keys []string) {
	return append(q.hold(), q.tombstone(old), q.tombstone(id))
}

// Detach implements Adoptable.
func (q *Queued) Detach(id string, rest time.Duration) Task {
	return q.site.about("queue/detach", append(q.hold(), q.tombstone(id)), []any{id, rest.Milliseconds(), q.mode})
}

// RenewKnown implements Adoptable.
func (q *Queued) RenewKnown(id string, lease time.Duration) Task {
	return q.site.renewing("queue/renew_known", lease, append(q.hold(), q.tombstone(id)),
		[]any{id, lease.Milliseconds(), q.mode})
}

// Hear implements Adoptable.
func (q *Queued) Hear(notify func()) (end func()) {
	return q.site.listen(q.names.AskedChannel(), notify)
}
