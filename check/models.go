package check

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock"
)

// held is a hold of a lock.
type held struct {
	hold    string
	units   int
	entries int
	token   int64
}

// holders is the state of a lock: who has it, in the order of their names, and the highest token of all who had.
type holders struct {
	all   []held
	token int64
}

func (s holders) find(hold string) int {
	return slices.IndexFunc(s.all, func(h held) bool { return h.hold == hold })
}

func (s holders) taken() (units int) {
	for _, h := range s.all {
		units += h.units
	}
	return units
}

// with returns the state in which a hold is entered so often, and no longer there if that is 0.
func (s holders) with(h held) holders {
	i, is := slices.BinarySearchFunc(s.all, h, func(a, b held) int { return cmp.Compare(a.hold, b.hold) })
	next := holders{slices.Clone(s.all), max(s.token, h.token)}
	switch {
	case h.entries == 0:
		next.all = slices.Delete(next.all, i, i+1)
	case is:
		next.all[i] = h
	default:
		next.all = slices.Insert(next.all, i, h)
	}
	return next
}

// Excludes is a lock that so many permits stand for: 1 is a mutex, and the writer of a read-write lock takes all. An
// owner that has it may enter again. A token is greater than all before; who takes all permits has one.
func Excludes(permits int) porcupine.Model {
	return model(holders{}, func(s holders, op Operation) (bool, holders) {
		i := s.find(op.Hold)
		switch op.Do {
		case Acquire:
			free := i < 0 && s.taken()+op.Units <= permits
			rises := op.Token > s.token || op.Token == 0 && op.Units < permits
			return free && rises, s.with(held{op.Hold, op.Units, 1, op.Token})
		case See:
			nobody := len(s.all) == 0
			latest := op.Token == s.token && op.Token != 0
			// A term that nobody knows: of one who was killed before it knew.
			unknown := op.Out == Unknown && op.Token > s.token && nobody
			return latest || unknown || op.Token == 0 && nobody, holders{s.all, max(s.token, op.Token)}
		}
		if i < 0 {
			return false, s
		}
		h := s.all[i]
		switch op.Do {
		case Enter:
			h.entries++
			return op.Token == 0 || op.Token == h.token, s.with(h)
		case Leave:
			h.entries--
			return h.entries > 0, s.with(h)
		case Release: // a loss ends all entries
			h.entries = 0
			return true, s.with(h)
		}
		return op.Do == Look, s
	}, func(a, b holders) bool { return a.token == b.token && slices.Equal(a.all, b.all) })
}

// cell is the state of a register.
type cell struct {
	value string
	token int64
}

// Fenced is a register that refuses a token that is lower than its highest. A write that it takes was computed from the
// value that it replaces: nothing is lost.
func Fenced() porcupine.Model {
	return model(cell{}, func(s cell, op Operation) (bool, cell) {
		behind := op.Token < s.token
		switch next := (cell{s.value, op.Token}); {
		case op.Out == Refused:
			return behind, s
		case op.Out == Unknown && (behind || op.Do == Write && op.Prev != s.value):
			return true, s // it had no effect
		case op.Do == Write:
			next.value = op.Value
			return !behind && op.Prev == s.value, next
		default:
			return !behind && (op.Out == Unknown || op.Value == s.value), next
		}
	}, func(a, b cell) bool { return a == b })
}

// Agrees is what is done once: all others learn by whom.
func Agrees() porcupine.Model {
	return model("", func(s string, op Operation) (bool, string) {
		switch {
		case op.Out == OK:
			return s == "", op.Value
		case op.Out == Unknown && s != "":
			return true, s // it had no effect
		case op.Out == Unknown:
			return true, op.Value
		default:
			return s == op.Value, s
		}
	}, func(a, b string) bool { return a == b })
}

var seed = maphash.MakeSeed()

// model makes a model of porcupine's of a function on states.
func model[S any](first S, step func(S, Operation) (bool, S), equal func(a, b S) bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			return step(state.(S), input.(Operation))
		},
		Equal: func(a, b any) bool { return equal(a.(S), b.(S)) },
		Hash:  func(state any) uint64 { return maphash.String(seed, fmt.Sprint(state)) },
		DescribeOperation: func(input, _ any) string {
			op := input.(Operation)
			return fmt.Sprintf("%s %s %s token=%d %s<%s %s", op.Hold, op.Do, op.Out, op.Token, op.Value, op.Prev, op.Process)
		},
	}
}

// lockSteps are the operations on a lock, as Excludes takes them. An acquire whose outcome is not known is left out: it,
// and the end of what it may hold, can be placed at any moment between two others, so it explains nothing and refutes
// nothing, except that somebody may have seen its term.
func (h *History) lockSteps(key string) ([]porcupine.Operation, []End, error) {
	ends, err := h.Ends(key)
	if err != nil {
		return nil, nil, err
	}
	terms := map[int64]bool{} // that are known
	var steps []porcupine.Operation
	for _, op := range h.Operations {
		if op.Key == key && op.Do == Acquire && op.Out == OK {
			terms[op.Token] = true
		}
	}
	for _, op := range h.Operations {
		switch {
		case op.Key != key || op.Out != OK:
		case op.Do == See:
			if op.Token != 0 && !terms[op.Token] {
				op.Out = Unknown
			}
			steps = append(steps, step(op))
		case op.Do == Acquire || op.Do == Enter || op.Do == Leave || op.Do == Look:
			steps = append(steps, step(op))
		}
	}
	for _, end := range ends {
		steps = append(steps, step(end.Operation))
	}
	return steps, ends, nil
}

// registerSteps are the operations on a register.
func (h *History) registerSteps(key string) (steps []porcupine.Operation) {
	for _, op := range h.Operations {
		if op.Key == key && (op.Do == Read || op.Do == Write) {
			steps = append(steps, step(op))
		}
	}
	return steps
}

// decisionSteps are the operations on what is done once. Who was killed before it knew that it runs has not logged its
// value: others may learn one that is of nobody known, and then that decided it. The same goes for a call that was refused
// with an error, if what others learn is a lost run: the lease of its claim was over before it could begin, or take it back.
func (h *History) decisionSteps(key string) (steps []porcupine.Operation) {
	known, killed, refused := map[string]bool{}, []Operation{}, []Operation{}
	for _, op := range h.Operations {
		if op.Key == key && op.Do == Decide {
			known[op.Value] = known[op.Value] || op.Out != Learned
			if op.Out == Unknown && op.Value == "" {
				killed = append(killed, op)
			}
			if op.Out == Refused && op.Prev != "" {
				refused = append(refused, op)
			}
		}
	}
	for _, op := range h.Operations {
		if op.Key != key || op.Do != Decide || op.Out == Refused || op.Value == "" {
			continue
		}
		if op.Out == Learned && !known[op.Value] {
			claims := &killed
			if len(killed) == 0 && strings.Contains(op.Prev, rlock.ErrLeaseLost.Error()) {
				claims = &refused
			}
			if len(*claims) > 0 {
				claim := (*claims)[0]
				claim.Out, claim.Value, known[op.Value], *claims = Unknown, op.Value, true, (*claims)[1:]
				steps = append(steps, step(claim))
			}
		}
		steps = append(steps, step(op))
	}
	return steps
}

func step(op Operation) porcupine.Operation {
	return porcupine.Operation{Input: op, Call: op.Call, Return: op.Return}
}
