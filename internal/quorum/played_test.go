package quorum

import (
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// part is what one node does in a round or a release: the state of its vote, its reply, what the tables
// say that it shows, and whether it counts in the round.
type part struct {
	state  state
	reply  reply
	event  event // eventKinds: none
	shows  seen
	counts bool
}

// The last confirmation, by a round that began long before, the round that is played, and its end.
var (
	playSure, playSince = epoch.Add(promptFloor), epoch.Add(time.Minute)
	playBegan           = playSince.Add(time.Minute)
	playNow             = playBegan.Add(time.Minute)
)

// stampOf is one whose count tells that the node may have voted for another hold, or cannot have.
func stampOf(sole bool) string {
	if sole {
		return "8:1"
	}
	return "99:1"
}

// partsOfRenewal are all that a node may do in a round of renewals.
func partsOfRenewal() (all []part) {
	for s := range stateKinds {
		find := func(granted time.Time, e event) {
			p := part{s, reply{says: continuous, stamp: "50:1", age: playNow.Sub(granted)}, e, shows[moves[e][s]].continuous, true}
			if s == untold && granted.After(playSince) { // the node tells that it is FRESH
				p.event, p.shows, p.counts = freshFound, shows[moves[freshFound][s]].fresh, false
			}
			all = append(all, p)
		}
		if s != none {
			find(playSure, continuousBefore)
			find(playSince, continuousAmid)
			find(playBegan, continuousAmid)
		}
		for _, e := range []event{freshNow, freshFound, freshSole} {
			r := reply{says: fresh, stamp: stampOf(e == freshSole)}
			if e == freshFound {
				r.age = time.Second
			}
			all = append(all, part{s, r, e, shows[moves[e][s]].fresh, false})
		}
		all = append(all,
			part{s, reply{says: busy}, eventKinds, taken, false},
			part{s, reply{says: abandoned}, eventKinds, gone, false},
			part{s, reply{err: errSilent}, eventKinds, shows[s].silence, false})
	}
	return all
}

// oneOfEach leaves out parts that count like one before.
func oneOfEach(all []part) (few []part) {
	type likeness struct {
		shows  seen
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
	b.token, b.since, b.sure, b.era = 7, playSince, playSure, 1
	for i, p := range nodes {
		b.votes[i].state = p.state
		if p.state != none {
			b.votes[i].stamp = "50:1"
		}
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
// counts them and decides as the tables say. The votes are then as the tables say.
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
			var told []seen
			counts, over := 0, false
			for _, i := range order {
				r := nodes[i].reply
				r.node = i
				if b.ask(i); r.err == nil {
					b.answered(&r, n.era, playNow, promptFloor)
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
				state := p.state
				if p.event != eventKinds {
					state = moves[p.event][state]
				}
				if want == yes {
					e := confirmedInTime
					if b.votes[i].heard.After(b.sure) {
						e = confirmedLate
					}
					state = moves[e][state]
				}
				if b.votes[i].state != state {
					t.Fatalf("%v %+v %v: the vote of node %d is %v, want %v", s, nodes, order, i, b.votes[i].state, state)
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
	add := func(s state, r reply, shows seen) { all = append(all, part{state: s, reply: r, shows: shows}) }
	for s := range stateKinds {
		what := shows[s].release
		for granted, age := range map[time.Time]seen{playSure: kept, playBegan: late} {
			r := reply{says: released, stamp: "50:1", age: playNow.Sub(granted)}
			if s == none || what == unseen {
				add(s, r, age)
			} else {
				add(s, r, what)
			}
			r.stamp = "51:2" // another grant, by a late copy
			add(s, r, age)
		}
		if what == kept {
			add(s, reply{says: released}, kept) // it was not asked for its age
		}
		add(s, reply{}, gone)
		add(s, reply{says: busy}, taken)
		add(s, reply{unsure: true}, silent)
		add(s, reply{says: busy, unsure: true}, silent)
		add(s, reply{err: errSilent}, silent)
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
			n := &leaving{Lock: l, ballot: b, tally: tally{size: s, open: s.n}}
			told := make([]seen, s.n) // unseen
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
