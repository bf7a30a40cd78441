package quorum

import (
	"context"
	"maps"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

const (
	// backoff is the pause after votes were split, at random up to this the first time, or up
	// to what a quorum takes to answer, and doubling up to the longest poll.
	backoff = 4 * time.Millisecond

	// hurryGrace is the shortest wait for silent nodes when a quorum has answered: timers
	// are not much finer.
	hurryGrace = time.Millisecond

	// togetherEvery is the number of consecutive tries that met votes for the same rival, but no holder, after which a try
	// sends requests to all nodes in parallel.
	togetherEvery = 4

	// hesitations is the number of clashes after which the hesitation does not grow any more.
	hesitations = 4
)

// Enter implements protocol.Protocol. Each try has a new id: the votes for the one before
// were taken back for good.
func (l *Lock) Enter(e *protocol.Acquire) protocol.Request[protocol.Entered] {
	if e.Tries > 1 {
		if l.cfg.Ballots.get(e.ID) != nil { // unless the try came too late to be a hold
			now := l.clock.Now()
			l.home().CleanUp(l.Abandon(e.ID, true), now, now.Add(e.Lease+protocol.TombstoneTTL))
		}
		e.Granted = false
		e.HoldID = l.cfg.NewID()
	}
	t := &try{Lock: l, HoldID: e.HoldID, lease: e.Lease}
	together := !e.Wait || e.Tries <= 1 && !e.Yields || e.RivalStreak%togetherEvery == togetherEvery-1
	return request[protocol.Entered]{func(ctx context.Context) protocol.Result[protocol.Entered] {
		return t.enter(ctx, e, together)
	}}
}

// try is one try to get the votes of a quorum.
type try struct {
	*Lock
	protocol.HoldID
	lease  time.Duration
	ballot *ballot
	tally  grantTally
	began  time.Time // by the real clock, like contexts

	f           *fanout
	alarm       seam.Timer // nil until it is needed
	first       int        // node that gets the first request, before the others; -1 without one, or after that request
	requestedAt time.Time  // when the requests were sent, except the first one
	hasPace     bool       // t.pace has the time that a quorum took to reply
}

func (t *try) enter(ctx context.Context, e *protocol.Acquire, together bool) protocol.Result[protocol.Entered] {
	if err := t.quarantine.ready(ctx); err != nil {
		return failed[protocol.Entered](err)
	}
	t.ballot, t.tally, t.began = t.newBallot(t.lease), newGrantTally(t.size), time.Now()
	t.first = -1
	if !together {
		t.first = t.foremost()
	}
	if t.vote(ctx) {
		t.ballot.won(t.tally.token, t.tally.got, t.clock.Now(), t.prompt(0))
		t.cfg.Ballots.add(t.ID, t.ballot)
		won := outcome(protocol.Entered{Verdict: protocol.Granted, Token: t.tally.token})
		won.Unsure = true
		return won
	}
	t.giveBack(ctx)
	if rest, _ := t.tally.rest(); rest == 0 {
		t.missLost()
	}
	tooFew, held := t.blocks(len(t.tally.failed)), t.tally.isHeld()
	switch {
	case ctx.Err() != nil && (tooFew || !held && !t.tally.met()): // otherwise the replies explain the result
		return failed[protocol.Entered](wire.Cut(ctx.Err(), t.silent()))
	case tooFew:
		return t.shortOf()
	}
	return t.refused(e, together, held)
}

// shortOf returns the result of a try for which too few nodes could vote.
func (t *try) shortOf() protocol.Result[protocol.Entered] {
	if q := t.quarantine; q != nil {
		if rest := q.rest(t.tally.failed); rest > 0 {
			return outcome(protocol.Entered{Verdict: protocol.Busy, Rest: rest.Truncate(time.Millisecond), Keeper: protocol.Keeper{Votes: t.tally.quarantined(rest)}})
		}
	}
	return failed[protocol.Entered](t.noQuorum(&t.tally.tally))
}

// refused returns the result of a try that lost votes to others.
func (t *try) refused(e *protocol.Acquire, together, held bool) protocol.Result[protocol.Entered] {
	rest, holder := t.tally.rest()
	if rest > 0 && (held || e.Wait) { // otherwise a caller that does not wait tries again
		e.Splits, e.Clashes, e.Rival, e.RivalStreak = 0, 0, "", 0
	} else {
		if rival, _ := t.tally.most(); rival == e.Rival {
			e.RivalStreak++
		} else {
			e.Rival, e.RivalStreak = rival, 1
		}
		pause := seam.Jitter(t.cfg.Seed, t.Number, e.Splits, t.backOff(e.Splits))
		rest = (time.Millisecond + pause).Truncate(time.Millisecond)
		e.Splits++
		if together {
			e.Clashes++
		}
	}
	busy := protocol.Entered{Verdict: protocol.Busy, Rest: rest, Keeper: protocol.Keeper{Holder: holder, Known: true, Split: !held}}
	if held && holder == "" {
		busy.Votes = t.tally.votesText()
	}
	return outcome(busy)
}

// backOff returns the longest pause after split votes. splits is the number of consecutive tries before with split votes.
func (l *Lock) backOff(splits int) time.Duration {
	return min(max(backoff, time.Duration(l.pace.Load()))<<min(splits, 20), l.cfg.LongestPoll)
}

// vote requests the votes of the nodes, and reports whether a quorum has voted and is at the token.
//
// It does not cancel requests under way when there are enough votes: the more nodes vote, the more may fail later.
//
// After a release, all waiters send their first request to one node, and only the waiter that gets its vote sends requests
// to the others. So they do not split the votes. But that vote may belong to a client that died before it sent the other
// requests. So after several tries that met the same vote, a try sends requests to all nodes in parallel. Tries that met
// different votes show that some client makes progress; requests to all nodes would cost it votes.
func (t *try) vote(ctx context.Context) bool {
	t.f = t.fanout()
	defer t.f.end()
	defer t.silence()
	t.requestedAt = t.clock.Now()
	if t.first >= 0 {
		first := make([]bool, t.n)
		first[t.first] = true
		t.askVotes(ctx, first)
		t.ring(t.patience())
	} else {
		t.f.decides()
		t.askVotes(ctx, nil)
	}
	verdict := wait
	for verdict == wait {
		r, ok, err := t.f.nextReply(ctx)
		switch {
		case ok:
			verdict = t.reply(ctx, r)
		case err != nil || t.f.outstanding == 0:
			verdict = no
		case t.first >= 0:
			t.nodes[t.first].took.Store(int64(t.patience()))
			t.askOthers(ctx)
			verdict = t.step(ctx)
		default:
			t.tally.hurry = true
			verdict = t.step(ctx)
		}
	}
	if refuse := t.tally.failed.forGood(); refuse > 0 && t.blocks(len(t.tally.failed)) && t.blocks(refuse+t.tally.outstanding) {
		t.collectOthers(ctx)
	}
	return verdict == yes
}

// reply counts a reply, and decides.
func (t *try) reply(ctx context.Context, r reply) decision {
	t.tally.count(r)
	if ctx.Err() != nil {
		return wait // send no more requests
	}
	if t.first >= 0 {
		if r.err == nil && r.says == busy {
			return no
		}
		t.askOthers(ctx)
	}
	return t.step(ctx)
}

// step takes the next step, and decides.
func (t *try) step(ctx context.Context) decision {
	var took time.Duration
	quorate := !t.hasPace && t.enough(t.tally.replied())
	if quorate {
		t.hasPace = true
		took = t.clock.Now().Sub(t.requestedAt)
		t.pace.Store(int64(took))
	}
	verdict := t.tally.decide()
	if verdict == raise {
		t.raise(ctx)
		verdict = wait
	}
	if quorate && verdict == wait {
		// The other nodes may take twice as long as the quorum did. If there are not
		// enough votes by then because a rival has some, the rival may be waiting for
		// the votes of this try, while this try waits for a silent node. Without a
		// rival, nodes have failed at the write-back, and this try waits for the others.
		t.ring(max(took, hurryGrace))
	}
	return verdict
}

// askOthers requests the votes of all nodes except the first one.
func (t *try) askOthers(ctx context.Context) {
	others := make([]bool, t.n)
	for i := range others {
		others[i] = i != t.first
	}
	t.first, t.requestedAt = -1, t.clock.Now()
	t.ring(seam.FarAway)
	t.askVotes(ctx, others)
}

// ring sets the alarm.
func (t *try) ring(in time.Duration) {
	if t.alarm != nil {
		t.alarm.Reset(in)
		return
	}
	t.alarm = t.clock.NewTimer(in)
	t.f.alarm = t.alarm.C()
}

func (t *try) silence() {
	if t.alarm != nil {
		t.alarm.Stop()
	}
}

// collectOthers waits for the other nodes when there can be no quorum, and perhaps so many refuse for good that another
// try does not help: the error should name all nodes that do not vote. It waits for as long as the nodes that failed took.
func (t *try) collectOthers(ctx context.Context) {
	timer := t.clock.NewTimer(max(t.clock.Now().Sub(t.requestedAt), hurryGrace))
	defer timer.Stop()
	t.f.alarm = timer.C()
	for r, ok, _ := t.f.nextReply(ctx); ok; r, ok, _ = t.f.nextReply(ctx) {
		t.tally.count(r)
	}
	for i, g := range t.tally.got {
		if g.isPending && t.blocks(t.tally.failed.forGood()) {
			t.tally.misses(i, errNotYet)
		}
	}
}

// askVotes sends ACQ to nodes.
func (t *try) askVotes(ctx context.Context, nodes []bool) {
	for i := range t.nodes {
		if nodes == nil || nodes[i] {
			t.tally.expect(i)
		}
	}
	var same *wire.Request
	t.f.ask(ctx, question{
		nodes: nodes,
		request: func(i int) (*wire.Request, error) {
			if same != nil && t.quarantine == nil {
				return same, nil
			}
			same = &wire.Request{Script: t.script("acquire"), FailFast: true}
			same.Put(4, t.keys[0], t.keys[1], t.keys[2], t.gone+t.ID, t.ID, t.lease.Milliseconds())
			return t.quarantine.guard(i, true, same)
		},
		read:   readAcquire,
		ballot: t.ballot,
	})
}

// raise sends RAISE. It writes the token to the nodes that have voted and whose counters are behind,
// so that every later grant on these nodes counts past the token (model: NO_RAISE).
func (t *try) raise(ctx context.Context) {
	token, behind := t.tally.token, make([]bool, t.n)
	for i := range behind {
		behind[i] = t.tally.behind(i)
	}
	t.tally.raises += t.f.ask(ctx, question{
		nodes: behind,
		request: func(i int) (*wire.Request, error) {
			return t.quarantine.guard(i, true, &wire.Request{
				Script: t.script("raise"),
				Keys:   []string{t.record, t.counter, t.highest},
				Args:   []any{t.ID, t.tally.got[i].stamp, token},
			})
		},
		read: readRaise,
	})
}

// missLost counts nodes that are known to be silent as failed. A try without a known holder may have ended
// before they failed, by votes for rivals on the others.
func (t *try) missLost() {
	for i, n := range t.nodes {
		if t.tally.failed[i] == nil && n.Wire.IsLost(t.cfg.NodeTimeout) {
			t.tally.misses(i, errUnanswered)
		}
	}
}

// silent returns ErrNoQuorum if the context ended the try when too many nodes had failed, or had not
// replied for some time: the others are no quorum.
func (t *try) silent() error {
	cut := t.tally.tally
	cut.failed = maps.Clone(cut.failed)
	waited := time.Since(t.began)
	for i, g := range t.tally.got {
		if g.isPending && waited >= max(protocol.GiveUpGrace, t.nodes[i].Wire.Patience()) {
			cut.misses(i, wire.NoAnswer(waited.Round(time.Millisecond), nil))
		}
	}
	if !t.blocks(len(cut.failed)) {
		return nil
	}
	return t.noQuorum(&cut)
}

// giveBack takes the votes back after a failed try. It waits for the nodes that are known to have
// voted, so that the next try does not meet these votes. If ctx has ended, there is no next try, and
// the wait is short.
func (t *try) giveBack(ctx context.Context) {
	f := t.fanout()
	defer f.end()
	t.takeBack(f, t.ID, t.ballot)
	for known := t.tally.read(); known > 0; {
		r, ok, err := f.nextReply(ctx)
		switch {
		case ok && t.tally.got[r.node].stamp != "":
			known--
		case ok:
		case err == nil:
			return
		default:
			ctx = context.Background()
			grace := t.clock.NewTimer(protocol.GiveUpGrace)
			defer grace.Stop()
			f.alarm = grace.C()
		}
	}
}
