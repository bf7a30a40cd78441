//go:build linux

package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/check"
)

// verdict is what a history is worth, and what is wrong with it.
type verdict struct {
	acquires, unknown   int
	losses, falseLosses int
	undisturbed         int // holds of half a lease or more without a fault near them, which may not be lost
	doubles, unreported int // pairs of holds at the same time; those of which neither got an error
	unordered           int // tokens
	passedOn            int // of them, those of a hold that began before the other, and that its client passed on since
	updates, lost       int // of the registers without a fence
	fenced, lostFenced  int // of those with one
	left                int // keys
	denied              int // commands, to a user
	strange             int // errors that no fault explains
	turns, late         int // waits after the faults; those beyond the bound
	recovery, longest   time.Duration
	struck, hit         map[string]int // faults
	wrong               []string
}

func (v *verdict) plus(w verdict) {
	for _, sum := range []struct{ to, from *int }{
		{&v.acquires, &w.acquires}, {&v.unknown, &w.unknown}, {&v.losses, &w.losses}, {&v.falseLosses, &w.falseLosses},
		{&v.undisturbed, &w.undisturbed},
		{&v.doubles, &w.doubles}, {&v.unreported, &w.unreported}, {&v.unordered, &w.unordered}, {&v.passedOn, &w.passedOn}, {&v.updates, &w.updates},
		{&v.lost, &w.lost}, {&v.fenced, &w.fenced}, {&v.lostFenced, &w.lostFenced}, {&v.left, &w.left}, {&v.denied, &w.denied}, {&v.strange, &w.strange},
		{&v.turns, &w.turns}, {&v.late, &w.late},
	} {
		*sum.to += *sum.from
	}
	v.recovery, v.longest = max(v.recovery, w.recovery), max(v.longest, w.longest)
	if v.struck == nil {
		v.struck, v.hit = map[string]int{}, map[string]int{}
	}
	for fault, n := range w.struck {
		v.struck[fault] += n
		v.hit[fault] += w.hit[fault]
	}
	v.wrong = append(v.wrong, w.wrong...)
}

// claim is a hold as its process knew it.
type claim struct {
	key, hold, process string
	asked, granted     int64 // the call of the acquire, and its return
	valid              int64 // the last moment at which its lease was valid for sure
	token              int64
	released           check.Outcome
	loss               check.Operation // the first report of it, if there was one
}

// claims are all holds, in the order in which they were granted.
func claims(h *check.History) (all []*claim) {
	byHold := map[string]*claim{}
	for _, op := range h.Operations {
		if op.Do == check.Acquire && op.Out == check.OK {
			c := &claim{key: op.Key, hold: op.Hold, process: op.Process, asked: op.Call, granted: op.Return, token: op.Token}
			byHold[op.Hold] = c
			all = append(all, c)
		}
	}
	for _, op := range h.Operations {
		c := byHold[op.Hold]
		switch {
		case c == nil:
		case op.Out == check.Lost && (c.loss.Do == "" || op.Return < c.loss.Return):
			c.loss = op
		}
		switch {
		case c == nil:
		case op.Do == check.Look && op.Out == check.OK:
			// Err was called after the call was logged, and a lease that is valid was valid before.
			c.valid = max(c.valid, op.Call)
		case op.Do == check.Release:
			c.released = op.Out
		}
	}
	slices.SortFunc(all, func(a, b *claim) int { return cmp.Compare(a.granted, b.granted) })
	return all
}

// judge counts what a history says about holds, tokens, losses and turns. calm is when all faults were over.
func judge(h *check.History, top *topology, calm int64) verdict {
	v := verdict{struck: map[string]int{}, hit: map[string]int{}}
	for _, op := range h.Operations {
		switch {
		case op.Do == check.Turn:
			v.turn(op, top)
		case op.Do == check.Acquire && op.Out == check.OK:
			v.acquires++
		case (op.Do == check.Acquire || op.Do == check.Release) && op.Out == check.Unknown:
			v.unknown++
			if isStrange(op.Value) {
				v.strange++
				v.wrong = append(v.wrong, fmt.Sprintf("%s of %s by %s: %s", op.Do, op.Key, op.Process, op.Value))
			}
		}
	}
	all := claims(h)
	byKey := map[string][]*claim{}
	for _, c := range all {
		byKey[c.key] = append(byKey[c.key], c)
	}
	for _, some := range byKey {
		v.overlaps(some)
		v.tokens(some)
	}
	for _, fault := range h.Faults() {
		v.struck[fault.Value]++
		if fault.Out == check.OK {
			v.hit[fault.Value]++
		}
	}
	v.lossesOf(all, h.Faults(), top)
	for _, c := range all {
		if c.granted >= calm {
			v.recovery = time.Duration(c.granted - calm)
			break
		}
	}
	return v
}

// isStrange reports whether no fault explains an error: outages and refusals for a while have other texts.
func isStrange(err string) bool {
	return slices.ContainsFunc([]string{"unexpected reply", "NOPERM", "WRONGTYPE", "invalid", "panic"}, func(text string) bool {
		return strings.Contains(err, text)
	})
}

func (v *verdict) turn(op check.Operation, top *topology) {
	v.turns++
	if op.Out != check.OK {
		v.late++
		v.wrong = append(v.wrong, fmt.Sprintf("%s of %s: no turn within twice %v", op.Key, op.Process, top.bound()))
		return
	}
	took := time.Duration(op.Return - op.Call)
	v.longest = max(v.longest, took)
	if took > top.bound() {
		v.late++
		v.wrong = append(v.wrong, fmt.Sprintf("%s of %s: its turn came after %v instead of %v", op.Key, op.Process, took, top.bound()))
	}
}

// overlaps counts pairs of holds of a key at the same time, from the grant to the last moment at which the lease was valid.
func (v *verdict) overlaps(some []*claim) {
	for i, a := range some {
		for _, b := range some[i+1:] {
			if b.granted >= a.valid {
				continue
			}
			if b.granted >= b.valid {
				continue // nobody has claimed that it was valid
			}
			v.doubles++
			v.wrong = append(v.wrong, fmt.Sprintf("two hold %s: %s (token %d) from %d to %d, and %s (token %d) from %d to %d",
				a.key, a.hold, a.token, a.granted, a.valid, b.hold, b.token, b.granted, b.valid))
			if a.released == check.OK && b.released == check.OK {
				v.unreported++
			}
		}
	}
}

// tokens counts those that are not above the token of each acquire that had returned before theirs began.
func (v *verdict) tokens(some []*claim) {
	begun := slices.SortedFunc(slices.Values(some), func(a, b *claim) int { return cmp.Compare(a.asked, b.asked) })
	highest, returned, given := &claim{}, 0, map[int64]string{}
	for _, c := range begun {
		for returned < len(some) && some[returned].granted < c.asked {
			if some[returned].token > highest.token {
				highest = some[returned]
			}
			returned++
		}
		if twin := given[c.token]; c.token <= highest.token || twin != "" {
			v.unordered++
			if twin == "" && isPassedOn(c, highest, some) {
				v.passedOn++
			}
			v.wrong = append(v.wrong, fmt.Sprintf("token %d of %s, hold %s, after %d (the same: %q)", c.token, c.key, c.hold, highest.token, twin))
		}
		given[c.token] = c.hold
	}
}

// isPassedOn reports whether c may be a hold that its client has passed on inside, from a waiter to the next: a Lock, whose
// tokens the client drew when Redis granted it, before the rival was granted another. If Redis has lost that hold, and the
// client has not noticed yet, the tokens are lower than the rival's: a fence refuses what is done under them.
func isPassedOn(c, rival *claim, some []*claim) bool {
	if !strings.HasPrefix(c.key, "Lock-") || c.process == rival.process {
		return false
	}
	var first *claim // with the lowest of the tokens that may have been drawn together
	for _, a := range some {
		if a.token > c.token || c.token-a.token > rlock.DefaultHandOverPasses {
			continue
		}
		if a.process != c.process {
			return false
		}
		if first == nil || a.token < first.token {
			first = a
		}
	}
	return first.granted < rival.granted
}

// lossesOf counts losses, and those that nothing explains: no fault that hit the process or a server, from a lease before
// the acquire was called, or from when a failover may have begun that came late, to the report.
func (v *verdict) lossesOf(all []*claim, faults []check.Operation, top *topology) {
	since := int64(top.lease + top.more)
	for _, c := range all {
		isNear := func(until int64) bool {
			return slices.ContainsFunc(faults, func(f check.Operation) bool {
				return f.Out == check.OK && (f.Key == everybody || f.Key == c.process) && f.Call <= until && f.Return >= c.asked-since
			})
		}
		if c.loss.Do == "" {
			if time.Duration(c.valid-c.granted) >= top.lease/2 && !isNear(c.valid) {
				v.undisturbed++
			}
			continue
		}
		v.losses++
		if !isNear(c.loss.Return) {
			v.falseLosses++
			v.wrong = append(v.wrong, fmt.Sprintf("%s lost %s without a fault: %s", c.process, c.key, c.loss.Value))
		}
	}
}

// broken are the promises that the history does not keep.
func (v *verdict) broken(p promises) (broken []string) {
	unordered := v.unordered
	if !p.excludes { // a hold that Redis has lost may be passed on until its client notices
		unordered -= v.passedOn
	}
	for _, promise := range []struct {
		made bool
		n    int
		what string
	}{
		{p.excludes, v.doubles, "double holds"},
		{p.reported, v.unreported, "double holds without an error"},
		{p.ordered, unordered, "tokens out of order"},
		{p.fenced, v.lostFenced, "updates lost through the fence"},
		{true, v.falseLosses, "false losses"},
		{true, v.left, "keys left"},
		{true, v.denied, "commands denied"},
		{p.ordered, v.strange, "errors that no fault explains"},
		{true, v.late, "turns that came late"},
	} {
		if promise.made && promise.n > 0 {
			broken = append(broken, fmt.Sprintf("%d %s", promise.n, promise.what))
		}
	}
	return broken
}

// lacking says what there was too little of to show anything.
func (v *verdict) lacking(faults []string) (lacks []string) {
	least := func(what string, got, want int) {
		if got < want {
			lacks = append(lacks, fmt.Sprintf("%d %s instead of %d", got, what, want))
		}
	}
	least("acquires", v.acquires, 60)
	least("losses", v.losses, 1)
	least("long holds without a fault near them", v.undisturbed, 1)
	least("unknown outcomes", v.unknown, 2)
	least("updates with a fence", v.fenced, 30)
	least("updates without a fence", v.updates, 30)
	least("turns", v.turns, processes*goroutines)
	for _, fault := range faults {
		least("hits of "+fault, v.hit[fault], 1)
	}
	return lacks
}

const header = "| topology | acquires | unknown | losses | false | undisturbed | double holds | unreported | tokens out of order | updates lost | with a fence | keys left | first acquire | longest turn | faults that hit |"

func (v *verdict) row(name string) string {
	var faults []string
	for fault, n := range v.hit {
		faults = append(faults, fmt.Sprintf("%s %d", fault, n))
	}
	slices.Sort(faults)
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d of %d | %d of %d | %d | %d ms | %d ms | %s |", name, v.acquires, v.unknown,
		v.losses, v.falseLosses, v.undisturbed, v.doubles, v.unreported, v.unordered, v.lost, v.updates, v.lostFenced, v.fenced, v.left,
		v.recovery.Milliseconds(), v.longest.Milliseconds(), strings.Join(faults, ", "))
}
