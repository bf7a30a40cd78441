package quorum

import (
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// part is what one node does in a round or a release: its vote, its reply, what that shows of it, whether it
// counts in the round, and what is known of the vote when the round has confirmed the hold.
type part struct {
	vote   vote
	reply  reply
	shows  evidence
	counts bool
	then   evidence
}

// The last confirmation, by a round that began long before, the round that is played, and its end.
var (
	playSure, playSince = epoch.Add(promptFloor), epoch.Add(time.Minute)
	playBegan           = playSince.Add(time.Minute)
	playNow             = playBegan.Add(time.Minute)
)

// known is a vote, and the state that a client knows of it.
type known struct {
	state evidence
	vote  vote
}

// playVotes are the votes that a client may know of: also one of unknown age, and none at all.
func playVotes() []known {
	read, anew := playSince.Add(30*time.Second), playSince.Add(20*time.Second)
	return []known{
		{none, vote{}},
		{none, vote{stamp: "50:1", read: read, grantedBy: read}},
		{older, vote{stamp: "50:1", read: read, grantedBy: playSure}},
		{older, vote{stamp: "8:1", read: read, grantedBy: read}},
		{sole, vote{stamp: "8:1", read: read, grantedBy: read, regrantedFrom: anew}},
		{newer, vote{stamp: "50:1", read: read, grantedBy: read, regrantedFrom: anew}},
	}
}

// isAnew reports whether a renewal has granted the vote anew since the last confirmation.
func (k known) isAnew() bool { return k.state == sole || k.state == newer }

// partsOfRenewal are all that a node may do in a round of renewals.
func partsOfRenewal() (all []part) {
	ages := []known{{older, vote{grantedBy: playSure}}, {none, vote{grantedBy: playSince}}, {newer, vote{grantedBy: playBegan}}}
	for _, k := range playVotes() {
		v, then, silence := k.vote, older, silent
		if v.stamp == "" {
			then = none
		}
		if k.isAnew() {
			silence = newer
		}
		for _, told := range ages {
			age := playNow.Sub(told.vote.grantedBy)
			if v.stamp != "" {
				shows := k.state
				if shows == none { // the node tells its age
					shows = told.state
				}
				all = append(all, part{v, reply{says: continuous, stamp: v.stamp, age: age}, shows, true, then})
			}
			shows := told.state
			if k.isAnew() {
				shows = newer
			}
			all = append(all, part{v, reply{says: fresh, stamp: "99:1", age: age}, shows, false, older})
			switch shows {
			case none:
				shows = older // there was no other before
			case newer:
				shows = sole
			}
			all = append(all, part{v, reply{says: fresh, stamp: "8:3", age: age}, shows, false, older})
		}
		all = append(all,
			// It was granted in this round, perhaps after the answers that confirm the hold.
			part{v, reply{says: fresh, stamp: "9:1"}, newer, false, none},
			part{v, reply{says: fresh, stamp: "8:2"}, sole, false, older},
			part{v, reply{says: busy}, taken, false, then},
			part{v, reply{says: abandoned}, gone, false, then},
			part{v, reply{err: errSilent}, silence, false, then})
	}
	return all
}

// oneOfEach leaves out parts that count like one before.
func oneOfEach(all []part) (few []part) {
	type likeness struct {
		shows  evidence
		counts bool
	}
	met := map[likeness]bool{}
	for _, p := range all {
		if k := (likeness{p.shows, p.counts}); !met[k] {
			met[k] = true
			few = append(few, p)
		}
	}
	return few
}

// playable is a lock of some size, and the ballot of a hold that was confirmed once.
func playable(s size, nodes []part) (*Lock, *ballot) {
	l := &Lock{size: s, clock: fixedClock{now: playNow}}
	b := l.newBallot(lease)
	b.token, b.confirmedAt, b.confirmedUpTo = 7, playSince, playSure
	for i, p := range nodes {
		b.votes[i] = p.vote
	}
	return l, b
}

// each calls fn with each choice of parts for the nodes of a lock, and with each order of their replies.
// Of three nodes one does all that there is, and the others what counts differently; so do all of five.
func each(s size, parts []part, fn func(nodes []part, order []int)) {
	few, nodes := oneOfEach(parts), make([]part, s.n)
	play := func(at []int, last part) {
		for i, k := range at[:s.n-1] {
			nodes[i] = few[k]
		}
		nodes[s.n-1] = last
		orders(at, func(order []int) { fn(nodes, order) })
	}
	if s.n > 3 {
		multisets(s.n, len(few), func(at []int) { play(at, few[at[s.n-1]]) })
		return
	}
	multisets(s.n-1, len(few), func(at []int) {
		for _, p := range parts {
			play(append(at[:s.n-1:s.n-1], len(few)), p)
		}
	})
}

// Whatever the client knows of the votes, and in whatever order the nodes reply to a renewal: a round
// counts them and decides as the tables say.
func TestRenewalsPlayedFromTheTable(t *testing.T) {
	t.Parallel()
	for _, s := range []size{{3, 2}, {5, 3}} {
		parts := partsOfRenewal()
		ends, rounds := map[decision]int{}, 0
		each(s, parts, func(nodes []part, order []int) {
			rounds++
			l, b := playable(s, nodes)
			n := l.newRound(b, "a:1", lease)
			n.began = playBegan
			var told []evidence
			counts, over := 0, false
			for _, i := range order {
				r := nodes[i].reply
				r.node = i
				if b.ask(i); r.err == nil {
					b.answered(&r, n.began, playNow, promptFloor)
				}
				decides := n.count(r, playNow)
				if over {
					if decides {
						t.Fatalf("%v %+v %v: decided twice", s, nodes, order)
					}
					continue
				}
				told = append(told, nodes[i].shows)
				if nodes[i].counts {
					counts++
				}
				w := worlds(told)
				over = counts >= s.q && w.others+s.n-len(told) < s.q || len(told) == s.n
				if decides != over {
					t.Fatalf("%v %+v %v: decided after %v: %v", s, nodes, order, told, decides)
				}
			}
			w, want := worlds(told), unknown
			left := 0
			for _, what := range told {
				if what == gone {
					left++
				}
			}
			switch {
			case counts >= s.q && w.others+s.n-len(told) < s.q:
				want = yes
			case w.ours <= s.n-s.q || left > s.n-s.q:
				want = no
			case counts >= s.q:
				want = doubtful
			}
			if got := n.tally.renewal(); got != want {
				t.Fatalf("%v %+v %v: %v, want %v", s, nodes, order, got, want)
			}
			ends[want]++
			n.verdict()
			for i, p := range nodes {
				if state := b.state(&b.votes[i]); want == yes && state != p.then {
					t.Fatalf("%v %+v %v: the vote of node %d is %v, want %v", s, nodes, order, i, state, p.then)
				}
			}
		})
		if len(ends) != 4 {
			t.Errorf("%v: ends %v: the test is blind", s, ends)
		}
		t.Logf("%v: %d kinds of nodes, %d rounds", s, len(parts), rounds)
	}
}

// partsOfRelease are all that a node which may have voted may do in a release.
func partsOfRelease() (all []part) {
	for _, k := range playVotes() {
		add := func(r reply, shows evidence) { all = append(all, part{vote: k.vote, reply: r, shows: shows}) }
		for _, told := range []known{{older, vote{grantedBy: playSure}}, {none, vote{grantedBy: playBegan}}} {
			r, shows := reply{says: released, stamp: "51:2", age: playNow.Sub(told.vote.grantedBy)}, told.state // granted to a late copy
			if k.isAnew() {
				shows = newer
			}
			add(r, shows)
			if k.state != none {
				shows = k.state
			}
			if r.stamp = k.vote.stamp; r.stamp != "" {
				add(r, shows)
			}
		}
		if !means[k.state].mayBeOthers {
			add(reply{says: released}, older) // it was not asked for its age
		}
		add(reply{}, gone)
		add(reply{says: busy}, taken)
		add(reply{unsure: true}, silent)
		add(reply{says: busy, unsure: true}, silent)
		add(reply{err: errSilent}, silent)
	}
	return all
}

// So for a release: TestReleaseTallyInEveryOrder has what follows if nodes that never voted are asked too.
func TestReleasesPlayedFromTheTable(t *testing.T) {
	t.Parallel()
	for _, s := range []size{{3, 2}, {5, 3}} {
		parts := partsOfRelease()
		ends, releases := map[decision]int{}, 0
		each(s, parts, func(nodes []part, order []int) {
			releases++
			l, b := playable(s, nodes)
			n := &release{Lock: l, ballot: b, tally: tally{size: s, outstanding: s.n}}
			told := allGone(s.n) // not asked yet
			for _, i := range order {
				if n.tally.release() != wait {
					break
				}
				r := nodes[i].reply
				r.node = i
				n.count(r)
				told[i] = nodes[i].shows
			}
			got := judge(t, &n.tally, told)
			ends[got]++
			err := l.doubted(&n.tally)
			if got == unknown && n.tally.incomplete() {
				err = l.noQuorum(&n.tally)
			}
			if !errors.Is(err, ErrDoubtful) && !errors.Is(err, ErrNoQuorum) {
				t.Fatal(err)
			}
			if got == no && (lostTo(n.tally.sights[taken]) == protocol.TakenOver) != (n.tally.sights[taken] > 0) {
				t.Fatalf("%v %+v %v", s, nodes, order)
			}
		})
		if len(ends) != 3 {
			t.Errorf("%v: ends %v: the test is blind", s, ends)
		}
		t.Logf("%v: %d kinds of nodes, %d releases", s, len(parts), releases)
	}
}
