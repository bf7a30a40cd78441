package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// rules are what scripts have to see to, each in the one order of events that
// shows it. Faults at random hardly ever come in that order.
var rules = []struct {
	name                 string
	kind                 kind   // redKinds[0] if there is none
	script, old, instead string // without the rule; one script or several
	// broken says what happens that must not, or "".
	broken func(t *testing.T, w *World, s scenario) string
}{
	{
		name:   "a vote that was given anew is not the one that was read",
		script: "quorum/raise", old: "or vote[3] ~= stamp", instead: "",
		broken: voteGivenAnew,
	},
	{
		name:   "a renewal that finds no vote proves nothing",
		script: "quorum/renew", old: "return {2, 0, stamp}", instead: "return {1, 0, stamp}",
		broken: func(t *testing.T, w *World, s scenario) string {
			p := newPlayer(w, s, "a")
			defer p.close()
			l, err := p.locks["stock"].Lock(context.Background())
			if err != nil {
				return err.Error()
			}
			defer l.Unlock(context.Background())
			for i := range 3 {
				w.Redis(i).FlushAll()
			}
			if err := l.Extend(context.Background(), lockLease); err == nil {
				return "two votes of five renew a hold"
			}
			return ""
		},
	},
	{
		name:   "a vote that came after the hold was confirmed has not stood since then",
		script: "quorum/renew", old: "age(stamp, now), stamp}", instead: "1e12, stamp}",
		broken: lateRenewal,
	},
	{
		name:   "a vote that was given anew by a node that lost its data is not the one of before",
		script: "shared/grant", old: "string.format('%.0f:%.0f', n, now)", instead: "string.format('%.0f:%.0f', n, 0)",
		broken: countersRecur,
	},
	{
		name:   "a renewal leaves another's vote alone",
		script: "quorum/renew", old: "elseif held ~= id then", instead: "elseif false then",
		broken: func(t *testing.T, w *World, s scenario) string {
			p := newPlayer(w, s, "a")
			defer p.close()
			l, err := p.locks["stock"].Lock(context.Background())
			if err != nil {
				return err.Error()
			}
			defer l.Unlock(context.Background())
			time.Sleep(100 * time.Millisecond) // the other nodes' votes are there too
			for i := range 3 {
				until := fmt.Sprint(w.Now(i).Add(lockLease).UnixMicro())
				w.Redis(i).HSet(derived("stock", "rlock:red"), "attempt", "another", "stamp", "100", "until", until)
			}
			if err := l.Extend(context.Background(), lockLease); !errors.Is(err, rlock.ErrTakenOver) {
				t.Logf("Extend: %v", err)
				return "a hold goes on that another has"
			}
			return ""
		},
	},
	{
		name:   "members are not taken for one who has left",
		kind:   multiKinds[1],
		script: "lock/enter_all", old: "redis.call('exists', tombstone) == 1", instead: "false",
		broken: membersForOneWhoHasLeft,
	},
}

// membersForOneWhoHasLeft: a TryLock gets no answer and is given up, and then a late
// copy of its request for all members runs.
func membersForOneWhoHasLeft(t *testing.T, w *World, s scenario) string {
	ctx := context.Background()
	p := newPlayer(w, s, "a")
	defer p.close()
	l, err := p.locks["stock"].TryLock(ctx) // loads the script: NOSCRIPT would be lost too
	if err == nil {
		err = l.Unlock(ctx)
	}
	if err != nil {
		t.Error(err)
		return ""
	}
	w.SetRates(Rates{Swallow: 1})
	if _, err := p.locks["stock"].TryLock(ctx); !errors.Is(err, rlock.ErrUnreachable) {
		t.Errorf("TryLock without an answer: %v", err)
	}
	w.SetRates(Rates{})
	time.Sleep(5 * time.Second)
	if w.exists("{m}both") {
		t.Errorf("still locked: %s", w.contents())
	}
	for _, e := range slices.Backward(w.events()) {
		if ws := words(e.b); len(ws) > 3 && ws[2] == "7" { // KEYS of three members
			w.servers[0].run(ws...)
			break
		}
	}
	if w.exists("{m}both") {
		return "held by nobody"
	}
	return ""
}

// voteGivenAnew: the vote of server 0 for a is over, b has it and a hold with it,
// and a late copy of a's request gets it again, all before a writes its token
// there. That must not count: b's token is the same.
func voteGivenAnew(t *testing.T, w *World, s scenario) string {
	ctx := context.Background()
	a, b := newPlayer(w, s, "a"), newPlayer(w, s, "b")
	defer a.close()
	defer b.close()
	for _, p := range []*player{a, b} { // dials, and loads the scripts
		l, err := p.locks["stock"].Lock(ctx)
		if err != nil {
			return err.Error()
		}
		if err := l.Unlock(ctx); err != nil {
			return err.Error()
		}
	}
	time.Sleep(100 * time.Millisecond)
	const above = 2e15 // all tokens so far
	for i, n := range []int64{10, 20, 10, 20, 10} {
		w.Redis(i).Set(derived("stock", "rlock:red:counter"), fmt.Sprint(int64(above)+n))
	}
	for _, i := range []int{3, 4} {
		a.h.PartitionFrom(i, time.Second)
	}
	for _, i := range []int{1, 2} {
		b.h.PartitionFrom(i, time.Second)
	}
	type result struct {
		l   *rlock.Lease
		err error
	}
	got := make(chan result, 1)
	a.h.PartitionFrom(1, 60*time.Millisecond) // its vote, the last that is needed, is read after that
	go func() {
		l, err := a.locks["stock"].TryLock(ctx, rlock.WithLease(2*time.Second))
		got <- result{l, err}
	}()
	time.Sleep(50 * time.Millisecond)
	a.h.PartitionFrom(0, 100*time.Millisecond) // what is written there arrives after that
	time.Sleep(50 * time.Millisecond)

	first := vote(w, 0, "stock")
	w.Jump(0, time.Minute)
	held, err := b.locks["stock"].TryLock(ctx)
	if err != nil {
		return "b: " + err.Error()
	}
	token := held.Token()
	if err := held.Unlock(ctx); err != nil {
		return "b: " + err.Error()
	}
	for _, e := range w.events() {
		ws := words(e.b)
		if strings.HasPrefix(e.who, "a>0#") && len(ws) > 7 && ws[len(ws)-2] == first && ws[len(ws)-1] == "2000" {
			w.servers[0].run(ws...)
			break
		}
	}
	if v := vote(w, 0, "stock"); v != first || first == "" {
		t.Errorf("the late copy had no effect: %q, then %q", first, v)
	}
	r := <-got
	if r.err != nil {
		return ""
	}
	defer r.l.Unlock(ctx)
	if r.l.Token() <= token {
		t.Logf("tokens %d and %d", token, r.l.Token())
		return "a token twice"
	}
	return ""
}

// lateRenewal: a renewal comes to two nodes after the others have confirmed the hold of
// a. Meanwhile one of these has lost its data, and b has had its vote and those two, and
// the lock with them. The two vote for a anew: that mends no hold that was broken.
func lateRenewal(t *testing.T, w *World, s scenario) string {
	ctx := context.Background()
	a, b := newPlayer(w, s, "a"), newPlayer(w, s, "b")
	defer a.close()
	defer b.close()
	if l, err := b.locks["stock"].Lock(ctx); err != nil { // dials, and loads the scripts
		t.Error(err)
	} else if err := l.Unlock(ctx); err != nil {
		t.Error(err)
	}
	l := a.holdsThree(t, w)
	if l == nil {
		return ""
	}
	defer l.Unlock(ctx)
	for _, i := range []int{0, 1} {
		a.h.PartitionFrom(i, 70*time.Millisecond)
	}
	if err := l.Extend(ctx, time.Minute); err != nil {
		t.Errorf("three of five nodes: %v", err)
	}
	w.Redis(2).FlushAll()
	other, err := b.locks["stock"].TryLock(ctx)
	if err != nil {
		t.Errorf("three of five nodes are free: %v", err)
		return ""
	}
	if err := other.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if v := vote(w, 0, "stock"); v != "" {
		t.Errorf("the late renewal was too early: %s", v)
	}
	time.Sleep(100 * time.Millisecond)
	if v := vote(w, 0, "stock"); v != l.HoldID() {
		t.Errorf("the late renewal has not come: %q", v)
	}
	err = l.Extend(ctx, time.Minute)
	if !errors.Is(err, rlock.ErrLeaseLost) {
		return fmt.Sprintf("another one has had the lock, and Extend says %v", err)
	}
	return ""
}

// countersRecur: the node 2 loses its data, and b has its vote, and the lock with it.
// Then a copy of a renewal by a comes late and has the vote anew, with the counter at
// the value that it had when a got its vote the first time.
func countersRecur(t *testing.T, w *World, s scenario) string {
	ctx := context.Background()
	a, b := newPlayer(w, s, "a"), newPlayer(w, s, "b")
	defer a.close()
	defer b.close()
	l := a.holdsThree(t, w)
	if l == nil {
		return ""
	}
	defer l.Unlock(ctx)
	for _, i := range []int{0, 1} {
		a.h.PartitionFrom(i, 200*time.Millisecond)
	}
	if err := l.Extend(ctx, time.Minute); err != nil {
		t.Errorf("three of five nodes: %v", err)
	}
	counter := derived("stock", "rlock:red:counter")
	first, err := w.Redis(2).Get(counter)
	if err != nil {
		t.Error(err)
	}
	var renewal []string
	for _, e := range w.events() {
		if ws := words(e.b); strings.HasPrefix(e.who, "a>2#") && len(ws) > 3 && ws[len(ws)-3] == l.HoldID() && ws[len(ws)-2] == "60000" {
			renewal = ws
		}
	}
	if renewal == nil {
		t.Error("no renewal was seen")
		return ""
	}
	w.Redis(2).FlushAll()
	other, err := b.locks["stock"].TryLock(ctx)
	if err != nil {
		t.Errorf("three of five nodes are free: %v", err)
		return ""
	}
	if err := other.Unlock(ctx); err != nil {
		t.Error(err)
	}
	var n int
	fmt.Sscan(first, &n)
	w.Redis(2).Set(counter, fmt.Sprint(n-1))
	w.servers[2].run(renewal...)
	if v := vote(w, 2, "stock"); v != l.HoldID() {
		t.Errorf("the late copy has no vote: %q", v)
	}
	time.Sleep(time.Second)
	err = l.Extend(ctx, time.Minute)
	if !errors.Is(err, rlock.ErrLeaseLost) {
		return fmt.Sprintf("another one has had the lock, and Extend says %v", err)
	}
	return ""
}

func TestRules(t *testing.T) {
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			for _, without := range []bool{false, true} {
				s := scenario{kind: rule.kind}
				if s.kind.name == "" {
					s.kind = redKinds[0]
				}
				if without {
					var changes []change
					for _, script := range strings.Fields(rule.script) {
						changes = append(changes, change{script, rule.old, rule.instead})
					}
					s.scripts = changed(t, changes...)
				}
				bubble(t, 1, Config{Servers: s.kind.servers}, func(w *World) {
					if broken := rule.broken(t, w, s); (broken != "") != without {
						t.Errorf("without the rule: %v; broken: %q", without, broken)
					}
				})
			}
		})
	}
}

// Tokens after a loss of all data are beyond the clocks, and so beyond all
// tokens of before: also if one of the clocks had jumped ahead then, and has not
// now.
func TestTokensGrowThoughAllDataIsLostAndAClockHasJumped(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		bubble(t, 1, Config{Servers: 5}, func(w *World) {
			ctx := context.Background()
			s := scenario{kind: redKinds[2]}
			p := newPlayer(w, s, "a")
			defer p.close()
			if err := s.kind.begin(p); err != nil {
				t.Error(err)
			}
			var last int64
			for _, jump := range []time.Duration{0, ahead, 0} {
				w.Jump(4, jump)
				for i := range w.servers {
					w.Restart(i, 0, true)
				}
				l, err := p.locks["stock"].Lock(ctx, rlock.WithWait(s.kind.recovers))
				if err != nil {
					t.Errorf("clock ahead by %v: %v", jump, err)
					return
				}
				if l.Token() <= last {
					t.Errorf("clock ahead by %v: token %d after %d", ahead, l.Token(), last)
				}
				last = l.Token()
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The members of a MultiLock are lost together, each for a reason of its own. The
// whole has one.
func TestALossOfAMultiLockHasOneCause(t *testing.T) {
	for name, do := range map[string]func(l *rlock.Lease) error{
		"Unlock": func(l *rlock.Lease) error { return l.Unlock(context.Background()) },
		"Extend": func(l *rlock.Lease) error { return l.Extend(context.Background(), lockLease) },
	} {
		bubble(t, 1, Config{Servers: 2}, func(w *World) {
			a, b := newPlayer(w, scenario{kind: multiKinds[0]}, "a"), newPlayer(w, scenario{kind: multiKinds[0]}, "b")
			defer a.close()
			defer b.close()
			l, err := a.locks["stock"].Lock(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Unlock(context.Background())
			for i := range w.servers {
				w.Redis(i).FlushAll()
			}
			other, err := b.cs[1].NewLock("both").Lock(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Unlock(context.Background())
			err = do(l)
			var found []error
			for _, c := range causes {
				if errors.Is(err, c) {
					found = append(found, c)
				}
			}
			if !errors.Is(err, rlock.ErrLeaseLost) || errors.Is(err, rlock.ErrUnlocked) || len(found) != 1 {
				t.Errorf("%s: causes %v: %v", name, found, err)
			}
		})
	}
}

// A renewal gets votes anew from two nodes that were away, and their replies come
// when the others have confirmed it. Those are votes of before the confirmation: if
// a third node forgets its vote after it, and the rest is away, the hold is not lost. Nor is it confirmed
// while they are: they may have forgotten theirs as well.
func TestAVoteOfAnEarlierRoundIsNoLoss(t *testing.T) {
	bubble(t, 1, Config{Servers: 5}, func(w *World) {
		a := newPlayer(w, scenario{kind: redKinds[0]}, "a")
		defer a.close()
		l := a.holdsThree(t, w)
		if l == nil {
			return
		}
		defer l.Unlock(context.Background())
		for _, i := range []int{2, 3, 4} {
			a.h.PartitionFrom(i, 20*time.Millisecond)
		}
		confirmed := make(chan error, 1)
		go func() { confirmed <- l.Extend(context.Background(), time.Minute) }()
		for vote(w, 0, "stock") == "" || vote(w, 1, "stock") == "" {
			time.Sleep(10 * time.Microsecond)
		}
		for _, i := range []int{0, 1} {
			a.h.PartitionFrom(i, 40*time.Millisecond) // their replies
		}
		if err := <-confirmed; err != nil {
			t.Errorf("three of five nodes: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
		w.Redis(2).FlushAll()
		for _, i := range []int{3, 4} {
			a.h.PartitionFrom(i, time.Second)
		}
		if err := l.Extend(context.Background(), time.Minute); !errors.Is(err, rlock.ErrNoQuorum) || l.Err() != nil {
			t.Errorf("one of five nodes has forgotten, and two do not tell: %v, %v", err, l.Err())
		}
		time.Sleep(time.Second)
		if err := l.Extend(context.Background(), time.Minute); err != nil {
			t.Errorf("one of five nodes has forgotten: %v", err)
		}
	})
}

// holdsThree is a hold of stock for which the nodes 2, 3 and 4 have voted. The others
// were away; they are back.
func (p *player) holdsThree(t *testing.T, w *World) *rlock.Lease {
	ctx := context.Background()
	l, err := p.locks["stock"].Lock(ctx) // dials, and loads the scripts
	if err == nil {
		_ = l.Extend(ctx, time.Minute)
		err = l.Unlock(ctx)
	}
	time.Sleep(100 * time.Millisecond)
	for _, i := range []int{0, 1} {
		p.h.PartitionFrom(i, 500*time.Millisecond)
	}
	if err == nil {
		l, err = p.locks["stock"].Lock(ctx, rlock.WithLease(time.Minute))
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	time.Sleep(time.Second)
	if _, err := p.locks["stock"].(*rlock.RedLock).State(ctx); err != nil { // finds out that they are back
		t.Error(err)
	}
	time.Sleep(time.Second)
	for i := range 2 { // what arrived after all
		w.Redis(i).Del(derived("stock", "rlock:red"))
	}
	return l
}

// Nodes that do not answer are waited for beside each other: once in an acquire
// that asks, and once more in one that writes its token back; in a release once.
// The first call finds out; those after it know.
func TestWaitsForSilentNodesOverlap(t *testing.T) {
	for _, fault := range []struct {
		name   string
		strike func(w *World, node int)
	}{
		{"hung", func(w *World, node int) { w.Freeze(node, time.Minute) }},
		{"dead", func(w *World, node int) { w.Restart(node, time.Minute, false) }},
	} {
		for silent := range 4 {
			bubble(t, 1, Config{Servers: 5}, func(w *World) {
				p := newPlayer(w, scenario{kind: redKinds[0]}, "a")
				defer p.close()
				ctx, l := context.Background(), p.locks["stock"]
				for i := range w.servers { // a token has to be written back
					if err := w.Redis(i).Set(derived("stock", "rlock:red:counter"), fmt.Sprint(100+10*i)); err != nil {
						t.Error(err)
					}
				}
				strike := func() {
					for _, i := range []int{0, 2, 4}[:silent] {
						fault.strike(w, i)
					}
				}
				timed := func(what string, most time.Duration, call func() error) error {
					start := time.Now()
					err := call()
					took := time.Since(start)
					t.Logf("%d %s: %s took %v: %v", silent, fault.name, what, took, err)
					if took > most+10*time.Millisecond { // of the network
						t.Errorf("%d %s: %s took %v", silent, fault.name, what, took)
					}
					return err
				}
				var held *rlock.Lease
				if silent < 3 {
					strike()
				}
				err := timed("TryLock", 2*redNodeTimeout, func() (err error) { held, err = l.TryLock(ctx); return err })
				if err != nil {
					t.Errorf("%d %s: TryLock: %v", silent, fault.name, err)
					return
				}
				if silent == 3 {
					strike()
				}
				err = timed("Unlock", redNodeTimeout, func() error { return held.Unlock(ctx) })
				if (err == nil) != (silent < 3) {
					t.Errorf("%d %s: Unlock: %v", silent, fault.name, err)
				}
				if silent == 3 {
					err := timed("TryLock without a quorum", 2*redNodeTimeout, func() error { _, err := l.TryLock(ctx); return err })
					if !errors.Is(err, rlock.ErrNoQuorum) {
						t.Errorf("%s: TryLock: %v", fault.name, err)
					}
				}
			})
		}
	}
}
