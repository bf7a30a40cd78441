package protocol

import (
	"fmt"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// longestRest bounds the rest of a lease in a reply: a TTL that others have set may be longer
// than a Duration.
const longestRest = 365 * 24 * time.Hour

// The reply to an Enter may be a list. Its first item is one of these codes. The second is a token, a time in ms,
// or whether others hold the lock.
const (
	codeGranted       = 1
	codeBusy          = 0
	codeWithdrawn     = -1
	codeOuterHoldLost = -2
	codeQuarantined   = -3
	codeOtherType     = -4
	codeOtherNumber   = -6
	codeNotSet        = -5
	codeBeyond        = -6
	codeEntangled     = -7
)

// readEntered reads the reply of an enter script: a token, or {code, n}, and if the lock is
// busy one of its holders, how many more there are, and the round, if the script reports
// them.
func readEntered(a wire.Answer) (Entered, error) {
	if token, ok := a.Val.(int64); ok && token > 0 && a.Err == nil { // a broken proxy may reply 0
		return Entered{Verdict: Granted, Token: token}, nil
	}
	code, n, rest, err := a.Pair()
	if err != nil {
		return Entered{}, err
	}
	switch code {
	case codeGranted:
		e := Entered{Verdict: Granted, Token: n}
		if len(rest) > 0 {
			e.Reserved, _ = rest[0].(int64)
		}
		return e, nil
	case codeBusy, codeBeyond:
		e := Entered{Verdict: Busy, Rest: millis(n), Beyond: code == codeBeyond}
		if len(rest) >= 2 {
			e.Known = true
			e.Holder, _ = rest[0].(string)
			e.Others, _ = rest[1].(int64)
		}
		if len(rest) >= 3 {
			e.Round, e.HasRound = rest[2].(int64)
		}
		return e, nil
	case codeWithdrawn:
		return Entered{Verdict: Withdrawn}, nil
	case codeOuterHoldLost:
		return Entered{Verdict: OuterHoldLost, TakenOver: n != 0}, nil
	case codeQuarantined:
		return Entered{Verdict: Quarantined, Rest: millis(n)}, nil
	case codeOtherType:
		return Entered{Verdict: OtherType}, nil
	case codeNotSet:
		return Entered{Verdict: NotSet}, nil
	}
	return Entered{}, wire.ErrReply(a.Val)
}

// readStood reads the reply of lock/stand_by.
func readStood(a wire.Answer) (Entered, error) {
	list, _ := a.Val.([]any)
	hasMark := false // the last item: the waiter stands by, or has the lock already
	switch {
	case a.Err != nil:
	case len(list) == 4 && list[0] == int64(codeGranted), len(list) == 5:
		a.Val, hasMark = list[:len(list)-1], true
	}
	e, err := readEntered(a)
	e.Found, e.Stands = hasMark && e.Verdict == Granted, hasMark && e.Verdict == Busy
	return e, err
}

// flag is a boolean argument of scripts.
func flag(is bool) int {
	if is {
		return 1
	}
	return 0
}

func millis(n int64) time.Duration {
	return time.Duration(min(n, longestRest.Milliseconds())) * time.Millisecond
}

// readKept reads the reply to a request about a hold: 1 if it was done (2 if entries remain),
// 0 if the hold does not exist, -1 if others hold the lock.
func readKept(a wire.Answer) (Kept, error) {
	n, err := a.Int()
	return kept(n), overflown(err)
}

func kept(n int64) Kept {
	switch {
	case n > 0:
		return Done
	case n < 0:
		return TakenOver
	}
	return Removed
}

// readAllKept reads the reply about n holds: a list with a number for each, or 1 for all.
func readAllKept(n int) func(a wire.Answer) ([]Kept, error) {
	return func(a wire.Answer) ([]Kept, error) {
		if a.Err != nil {
			return nil, a.Err
		}
		all := make([]Kept, n) // Done
		if a.Val == int64(1) {
			return all, nil
		}
		list, _ := a.Val.([]any)
		if len(list) != n {
			return nil, wire.ErrReply(a.Val)
		}
		for i, item := range list {
			one, ok := item.(int64)
			if !ok {
				return nil, wire.ErrReply(a.Val)
			}
			all[i] = kept(one)
		}
		return all, nil
	}
}

func readNumber(a wire.Answer) (int64, error) { return a.Int() }

func readText(a wire.Answer) (string, error) {
	if a.Err != nil {
		return "", a.Err
	}
	text, ok := a.Val.(string)
	if !ok {
		return "", wire.ErrReply(a.Val)
	}
	return text, nil
}

func readBool(a wire.Answer) (bool, error) {
	n, err := a.Int()
	return n == 1, err
}

func readProbed(a wire.Answer) (Probed, error) {
	held, entries, _, err := a.Pair()
	return Probed{held == 1, int(entries)}, err
}

// readLed reads the reply of election/inspect: a state, and the value of the leader, if there is one.
func readLed(a wire.Answer) (State, error) {
	const withLeader = 7
	list, _ := a.Val.([]any)
	if len(list) != withLeader {
		return readState(a)
	}
	value, ok := list[withLeader-1].(string)
	if !ok {
		return State{}, wire.ErrReply(a.Val)
	}
	a.Val = list[:withLeader-1]
	s, err := readState(a)
	s.Value = value
	return s, err
}

// readState reads the reply of an inspect script: see scripts/lock/inspect.lua.
func readState(a wire.Answer) (State, error) {
	ms, token, list, err := a.Pair()
	if err != nil {
		return State{}, err
	}
	if len(list)%3 != 1 {
		return State{}, wire.Because(wire.ErrReply(a.Val), fmt.Errorf("%d items", len(list)+2))
	}
	waiters, ok := list[0].(int64)
	if !ok {
		return State{}, wire.ErrReply(a.Val)
	}
	s := State{TTL: max(time.Duration(ms)*time.Millisecond, -1), Token: token, Waiters: int(max(waiters, -1))}
	if waiters < 0 {
		s.Listeners = int(-1 - waiters)
	}
	for list = list[1:]; len(list) > 0; list = list[3:] {
		owner, ok1 := list[0].(string)
		entries, ok2 := list[1].(string)
		mode, ok3 := list[2].(string)
		if !ok1 || !ok2 || !ok3 {
			return State{}, wire.ErrReply(a.Val)
		}
		count, err := strconv.Atoi(entries)
		if err != nil {
			return State{}, wire.Because(wire.ErrReply(a.Val), err)
		}
		s.Holders = append(s.Holders, Holder{HoldID: owner, Count: count, Shared: mode == shared})
	}
	return s, nil
}
