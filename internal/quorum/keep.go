package quorum

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// renewalRound is one round of renewals: a request to each node to renew its vote for a hold.
//
// If so many votes have lasted that the other nodes are no quorum, no other owner can have had the lock since
// the last confirmation. Any other hold needs the vote of one of these nodes. There, the other vote ended
// before this one was granted, or was granted after the node replied. If it ended before, it also ended before
// the confirmation. A vote outlives the hold that relies on it, so the other hold was over: its vote was taken
// back, or its deadline had passed.
//
// A vote that was granted again replaces one that was lost, but it proves nothing about the time before. A
// round that has a quorum only with such votes is no confirmation, because another owner may have come and gone
// in the gap.
type renewalRound struct {
	*Lock
	id       string
	lease    time.Duration
	ballot   *ballot
	stamps   []string // known stamps by node when the round began
	began    time.Time
	sends    protocol.Dispatch // gets the result, unless a caller waits for it
	isSecond bool              // this is the second round

	// Guarded by the mutex of the ballot.
	tally     tally
	sent      time.Time // earliest time of sending of the requests that found a continuous vote
	isDecided bool
}

func (l *Lock) newRound(b *ballot, id string, lease time.Duration) *renewalRound {
	n := &renewalRound{Lock: l, id: id, lease: lease, ballot: b, began: l.clock.Now(), tally: tally{size: l.size, outstanding: l.n}}
	n.stamps = b.renews(lease)
	return n
}

// request returns the RENEW for a node.
func (n *renewalRound) request(i int) (*wire.Request, error) {
	return n.quarantine.guard(i, true, &wire.Request{
		Script: n.script("renew"),
		Keys:   []string{n.record, n.counter, n.highest, n.gone + n.id},
		Args:   []any{n.id, n.lease.Milliseconds(), n.stamps[i]},
	})
}

// count counts a node's reply to the request sent at that time, and reports whether it decides the
// round.
func (n *renewalRound) count(r reply, sent time.Time) (decides bool) {
	n.ballot.mu.Lock()
	defer n.ballot.mu.Unlock()
	if n.isDecided {
		return false
	}
	switch {
	case n.overwritten(r.err):
		n.tally.fail(r.node, replaced, r.err)
	case r.err != nil:
		n.tally.fail(r.node, n.ballot.unanswered(r.node), r.err)
	case r.says.isVote():
		n.tally.renewed(r)
		if r.says == continuous && (n.sent.IsZero() || sent.Before(n.sent)) {
			n.sent = sent
		}
	case r.says == busy:
		n.tally.add(taken)
	default:
		n.tally.add(gone)
	}
	n.isDecided = n.tally.renewal() != wait
	return n.isDecided
}

// overwritten reports whether a node has replied that its vote was replaced by other data.
func (l *Lock) overwritten(err error) bool {
	kind := wire.KindOf(err, l.record)
	return kind != "" && kind != "hash"
}

// verdict returns the result of the round, and whether another round may succeed.
func (n *renewalRound) verdict() (got protocol.Result[protocol.Kept], retry bool) {
	n.ballot.mu.Lock()
	defer n.ballot.mu.Unlock()
	n.ballot.confirm(n.size, n.clock.Now(), n.prompt(0))
	switch n.tally.renewal() {
	case yes:
		return outcome(protocol.Done), false
	case doubtful:
		got = outcome(protocol.Done)
		got.Doubt = n.notConfirmed(&n.tally)
		return got, false
	case unknown:
		return failed[protocol.Kept](n.notConfirmed(&n.tally)), n.tally.retryMaySucceed()
	}
	return outcome(lostTo(n.tally.sights[taken])), false
}

// Reenter implements protocol.Protocol. The nodes do not store how often the owner has entered.
func (l *Lock) Reenter(id string, lease time.Duration, entries int, _ bool) protocol.Request[protocol.Kept] {
	return request[protocol.Kept]{func(ctx context.Context) protocol.Result[protocol.Kept] {
		got := l.renew(ctx, id, lease)
		if b := l.cfg.Ballots.get(id); b != nil && got.Err == nil && got.Outcome == protocol.Done {
			b.entries.Store(int64(entries))
		}
		return got
	}}
}

// Renew implements protocol.Protocol.
func (l *Lock) Renew(id string, lease time.Duration) protocol.Task {
	t := l.task(func(ctx context.Context) protocol.Result[protocol.Kept] { return l.renew(ctx, id, lease) })
	t.send = func(d protocol.Dispatch) { l.sendRenewal(id, lease, d) }
	return t
}

// renew renews the votes for a hold while the caller waits, in one round or two. If the result is doubtful it returns
// an error, not success.
func (l *Lock) renew(ctx context.Context, id string, lease time.Duration) protocol.Result[protocol.Kept] {
	got, retry := l.renewOnce(ctx, id, lease)
	if retry {
		got, _ = l.renewOnce(ctx, id, lease)
	}
	if got.Doubt != nil {
		return failed[protocol.Kept](got.Doubt)
	}
	return got
}

func (l *Lock) renewOnce(ctx context.Context, id string, lease time.Duration) (got protocol.Result[protocol.Kept], retry bool) {
	b := l.cfg.Ballots.get(id)
	if b == nil {
		return outcome(protocol.Removed), false
	}
	if err := l.quarantine.ready(ctx); err != nil {
		return failed[protocol.Kept](err), false
	}
	n := l.newRound(b, id, lease)
	f := l.fanout().decides()
	defer f.end()
	f.ask(ctx, question{request: n.request, read: readRenew, ballot: b, began: n.began})
	err := f.collect(ctx, func(r reply) (done bool) {
		if !n.count(r, time.Time{}) {
			return false
		}
		got, retry = n.verdict()
		return true
	})
	if err != nil {
		return failed[protocol.Kept](err), false
	}
	return got, retry
}

// sendRenewal renews the votes for the watchdog, by an errand to each node.
func (l *Lock) sendRenewal(id string, lease time.Duration, d protocol.Dispatch) {
	b := l.cfg.Ballots.get(id)
	if b == nil {
		d.Done(time.Time{}, outcome(protocol.Removed))
		return
	}
	l.quarantine.whenReady(func(err error) {
		if err != nil {
			d.Done(time.Time{}, failed[protocol.Kept](err))
			return
		}
		n := l.newRound(b, id, lease)
		n.sends = d
		n.start()
	})
}

// renewalErrand is a request to a node to renew its vote for a hold. Each hold has one errand per node, so a slow node has
// at most one of its renewals under way. It implements wire.Errand.
type renewalErrand struct {
	l      *Lock
	ballot *ballot
	node   int

	// Guarded by the mutex of the ballot.
	phase   errandPhase
	current *renewalRound // the current round, or the last one
}

type errandPhase int

const (
	errandIdle   errandPhase = iota
	errandQueued             // waits to be sent, for the round that is current then
	errandSent               // is sent, or about to be
	errandNoted              // is sent, and recorded in the ballot
)

// start begins a round, unless one is under way, which ends when its errands do.
func (n *renewalRound) start() {
	b, lost := n.ballot, n.lost()
	b.mu.Lock()
	if b.latestRound != nil && !b.latestRound.isDecided {
		b.mu.Unlock()
		return
	}
	b.latestRound = n
	if b.errands == nil {
		b.errands = make([]renewalErrand, n.n)
		for i := range b.errands {
			b.errands[i] = renewalErrand{l: n.Lock, ballot: n.ballot, node: i}
		}
	}
	var idle, silent []int
	for i := range b.errands {
		e := &b.errands[i]
		switch {
		case e.phase == errandQueued:
			e.current = n
		case e.phase != errandIdle || lost[i]:
			silent = append(silent, i)
		default:
			e.phase, e.current = errandQueued, n
			idle = append(idle, i)
		}
	}
	b.mu.Unlock()
	for _, i := range idle {
		n.nodes[i].Wire.Put(n.home().Wire, &b.errands[i])
	}
	for _, i := range silent {
		n.note(reply{node: i, err: errUnanswered}, time.Time{})
	}
}

// lost returns the nodes that are known to be silent, if the others are a quorum. An errand to such a node would wait for a
// PING, and the round with it. A hold that lost a vote to a rival for a moment would then request it only once or twice in
// its lease. The PING is under way, so the first round after the node is back includes the node.
func (n *renewalRound) lost() []bool {
	lost, count := make([]bool, n.n), 0
	for i, node := range n.nodes {
		if lost[i] = node.Wire.IsLost(n.cfg.NodeTimeout); lost[i] {
			count++
		}
	}
	if n.blocks(count) {
		clear(lost)
	}
	return lost
}

// note counts the reply to an errand, and continues with the next round or the result.
func (n *renewalRound) note(r reply, sent time.Time) {
	if !n.count(r, sent) {
		return
	}
	got, retry := n.verdict()
	if retry && !n.isSecond {
		next := n.newRound(n.ballot, n.id, n.lease)
		next.sends, next.isSecond = n.sends, true
		next.start()
		return
	}
	n.sends.Done(n.sent, got)
}

// Context implements wire.Errand.
func (e *renewalErrand) Context() context.Context { return e.l.home().Wire.Context() }

// Timeout implements wire.Errand.
func (e *renewalErrand) Timeout() time.Duration { return e.l.cfg.NodeTimeout }

// Wanted implements wire.Errand.
func (e *renewalErrand) Wanted() bool { return e.ballot.wanted() }

// Request implements wire.Errand.
func (e *renewalErrand) Request() (*wire.Request, error) {
	e.ballot.mu.Lock()
	e.phase = errandSent
	n := e.current
	e.ballot.mu.Unlock()
	// The hold may have been lost while the errand waited: its vote must not be prolonged.
	if !n.sends.GoesOn() || !e.ballot.ask(e.node) {
		return nil, wire.ErrTooLate
	}
	e.ballot.mu.Lock()
	e.phase = errandNoted
	e.ballot.mu.Unlock()
	r, err := n.request(e.node)
	if err == nil {
		r.FailFast, r.NoResend = true, true // the next round repeats the request
	}
	return r, err
}

// Answered implements wire.Errand.
func (e *renewalErrand) Answered(sent time.Time, a wire.Answer) {
	e.ballot.mu.Lock()
	n, noted := e.current, e.phase == errandNoted
	e.phase, e.current = errandIdle, nil
	e.ballot.mu.Unlock()
	got := e.l.read(e.node, a, readRenew)
	if noted {
		e.ballot.answered(&got, n.began, e.l.clock.Now(), 0)
	}
	n.note(got, sent)
}
