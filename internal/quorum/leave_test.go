package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

// A node that does not answer a release delays nobody, and its client's watchdog goes on
// with it.
func TestReleaseLeavesASilentNodeToTheWatchdog(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	id, token := h.mustEnter()
	h.quiet()
	h.on(2, "release", faultproxy.Error)
	h.mustRelease(id)
	h.settled()
	missed := h.missed()
	if len(missed) != 1 || missed[0].by != 2 || missed[0].task.OfQuorum() || missed[0].task.Name() != "quorum/release" {
		t.Fatalf("%+v", missed)
	}
	if v := h.votes(); v != "- - "+id {
		t.Fatalf("votes %s", v)
	}
	h.pass()
	// As the watchdog does.
	done := make(chan protocol.Result[protocol.Kept], 1)
	round := h.nodes[2].Wire.NewRound(1)
	missed[0].task.Send(protocol.Dispatch{Round: round, Recipient: recipient{done: done}})
	eventually(t, "the node is reachable", func() bool { return !h.nodes[2].Wire.IsLost(nodeTimeout) })
	round.Send(func(redisClient, []wire.Answer) {})
	if got := <-done; got.Err != nil || got.Outcome != protocol.Done || h.votes() != "- - -" {
		t.Errorf("%+v, votes %s", got, h.votes())
	}
	if c := h.counters(); slices.Min(c) < token {
		t.Errorf("counters %v, token %d: the next hold needs two round trips", c, token)
	}
}

// A request for a vote is repeated while its node fails, but not when the hold is over: the
// node could restart, forget the tombstone, and vote.
func TestNodeIsNotAskedForItsVoteAfterTheRelease(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"acquire", "renew"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 3))
			h.warm()
			sha := loaded()["quorum/"+script].SHA()
			asked := func() int {
				return h.servers[2].proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha) })
			}
			before := asked()
			var id string
			if script == "acquire" {
				h.on(2, script, faultproxy.ResetBefore)
				id, _ = h.mustEnter()
			} else {
				id, _ = h.mustEnter()
				h.quiet()
				h.on(2, script, faultproxy.ResetBefore)
				if got := h.Renew(id, lease).Do(bg, budget); got.Err != nil {
					t.Fatal(got.Err)
				}
			}
			eventually(t, "it is repeated", func() bool { return asked() >= before+2 })
			h.mustRelease(id)
			then := asked()
			h.quiet() // no request is under way, nor will be repeated
			if n := asked() - then; n > 1 {
				t.Errorf("the node was asked %d times after the release: one copy may have been on its way", n)
			}
		})
	}
}

// Where a node's client was shut down, the home goes on.
func TestHomeCleansUpForAClosedClient(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	h.on(2, "release", faultproxy.Error)
	h.closed[2] = true
	h.mustRelease(id)
	h.settled()
	missed := h.missed()
	if len(missed) != 1 || missed[0].by != 0 || !missed[0].task.OfQuorum() {
		t.Fatalf("%+v", missed)
	}
	h.pass()
	done := make(chan protocol.Result[protocol.Kept], 1)
	missed[0].task.Send(protocol.Dispatch{Recipient: recipient{done: done}})
	if got := <-done; got.Err != nil || got.Outcome != protocol.Done || h.votes() != "- - -" {
		t.Errorf("%+v, votes %s", got, h.votes())
	}
}

// A release says what had become of the hold.
func TestReleaseReportsTheStateOfTheHold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		// After the loss, by node: '+' ours, '-' nobody's, 'b' another's, '!' no answer; 'l' ours, and the
		// reply to the first copy is lost; 'L' another's, and the first copy is lost.
		votes string
		want  protocol.Kept
		err   error
	}{
		{"+++++", protocol.Done, nil},
		{"+++--", protocol.Done, nil},
		{"++---", protocol.Removed, nil},
		{"-----", protocol.Removed, nil},
		{"++-b-", protocol.TakenOver, nil},
		{"bbb++", protocol.TakenOver, nil},
		{"+!!bb", 0, ErrDoubtful}, // those that are silent may have voted for another too
		{"++!bb", 0, ErrDoubtful},
		{"++!--", 0, ErrDoubtful},
		{"++bbL", 0, ErrDoubtful}, // the first copy may have found another's vote, as the second one does
		{"+++bL", protocol.Done, nil},
		{"+++!!", protocol.Done, nil},
		{"-!!--", protocol.Removed, nil},
		{"++!!!", 0, ErrNoQuorum},
		{"+++ll", protocol.Done, nil},
		{"++lll", 0, ErrNoQuorum},
		{"lllll", 0, ErrNoQuorum},
		{"++LLL", 0, ErrNoQuorum},
	} {
		t.Run(c.votes, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5))
			h.warm()
			id, _ := h.mustEnter()
			h.quiet()
			first := func(node int, action faultproxy.Action) {
				h.servers[node].rdb.ScriptLoad(bg, loaded()["quorum/release"].Text())
				sha, struck := loaded()["quorum/release"].SHA(), new(atomic.Bool)
				h.servers[node].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(sha) && !struck.Swap(true) {
						return action
					}
					return faultproxy.Pass
				})
			}
			for i, vote := range c.votes {
				switch rdb := h.servers[i].rdb; vote {
				case '-':
					rdb.Del(bg, h.record)
				case 'b':
					rdb.HSet(bg, h.record, "attempt", "another:1")
				case '!':
					h.on(i, "release", faultproxy.Error)
				case 'l':
					first(i, faultproxy.ResetAfter)
				case 'L':
					rdb.HSet(bg, h.record, "attempt", "another:1")
					first(i, faultproxy.ResetBefore)
				}
			}
			got := h.Release(id, 0).Do(bg, budget)
			if !errors.Is(got.Err, c.err) || c.err == nil && (got.Err != nil || got.Outcome != c.want) {
				t.Errorf("%+v", got)
			}
			if errors.Is(c.err, ErrNoQuorum) && !errors.Is(got.Err, wire.ErrUnreachable) {
				t.Errorf("%v", got.Err)
			}
			h.settled()
			if n := strings.Count(c.votes, "!"); len(h.missed()) != n {
				t.Errorf("not %d clean-ups", n)
			}
			if strings.Contains(h.votes(), "another:1") != strings.ContainsAny(c.votes, "bL") {
				t.Errorf("votes %s", h.votes())
			}
		})
	}
}

// Nodes that never had a vote for the hold are asked whether they have voted for another since, if the voters
// do not tell, and only then.
func TestReleaseAsksTheOthersIfVotersAreSilent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		votes  string // of the voters, as in TestReleaseReportsTheStateOfTheHold; 'o' it has come back with old data
		others string // and of the other nodes: '-' nobody, since its last vote before the hold; 'v' nobody, it has voted since; 'b' another; '!' no answer
		asked  bool
		err    error
	}{
		{"+++", "--", false, nil},
		{"++!", "--", true, nil},
		{"++!", "v-", true, nil},
		{"++!", "b-", true, nil},
		{"++!", "vv", true, ErrDoubtful},
		{"++!", "bb", true, ErrDoubtful},
		{"++!", "!v", true, ErrDoubtful},
		{"++!", "!!", true, ErrNoQuorum},
		{"++l", "--", true, nil},
		{"+!!", "--", true, nil},
		{"+!!", "-v", true, ErrDoubtful},
		{"++!l", "-", true, nil},
		{"++!o", "-", false, ErrDoubtful}, // the token of another may be from the old data, and below this hold's
	} {
		t.Run(c.votes+c.others, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5))
			h.warm()
			for _, s := range h.servers {
				s.rdb.Set(bg, h.counter, 100, 0)
			}
			for i := len(c.votes); i < 5; i++ {
				h.on(i, "acquire", faultproxy.Error)
			}
			id, _ := h.mustEnter()
			h.quiet()
			for _, s := range h.servers {
				s.rdb.ScriptLoad(bg, loaded()["quorum/release"].Text())
			}
			h.pass()
			release := loaded()["quorum/release"].SHA()
			for i, vote := range c.votes + c.others {
				switch rdb := h.servers[i].rdb; vote {
				case 'v':
					rdb.Set(bg, h.counter, 102, 0)
				case 'b':
					rdb.HSet(bg, h.record, "attempt", "another:1", "stamp", "102:1", "until", time.Now().Add(time.Hour).UnixMicro())
				case 'o':
					h.rollBack(i)
				case '!':
					h.on(i, "release", faultproxy.Error)
				case 'l':
					struck := new(atomic.Bool)
					h.servers[i].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
						if c.IsScript(release) && !struck.Swap(true) {
							return faultproxy.ResetAfter
						}
						return faultproxy.Pass
					})
				}
			}
			before := h.servers[4].proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(release) })
			got := h.Release(id, 0).Do(bg, budget)
			if !errors.Is(got.Err, c.err) || c.err == nil && (got.Err != nil || got.Outcome != protocol.Done) {
				t.Errorf("%+v", got)
			}
			h.settled()
			if n := h.servers[4].proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(release) }) - before; (n > 0) != c.asked {
				t.Errorf("a node without a vote was asked %d times", n)
			}
			if n := strings.Count(c.votes, "!"); len(h.missed()) != n {
				t.Errorf("not %d clean-ups: nodes without a vote need none", n)
			}
		})
	}
}

// rollBack sets a node back to old data, in which there is no vote.
func (h *home) rollBack(node int) {
	rdb := h.servers[node].rdb
	rdb.Del(bg, h.record)
	rdb.Set(bg, h.counter, 50, 0)
	rdb.Set(bg, keyHighest, 64, 0)
}

// A release need not write the token to nodes that were at it: unless they have forgotten
// that, whether they vote for nobody since then or have voted anew.
func TestReleaseWritesTheTokenToNodesThatForgot(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5))
	for _, s := range h.servers {
		s.rdb.Set(bg, h.counter, 100, 0)
	}
	id, token := h.mustEnter()
	h.quiet()
	h.rollBack(1)
	h.rollBack(2)
	h.on(1, "renew", faultproxy.Error)
	if got := h.Renew(id, lease).Do(bg, budget); got.Err != nil {
		t.Fatal(got.Err)
	}
	h.quiet()
	h.mustRelease(id)
	h.settled()
	if got := h.counters(); slices.Min(got) < token {
		t.Errorf("counters %v, the token was %d", got, token)
	}
}

// Nodes that come back with old data grant their votes again, to a renewal whose replies are lost. In between another hold
// may have come and gone, with a token below this one's, so what the counters say at the release proves nothing.
func TestReleaseOfVotesThatWereGrantedAgainOnOldData(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5))
	h.warm()
	for _, s := range h.servers {
		s.rdb.Set(bg, h.counter, 100, 0)
	}
	id, _ := h.mustEnter()
	h.quiet()
	time.Sleep(2 * h.prompt(0)) // a vote of before that counts as one of the acquire
	var met []func()
	for i := range 3 {
		h.rollBack(i)
		met = append(met, h.on(i, "renew", faultproxy.SwallowReply))
	}
	if got := h.Renew(id, lease).Do(bg, budget); got.Err == nil {
		t.Fatalf("a renewal without the replies of a quorum: %+v", got)
	}
	for _, met := range met {
		met()
	}
	h.pass()
	for i := range 3 {
		eventually(t, "the node is reachable", func() bool { return !h.nodes[i].Wire.IsLost(nodeTimeout) })
	}
	if v := h.votes(); strings.Count(v, id) != 5 {
		t.Fatalf("votes %s", v)
	}
	if got := h.Release(id, 0).Do(bg, budget); !errors.Is(got.Err, ErrDoubtful) {
		t.Errorf("%+v", got)
	}
	h.settled()
}

// A release that is cut off is not begun again: the watchdogs go on with it.
func TestCanceledReleaseContinues(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	for i := range 3 {
		h.on(i, "release", faultproxy.SwallowReply)
	}
	ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
	defer cancel()
	if got := h.Release(id, 0).Do(ctx, budget); !wire.Ended(got.Err) {
		t.Errorf("%+v", got)
	}
	h.pass()
	h.settled()
	if got := h.Abandon(id, true).Do(bg, budget); got.Outcome != protocol.Removed || got.Err != nil {
		t.Errorf("%+v", got)
	}
	if h.votes() != "- - -" {
		t.Errorf("votes %s", h.votes())
	}
}

// A request for a vote that is under way when the votes are taken back is waited for, and
// none is sent any more.
func TestRequestsSettleBeforeVotesAreTakenBack(t *testing.T) {
	t.Parallel()
	p := ballot{votes: make([]vote, 3)}
	answered := func(b *ballot, r reply) { b.answered(&r, time.Time{}, time.Now(), 0) }
	for i := range 3 {
		if !p.ask(i) {
			t.Fatal("not asked")
		}
	}
	answered(&p, reply{node: 0, says: granted})
	answered(&p, reply{node: 1, says: busy})
	if given, n, _ := p.close(); n != 2 || !slices.Equal(given, []bool{true, false, true}) {
		t.Errorf("%v", given)
	}
	if p.ask(1) {
		t.Error("asked although the votes are taken back")
	}
	var after told
	if _, _, settled := p.settle(2, &after); settled || after != nil {
		t.Fatal("settled before the answer")
	}
	answered(&p, reply{node: 2, err: wire.ErrUnreachable, unsure: true})
	if !slices.Equal(after, told{"true true"}) {
		t.Errorf("%v: what was not answered may come late", after)
	}
	if given, stray, settled := p.settle(0, nil); !given || stray || !settled {
		t.Error("a node that has answered needs no tombstone")
	}
	q := ballot{votes: make([]vote, 1)}
	q.ask(0)
	var late told
	q.settle(0, &late)
	q.giveUp(0, &after)
	if late != nil {
		t.Error("another does not wait any more")
	}
	q.giveUp(0, &late)
	q.giveUp(0, &late)
	answered(&q, reply{says: granted})
	if !slices.Equal(late, told{"true true"}) {
		t.Errorf("%v: nobody knows what becomes of a request that is under way", late)
	}
}

// told is what a settler was told.
type told []string

func (s *told) settled(given, stray bool) { *s = append(*s, fmt.Sprint(given, stray)) }

// A node whose vote comes when its release waits for it is not asked to write the token: its
// counter is there. That would cost it as much again as the rest of the release.
func TestReleaseUsesTheCounterOfALateVote(t *testing.T) {
	t.Parallel()
	// The release waits for a part of it: longer than a busy machine needs.
	h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = time.Minute })
	h.warm()
	for _, s := range h.servers { // so that each is at the token with its vote
		s.rdb.Set(bg, h.counter, 100, 0)
	}
	acquire, release := loaded()["quorum/acquire"].SHA(), loaded()["quorum/release"].SHA()
	releasing := make(chan struct{})
	began := sync.OnceFunc(func() { close(releasing) })
	for i, s := range h.servers {
		late := i < 2
		s.proxy.Delay(func(c faultproxy.Command) time.Duration {
			switch {
			case late && c.IsScript(acquire):
				<-releasing
			case c.IsScript(release):
				began()
			}
			return 0
		})
	}
	before := len(h.servers[0].proxy.Commands())
	id, token := h.mustEnter()
	h.mustRelease(id)
	h.settled()
	var told []string
	for _, c := range h.servers[0].proxy.Commands()[before:] {
		if c.IsScript(release) {
			told = append(told, c.Args...)
		}
	}
	if len(told) == 0 || slices.Contains(told, fmt.Sprint(token)) {
		t.Errorf("the release is %q: the token is %d", told, token)
	}
}

// A node that has forgotten its vote is told the token by the release, also when the reply to
// that is lost: the next hold needs one round trip.
func TestReleaseWritesTheTokenToNodesThatHaveLostIt(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	release := loaded()["quorum/release"].SHA()
	for _, lost := range []int{-1, 0, 1} { // which of the releases to the node
		id, token := h.mustEnter()
		h.quiet()
		h.rollBack(0)
		n := 0
		h.servers[0].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(release) {
				if n++; n == lost+1 {
					return faultproxy.SwallowReply
				}
			}
			return faultproxy.Pass
		})
		h.mustRelease(id)
		h.settled()
		if c := h.counters(); slices.Min(c) < token {
			t.Errorf("reply %d lost: counters %v, token %d", lost, c, token)
		}
		h.pass()
	}
	h.quiet()
	id, token := h.mustEnter()
	h.quiet()
	h.rollBack(0)
	h.on(0, "release", faultproxy.Error)
	h.mustRelease(id)
	h.settled()
	h.pass()
	for _, m := range h.missed() {
		eventually(t, "the node is reachable", func() bool { return !h.nodes[m.by].Wire.IsLost(nodeTimeout) })
		if got := m.task.(*nodeTask).Do(bg, budget); got.Err != nil {
			t.Error(got.Err)
		}
	}
	if c := h.counters(); slices.Min(c) < token {
		t.Errorf("after the clean-up: counters %v, token %d", c, token)
	}
}

// Two of three nodes have said that they had no vote: the hold was lost. That one of them cannot be
// told the token afterwards does not change that.
func TestReleaseReportsALossIfTheTokenCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, action := range []faultproxy.Action{faultproxy.Error, faultproxy.SwallowReply} {
		h := join(t, miniServers(t, 3))
		h.warm()
		id, _ := h.mustEnter()
		h.quiet()
		for i := range 2 {
			h.servers[i].rdb.FlushAll(bg)
		}
		release := loaded()["quorum/release"].SHA()
		n := 0
		h.servers[0].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(release) {
				if n++; n > 1 { // it has answered the release itself
					return action
				}
			}
			return faultproxy.Pass
		})
		if got := h.Release(id, 0).Do(bg, budget); got.Err != nil || got.Outcome != protocol.Removed {
			t.Errorf("%v: %+v", action, got)
		}
		h.pass()
		h.settled()
	}
}

// A release tells how many connections have heard of it on one node, whatever it had to say there.
func TestReleaseReportsTheMostListenersOfANode(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	for listeners := range 3 {
		for _, stray := range []bool{false, true} {
			id, _ := h.mustEnter()
			h.quiet()
			if stray {
				for i := range h.nodes {
					h.cfg.Ballots.get(id).votes[i].stray = true
				}
			}
			got := h.Release(id, 0).Do(bg, budget)
			if got.Err != nil || got.Outcome != protocol.Done || got.Receivers != listeners {
				t.Errorf("%d listen: %+v", listeners, got)
			}
			h.settled()
		}
		for _, s := range h.servers {
			ps := s.rdb.Subscribe(bg, h.channel)
			t.Cleanup(func() { ps.Close() })
			if _, err := ps.Receive(bg); err != nil {
				t.Fatal(err)
			}
		}
	}
}
