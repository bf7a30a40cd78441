package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/wire"
)

func TestPairsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	before := int64(0)
	for range 20 {
		id, token := h.mustEnter()
		if token <= before {
			t.Fatalf("token %d after %d", token, before)
		}
		before = token
		h.mustRelease(id)
		h.settled()
		if h.votes() != "- - -" || slices.Max(h.tombstones()) > 0 {
			t.Fatalf("votes %s, tombstones %v", h.votes(), h.tombstones())
		}
	}
	if h.cfg.Ballots.get("") != nil || len(h.cfg.Ballots.byID) > 0 || len(h.missed()) > 0 {
		t.Error("the client remembers a hold that is over")
	}
}

// The token is the highest counter of the nodes that voted, and a quorum of them has
// reached it before the hold is handed out.
func TestTokenIsWrittenBackToAQuorum(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	for i, s := range h.servers {
		s.rdb.Set(bg, h.counter, 100*(i+1), 0)
	}
	_, token := h.mustEnter()
	at := 0
	for _, n := range h.counters() {
		if n >= token {
			at++
		}
	}
	if token != 201 && token != 301 || at < 2 {
		t.Errorf("token %d, counters %v", token, h.counters())
	}
}

// The highest counter of a node is not written by each vote, but it is never below the counter
// of any lock: that one expires, and then begins again above all its tokens.
func TestCounterGrowsAfterItHasExpired(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 1))
	rdb := h.servers[0].rdb
	var last int64
	pairs := func(n int) {
		for range n {
			id, token := h.mustEnter()
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
			highest, _ := rdb.Get(bg, keyHighest).Int64()
			if left := rdb.PTTL(bg, h.counter).Val(); highest < token || left <= 0 || left > time.Hour {
				t.Fatalf("token %d, highest %d, the counter expires in %v", token, highest, left)
			}
			h.mustRelease(id)
		}
	}
	for range 4 {
		pairs(50)
		rdb.Del(bg, h.counter)
	}
	rdb.Set(bg, h.counter, 1000, time.Hour) // as if it had been raised so far by another hold
	rdb.Set(bg, keyHighest, 1024, 0)
	last = 1000
	pairs(50)
}

// However many nodes lose their data, and when, tokens go on growing: also if the release of an
// earlier hold tells such a node its token.
func TestTokensGrowWhenNodesLoseTheirData(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 3)
	h, other := join(t, servers), join(t, servers)
	for _, s := range servers {
		s.rdb.Set(bg, h.counter, 20, 0) // as far as it came without such a loss
		s.rdb.Set(bg, keyHighest, 64, 0)
	}
	forget := func(nodes ...int) {
		for _, i := range nodes {
			servers[i].rdb.FlushAll(bg)
		}
	}
	var last int64
	grows := func(token int64, when string) {
		t.Helper()
		if token <= last {
			t.Errorf("%s: token %d after %d", when, token, last)
		}
		last = token
	}
	lost, token := h.mustEnter()
	h.quiet()
	grows(token, "at first")
	forget(0, 1)
	var id string
	eventually(t, "another hold has the votes of nodes that have forgotten the first", func() bool {
		e := other.entry()
		got := other.look(e)
		id, token = e.ID, got.Outcome.Token
		return got.Outcome.Verdict == protocol.Granted
	})
	other.quiet()
	grows(token, "two owners")
	other.mustRelease(id)
	other.settled()
	forget(0, 1, 2)
	if got := h.Release(lost, 0).Do(bg, budget); got.Err != nil || got.Outcome == protocol.Done {
		t.Errorf("%+v", got)
	}
	h.settled()
	id, token = other.mustEnter()
	other.quiet()
	grows(token, "all have lost their data")
	other.mustRelease(id)
	other.settled()
	for i := range servers {
		forget(i)
		id, token = h.mustEnter()
		h.quiet()
		grows(token, "one after the other")
		h.mustRelease(id)
		h.settled()
	}
}

// The highest counter of all locks may be lost alone. What one lock writes there then is not below
// the counters of the others.
func TestCountersGrowWhenTheHighestIsLost(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 3)
	flour := &protocol.Names{}
	if err := flour.Derive("flour"); err != nil {
		t.Fatal(err)
	}
	h, other := join(t, servers), join(t, servers, func(c *Config) { c.Names = flour })
	id, token := other.mustEnter()
	other.quiet()
	other.mustRelease(id)
	other.settled()
	for _, s := range servers {
		s.rdb.Del(bg, keyHighest)
		s.rdb.Set(bg, h.counter, 62, 0)
	}
	for range 3 { // the second has the highest of all written
		id, _ := h.mustEnter()
		h.quiet()
		h.mustRelease(id)
		h.settled()
	}
	for _, s := range servers {
		s.rdb.Del(bg, other.counter) // its time is over
	}
	if _, next := other.mustEnter(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
}

// Three of five nodes hang: the other two have answered when the caller's time is over.
func TestCanceledTryDoesNotBlameNodesThatReplied(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = budget })
	h.warm()
	for i := range 3 {
		h.on(i, "acquire", faultproxy.Hold)
	}
	eventually(t, "the error names those that hang", func() bool {
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		time.AfterFunc(5*h.patience(0, 1, 2), cancel)
		got := h.Enter(h.entry()).Do(ctx, budget)
		if !errors.Is(got.Err, context.Canceled) || !errors.Is(wire.LastFailure(got.Err), ErrNoQuorum) {
			t.Fatalf("%+v", got)
		}
		said := wire.LastFailure(got.Err).Error()
		return strings.Contains(said, "3 of 5 nodes could not vote, 3 have to") &&
			strings.Contains(said, "node 3: ") && !strings.Contains(said, "node 4: ")
	})
	h.pass()
}

// Passing votes for another hold do not look like a holder where so many nodes are known not to
// answer that nobody can have a quorum.
func TestSplitVotesOfTooFewNodesAreNoHolder(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5), func(c *Config) { c.NodeTimeout = 2 * budget })
	h.warm()
	for _, s := range h.servers[:2] {
		s.rdb.HSet(bg, h.record, "attempt", "rival:1", "stamp", "7:7", "until", time.Now().Add(time.Hour).UnixMicro())
	}
	h.servers[2].proxy.Refuse(true)
	h.servers[2].proxy.ResetAll()
	for i := 2; i < 5; i++ {
		h.servers[i].proxy.Handle(func(faultproxy.Command) faultproxy.Action { return faultproxy.Hold })
		h.nodes[i].Wire.Failed(errors.New("no reply"))
	}
	got := h.look(h.entry())
	if !errors.Is(got.Err, ErrNoQuorum) {
		t.Fatalf("%+v", got)
	}
	for i, blamed := range []bool{false, false, true, true, true} {
		if strings.Contains(got.Err.Error(), h.nodes[i].Name+": ") != blamed {
			t.Errorf("%v", got.Err)
		}
	}
	h.servers[2].proxy.Refuse(false)
	for i := 2; i < 5; i++ {
		h.servers[i].proxy.Release()
	}
	h.pass()
}

// A node whose RAISE is refused does not count: another grant may have been in between.
func TestRefusedRaiseDoesNotCount(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	for i, s := range h.servers {
		s.rdb.Set(bg, h.counter, 100*(i+1), 0)
	}
	for _, node := range []int{0, 1} {
		h.on(node, "raise", faultproxy.Error)
	}
	e := h.entry()
	got := h.look(e)
	if !errors.Is(got.Err, ErrNoQuorum) {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(got.Err.Error(), "node 1: ") {
		t.Errorf("the error does not say what became of the nodes: %v", got.Err)
	}
	h.pass()
	h.settled()
	if h.votes() != "- - -" {
		t.Errorf("votes %s are left of a try that has failed", h.votes())
	}
	h.mustEnter()
}

// A node whose RAISE has failed is made up for by nodes that are slower than the quorum was.
func TestSlowNodesMakeUpForARefusedRaise(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5))
	h.warm()
	for i, s := range h.servers {
		s.rdb.Set(bg, h.counter, 100*(i+1), 0)
	}
	h.on(0, "raise", faultproxy.Error)
	acquire := loaded()["quorum/acquire"].SHA()
	for _, s := range h.servers[3:] {
		s.proxy.Delay(func(c faultproxy.Command) time.Duration {
			if c.IsScript(acquire) {
				return 200 * time.Millisecond
			}
			return 0
		})
	}
	h.mustEnter()
}

func TestRefusedEnterNamesTheHolderAndTakesVotesBack(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 5)
	holder, other := join(t, servers), join(t, servers)
	id, token := holder.mustEnter()
	holder.quiet()
	for range 3 {
		e := other.entry()
		got := other.look(e).Outcome
		if got.Verdict != protocol.Busy || got.Holder != id || !got.Known || got.Rest <= 0 || got.Rest > lease {
			t.Fatalf("%+v", got)
		}
	}
	holder.mustRelease(id)
	holder.settled()
	if _, next := other.mustEnter(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	if slices.Max(other.tombstones()) > 0 {
		t.Errorf("tombstones %v", other.tombstones())
	}
}

// Votes that were split are given back, and the pause before the next try is short.
func TestSplitVotesAreGivenBack(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 5))
	for i, id := range []string{"a:1", "a:1", "b:1", "b:1"} {
		h.servers[i].rdb.HSet(bg, h.record, "attempt", id, "stamp", "1:1", "until", time.Now().Add(lease).UnixMicro())
	}
	e := h.entry()
	e.Wait = true
	got := h.look(e).Outcome
	if got.Verdict != protocol.Busy || got.Holder != "" || !got.Known || got.Rest < time.Millisecond || got.Rest > h.backOff(0)+time.Millisecond {
		t.Errorf("%+v", got)
	}
	h.settled() // a vote that came too late is given back too
	if e.Splits != 1 || h.votes() != "a:1 a:1 b:1 b:1 -" {
		t.Errorf("%d splits, votes %s", e.Splits, h.votes())
	}
}

// The pauses after split votes grow from what a quorum takes to answer up to the longest poll.
func TestBackOffFollowsTheNodes(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	h := join(t, miniServers(t, 3), func(cfg *Config) { cfg.LongestPoll = 5 * time.Second })
	for _, c := range []struct {
		pace time.Duration
		want []time.Duration // by splits
	}{
		{ms / 2, []time.Duration{4 * ms, 8 * ms, 16 * ms}},
		{200 * ms, []time.Duration{200 * ms, 400 * ms, 800 * ms}},
	} {
		h.pace.Store(int64(c.pace))
		for splits, want := range c.want {
			if got := h.backOff(splits); got != want {
				t.Errorf("nodes answer within %v, %d splits: %v, want %v", c.pace, splits, got, want)
			}
		}
		if got := h.backOff(1e9); got != h.cfg.LongestPoll {
			t.Errorf("at last: %v", got)
		}
	}
}

// Each try has an id of its own. A grant that came too late to be a hold is handed to a
// clean-up when the next try begins.
func TestEachTryHasANewID(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	e := h.entry()
	first := e.ID
	if got := h.look(e); got.Outcome.Verdict != protocol.Granted || !got.Unsure {
		t.Fatalf("%+v", got)
	}
	e.Tries, e.Granted = 2, true
	next := h.Enter(e)
	if e.ID == first || e.Granted {
		t.Errorf("%+v", e)
	}
	late := h.missed()
	if len(late) != 1 || late[0].by != 0 || !late[0].task.OfQuorum() {
		t.Fatalf("%+v", late)
	}
	if got := late[0].task.Do(bg, budget); got.Outcome != protocol.Done {
		t.Fatalf("%+v", got)
	}
	h.settled()
	if got := next.Do(bg, budget); got.Outcome.Verdict != protocol.Granted {
		t.Errorf("%+v", got)
	}
	// What is done already is not done again.
	if got := late[0].task.Do(bg, budget); got.Outcome != protocol.Removed || h.votes() == "- - -" {
		t.Errorf("%+v, votes %s", got, h.votes())
	}
}

// A waiter that has heard that the lock is free asks the first node alone, and the others
// only with its vote.
func TestWaiterAsksTheForemostNodeFirst(t *testing.T) {
	t.Parallel()
	servers := miniServers(t, 3)
	holder, waiter := join(t, servers), join(t, servers)
	waiter.warm()
	id, _ := holder.mustEnter()
	holder.quiet()
	sha := loaded()["quorum/acquire"].SHA()
	asked := func() (all []int) {
		for _, s := range servers {
			all = append(all, s.proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha) }))
			s.proxy.ResetLog()
		}
		return all
	}
	asked()
	waiter.pace.Store(int64(time.Second)) // a busy machine
	e := waiter.entry()
	e.Wait, e.Tries = true, 2
	if got := waiter.look(e); got.Outcome.Verdict != protocol.Busy {
		t.Fatalf("%+v", got)
	}
	if got := asked(); !slices.Equal(got, []int{1, 0, 0}) {
		t.Errorf("asked %v", got)
	}
	holder.mustRelease(id)
	holder.settled()
	if got := waiter.look(e); got.Outcome.Verdict != protocol.Granted {
		t.Fatalf("%+v", got)
	}
	waiter.quiet()
	if got := asked(); !slices.Equal(got, []int{1, 1, 1}) {
		t.Errorf("asked %v", got)
	}
}

// Who hears of a release looks at once, unless several wait or have met.
func TestHesitationGrowsWithTheClashes(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	h := join(t, miniServers(t, 5))
	if got := h.Hesitation(0, false); got != 0 {
		t.Errorf("a lone waiter hesitates for %v", got)
	}
	if got := h.Hesitation(0, true); got != 4*ms {
		t.Errorf("in a crowd: %v", got)
	}
	for clashes, want := range map[int]time.Duration{1: 8 * ms, 3: 32 * ms, 100: 64 * ms} {
		if got := h.Hesitation(clashes, false); got != want {
			t.Errorf("after %d: %v, want %v", clashes, got, want)
		}
	}
	for i, id := range []string{"a:1", "a:1", "b:1", "c:1"} {
		h.servers[i].rdb.HSet(bg, h.record, "attempt", id, "stamp", "1:1", "until", time.Now().Add(lease).UnixMicro())
	}
	e := h.entry()
	e.Wait = true
	for tries, clashes := range []int{1, 1, 1, 2} { // between them only the first node is asked
		h.pace.Store(int64(time.Hour)) // a busy machine
		e.Tries = tries + 1
		if h.look(e); e.Splits != tries+1 || e.Clashes != clashes {
			t.Errorf("look %d: %d splits, %d clashes", e.Tries, e.Splits, e.Clashes)
		}
	}
	h.settled()
}

// If the first node's vote is for another hold each time, somebody gets on, and the other nodes are
// not asked. If it is for the same hold, its client may be dead: every few looks all are asked.
func TestWaiterAsksAllNodesWhenNobodyGetsOn(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	e := h.entry()
	e.Wait, e.Tries = true, 2
	sha := loaded()["quorum/acquire"].SHA()
	asked := func(rival func(look int) string) (all int) {
		h.servers[1].proxy.ResetLog()
		for look := range 2 * togetherEvery {
			h.servers[0].rdb.HSet(bg, h.record, "attempt", rival(look), "stamp", "1:1", "until", time.Now().Add(lease).UnixMicro())
			h.servers[2].rdb.HSet(bg, h.record, "attempt", "other:1", "stamp", "1:1", "until", time.Now().Add(lease).UnixMicro())
			h.pace.Store(int64(time.Hour)) // a busy machine
			if got := h.look(e); got.Outcome.Verdict != protocol.Busy || !got.Outcome.Split {
				t.Fatalf("%+v", got)
			}
			h.settled()
		}
		return h.servers[1].proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha) })
	}
	if n := asked(func(look int) string { return fmt.Sprint("alive:", look) }); n != 0 {
		t.Errorf("all nodes were asked %d times while others got on", n)
	}
	if n := asked(func(int) string { return "dead:1" }); n != 2 {
		t.Errorf("all nodes were asked %d times, in %d looks, while nobody got on", n, 2*togetherEvery)
	}
}

// A try that is cut off takes back what it was granted, and says which nodes were silent.
func TestCutOffTryTakesItsVotesBack(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3), func(c *Config) { c.NodeTimeout = budget / 2 })
	h.warm()
	for _, node := range []int{0, 1} {
		h.on(node, "acquire", faultproxy.SwallowReply)
	}
	h.nodes[2].took.Store(0)
	for i := range 2 {
		h.servers[i].proxy.ResetLog()
	}
	sha := loaded()["quorum/acquire"].SHA()
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	go func() {
		defer cancel()
		// Two nodes have been asked, one has answered, and that for long enough to call the others silent.
		var since time.Time
		for end := time.Now().Add(budget); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			asked := 0
			for _, s := range h.servers[:2] {
				asked += min(s.proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(sha) }), 1)
			}
			if asked < 2 || h.nodes[2].took.Load() == 0 {
				continue
			}
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > 2*h.patience(0, 1) {
				return
			}
		}
	}()
	got := h.Enter(h.entry()).Do(ctx, budget)
	if !errors.Is(got.Err, context.Canceled) || !errors.Is(wire.LastFailure(got.Err), ErrNoQuorum) {
		t.Errorf("%+v", got)
	}
	h.settled() // while acquires are not answered: a second copy that was would need no tombstone
	h.pass()
	if h.votes() != "- - -" {
		t.Errorf("votes %s", h.votes())
	}
	if got := h.tombstones(); !slices.Equal(got, []int{1, 1, 0}) {
		t.Errorf("tombstones %v: only what was not answered may come late", got)
	}
}

// The budget of a call looks like no answer, not like the end of the caller's context.
func TestBudgetIsNoEndOfTheContext(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	for _, node := range []int{0, 1} {
		h.on(node, "acquire", faultproxy.SwallowReply)
	}
	got := h.Enter(h.entry()).Do(bg, 200*time.Millisecond)
	if !errors.Is(got.Err, wire.ErrUnreachable) || wire.Ended(got.Err) {
		t.Errorf("%v", got.Err)
	}
	ended, cancel := context.WithCancel(bg)
	cancel()
	if got := h.Enter(h.entry()).Do(ended, budget); got.Err != context.Canceled {
		t.Errorf("%+v", got)
	}
	h.pass()
	h.settled()
}

// A late copy of an acquire meets a tombstone, on the one node that may get it.
func TestLateCopyOfAnAcquireDoesNotVote(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	met := h.on(1, "acquire", faultproxy.SwallowReply)
	id, _ := h.mustEnter()
	met()
	h.mustRelease(id)
	h.pass()
	h.settled()
	if got := h.tombstones(); !slices.Equal(got, []int{0, 1, 0}) {
		t.Fatalf("tombstones %v", got)
	}
	sha, replayed := loaded()["quorum/acquire"].SHA(), 0
	for _, c := range h.servers[1].proxy.Commands() {
		if c.IsScript(sha) && strings.Contains(strings.Join(c.Args, " "), id) {
			if err := h.servers[1].proxy.Replay(c); err != nil {
				t.Fatal(err)
			}
			replayed++
		}
	}
	if replayed == 0 || h.votes() != "- - -" {
		t.Errorf("votes %s after %d late copies", h.votes(), replayed)
	}
}

// A node whose reply cannot be read may have voted: the vote is taken back with the others.
func TestVoteBehindAnUnreadableReplyIsTakenBack(t *testing.T) {
	t.Parallel()
	h := join(t, miniServers(t, 3))
	h.warm()
	h.nodes[2].Wire.Redis().AddHook(garbling(loaded()["quorum/acquire"].SHA()))
	id, _ := h.mustEnter()
	h.quiet()
	if v := h.votes(); v != id+" "+id+" "+id {
		t.Fatalf("votes %s", v)
	}
	h.mustRelease(id)
	h.settled()
	if v := h.votes(); v != "- - -" {
		t.Errorf("votes %s", v)
	}
}

// garbling is a hook that garbles the replies to a script, which runs.
type garbling string

func (garbling) DialHook(next redis.DialHook) redis.DialHook { return next }
func (sha garbling) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 1 && args[1] == string(sha) {
			cmd.(interface{ SetVal(any) }).SetVal("garbled")
		}
		return err
	}
}
func (garbling) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
