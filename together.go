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

// mostTogether is how many locks one script acquires or releases: it runs some ten commands for each, and the server
// runs no other command meanwhile.
const mostTogether = 100

// together takes all members by one script, if they are plain locks of one client and server or slot, the caller holds
// none of them, and no waiter is in line for one. It reports whether it has taken them. If not, and without an error,
// nothing is held, and the members have to be taken one by one.
func (r *memberRound) together(ctx context.Context, wait bool) (done bool, err error) {
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
	if len(cores) == 1 || len(cores) > mostTogether || !oneSlot(proto) || !c.beginCall() {
		return false, nil
	}
	defer c.endCall()
	var opts acquireConfig
	if err := options(cores[0], &opts, r.opts); err != nil { // they are of one type and Client
		return false, err
	}
	attempts, id := []*attempt(nil), c.newID()
	for _, l := range cores {
		a := &attempt{core: l, earlier: l.token.Load(), waiting: waiting{c: c}, opts: opts, Acquire: protocol.Acquire{HoldID: id, Lease: opts.lease, Tries: 1}}
		a.Status = &a.snapshot.Status
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
	for _, a := range attempts {
		ctx, a.observed = a.core.observe(ctx, 0)
	}
	defer r.report(attempts)
	ctx = c.events.withSubject(ctx, len(cores))
	done, err = r.all(ctx, attempts, proto, wait)
	r.reported = err
	if errors.Is(err, errSlots) {
		return false, nil
	}
	if err == nil && !done {
		if !wait {
			cores[0].nameHolder(&attempts[0].snapshot, protocol.GiveUpGrace)
		}
		attempts[0].snapshot.forCaller(c.id, 0, cores[0].toEnterAgain)
		r.reported = fmt.Errorf("%w: one of the locks is %s", ErrNotAcquired, attempts[0].snapshot.text(c.env.Clock.Now()))
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

// errSlots is the error if the server has replied that one script may not use the keys of all locks.
var errSlots = errors.New("the locks are in several slots of a cluster")

// report reports the ends of the attempts to the Observer: granted attempts have a lease, even if all are given
// back.
func (r *memberRound) report(attempts []*attempt) {
	for i, a := range attempts {
		if i < len(r.leases) {
			r.leases[i].granted(a.observed, AcquireEvent{Attempts: 1})
		} else {
			a.observed.end(AcquireEvent{Attempts: 1, Err: r.reported})
		}
	}
}

// all sends the one request of together, and handles the answer.
func (r *memberRound) all(ctx context.Context, attempts []*attempt, locks []*protocol.Lock, wait bool) (done bool, err error) {
	first := attempts[0]
	first.Poller = first
	first.calledAt = first.core.c.env.Clock.Now()
	c := first.core.c
	bounded, cancel := r.bound(ctx)
	defer cancel()
	first.noteRequest()
	if err := first.core.proto.Ready(bounded); err != nil {
		first.noteAnswer(&protocol.Result[protocol.Entered]{Err: err}, false)
		first.core.settle(&first.snapshot, false)
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
		first.core.settle(&first.snapshot, false)
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
		err = first.interrupted(ctx, err) // if the process was stopped, both contexts may have ended
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

// giveBack unlocks leases in the background, and then closes done. The watchdog repeats what fails. Shutdown waits for
// the holds, until they have ended.
func giveBack(ctx context.Context, leases []*Lease) (done chan struct{}) {
	done = make(chan struct{})
	leases[0].client().wire.Go(func() {
		defer close(done)
		_ = unlockAll(context.WithoutCancel(ctx), leases)
	})
	return done
}

// unlockAll unlocks leases in parallel. One script unlocks all leases that end holds of Locks of one Client and server or
// slot, if no other operation is under way at the hold. A lease that the owner got by Members and has unlocked counts
// as unlocked.
func unlockAll(ctx context.Context, leases []*Lease) error {
	errs := make([]error, len(leases))
	all := make([]unlocking, len(leases))
	parties := map[protocol.Slot][]int{} // indexes of the leases by Slot
	var wg sync.WaitGroup
	alone := func(i int) {
		wg.Go(func() { errs[i] = leases[i].endUnlock(all[i].complete(ctx, leases[i].client().unlockLimit())) })
	}
	for i, l := range leases {
		var lock *protocol.Lock
		if l.hold != nil {
			lock, _ = l.hold.core.proto.(*protocol.Lock)
		}
		if lock == nil || !l.hold.ops().TryTake() {
			wg.Go(func() { errs[i] = l.Unlock(ctx) })
			continue
		}
		called, first := l.claim()
		if !first {
			l.hold.ops().Give()
			continue
		}
		all[i] = l.hold.beginUnlock(l, called, true)
		if all[i].task == nil || all[i].rest > 0 {
			alone(i)
			continue
		}
		slot := lock.Slot()
		parties[slot] = append(parties[slot], i)
	}
	for _, party := range parties {
		for some := range slices.Chunk(party, mostTogether) {
			if len(some) == 1 {
				alone(some[0])
			} else {
				wg.Go(func() { releaseAll(ctx, all, some, errs) })
			}
		}
	}
	wg.Wait()
	for i, err := range errs {
		switch {
		case errors.Is(err, ErrLeaseLost):
			return err // report the cause of the first lost member
		case errors.Is(err, ErrUnlocked):
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// releaseAll ends the holds of some of all by one script.
func releaseAll(ctx context.Context, all []unlocking, some []int, errs []error) {
	c := all[some[0]].h.core.c
	limit := c.unlockLimit()
	var holds []protocol.Leaving
	for _, i := range some {
		d := &all[i]
		holds = append(holds, protocol.Leaving{Lock: d.h.core.proto.(*protocol.Lock), ID: d.id, Late: d.h.lateCopies})
	}
	r := protocol.ReleaseAll(holds).Do(c.events.withSubject(ctx, len(some)), untilOrSoon(limit))
	end := func(i int, r protocol.Result[protocol.Kept]) {
		d := &all[i]
		err := d.released(&r)
		d.end()
		errs[i] = d.lease.endUnlock(err)
	}
	if r.Err == nil || !time.Now().Before(limit) {
		for j, i := range some {
			one := protocol.Result[protocol.Kept]{Err: r.Err, Unsure: r.Unsure}
			if r.Err == nil {
				one.Outcome = r.Outcome[j]
			}
			end(i, one)
		}
		return
	}
	// One of the locks now has other data or has moved away from the others, or the server refuses the script now.
	// Release each hold separately, which is tried for longer. The script may have ended the holds before.
	mayHaveRun := r.Unsure || !wire.NotExecuted(r.Err) && !wire.NeverRan(r.Err)
	var wg sync.WaitGroup
	for _, i := range some {
		wg.Go(func() {
			one := all[i].send(ctx, limit)
			one.Unsure = one.Unsure || mayHaveRun
			end(i, one)
		})
	}
	wg.Wait()
}
