package rlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// mostTogether is how many locks one script takes or releases: some ten commands for each, and a server serves nobody
// else meanwhile.
const mostTogether = 100

// together takes all members by one script, if they are plain locks of one client and
// server or slot, the caller holds none of them, and nobody waits in line for one. It reports
// whether it has taken them; if not, and without an error, nothing is held and the members
// have to be taken one by one.
func (r *round) together(ctx context.Context, wait bool) (done bool, err error) {
	var cores []*core
	var proto []*protocol.Lock
	for _, l := range r.m.members {
		l, ok := l.(*Lock)
		if !ok || l.argErr != nil {
			return false, nil
		}
		cores, proto = append(cores, l.core), append(proto, l.proto.(*protocol.Lock))
	}
	c := cores[0].c
	if len(cores) == 1 || len(cores) > mostTogether || !oneSlot(proto) || !c.begin() {
		return false, nil
	}
	defer c.end()
	var opts acquireConfig
	if err := options(cores[0], &opts, r.opts); err != nil { // they are of one type and Client
		return false, err
	}
	attempts, id := []*attempt(nil), c.newID()
	for _, l := range cores {
		a := &attempt{core: l, waiting: waiting{c: c}, opts: opts, Acquire: protocol.Acquire{HoldID: id, Lease: opts.lease, Tries: 1}}
		if own := r.outer.own(); own != nil {
			a.owned = own.at(l)
			defer a.owned.doneUsing()
			if !a.owned.ops.TryTake() {
				return false, nil
			}
			defer a.owned.ops.Give()
		}
		if r.outer.held(l, protocol.Exclusive) != nil || wait && c.lines.Waiting(l.line(id.ID)) > 0 {
			return false, nil
		}
		attempts = append(attempts, a)
	}
	if c.events.observer != nil {
		for _, a := range attempts {
			ctx, a.observed = a.core.observe(ctx, 0)
		}
		defer r.tell(attempts)
		ctx = c.events.about(ctx, len(cores))
	}
	done, err = r.all(ctx, attempts, proto, wait)
	r.reported = err
	if errors.Is(err, errSlots) {
		return false, nil
	}
	if err == nil && !done {
		if !wait {
			cores[0].nameHolder(&attempts[0].Snapshot, protocol.GiveUpGrace)
		}
		attempts[0].Snapshot.forCaller(c.id, 0, cores[0].toEnterAgain)
		r.reported = fmt.Errorf("%w: one of the locks is %s", ErrNotAcquired, attempts[0].Snapshot.text(c.env.Clock.Now()))
	}
	if !wait { // otherwise the caller waits for the members one by one
		err = r.reported
	}
	return done, err
}

// oneSlot reports whether one script may use the keys of all locks.
func oneSlot(locks []*protocol.Lock) bool {
	return !slices.ContainsFunc(locks, func(l *protocol.Lock) bool { return l.Slot() != locks[0].Slot() })
}

// errSlots is the error where one script may not, as the server has said.
var errSlots = errors.New("the locks are in several slots of a cluster")

// tell tells the Observer what has come of the attempts: those that were granted have a lease, even if all are given
// back.
func (r *round) tell(attempts []*attempt) {
	for i, a := range attempts {
		if i < len(r.leases) {
			r.leases[i].granted(a.observed, AcquireEvent{Attempts: 1})
		} else {
			a.observed.end(AcquireEvent{Attempts: 1, Err: r.reported})
		}
	}
}

// all sends the one request of together, and handles the answer.
func (r *round) all(ctx context.Context, attempts []*attempt, locks []*protocol.Lock, wait bool) (done bool, err error) {
	first := attempts[0]
	first.Asks = first
	first.start.came = first.core.c.env.Clock.Now()
	c := first.core.c
	bounded, cancel := r.bound(ctx)
	defer cancel()
	first.noteLook()
	if err := first.core.proto.Ready(bounded); err != nil {
		first.noteAnswer(&protocol.Result[protocol.Entered]{Err: err}, false)
		first.core.settle(&first.Snapshot, false)
		return false, first.interrupted(ctx, err)
	}
	if !oneSlot(locks) {
		return false, errSlots
	}
	sent := c.now()
	ans := protocol.EnterAll(locks, first.HoldID.ID, first.Lease).Do(bounded, c.cfg.commandTimeout)
	first.noteAnswer(&ans, true)
	err = ans.Err
	crossed := redis.HasErrorPrefix(err, "CROSSSLOT")
	if crossed {
		c.wire.FoundSlots()
	}
	if err != nil {
		first.core.settle(&first.Snapshot, false)
	}
	granted := ans.Err == nil && ans.Outcome.Verdict == protocol.Granted
	for _, a := range attempts {
		a.lateCopies, a.Granted = ans.Unsure, granted || wire.MayHaveRun(ans.Err)
	}
	if granted {
		for _, a := range attempts {
			var lease *Lease
			if lease, err = a.accept(sent, sent, &ans); err != nil {
				break
			}
			r.leases = append(r.leases, lease)
		}
		if err == nil {
			return true, nil
		}
	}
	if err != nil {
		err = first.interrupted(ctx, err) // a process that was stopped may find both ended
	}
	if err == nil && !wait && ans.Outcome.Verdict == protocol.Quarantined {
		err = because(ErrNotAcquired, protocol.InQuarantine{Left: ans.Outcome.Rest})
	}
	var wg sync.WaitGroup
	for _, a := range attempts[len(r.leases):] {
		wg.Go(func() { a.giveUp() })
	}
	wg.Wait()
	if crossed { // a copy without a reply may have run before, where another server was
		err = errSlots
	}
	return false, err
}

// unlockAll unlocks leases side by side, those of Locks of one Client and server or slot by
// one script. A lease that its owner, who has it from Members, unlocked before counts as
// unlocked.
func unlockAll(ctx context.Context, leases []*Lease) error {
	parties := map[protocol.Slot][]int{}
	var none protocol.Slot
	for i, l := range leases {
		slot := none
		if h, ok := l.of.(*hold); ok {
			if p, ok := h.core.proto.(*protocol.Lock); ok {
				slot = p.Slot()
			}
		}
		parties[slot] = append(parties[slot], i)
	}
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for slot, party := range parties {
		for slot != none && len(party) > 1 {
			some := party[:min(mostTogether, len(party))]
			party = party[len(some):]
			wg.Go(func() { unlockTogether(ctx, leases, some, errs) })
		}
		for _, i := range party {
			wg.Go(func() { errs[i] = leases[i].Unlock(ctx) })
		}
	}
	wg.Wait()
	for i, err := range errs {
		if errors.Is(err, ErrUnlocked) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// unlockTogether unlocks some of the leases: by one script those whose hold has no other
// operation under way and no other lease.
func unlockTogether(ctx context.Context, leases []*Lease, party []int, errs []error) {
	c := leases[party[0]].of.client()
	limit := time.Now().Add(c.cfg.unlockTimeout)
	var wg sync.WaitGroup
	defer wg.Wait()
	var last []*unlocking
	var who []int // the indexes of their leases
	alone := func(i int, d *unlocking) {
		wg.Go(func() {
			err := d.send(c.events.about(ctx, d.h.core), limit)
			d.end()
			errs[i] = leases[i].endUnlock(err)
		})
	}
	for _, i := range party {
		l, h := leases[i], leases[i].of.(*hold)
		called, first := l.claim()
		if !first {
			continue
		}
		// The others must not wait for an operation at this hold.
		if !h.ops().TryTake() {
			wg.Go(func() { errs[i] = l.endUnlock(h.release(ctx, l, called)) })
			continue
		}
		d := h.beginUnlock(l, called, true)
		if d.task == nil || d.rest > 0 {
			alone(i, &d)
		} else {
			last, who = append(last, &d), append(who, i)
		}
	}
	if len(last) < 2 {
		for j, d := range last {
			alone(who[j], d)
		}
		return
	}
	all := releaseAll(last).Do(c.events.about(ctx, len(last)), untilOrSoon(limit))
	for j, d := range last {
		if all.Err != nil && time.Now().Before(limit) {
			// One of the locks has changed, or moved away from the others, or the server
			// refuses it now: each is released by itself, which tolerates more.
			d.maybeEnded = all.Unsure || !wire.NotExecuted(all.Err) && !wire.NeverRan(all.Err)
			alone(who[j], d)
			continue
		}
		one := protocol.Result[protocol.Kept]{Err: all.Err, Unsure: all.Unsure}
		if all.Err == nil {
			one.Outcome = all.Outcome[j]
		}
		err := d.released(&one)
		d.end()
		errs[who[j]] = leases[who[j]].endUnlock(err)
	}
}

// releaseAll is the last release of several holds of Locks that one script may end.
func releaseAll(all []*unlocking) protocol.Request[[]protocol.Kept] {
	var holds []protocol.Leaving
	for _, d := range all {
		holds = append(holds, protocol.Leaving{Lock: d.h.core.proto.(*protocol.Lock), ID: d.id, Late: d.tombstone})
	}
	return protocol.ReleaseAll(holds)
}
