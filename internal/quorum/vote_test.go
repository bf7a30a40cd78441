package quorum

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// course is what has happened to the vote of one node for a hold with token 7, and what the client
// knows of it. Each step takes a second: long enough for another hold.
type course struct {
	ballot
	steps string

	// The node.
	counter int64
	ours    bool
	stamp   string
	granted int
	rival   int // when it last voted for another hold, which had the lock then and is over; 0: never

	// What is under way.
	acquires int  // copies that may still run
	unsure   bool // there were several
	read     bool // the reply to one was read
	requests []renewal
	replies  []answer
	began    int // the round; 0: none
	rounds   int
	doubted  bool // one of them was no confirmation
	losses   int
	isKnown  bool // the client has read the vote, so it notices old data
	now      int
}

// renewal is a RENEW of some round that may still run, so often.
type renewal struct {
	began  int
	stamp  string
	copies int
}

// answer is a reply that was not read yet.
type answer struct {
	reply
	began, ran int // 0: of an acquire
}

var epoch = time.Now()

// courseSteps is how many steps a course has.
const courseSteps = 9

func instant(step int) time.Time { return epoch.Add(time.Duration(step) * time.Second) }

// began is when a round began; that of round 0 is zero, as for an acquire.
func began(step int) (t time.Time) {
	if step > 0 {
		t = instant(step)
	}
	return t
}

// ago tells a time, for a map; -1: it is zero.
func (c *course) ago(t time.Time) int {
	if t.IsZero() {
		return -1
	}
	return c.now - int(t.Sub(epoch).Round(time.Second)/time.Second)
}

// key is equal for courses that go on alike.
func (c *course) key() string {
	v := &c.votes[0]
	// The serial of a stamp does not matter, only which are equal.
	stamps := []string{}
	name := func(s string) int {
		if i := slices.Index(stamps, s); i >= 0 {
			return i
		}
		stamps = append(stamps, s)
		return len(stamps) - 1
	}
	sole := func(s string) int {
		if s == "" {
			return 2
		}
		if c.sole(s) {
			return 1
		}
		return 0
	}
	k := fmt.Sprint(c.isKnown, c.isRolledBack, v.level, name(v.stamp), sole(v.stamp), v.read.IsZero(), c.ago(v.grantedBy), c.ago(v.regrantedFrom), c.ago(v.noOtherUntil), c.ago(c.confirmedAt), c.ago(c.confirmedUpTo),
		"|", min(c.counter, 9), c.ours, name(c.stamp), sole(c.stamp), v.stray, c.now-c.granted, c.now-c.rival, c.rival == 0,
		"|", c.acquires, c.read, c.ago(began(c.began)), c.rounds, c.doubted, c.losses)
	for _, r := range c.requests {
		k += fmt.Sprint("/", began(r.began).Before(v.read), c.ago(began(r.began)), name(r.stamp), r.copies)
	}
	for _, r := range c.replies {
		k += fmt.Sprint("\\", r.says, began(r.began).Before(v.read), c.ago(began(r.began)), name(r.stamp), sole(r.stamp), r.age, c.now-r.ran)
	}
	return k
}

// step returns the course after a step.
func (c *course) step(what string, do func(c *course)) *course {
	next := &course{
		counter: c.counter, ours: c.ours, stamp: c.stamp, granted: c.granted, rival: c.rival, acquires: c.acquires, unsure: c.unsure, read: c.read,
		requests: slices.Clone(c.requests), replies: slices.Clone(c.replies), began: c.began, rounds: c.rounds, doubted: c.doubted, losses: c.losses,
		isKnown: c.isKnown, now: c.now + 1, steps: c.steps + "; " + what,
	}
	b := &next.ballot
	b.votes, b.confirmedAt, b.confirmedUpTo, b.token, b.isRolledBack = slices.Clone(c.votes), c.confirmedAt, c.confirmedUpTo, c.token, c.isRolledBack
	do(next)
	return next
}

func (c *course) grant() {
	c.counter++
	c.ours, c.granted = true, c.now
	c.stamp = fmt.Sprint(c.counter, ":", c.now)
}

// age is what the node tells of the vote.
func (c *course) age() time.Duration { return instant(c.now).Sub(instant(c.granted)) }

// renew runs a RENEW.
func (c *course) renew(r renewal) {
	says := fresh
	if !c.ours {
		c.grant()
	} else if c.stamp == r.stamp {
		says = continuous
	}
	c.replies = append(c.replies, answer{reply{says: says, stamp: c.stamp, age: c.age()}, r.began, c.now})
}

// reads has the client read a reply, and reports a lie: that the node cannot have voted for another hold, when it
// has, after the round of the last confirmation had begun and before this one did, or before another that has found
// so; or that it cannot have voted for this one all the time, when it has.
func (c *course) reads(k int) (lie bool) {
	r := c.replies[k]
	c.replies = slices.Delete(c.replies, k, k+1)
	c.ask(0)
	got := r.reply
	c.answered(&got, began(r.began), instant(c.now), promptFloor)
	isOfRound := r.began > 0 && r.began == c.began
	return c.hidesRival() && instant(c.rival).Before(c.votes[0].noOtherUntil) || isOfRound && (!means[got.evidence].mayBeOthers && c.rival < c.began && c.hidesRival() || !means[got.evidence].mayBeOurs && c.lasts())
}

func (c *course) hidesRival() bool { return c.rival > 0 && instant(c.rival).After(c.confirmedUpTo) }

// lasts reports whether the node has voted for the hold since the last confirmation.
func (c *course) lasts() bool { return c.ours && !instant(c.granted).After(c.confirmedUpTo) }

// lasted confirms the hold up to a round, by what was found on other nodes.
func (c *course) lasted(round int) {
	others := ballot{votes: []vote{{noOtherUntil: began(round)}}, confirmedAt: c.confirmedAt, confirmedUpTo: c.confirmedUpTo}
	others.confirm(size{1, 1}, instant(c.now), promptFloor)
	c.confirmedAt, c.confirmedUpTo = others.confirmedAt, others.confirmedUpTo
}

// release reports a lie of a release that takes the vote back now.
func (c *course) release() (lie bool) {
	r := reply{says: released}
	stray := c.votes[0].stray || c.acquires > 0 || len(c.replies) > 0 || slices.ContainsFunc(c.requests, func(r renewal) bool { return r.copies > 0 })
	if stray || !c.old(0) {
		r.stamp, r.age = c.stamp, c.age()
	}
	got := means[c.ended(r, instant(c.now))]
	return c.ours && (!got.mayBeOthers && c.hidesRival() || !got.mayBeOurs && c.lasts())
}

// nexts are the steps that can follow.
func (c *course) nexts(t *testing.T) (all []*course) {
	add := func(what string, do func(c *course)) { all = append(all, c.step(what, do)) }
	if c.ours && c.losses < 2 {
		add("loses the vote", func(c *course) { c.ours, c.losses = false, c.losses+1 })
	}
	if c.isKnown && c.ours && c.counter >= c.token {
		add("comes back with old data", func(c *course) { c.ours, c.counter = false, 2 })
	}
	if !c.ours && c.rival == 0 {
		add("another hold comes and goes", func(c *course) {
			c.rival = c.now
			if c.counter++; !c.isKnown { // otherwise its token may be from the old data
				c.counter = max(c.counter, c.token+1)
			}
		})
	}
	if c.acquires > 0 {
		add("ACQ", func(c *course) {
			c.acquires--
			if !c.ours {
				c.grant()
			}
			if !c.read {
				var count int64
				fmt.Sscanf(c.stamp, "%d:", &count)
				c.read, c.replies = true, append(c.replies, answer{reply{says: granted, stamp: c.stamp, count: count, unsure: c.unsure}, 0, c.now})
			}
		})
	}
	if c.began == 0 && c.rounds < 3 {
		add("renews", func(c *course) {
			c.began, c.rounds = c.now, c.rounds+1
			c.requests = append(c.requests, renewal{c.began, c.votes[0].stamp, 1})
		})
	}
	if c.began > 0 {
		add("confirmed by others", func(c *course) {
			c.lasted(c.began)
			c.began = 0
		})
		if !c.doubted {
			add("in doubt", func(c *course) { c.began, c.doubted = 0, true })
		}
	}
	for k, r := range c.requests {
		if began(r.began).After(c.confirmedAt) && r.began != c.began {
			add(fmt.Sprint("confirmed by others up to round ", r.began), func(c *course) { c.lasted(r.began) })
		}
		if r.copies > 0 {
			add(fmt.Sprint("RENEW of round ", r.began), func(c *course) {
				c.requests[k].copies--
				c.renew(r)
			})
		}
	}
	for k, r := range c.replies {
		lie := false
		add(fmt.Sprint("reads ", r.says, " ", r.stamp), func(c *course) { lie = c.reads(k) })
		if lie {
			t.Fatalf("a lie%s", all[len(all)-1].steps)
		}
	}
	return all
}

// Whatever happens on a node, and in whatever order its replies are read: a node is taken for one that has
// voted for no other hold since the last confirmation only if it has not, and for one that has lost the vote only if
// it has.
func TestVoteInEveryOrder(t *testing.T) {
	t.Parallel()
	met := map[evidence]bool{}
	for acquires := range 4 {
		start := &course{counter: 6, acquires: acquires % 3, unsure: acquires == 2, isKnown: acquires == 3, now: 1}
		start.doubted = start.acquires > 0 // with both there are three times as many courses
		start.votes = make([]vote, 1)
		won := grant{}
		if start.isKnown {
			start.grant()
			won = grant{stamp: start.stamp, count: start.counter, level: start.counter}
		}
		start.won(7, []grant{won}, instant(1), promptFloor)
		visited, level := map[string]bool{}, []*course{start}
		for step := range courseSteps + 1 {
			var next []*course
			for _, c := range level {
				met[c.state(&c.votes[0])] = true
				if c.unanswered(0) != silent && c.lasts() {
					t.Fatalf("a vote is lost that is not%s", c.steps)
				}
				if c.release() {
					t.Fatalf("a release lies%s", c.steps)
				}
				if step == courseSteps {
					continue
				}
				for _, n := range c.nexts(t) {
					if k := n.key(); !visited[k] {
						visited[k] = true
						next = append(next, n)
					}
				}
			}
			level = next
		}
		t.Logf("%d copies of the acquire, the vote is known: %v: %d courses", start.acquires, start.isKnown, len(visited))
	}
	if len(met) != 4 {
		t.Errorf("only %d states were met", len(met))
	}
}

// Only a count that the counter had reached before a known grant shows old data, and only without a quarantine. A vote that
// did not count, as its RAISE had failed, is found by a renewal with the count that it was granted with.
func TestOldDataAreNoticedByTheNextGrant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		known, found string
		isGuarded    bool
		old          bool
	}{
		{"", "7:1", false, false},
		{"7:1", "7:1", false, false},
		{"7:1", "8:1", false, false},
		{"7:1", "7:2", false, true},
		{"7:1", "3:2", false, true},
		{"7:1", "3:2", true, false},
	} {
		b := &ballot{votes: make([]vote, 1), isGuarded: c.isGuarded}
		b.won(7, []grant{{stamp: c.known, count: 7, level: 7}}, instant(1), promptFloor)
		b.ask(0)
		b.answered(&reply{says: fresh, stamp: c.found}, instant(2), instant(3), promptFloor)
		if b.isRolledBack != c.old {
			t.Errorf("%+v: noticed: %v", c, b.isRolledBack)
		}
	}
}
