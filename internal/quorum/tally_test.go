package quorum

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

var sizes = []size{{3, 2}, {3, 3}, {5, 3}, {5, 4}, {5, 5}}

var errSilent = errors.New("silent")

// multisets calls fn with each way to give n alike nodes one of k kinds, whichever of them
// has which. The kinds come in ascending order.
func multisets(n, k int, fn func(kinds []int)) {
	kinds := make([]int, n)
	var fill func(i, from int)
	fill = func(i, from int) {
		if i == n {
			fn(kinds)
			return
		}
		for kind := from; kind < k; kind++ {
			kinds[i] = kind
			fill(i+1, kind)
		}
	}
	fill(0, 0)
}

// orders calls fn with each order in which n alike nodes of some kinds may reply; of nodes
// of one kind only one order.
func orders(kinds []int, fn func(order []int)) {
	n := len(kinds)
	order, used := make([]int, 0, n), make([]bool, n)
	var next func()
	next = func() {
		if len(order) == n {
			fn(order)
			return
		}
		for i := range n {
			if used[i] || i > 0 && kinds[i] == kinds[i-1] && !used[i-1] {
				continue
			}
			used[i] = true
			order = append(order, i)
			next()
			order = order[:len(order)-1]
			used[i] = false
		}
	}
	next()
}

// How a node may behave in a try to acquire.
const (
	lowCount  = iota // grants with count 1, and obeys a RAISE
	midCount         // grants with count 2, and obeys a RAISE
	highCount        // grants with count 3, and obeys a RAISE
	lost             // grants with count 1, and refuses a RAISE
	rival            // another hold has its vote
	dead             // does not answer
	grantKinds
)

func grants(node int, count int64) reply {
	return reply{node: node, says: granted, stamp: fmt.Sprint(count, ":", node), count: count}
}

func rivals(node int, id string, rest time.Duration) reply {
	return reply{node: node, says: busy, id: id, rest: rest}
}

// run is one run of a try against nodes of some kinds: what was read, kept apart from the
// tally, to judge what the tally decides.
type run struct {
	t      grantTally
	kinds  []int
	asked  []bool  // the reply to ACQ is still to come
	raises []int64 // by node: the RAISE that is under way; 0: none
	level  []int64 // by node: what its counter has reached, if its grant was read; 0: it does not count
	count  []int64 // by node: of the grant
	trace  []string
}

func (r *run) clone() *run {
	c := *r
	c.t.got = slices.Clone(r.t.got)
	c.t.failed, c.t.holders = maps.Clone(r.t.failed), maps.Clone(r.t.holders)
	for id, h := range c.t.holders {
		h.rests = slices.Clip(h.rests)
		c.t.holders[id] = h
	}
	c.asked, c.raises = slices.Clone(r.asked), slices.Clone(r.raises)
	c.level, c.count, c.trace = slices.Clone(r.level), slices.Clone(r.count), slices.Clip(r.trace)
	return &c
}

// reply lets node i answer what it was asked.
func (r *run) reply(i int) {
	kind := r.kinds[i]
	if r.asked[i] {
		r.asked[i] = false
		switch kind {
		case rival:
			r.t.count(rivals(i, "rival", time.Second))
		case dead:
			r.t.count(reply{node: i, err: errSilent})
		default:
			n := map[int]int64{lowCount: 1, midCount: 2, highCount: 3, lost: 1}[kind]
			r.t.count(grants(i, n))
			r.count[i], r.level[i] = n, n
		}
		r.trace = append(r.trace, fmt.Sprintf("node %d of kind %d", i, kind))
		return
	}
	if to := r.raises[i]; kind == lost {
		r.t.count(reply{node: i})
		r.level[i] = 0
	} else {
		r.t.count(reply{node: i, says: written})
		r.level[i] = max(r.level[i], to)
	}
	r.raises[i] = 0
	r.trace = append(r.trace, fmt.Sprintf("node %d raised", i))
}

// judge checks a decision of the tally, and returns whether the try goes on.
func (r *run) judge(t *testing.T, got decision) (goesOn bool) {
	s := r.t.size
	votes, counted, coming, writing := 0, 0, 0, 0
	var highest int64
	for i := range r.level {
		if r.level[i] > 0 {
			votes++
			highest = max(highest, r.level[i])
			if r.t.token > 0 && r.count[i] <= r.t.token && r.level[i] >= r.t.token {
				counted++
			}
		}
		if r.asked[i] {
			coming++
		}
		if r.raises[i] > 0 {
			writing++
		}
	}
	fail := func(why string) {
		t.Fatalf("%d of %d, %v: %v: %s (%d votes, %d at token %d)", s.q, s.n, r.trace, got, why, votes, counted, r.t.token)
	}
	switch got {
	case yes:
		if counted < s.q {
			fail("no quorum of nodes is at the token")
		}
	case no:
		if votes+coming >= s.q {
			fail("there may be a quorum yet")
		}
	case raise:
		switch {
		case votes < s.q:
			fail("there is no quorum of votes")
		case writing > 0:
			fail("the token is still being written")
		case r.t.token != highest:
			fail(fmt.Sprintf("the highest count is %d", highest))
		}
	case wait:
		switch {
		case coming+writing == 0:
			fail("for what?")
		case counted >= s.q:
			fail("there is a quorum at the token")
		case votes+coming < s.q:
			fail("there can be no quorum")
		case votes >= s.q && writing == 0:
			fail("the token can be decided on")
		}
	default:
		fail("no such decision")
	}
	return got == wait || got == raise
}

// explore tries all orders of the replies to come.
func (r *run) explore(t *testing.T, ends map[decision]int) {
	got := r.t.decide()
	if !r.judge(t, got) {
		ends[got]++
		return
	}
	if got == raise {
		for i := range r.kinds {
			if r.t.behind(i) {
				r.t.raises++
				r.raises[i] = r.t.token
			}
		}
	}
	for i, kind := range r.kinds {
		idle := !r.asked[i] && r.raises[i] == 0
		if idle || i > 0 && kind == r.kinds[i-1] && r.asked[i] && r.asked[i-1] {
			continue // nodes of one kind are alike: the first of them replies
		}
		next := r.clone()
		next.reply(i)
		next.explore(t, ends)
	}
}

// Whatever the order of replies: a hold has a quorum of nodes that are at its token and
// counted to it or less, the token is the highest count that was read, no try is given
// up that could succeed, and each decision is taken as soon as it can be.
func TestGrantTallyInEveryOrder(t *testing.T) {
	t.Parallel()
	for _, s := range sizes {
		ends := map[decision]int{}
		multisets(s.n, grantKinds, func(kinds []int) {
			r := &run{
				t: newGrantTally(s), kinds: kinds, asked: make([]bool, s.n), raises: make([]int64, s.n),
				level: make([]int64, s.n), count: make([]int64, s.n),
			}
			for i := range kinds {
				r.t.expect(i)
				r.asked[i] = true
			}
			r.explore(t, ends)
		})
		if ends[yes] == 0 || ends[no] == 0 {
			t.Errorf("%v: ends %v: the test is blind", s, ends)
		}
		t.Logf("%v: %d runs hold, %d do not", s, ends[yes], ends[no])
	}
}

// A try that need not wait for silent nodes ends when there are too few votes, and only
// then.
func TestGrantTallyInAHurry(t *testing.T) {
	t.Parallel()
	tally := newGrantTally(size{5, 3})
	for i := range 5 {
		tally.expect(i)
	}
	tally.count(grants(0, 1))
	tally.count(rivals(1, "rival", time.Second))
	tally.count(rivals(2, "rival", time.Second))
	if got := tally.decide(); got != wait {
		t.Errorf("%v", got)
	}
	tally.hurry = true
	if got := tally.decide(); got != no {
		t.Errorf("%v", got)
	}
	tally.count(grants(3, 1))
	tally.count(grants(4, 1))
	if got := tally.decide(); got != yes || tally.token != 1 {
		t.Errorf("%v, token %d", got, tally.token)
	}
}

// Votes that are lost at the write-back are no rival's: the silent nodes may make up for them.
func TestGrantTallyInAHurryWithoutARival(t *testing.T) {
	t.Parallel()
	tally := newGrantTally(size{5, 3})
	for i := range 5 {
		tally.expect(i)
	}
	for i := range 3 {
		tally.count(grants(i, int64(i)))
	}
	next := func(want decision) {
		t.Helper()
		if got := tally.decide(); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	next(raise)
	for i := range 2 {
		tally.raises++
		tally.count(reply{node: i, err: errors.New("it has just died")})
	}
	tally.hurry = true
	next(wait)
	tally.count(grants(3, 2))
	next(wait)
	tally.count(grants(4, 2))
	next(yes)
}

// The rest of a rival's hold is told if it has so many votes that nobody else can have a
// quorum; split votes come back by themselves. It was seen to hold the lock if it may have a
// quorum itself.
func TestGrantTallyKnowsItsRival(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		size   size
		rivals string // by node: whom it has voted for; '-': no answer, '+': us
		rest   time.Duration
		holder string
		held   bool
	}{
		{size{5, 3}, "aaa++", 1 * ms, "a", true}, // when the first of them is free, we can have three
		{size{5, 3}, "aaaa+", 2 * ms, "a", true},
		{size{5, 3}, "aaaaa", 3 * ms, "a", true},
		{size{5, 3}, "aab++", 0, "", false},
		{size{5, 3}, "aa+++", 0, "", false},
		{size{5, 3}, "aaa--", 3 * ms, "a", true},
		{size{5, 4}, "aa+++", 1 * ms, "a", false},
		{size{5, 4}, "aab++", 2 * ms, "a", false},
		{size{5, 4}, "aaa++", 2 * ms, "a", false},
		{size{5, 4}, "aaa+-", 3 * ms, "a", true},
		{size{5, 4}, "abc++", 0, "", false},
		{size{3, 3}, "a++", 1 * ms, "a", false},
		{size{3, 2}, "+++", 0, "", false},
		{size{3, 2}, "aa-", 2 * ms, "a", true},
		{size{5, 3}, "aa++-", 0, "", true}, // the last one may have voted for it before it went away
		{size{5, 3}, "ab++-", 0, "", false},
		{size{3, 2}, "a+-", 0, "", true},
	} {
		tally := newGrantTally(c.size)
		for i, whose := range c.rivals {
			tally.expect(i)
			switch whose {
			case '-':
				tally.count(reply{node: i, err: errSilent})
			case '+':
				tally.count(grants(i, 1))
			default:
				tally.count(rivals(i, string(whose), time.Duration(i+1)*ms))
			}
		}
		if rest, holder := tally.rest(); rest != c.rest || holder != c.holder {
			t.Errorf("%v %s: %v of %q, want %v of %q", c.size, c.rivals, rest, holder, c.rest, c.holder)
		}
		if held := tally.isHeld(); held != c.held {
			t.Errorf("%v %s: held: %v", c.size, c.rivals, held)
		}
	}
}

// A look finds the holder as soon as a quorum has voted for one hold, says free as soon as
// the votes to come and those that were not read cannot make one, and unknown else.
func TestStateTallyInEveryOrder(t *testing.T) {
	t.Parallel()
	const (
		a = iota
		b
		free
		dumb
		kinds
	)
	for _, s := range sizes {
		ends := map[decision]int{}
		multisets(s.n, kinds, func(kinds []int) {
			orders(kinds, func(order []int) {
				tally := tally{size: s, outstanding: s.n}
				count := map[int]int{}
				got := tally.held()
				for k := 0; got == wait; k++ {
					most, rest := max(count[a], count[b]), s.n-k
					if most >= s.q || most+rest+count[dumb] < s.q || rest == 0 {
						t.Fatalf("%v %v: waits after %v", s, kinds, order[:k])
					}
					i := order[k]
					count[kinds[i]]++
					switch kinds[i] {
					case a, b:
						tally.votedFor(fmt.Sprint(kinds[i]), time.Duration(i), int64(i))
						tally.add(none)
					case free:
						tally.add(none)
					default:
						tally.fail(i, silent, errSilent)
					}
					got = tally.held()
				}
				most := max(count[a], count[b])
				coming := s.n - count[a] - count[b] - count[free] - count[dumb]
				ends[got]++
				switch {
				case got == yes && most < s.q:
					t.Fatalf("%v %v: held after %v", s, kinds, order)
				case got == yes:
					id, h, rest := tally.holder()
					if h.votes < s.q || h.votes != count[map[string]int{"0": a, "1": b}[id]] {
						t.Fatalf("%v %v: %s with %d votes after %v", s, kinds, id, h.votes, order)
					}
					// A quorum of its votes lasts for so long.
					longer := 0
					for _, r := range h.rests {
						if r >= rest {
							longer++
						}
					}
					if longer < s.q || h.token != int64(slices.Max(h.rests)) {
						t.Fatalf("%v %v: %v of %v, token %d", s, kinds, rest, h.rests, h.token)
					}
				case got == no && most+coming+count[dumb] >= s.q:
					t.Fatalf("%v %v: free after %v, with %d votes that were not read", s, kinds, order, count[dumb])
				case got == unknown && (coming > 0 || most+count[dumb] < s.q):
					t.Fatalf("%v %v: unknown after %v", s, kinds, order)
				}
			})
		})
		if len(ends) != 3 {
			t.Errorf("%v: ends %v: the test is blind", s, ends)
		}
	}
}

// A forced unlock decides when all nodes were heard. The lock was held if one hold had a quorum; several
// tries that pass do not make one.
func TestForceTallyInEveryOrder(t *testing.T) {
	t.Parallel()
	const (
		a = iota
		b
		free
		dumb
		kinds
	)
	for _, s := range sizes {
		multisets(s.n, kinds, func(kinds []int) {
			orders(kinds, func(order []int) {
				tally := tally{size: s, outstanding: s.n}
				count := map[int]int{}
				for _, i := range order {
					count[kinds[i]]++
					switch kinds[i] {
					case a, b:
						tally.votedFor(fmt.Sprint(kinds[i]), 0, 0)
						tally.add(none)
					case free:
						tally.add(none)
					default:
						tally.fail(i, silent, errSilent)
					}
				}
				want := no
				switch most := max(count[a], count[b]); {
				case most >= s.q:
					want = yes
				case most+count[dumb] >= s.q:
					want = unknown
				}
				if got := tally.held(); got != want {
					t.Fatalf("%v %v: %v, want %v", s, kinds, got, want)
				}
			})
		})
	}
}

// Who waits for a quarantine to end is told that first, and then what else keeps it from a quorum.
func TestTryInQuarantineNamesTheCauseFirst(t *testing.T) {
	t.Parallel()
	in := protocol.InQuarantine{Left: time.Minute}
	for _, c := range []struct {
		nodes string // 'q': in quarantine; '!': does not answer; 'b': votes for another; '.': has not answered yet
		want  string
	}{
		{"qqq..", "3 of 5 nodes are in quarantine for 20s, after a restart or a loss of data; 2 have not answered yet"},
		{"qqqqq", "5 of 5 nodes are in quarantine for 20s, after a restart or a loss of data"},
		{"qq!b.", "2 of 5 nodes are in quarantine for 20s, after a restart or a loss of data; 1 could not vote, 1 votes for another owner, 1 has not answered yet"},
		{"qqqbb", "3 of 5 nodes are in quarantine for 20s, after a restart or a loss of data; 2 vote for another owner"},
	} {
		tally := newGrantTally(size{5, 3})
		for i, node := range c.nodes {
			tally.expect(i)
			switch node {
			case 'q':
				tally.count(reply{node: i, err: in})
			case '!':
				tally.count(reply{node: i, err: errUnanswered})
			case 'b':
				tally.count(rivals(i, "another:1", time.Minute))
			}
		}
		if got := tally.quarantined(20 * time.Second); got != c.want {
			t.Errorf("%s: %s", c.nodes, got)
		}
	}
}
