package quorum

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
)

// renewers are the ways to renew a hold: while the caller waits, and by the watchdog.
var renewers = map[string]func(h *home, id string) protocol.Result[protocol.Kept]{
	"caller": func(h *home, id string) protocol.Result[protocol.Kept] { return h.Renew(id, lease).Do(bg, budget) },
	"watchdog": func(h *home, id string) protocol.Result[protocol.Kept] {
		done := make(chan protocol.Result[protocol.Kept], 1)
		h.Renew(id, lease).Send(protocol.Dispatch{
			Recipient: recipient{goesOn: true, done: done},
		})
		select {
		case r := <-done:
			return r
		case <-time.After(budget):
			return protocol.Result[protocol.Kept]{Err: errors.New("never done")}
		}
	},
}

// recipient is sent the outcome of a task.
type recipient struct {
	goesOn bool
	done   chan<- protocol.Result[protocol.Kept]
}

func (r recipient) GoesOn() bool                                         { return r.goesOn }
func (r recipient) Done(_ time.Time, got protocol.Result[protocol.Kept]) { r.done <- got }

func eachRenewer(t *testing.T, fn func(t *testing.T, h *home, renew func(id string) protocol.Result[protocol.Kept])) {
	for name, renew := range renewers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5))
			h.warm()
			fn(t, h, func(id string) protocol.Result[protocol.Kept] { return renew(h, id) })
		})
	}
}

func TestRenewLengthensTheVotes(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		for _, s := range h.servers {
			s.rdb.HSet(bg, h.record, "until", time.Now().Add(time.Second).UnixMicro())
		}
		if got := renew(id); got.Err != nil || got.Outcome != protocol.Done {
			t.Fatalf("%+v", got)
		}
		h.quiet()
		for i, s := range h.servers {
			until, _ := s.rdb.HGet(bg, h.record, "until").Int64()
			if time.Until(time.UnixMicro(until)) < lease/2 {
				t.Errorf("the vote of node %d ends at %v", i+1, time.UnixMicro(until))
			}
		}
		h.mustRelease(id)
	})
}

// A node that has forgotten its vote grants it anew, and counts from the next round on.
// With so many that they could have been another hold's quorum the hold is lost.
func TestRegrantedVotesCountFromTheNextRoundOn(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		forget := func(nodes ...int) {
			for _, i := range nodes {
				h.servers[i].rdb.Del(bg, h.record)
			}
		}
		for _, nodes := range [][]int{{0, 1}, {2, 3}, {4, 0}} {
			forget(nodes...)
			// They grant it anew in the first round. They may do so after the others have
			// confirmed the hold: then they count from the third round on.
			for range 2 {
				if got := renew(id); got.Err != nil || got.Outcome != protocol.Done {
					t.Fatalf("%+v", got)
				}
				h.quiet()
			}
		}
		forget(0, 1, 2)
		if got := renew(id); got.Err != nil || got.Outcome != protocol.Removed {
			t.Fatalf("a quorum has forgotten: %+v", got)
		}
	})
}

// A round with too few votes that have lasted is repeated at once if there are enough with
// those that were given anew.
func TestRenewalIsRepeatedForRegrantedVotes(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		for _, i := range []int{0, 1} {
			h.servers[i].rdb.Del(bg, h.record)
			h.on(i+2, "renew", faultproxy.Error)
		}
		h.servers[3].proxy.Handle(nil) // two have lasted, two were given anew, one is away
		if got := renew(id); got.Err != nil || got.Outcome != protocol.Done {
			t.Errorf("%+v", got)
		}
		h.pass()
	})
}

func TestRenewalWithoutAQuorumIsUnknown(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		for i := range 3 {
			h.on(i, "renew", faultproxy.Error)
		}
		got := renew(id)
		if !errors.Is(got.Err, ErrNoQuorum) || !strings.Contains(got.Err.Error(), "3 of 5 nodes could not vote, 3 have to") {
			t.Errorf("%+v", got)
		}
		h.pass()
		if got := renew(id); got.Err != nil || got.Outcome != protocol.Done {
			t.Errorf("%+v", got)
		}
	})
}

// Nodes that vote for another have answered. An error that leaves them out does not add up: of five nodes two could
// not vote, and that leaves a quorum.
func TestTooFewVotesCountsVotesForAnotherOwner(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		for _, i := range []int{0, 1} {
			h.on(i, "renew", faultproxy.Error)
			h.servers[i+2].rdb.HSet(bg, h.record, "attempt", "another:1")
		}
		got := renew(id)
		if !errors.Is(got.Err, ErrNoQuorum) || !strings.Contains(got.Err.Error(), "no quorum: 2 of 5 nodes could not vote, 2 vote for another owner; 3 have to vote; node 1: ") {
			t.Errorf("%+v", got)
		}
		h.servers[3].rdb.Del(bg, h.record) // it votes anew, and its vote counts from the next round on
		got = renew(id)
		if !errors.Is(got.Err, ErrNoQuorum) || !strings.Contains(got.Err.Error(), "1 votes for another owner; 3 have to vote; ") {
			t.Errorf("%+v", got)
		}
		h.pass()
	})
}

func TestRenewalOfAHoldThatAnotherOwnerHas(t *testing.T) {
	t.Parallel()
	eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
		id, _ := h.mustEnter()
		h.quiet()
		for i := range 3 {
			h.servers[i].rdb.HSet(bg, h.record, "attempt", "another:1")
		}
		if got := renew(id); got.Err != nil || got.Outcome != protocol.TakenOver {
			t.Errorf("%+v", got)
		}
		if got := renew("nobody:1"); got.Err != nil || got.Outcome != protocol.Removed {
			t.Errorf("%+v", got)
		}
	})
}

// A node that has not answered a renewal is not sent another one, and delays nobody.
func TestWatchdogAsksASilentNodeOnce(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3), func(c *Config) { c.NodeTimeout = budget })
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	h.on(2, "renew", faultproxy.Hold)
	sha := loaded()["quorum/renew"].SHA()
	asked := func() int {
		return h.servers[2].proxy.Count(func(c faultproxy.Command) bool {
			return c.IsScript(sha) && strings.Contains(strings.Join(c.Args, " "), id)
		})
	}
	for range 5 {
		if got := renewers["watchdog"](h, id); got.Outcome != protocol.Done || got.Err != nil {
			t.Fatalf("%+v", got)
		}
		eventually(t, "the silent node was asked", func() bool { return asked() == 1 })
	}
	// What the hold has lost is not renewed any more.
	h.on(1, "renew", faultproxy.Error)
	if got := renewers["watchdog"](h, id); !errors.Is(got.Err, errUnanswered) {
		t.Errorf("%+v", got)
	}
	h.pass()
	h.servers[2].proxy.ResetAll()
}

// Nothing is sent for a hold that was lost while its renewal waited to be sent.
func TestNothingIsSentForAHoldThatIsOver(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	for _, s := range h.servers {
		s.proxy.ResetLog()
	}
	done := make(chan protocol.Result[protocol.Kept], 1)
	h.Renew(id, lease).Send(protocol.Dispatch{
		Recipient: recipient{done: done},
	})
	if got := <-done; !errors.Is(got.Err, ErrNoQuorum) {
		t.Errorf("%+v", got)
	}
	for _, s := range h.servers {
		if n := s.proxy.Count(func(c faultproxy.Command) bool { return c.Name == "evalsha" }); n > 0 {
			t.Errorf("%d scripts were sent", n)
		}
	}
}

// newVotes are those for a hold with token 7, which two of three nodes have granted.
func newVotes(start time.Time, grace time.Duration) *ballot {
	b := (&Lock{size: size{3, 2}}).newBallot(lease)
	b.won(7, []grant{{stamp: "7:1", count: 7}, {stamp: "7:1", count: 7}, {}}, start, grace)
	return b
}

// lasts confirms the hold by a round that began then, and found the votes of all nodes.
func (b *ballot) lasts(began, now time.Time, prompt time.Duration) {
	for i := range b.votes {
		b.votes[i].noOtherUntil = began
	}
	b.confirm(size{3, 2}, now, prompt)
}

// hears has the client hear of a reply to a request of a round that began at some time, or to an acquire.
func (b *ballot) hears(r reply, began, now time.Time) reply {
	b.ask(r.node)
	b.answered(&r, began, now, promptFloor)
	return r
}

// A renewal of before a confirmation may come late to a node: the vote that it brings is
// not of before, although the client hears of it in a later round.
func TestLateFreshVoteHasNotLasted(t *testing.T) {
	t.Parallel()
	start := time.Now()
	before, since, after := start.Add(time.Second), start.Add(time.Minute), start.Add(2*time.Minute)
	b := newVotes(start, 0)
	now := start.Add(time.Hour)
	finds := func(node int, granted time.Time) reply {
		return b.hears(reply{node: node, says: continuous, stamp: b.votes[node].stamp, age: now.Sub(granted)}, now, now)
	}
	b.lasts(before, since, 0)
	b.hears(reply{node: 2, says: fresh, stamp: "9:9"}, before, after) // sent before the confirmation, heard of after it
	if b.unanswered(2) != silent {
		t.Error("a vote of before the confirmation, or so it says, is not one that was forgotten since")
	}
	if r := finds(2, since.Add(time.Millisecond)); r.says != continuous || r.evidence != newer {
		t.Errorf("it was granted after the confirmation: %+v", r)
	}
	b.hears(reply{node: 1, says: fresh, stamp: "9:8"}, before, after)
	if r := finds(1, before.Add(-time.Millisecond)); r.says != continuous || r.evidence != older {
		t.Errorf("it was granted before the confirmation: %+v", r)
	}
	b.hears(reply{node: 0, says: fresh, stamp: "9:9"}, after, after)
	if r := b.hears(reply{node: 0, says: fresh, stamp: "9:9", age: time.Second}, after, after); r.says != fresh {
		t.Errorf("two rounds have found it at the same time, and it counts from the next one on: %+v", r)
	}
	if r := finds(0, after); b.unanswered(0) != newer || r.says != continuous || r.evidence != newer {
		t.Errorf("a vote of since then is forgotten until the next confirmation: %+v", r)
	}
}

// Which of two grants is the later one is not known if a request was under way when the one was heard of. Then the
// node is as one whose vote is of unknown age, until it says which of the two it has.
func TestTwoGrantsReceivedInAnyOrder(t *testing.T) {
	t.Parallel()
	start := time.Now()
	since, first, second, later := start.Add(time.Minute), start.Add(2*time.Minute), start.Add(3*time.Minute), start.Add(4*time.Minute)
	for _, says := range []says{continuous, fresh, granted} {
		b := newVotes(start, 0)
		b.lasts(since, since, 0)
		b.hears(reply{node: 2, says: fresh, stamp: "9:1"}, first, second)
		for range 2 { // however often it is told
			began := first
			if says == granted {
				began = time.Time{}
			}
			if r := b.hears(reply{node: 2, says: says, stamp: "9:2", age: time.Hour}, began, later); r.evidence != newer || b.old(2) {
				t.Errorf("%v: %v", says, r.evidence)
			}
		}
		b.lasts(later, later, 0)
		if r := b.hears(reply{node: 2, says: fresh, stamp: "9:2", age: time.Hour}, later.Add(1), later.Add(2)); r.says != fresh || r.evidence != older {
			t.Errorf("%v: %+v", says, r)
		}
	}
}

func TestReentryRenewsAndCounts(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	id, _ := h.mustEnter()
	if got := h.Reenter(id, lease, 2, true).Do(bg, budget); got.Err != nil || got.Outcome != protocol.Done {
		t.Fatalf("%+v", got)
	}
	entries := func() int { return h.Probe(id).Do(bg, budget).Outcome.Entries }
	if n := entries(); n != 2 {
		t.Errorf("%d entries", n)
	}
	if got := h.Release(id, 1).Do(bg, budget); got.Outcome != protocol.Done || entries() != 1 {
		t.Errorf("%+v, %d entries", got, entries())
	}
	h.quiet()
	for _, s := range h.servers {
		s.rdb.Del(bg, h.record)
	}
	if got := h.Reenter(id, lease, 2, false).Do(bg, budget); got.Err != nil || got.Outcome != protocol.Removed {
		t.Errorf("%+v", got)
	}
}

// A round of the watchdog does not wait for a node that is known to hang, while the
// others are a quorum: a hold that misses a vote asks for it as often as it can.
func TestRenewalDoesNotWaitForAHungNode(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = 2 * budget })
	h.warm()
	id, _ := h.mustEnter()
	h.quiet()
	h.servers[2].proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.Hold })
	h.nodes[2].Wire.Failed(errors.New("no reply"))
	h.servers[3].rdb.HSet(bg, h.record, "attempt", "rival:1", "stamp", "7:7", "until", time.Now().Add(time.Hour).UnixMicro())
	h.servers[4].rdb.Del(bg, h.record)
	if got := renewers["watchdog"](h, id); got.Err != nil || got.Outcome != protocol.Done {
		t.Fatalf("%+v", got)
	}
	// The release needs the node if another has voted so late that its count is past the token.
	h.pass()
	h.servers[2].proxy.ResetAll()
	eventually(t, "the node is back", func() bool { return !h.nodes[2].Wire.IsLost(budget) })
	h.servers[3].rdb.Del(bg, h.record)
	h.quiet()
	h.mustRelease(id)
}

// A vote whose reply came late, and whose count is past the token, counts as soon as a renewal tells
// that it was granted in time.
func TestRenewalReportsTheAgeOfALateVote(t *testing.T) {
	t.Parallel()
	start := time.Now()
	late := reply{node: 2, says: granted, stamp: "9:9", count: 9}
	for _, c := range []struct {
		granted time.Duration // after the hold has begun
		counts  bool
	}{{50 * time.Millisecond, true}, {time.Second, false}} {
		v, now := newVotes(start, promptFloor), start.Add(time.Minute)
		v.hears(late, time.Time{}, now)
		if v.old(2) || !v.old(1) {
			t.Error("it is not known whether it is as old as the hold")
		}
		if r := v.hears(reply{node: 2, says: continuous, stamp: "9:9", age: time.Minute - c.granted}, now, now); (r.evidence == older) != c.counts {
			t.Errorf("granted after %v: %+v", c.granted, r)
		}
	}
}

// late makes a hold with the votes of the first three nodes of five. The acquires to the fourth and,
// unless it is to refuse, the fifth are held back until the function is called that is returned. The
// counters of these two are ahead of the others.
func (h *home) late(refuse bool, ahead int64) (id string, arrive func()) {
	h.t.Helper()
	h.servers[4].proxy.ErrorText = "-ERR refused"
	h.warm()
	for i, s := range h.servers {
		count := int64(100)
		if i >= 3 {
			count += ahead
		}
		s.rdb.Set(bg, h.counter, count, 0)
	}
	e, held := h.entry(), make(chan struct{})
	acquire := loaded()["quorum/acquire"].SHA()
	for i := 3; i < 5; i++ {
		h.servers[i].proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			switch {
			case !c.IsScript(acquire) || !strings.Contains(strings.Join(c.Args, " "), e.ID):
				return faultproxy.Pass
			case refuse && i == 4:
				return faultproxy.Error
			}
			<-held
			return faultproxy.Pass
		})
	}
	let := sync.OnceFunc(func() { close(held) })
	h.t.Cleanup(let)
	if got := h.look(e); got.Err != nil || got.Outcome.Verdict != protocol.Granted {
		h.t.Fatalf("%+v", got)
	}
	return e.ID, func() {
		let()
		h.quiet()
	}
}

// enders are the calls that tell what has become of a hold.
func enders() map[string]func(h *home, id string) protocol.Result[protocol.Kept] {
	all := maps.Clone(renewers)
	all["release"] = func(h *home, id string) protocol.Result[protocol.Kept] { return h.Release(id, 0).Do(bg, budget) }
	return all
}

// An acquire that reaches a node after another hold has had its vote, and the lock, brings a vote
// that is younger than the hold: it does not hide that the hold was lost.
func TestVoteOfALateAcquireDoesNotHideALoss(t *testing.T) {
	t.Parallel()
	for name, end := range enders() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := miniServers(t, 5)
			patient := func(c *Config) { c.NodeTimeout = budget }
			h, rival := join(t, servers, patient), join(t, servers, patient)
			clock := &shiftedClock{}
			h.clock = clock
			id, arrive := h.late(true, 0)
			servers[2].rdb.FlushAll(bg)
			var other string
			eventually(t, "another hold has the other three", func() bool {
				e := rival.entry()
				other = e.ID
				return rival.look(e).Outcome.Verdict == protocol.Granted
			})
			rival.quiet()
			rival.mustRelease(other)
			rival.settled()
			clock.by.Store(int64(time.Minute))
			arrive()
			if v := strings.Fields(h.votes()); v[3] != id {
				t.Fatalf("votes %s: the late acquire did nothing", v)
			}
			// A release finds one vote gone that the hold had, and may not say so: the late one may be older.
			if got := end(h, id); !errors.Is(got.Err, ErrDoubtful) && (got.Err != nil || got.Outcome != protocol.Removed) {
				t.Errorf("another has had the lock meanwhile: %+v", got)
			}
		})
	}
}

// Votes that come a little later than those of the quorum are as old as the hold, also if their
// counters are past its token. If they are not, the votes may come at any time.
func TestVotesALittleLaterThanTheQuorumCount(t *testing.T) {
	t.Parallel()
	for name, end := range enders() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = budget })
			h.clock = fixedClock{now: time.Now()}
			id, arrive := h.late(false, 1000)
			arrive()
			h.servers[2].rdb.FlushAll(bg)
			if got := end(h, id); got.Err != nil || got.Outcome != protocol.Done {
				t.Errorf("four of five votes have lasted: %+v", got)
			}
		})
		t.Run(name+", much later, not past the token", func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = budget })
			clock := &shiftedClock{}
			h.clock = clock
			id, arrive := h.late(false, 0)
			clock.by.Store(int64(time.Minute))
			arrive()
			h.servers[2].rdb.FlushAll(bg)
			if got := end(h, id); got.Err != nil || got.Outcome != protocol.Done {
				t.Errorf("four of five votes have lasted: %+v", got)
			}
		})
	}
}

// A reply that the client reads late does not make a vote late: the release asks the node for its age.
func TestReleaseReportsTheAgeOfALateVote(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = budget })
	clock := &shiftedClock{}
	h.clock = clock
	id, arrive := h.late(false, 1000)
	clock.by.Store(int64(time.Minute))
	arrive()
	if v := h.cfg.Ballots.get(id); v.old(3) || v.old(4) {
		t.Fatal("the replies were not late")
	}
	clock.by.Store(-int64(time.Minute)) // so that the votes were granted in time
	h.servers[1].rdb.Del(bg, h.record)
	h.servers[2].rdb.Del(bg, h.record)
	h.mustRelease(id)
}

// A renewal that is sent while the reply to the acquire is under way does not have its stamp. The vote
// is none the younger for that.
func TestRenewalBeforeTheReplyToTheAcquire(t *testing.T) {
	t.Parallel()
	for name, end := range enders() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = budget })
			h.clock = fixedClock{now: time.Now()}
			id, arrive := h.late(false, 1000)
			if got := renewers["caller"](h, id); got.Err != nil || got.Outcome != protocol.Done {
				t.Fatalf("%+v", got)
			}
			b := h.cfg.Ballots.get(id)
			eventually(t, "each node has replied to the renewal", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return !slices.ContainsFunc(b.votes, func(v vote) bool { return v.inFlight > 1 }) // 1: the acquire, which is held back
			})
			arrive()
			for i := range h.nodes {
				if !b.old(i) {
					t.Errorf("the vote of node %d counts as younger than the hold", i+1)
				}
			}
			h.servers[0].rdb.Del(bg, h.record)
			h.servers[1].rdb.Del(bg, h.record)
			if got := end(h, id); got.Err != nil || got.Outcome != protocol.Done {
				t.Errorf("three of five votes have lasted: %+v", got)
			}
		})
	}
}

// If the acquire is answered while the renewal is under way, the node does not find the stamp in it, but the client
// knows it by then.
func TestAcquireAnsweredDuringTheRenewal(t *testing.T) {
	t.Parallel()
	start := time.Now()
	began, now := start.Add(time.Minute), start.Add(2*time.Minute)
	v := newVotes(start, promptFloor)
	v.hears(reply{node: 2, says: granted, stamp: "9:1", count: 9}, time.Time{}, start)
	if r := v.hears(reply{node: 2, says: fresh, stamp: "9:1", age: 2 * time.Minute}, began, now); r.says != continuous || r.evidence != older {
		t.Errorf("%+v", r)
	}
}

// What a client knows of the age of a vote, by the order in which it hears of it.
func TestAgeOfAVote(t *testing.T) {
	t.Parallel()
	start := time.Now()
	first, again := reply{node: 2, says: granted, stamp: "9:1", count: 9}, reply{node: 2, says: granted, stamp: "9:2", count: 9}
	soon, later := start.Add(promptFloor), start.Add(time.Minute)
	for _, c := range []struct {
		name string
		hear func(v *ballot)
		told time.Time // when the vote was granted that the release takes back,
		by   string    // and its stamp; "": the node was not to tell
		old  bool
	}{
		{"granted with the hold", func(v *ballot) { v.hears(first, time.Time{}, soon) }, time.Time{}, "", true},
		{"granted with the hold, the clock of the node jumps", func(v *ballot) { v.hears(first, time.Time{}, soon) }, later, "9:1", true},
		{"granted with the hold, and again by a late copy", func(v *ballot) { v.hears(first, time.Time{}, soon) }, later, "9:2", false},
		{"heard late", func(v *ballot) { v.hears(first, time.Time{}, later) }, soon, "9:1", true},
		{"granted late", func(v *ballot) { v.hears(first, time.Time{}, later) }, later, "9:1", false},
		{"never heard", func(*ballot) {}, soon, "9:1", true},
		{"never heard, granted late", func(*ballot) {}, later, "9:1", false},
		{"anew", func(v *ballot) {
			v.hears(first, time.Time{}, soon)
			v.hears(reply{node: 2, says: fresh, stamp: "9:2"}, soon, soon)
		}, later, "9:2", false},
		{"a renewal is heard before the acquire", func(v *ballot) {
			v.hears(reply{node: 2, says: fresh, stamp: "9:1"}, soon, soon)
			v.hears(first, time.Time{}, soon)
		}, time.Time{}, "", true},
		{"a renewal is heard before the acquire, which was late", func(v *ballot) {
			v.hears(reply{node: 2, says: fresh, stamp: "9:2"}, soon, soon)
			v.hears(again, time.Time{}, later)
		}, later, "9:2", false},
	} {
		v := newVotes(start, promptFloor)
		c.hear(v)
		end := start.Add(time.Hour)
		if c.by == "" && !v.old(2) {
			t.Errorf("%s: the release asks for the age", c.name)
		}
		if got := v.ended(reply{node: 2, says: released, stamp: c.by, age: end.Sub(c.told)}, end) == older; got != c.old {
			t.Errorf("%s: counts as old: %v", c.name, got)
		}
	}
}

// A hold with the votes of three nodes is renewed while one of them is silent, with new votes of the other
// two. If these have voted for others meanwhile, the three may have been another hold's: the watchdog goes on
// in doubt, and a caller is not told that the hold has lasted, until the silent node says so.
func TestRenewalOverAGapIsInDoubt(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{false, true} {
		eachRenewer(t, func(t *testing.T, h *home, renew func(string) protocol.Result[protocol.Kept]) {
			byCaller := strings.HasPrefix(t.Name()[strings.LastIndex(t.Name(), "/")+1:], "caller")
			isDoubt := func(got protocol.Result[protocol.Kept]) bool {
				if byCaller {
					return errors.Is(got.Err, ErrNoQuorum)
				}
				return got.Err == nil && got.Outcome == protocol.Done && errors.Is(got.Doubt, ErrNoQuorum)
			}
			isSure := func(got protocol.Result[protocol.Kept]) bool {
				return got.Err == nil && got.Outcome == protocol.Done && got.Doubt == nil
			}
			for _, back := range []bool{false, true} {
				h.pass()
				for _, s := range h.servers {
					s.rdb.Set(bg, h.counter, 100, 0)
				}
				for i := 3; i < 5; i++ {
					h.on(i, "acquire", faultproxy.Error)
				}
				id, token := h.mustEnter()
				h.quiet()
				h.pass()
				if moved {
					h.servers[3].rdb.Set(bg, h.counter, token+1, 0)
					h.servers[4].rdb.Set(bg, h.counter, token+1, 0)
				}
				h.servers[0].proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.Error })
				for range 3 { // however often
					if got := renew(id); isSure(got) == moved || isDoubt(got) != moved {
						t.Errorf("%+v", got)
					}
					h.quiet()
				}
				if back {
					h.pass()
					if got := renew(id); !isSure(got) {
						t.Errorf("it has kept its vote: %+v", got)
					}
					h.quiet()
					h.servers[0].proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.Error })
				}
				got := h.Release(id, 0).Do(bg, budget)
				if moved && !back {
					if !errors.Is(got.Err, ErrDoubtful) {
						t.Errorf("%+v", got)
					}
				} else if !isSure(got) {
					t.Errorf("%+v", got)
				}
				h.pass()
				h.settled()
				for _, m := range h.missed() {
					eventually(t, "the node is reachable", func() bool { return !h.nodes[m.by].Wire.IsLost(nodeTimeout) })
					if got := m.task.Do(bg, budget); got.Err != nil {
						t.Error(got.Err)
					}
				}
			}
		})
	}
}

// A vote that was granted late in the round that confirmed the hold may be younger than the answers of the others:
// it does not show that nobody had the lock since, until the next confirmation.
func TestVoteGrantedLateInTheConfirmingRound(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, c := range []struct {
		heard time.Duration // after the round has begun, which is confirmed after a second
		count string
		want  evidence
	}{
		{promptFloor, "99:1", older}, // such a round may take so long
		{2 * promptFloor, "99:1", none},
		{2 * promptFloor, "8:1", older}, // the node has voted for nobody else
	} {
		v, now := newVotes(start, 0), start.Add(c.heard)
		finds := func() evidence {
			now = now.Add(time.Second)
			return v.hears(reply{node: 2, says: continuous, stamp: c.count, age: now.Sub(start.Add(c.heard))}, now, now).evidence
		}
		v.hears(reply{node: 2, says: fresh, stamp: c.count}, start, now)
		v.lasts(start.Add(1), start.Add(time.Second), promptFloor)
		if got := finds(); got != c.want || v.old(2) != (c.want == older) {
			t.Errorf("%+v: %v", c, got)
		}
		end := start.Add(time.Hour)
		if got := v.ended(reply{node: 2, says: released, stamp: c.count, age: time.Hour - c.heard}, end); got != c.want {
			t.Errorf("%+v: at the release: %v", c, got)
		}
		v.lasts(start.Add(time.Minute), start.Add(time.Minute), promptFloor)
		if got := finds(); got != older {
			t.Errorf("%+v: after another confirmation: %v", c, got)
		}
		v.lasts(start, end, 0) // by a round that is over
		if v.confirmedAt != start.Add(time.Minute) {
			t.Errorf("confirmed at %v", v.confirmedAt)
		}
	}
}

// Rounds that each miss other nodes confirm a hold together, up to the beginning of the first of those that are needed: a
// vote that was granted anew before that counts as older from then on, and the node may have had another hold only before.
func TestRoundsConfirmTogether(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	b := (&Lock{size: size{5, 3}}).newBallot(lease)
	old := grant{stamp: "7:1", count: 7}
	b.won(7, []grant{old, old, old, old, old}, start, promptFloor)
	finds := func(round, node int, granted time.Time, stamp string) evidence {
		now := at(round).Add(promptFloor)
		return b.hears(reply{node: node, says: continuous, stamp: stamp, age: now.Sub(granted)}, at(round), now).evidence
	}
	anew := func(round, node int) { b.hears(reply{node: node, says: fresh, stamp: "99:1"}, at(round), at(round)) }
	confirmed := func(round int) time.Time {
		b.confirm(size{5, 3}, at(round).Add(promptFloor), 0)
		return b.confirmedUpTo
	}
	anew(10, 3)
	anew(10, 4)
	finds(20, 0, start, "7:1")
	finds(20, 1, start, "7:1")
	if got := confirmed(20); got.After(at(10)) {
		t.Errorf("two of five nodes have confirmed it up to %v", got.Sub(start))
	}
	if got := finds(20, 3, at(10), "99:1"); got != newer {
		t.Errorf("granted anew, since the confirmation: %v", got)
	}
	finds(30, 2, start, "7:1")
	if got := confirmed(30); !got.Equal(at(20)) {
		t.Errorf("three nodes in two rounds have confirmed it up to %v", got.Sub(start))
	}
	if got := finds(30, 3, at(10), "99:1"); got != older {
		t.Errorf("granted anew, before the confirmation: %v", got)
	}
	if b.unanswered(4) != silent {
		t.Error("a node that has voted anew before the confirmation counts as one that has lost its vote")
	}
	// The vote of node 3 counts now, with those of before.
	if got := confirmed(40); !got.Equal(at(20)) {
		t.Errorf("confirmed twice: up to %v", got.Sub(start))
	}
	finds(50, 0, start, "7:1")
	finds(60, 3, at(10), "99:1")
	finds(70, 4, at(10), "99:1")
	if got := confirmed(70); !got.Equal(at(50)) {
		t.Errorf("confirmed up to %v", got.Sub(start))
	}
}
