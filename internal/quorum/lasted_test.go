package quorum

import (
	"slices"
	"testing"

	"github.com/go-rlock/rlock/internal/protocol"
)

// world is one way in which what was seen of the nodes may have come about: how many of them another
// hold may have had, how many may have voted for this one all the time, and how many may do still.
type world struct{ others, ours, left int }

// worlds reads the table: what may have become of nodes of which this was seen.
func worlds(all []evidence) (w world) {
	for _, kind := range all {
		m := means[kind]
		if m.mayBeOthers {
			w.others++
		}
		if m.mayBeOurs {
			w.ours++
		}
		if m.mayRemain {
			w.left++
		}
	}
	return w
}

// allGone are nodes of which that was seen, or which counts the same: nothing was.
func allGone(n int) (all []evidence) { return slices.Repeat([]evidence{gone}, n) }

// Each row of the table has a reason, and none says that a node that another hold cannot have had may
// have lost its vote.
func TestTableOfEvidence(t *testing.T) {
	t.Parallel()
	for kind, m := range means {
		if m.why == "" {
			t.Errorf("row %d has no reason", kind)
		}
		if m.mayRemain && !m.mayBeOurs {
			t.Errorf("row %d: a vote that is left was there all the time, perhaps", kind)
		}
	}
	if n := (world{}); worlds(nil) != n {
		t.Errorf("%+v", worlds(nil))
	}
}

// kindsOf are the rows that a release, or a renewal, can see of a node.
var (
	atRelease = []evidence{older, sole, none, gone, taken, silent}
	ofOthers  = []evidence{sole, gone, taken, silent} // of a node that never had a vote for the hold
	atRenewal = []evidence{older, sole, newer, none, gone, taken, silent}
)

// Whatever the order of replies, a release has the result that the table tells from all of them: it
// has lasted only if no other hold can have had a quorum, and so many votes are taken back that others can
// have one. It waits for no reply that could not change that, and asks the nodes that never voted for it
// only if these may make up for silent ones.
func TestReleaseTallyInEveryOrder(t *testing.T) {
	t.Parallel()
	for _, s := range sizes {
		ends, asked := map[decision]int{}, 0
		for voters := 0; voters <= s.n; voters++ {
			multisets(voters, len(atRelease), func(at []int) {
				orders(at, func(order []int) {
					tally := tally{size: s, outstanding: voters}
					told := allGone(s.n) // never asked
					for i, kind := range at {
						told[i] = atRelease[kind]
					}
					see(t, &tally, told, order)
					if tally.release() == wait {
						t.Fatalf("%v %v: it waits for nothing", s, told)
					}
					w := worlds(told)
					more := tally.othersMayDecide()
					if want := w.left <= s.n-s.q && w.others >= s.q && w.ours > s.n-s.q && w.others-(s.n-voters) < s.q; more != want {
						t.Fatalf("%v %v: asks the others: %v", s, told, more)
					}
					if !more {
						ends[judge(t, &tally, told)]++
						return
					}
					asked++
					multisets(s.n-voters, len(ofOthers), func(rest []int) {
						again, all := tally, append([]evidence(nil), told...)
						again.outstanding += s.n - voters
						for i, kind := range rest {
							all[voters+i] = ofOthers[kind]
							again.add(ofOthers[kind])
						}
						ends[judge(t, &again, all)]++
					})
				})
			})
		}
		if len(ends) != 3 || asked == 0 && s.q < s.n {
			t.Errorf("%v: ends %v, %d asked: the test is blind", s, ends, asked)
		}
	}
}

// see has a release see nodes in an order, until it decides.
func see(t *testing.T, tally *tally, told []evidence, order []int) {
	t.Helper()
	s := tally.size
	for k := 0; tally.release() == wait; k++ {
		if k == len(order) {
			t.Fatalf("%v %v: waits for nothing", s, told)
		}
		// It is decided already if nothing that may come changes it.
		heard := allGone(s.n)
		for _, i := range order[:k] {
			heard[i] = told[i]
		}
		if w := worlds(heard); w.others < s.q && w.left+len(order)-k <= s.n-s.q {
			t.Fatalf("%v %v: waits after %v", s, told, order[:k])
		}
		tally.add(told[order[k]])
	}
}

// judge compares the result of a release with the table.
func judge(t *testing.T, tally *tally, told []evidence) decision {
	t.Helper()
	s, w, got := tally.size, worlds(told), tally.release()
	want := unknown
	switch {
	case w.left > s.n-s.q:
	case w.others < s.q:
		want = yes
	case w.ours <= s.n-s.q:
		want = no
	}
	if got != want {
		t.Fatalf("%v %v: %v, want %v", s, told, got, want)
	}
	others := 0
	for _, kind := range told {
		if kind == taken {
			others++
		}
	}
	if got == no && (lostTo(tally.sights[taken]) == protocol.TakenOver) != (others > 0) {
		t.Fatalf("%v %v: %v", s, told, lostTo(tally.sights[taken]))
	}
	return got
}

// A renewal is confirmed by the first quorum of votes that were known before, if no other hold can have had
// one meanwhile, and in doubt if one may. It is lost only if so many nodes have forgotten their votes that another hold may
// have had a quorum, or so many have given the hold up that the others are none; a node that does not answer is never
// counted to those. A second round follows only if it can give the hold a quorum.
func TestRenewTallyInEveryOrder(t *testing.T) {
	t.Parallel()
	for _, s := range sizes {
		ends, again := map[decision]int{}, 0
		// Votes that were granted since the last confirmation may have been known before this round.
		multisets(s.n, 2*len(atRenewal), func(at []int) {
			told, known := make([]evidence, s.n), make([]bool, s.n)
			for i, kind := range at {
				told[i], known[i] = atRenewal[kind%len(atRenewal)], kind >= len(atRenewal)
			}
			orders(at, func(order []int) {
				tally := tally{size: s, outstanding: s.n}
				renewed(t, &tally, told, known, order)
				w, votes, granted, left := worlds(told), 0, 0, 0
				for i, kind := range told {
					switch {
					case kind == older || kind == none || known[i] && (kind == sole || kind == newer):
						votes++
					case kind == sole || kind == newer:
						granted++
					case kind == gone && !known[i]:
						left++
					}
				}
				want := unknown
				switch {
				case votes >= s.q && w.others < s.q:
					want = yes
				case w.ours <= s.n-s.q || left > s.n-s.q:
					want = no
				case votes >= s.q:
					want = doubtful
				}
				got := tally.renewal()
				if got != want {
					t.Fatalf("%v %v: %v after %v, want %v", s, told, got, order, want)
				}
				if tally.retryMaySucceed() != (got == unknown && votes+granted >= s.q) {
					t.Fatalf("%v %v: again %v after %v", s, told, tally.retryMaySucceed(), order)
				}
				if tally.retryMaySucceed() {
					again++
				}
				ends[got]++
			})
		})
		if (len(ends) != 4 || again == 0) && s.q < s.n {
			t.Errorf("%v: ends %v, %d again: the test is blind", s, ends, again)
		}
	}
}

// renewed has a round see nodes in an order, until it is decided. known nodes have voted anew before, or have
// overwritten the vote.
func renewed(t *testing.T, tally *tally, told []evidence, known []bool, order []int) {
	t.Helper()
	s := tally.size
	heard := allGone(s.n)
	votes := 0
	for _, i := range order {
		over := votes >= s.q && worlds(heard).others < s.q
		if (tally.renewal() != wait) != over {
			t.Fatalf("%v %v: decided: %v", s, heard, !over)
		}
		if over {
			return
		}
		heard[i] = told[i]
		switch kind := told[i]; {
		case kind == older || kind == none || known[i] && (kind == sole || kind == newer):
			votes++
			tally.renewed(reply{node: i, says: continuous, evidence: kind})
		case kind == sole || kind == newer:
			tally.renewed(reply{node: i, says: fresh, evidence: kind})
		case kind == gone && known[i]:
			tally.fail(i, replaced, errSilent)
		case kind == gone || kind == taken:
			tally.add(kind)
		default:
			tally.fail(i, silent, errSilent)
		}
	}
	if tally.renewal() == wait {
		t.Fatalf("%v %v: not decided", s, told)
	}
}

// A node that has voted anew since the last confirmation, and is silent now, has not kept its vote.
func TestRenewTallyOfASilentNodeThatHasForgotten(t *testing.T) {
	t.Parallel()
	tally := tally{size: size{3, 2}, outstanding: 3}
	tally.fail(0, newer, errSilent)
	tally.fail(1, newer, errSilent)
	tally.renewed(reply{node: 2, says: continuous, evidence: older})
	if got := tally.renewal(); got != no {
		t.Errorf("two of three have forgotten: %v", got)
	}
}

// What was wrong, by name.
func TestReleaseTallyWithAnotherOwner(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size   size
		seen   []evidence // of the voters,
		others []evidence // and of those that are asked after them
		want   decision
	}{
		{size{5, 3}, []evidence{older, older, taken, taken, silent}, nil, unknown},          // a lost first copy, or a stopped node
		{size{5, 3}, []evidence{older, silent, silent, taken, taken}, nil, unknown},         //
		{size{5, 3}, []evidence{older, older, gone, gone, silent}, nil, unknown},            // the other has left
		{size{5, 3}, []evidence{older, older, older, taken, taken}, nil, yes},               // tries that will take their votes back
		{size{5, 3}, []evidence{older, older, older, silent, silent}, nil, yes},             //
		{size{3, 2}, []evidence{older, silent}, []evidence{taken}, unknown},                 // the third node was away at the acquire
		{size{3, 2}, []evidence{older, silent}, []evidence{gone}, unknown},                  // it has voted for another, which has left
		{size{3, 2}, []evidence{older, silent}, []evidence{sole}, yes},                      // it has voted for nobody
		{size{5, 3}, []evidence{older, older, silent}, []evidence{sole, taken}, yes},        //
		{size{5, 3}, []evidence{older, older, silent}, []evidence{gone, taken}, unknown},    //
		{size{5, 3}, []evidence{older, older, silent}, []evidence{silent, silent}, unknown}, //
		{size{5, 4}, []evidence{older, older, silent, taken, taken}, nil, yes},              // four need one of the two
		{size{5, 4}, []evidence{older, taken, taken, taken, silent}, nil, unknown},          //
		{size{3, 2}, []evidence{older, taken, taken}, nil, no},                              //
		{size{5, 3}, []evidence{gone, silent, silent, gone, gone}, nil, no},                 //
		{size{5, 3}, []evidence{older, older, silent, silent, silent}, nil, unknown},        //
	} {
		tally := tally{size: c.size, outstanding: len(c.seen)}
		for _, kind := range c.seen {
			tally.add(kind)
		}
		if tally.othersMayDecide() != (c.others != nil) {
			t.Errorf("%v %v: asks the others: %v", c.size, c.seen, tally.othersMayDecide())
			continue
		}
		if c.others != nil {
			tally.outstanding += len(c.others)
			for _, kind := range c.others {
				tally.add(kind)
			}
		}
		if got := tally.release(); got != c.want {
			t.Errorf("%v %v %v: %v, want %v", c.size, c.seen, c.others, got, c.want)
		}
	}
	if text := (&tally{size: size{5, 3}, sights: [kinds]int{older: 2, taken: 2, silent: 1}}).summary(); text != "2 of 5 nodes have kept their votes, 2 vote for another, 1 do not reply" {
		t.Error(text)
	}
}
