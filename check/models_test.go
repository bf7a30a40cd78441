package check

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock"
)

// at gives an operation its interval.
func at(call, end int64, op Operation) Operation {
	op.Call, op.Return, op.Key = call, end, "key"
	if op.Process == "" {
		op.Process = "p"
	}
	return op
}

func acquire(hold string, token int64) Operation {
	return Operation{Do: Acquire, Out: OK, Hold: hold, Units: 1, Token: token}
}

func of(do Action, hold string) Operation { return Operation{Do: do, Out: OK, Hold: hold, Units: 1} }

func units(n int, op Operation) Operation {
	op.Units = n
	return op
}

func by(process string, op Operation) Operation {
	op.Process = process
	return op
}

func write(out Outcome, token int64, prev, value string) Operation {
	return Operation{Do: Write, Out: out, Token: token, Prev: prev, Value: value}
}

func read(out Outcome, token int64, value string) Operation {
	return Operation{Do: Read, Out: out, Token: token, Value: value}
}

func decide(out Outcome, value string) Operation {
	return Operation{Do: Decide, Out: out, Value: value}
}

// because is an operation that says that a lease was lost.
func because(op Operation) Operation {
	op.Prev = rlock.ErrLeaseLost.Error()
	return op
}

func fault(process string, call, end int64) Operation {
	return Operation{Do: Fault, Key: process, Call: call, Return: end}
}

// verdict is what the checker says of a history of one key.
func verdict(t *testing.T, m porcupine.Model, h *History) porcupine.CheckResult {
	t.Helper()
	steps := append(h.registerSteps("key"), h.decisionSteps("key")...)
	locks, _, err := h.lockSteps("key")
	if err != nil {
		t.Log(err)
		return porcupine.Illegal
	}
	return porcupine.CheckOperationsTimeout(m, append(steps, locks...), 10*time.Second)
}

// Each model refuses a history that a broken lock could leave, and takes the nearest that is right.
func TestModelsRefuseWhatIsBroken(t *testing.T) {
	// a holds from 1 to 20, and b has it within.
	within := []Operation{at(1, 2, acquire("a", 1)), at(20, 21, of(Release, "a")), at(3, 4, acquire("b", 2)), at(5, 6, of(Release, "b"))}
	for _, test := range []struct {
		name         string
		model        porcupine.Model
		wrong, right []Operation
	}{
		{"two holders", Excludes(1), within,
			[]Operation{at(1, 2, acquire("a", 1)), at(20, 21, of(Release, "a")), at(3, 21, acquire("b", 2)), at(22, 23, of(Release, "b"))}},
		{"a token that does not rise", Excludes(1),
			[]Operation{at(1, 2, acquire("a", 2)), at(3, 4, of(Release, "a")), at(5, 6, acquire("b", 2)), at(7, 8, of(Release, "b"))},
			[]Operation{at(1, 2, acquire("a", 2)), at(3, 4, of(Release, "a")), at(5, 6, acquire("b", 3)), at(7, 8, of(Release, "b"))}},
		{"a holder without a token", Excludes(1),
			[]Operation{at(1, 2, acquire("a", 0)), at(3, 4, of(Release, "a"))},
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Release, "a"))}},
		{"a writer without a token", Excludes(100),
			[]Operation{at(1, 2, acquire("r", 0)), at(3, 4, of(Release, "r")), at(5, 6, units(100, acquire("w", 0))), at(7, 8, of(Release, "w"))},
			[]Operation{at(1, 2, acquire("r", 0)), at(3, 4, of(Release, "r")), at(5, 6, units(100, acquire("w", 1))), at(7, 8, of(Release, "w"))}},
		{"a token below zero", Excludes(3),
			[]Operation{at(1, 2, acquire("a", -1)), at(3, 4, of(Release, "a"))},
			[]Operation{at(1, 2, acquire("a", 0)), at(3, 4, of(Release, "a"))}},
		{"another owner enters", Excludes(1),
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Enter, "b")), at(9, 10, of(Release, "a"))},
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Enter, "a")), at(5, 6, of(Leave, "a")), at(9, 10, of(Release, "a"))}},
		{"the inner release frees", Excludes(1),
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Enter, "a")), at(5, 6, of(Leave, "a")), at(7, 8, acquire("b", 2)), at(9, 10, of(Release, "a")), at(11, 12, of(Release, "b"))},
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Enter, "a")), at(5, 6, of(Leave, "a")), at(7, 10, acquire("b", 2)), at(9, 10, of(Release, "a")), at(11, 12, of(Release, "b"))}},
		{"a reader beside a writer", Excludes(100),
			[]Operation{at(1, 2, units(100, acquire("w", 1))), at(3, 4, acquire("r", 0)), at(5, 6, of(Release, "r")), at(7, 8, of(Release, "w"))},
			[]Operation{at(1, 2, acquire("q", 0)), at(3, 4, acquire("r", 0)), at(5, 6, of(Release, "r")), at(7, 8, of(Release, "q")), at(7, 10, units(100, acquire("w", 1))), at(11, 12, of(Release, "w"))}},
		{"one permit too many", Excludes(3),
			[]Operation{at(1, 2, units(2, acquire("a", 0))), at(3, 4, units(2, acquire("b", 0))), at(5, 6, of(Release, "a")), at(7, 8, of(Release, "b"))},
			[]Operation{at(1, 2, units(2, acquire("a", 0))), at(3, 4, units(1, acquire("b", 0))), at(5, 6, of(Release, "a")), at(7, 8, of(Release, "b"))}},
		{"held by another when the holder looks", Excludes(1),
			[]Operation{fault("p", 3, 4), at(1, 2, acquire("a", 1)), at(5, 6, by("q", acquire("b", 2))), at(7, 8, of(Look, "a")), at(9, 10, Operation{Do: Release, Out: Lost, Hold: "a"}), at(11, 12, by("q", of(Release, "b")))},
			[]Operation{fault("p", 3, 4), at(1, 2, acquire("a", 1)), at(5, 6, by("q", acquire("b", 2))), at(4, 8, of(Look, "a")), at(9, 10, Operation{Do: Release, Out: Lost, Hold: "a"}), at(11, 12, by("q", of(Release, "b")))}},
		{"released after its loss", Excludes(1),
			[]Operation{fault("p", 3, 4), at(1, 2, acquire("a", 1)), at(5, 6, Operation{Do: Look, Out: Lost, Hold: "a"}), at(7, 8, of(Release, "a"))},
			[]Operation{fault("p", 3, 4), at(1, 2, acquire("a", 1)), at(5, 6, Operation{Do: Look, Out: Lost, Hold: "a"}), at(7, 8, Operation{Do: Release, Out: Lost, Hold: "a"})}},
		{"a ghost that nothing has hit yet", Excludes(1),
			[]Operation{fault("p", 8, Never), at(1, 2, acquire("a", 1)), at(5, 6, by("q", acquire("b", 2))), at(9, 10, by("q", of(Release, "b")))},
			[]Operation{fault("p", 4, 5), fault("p", 8, Never), at(1, 2, acquire("a", 1)), at(5, 6, by("q", acquire("b", 2))), at(9, 10, by("q", of(Release, "b")))}},
		{"a leader of an older term", Excludes(1),
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Release, "a")), at(5, 6, acquire("b", 2)), at(7, 8, Operation{Do: See, Out: OK, Token: 1}), at(9, 10, of(Release, "b"))},
			[]Operation{at(1, 2, acquire("a", 1)), at(3, 4, of(Release, "a")), at(5, 8, acquire("b", 2)), at(6, 8, Operation{Do: See, Out: OK, Token: 1}), at(9, 10, of(Release, "b"))}},
		{"an update that is lost through the fence", Fenced(),
			[]Operation{at(1, 2, read(OK, 1, "")), at(3, 4, read(OK, 2, "")), at(5, 6, write(OK, 2, "", "b")), at(7, 8, write(OK, 1, "", "a"))},
			[]Operation{at(1, 2, read(OK, 1, "")), at(3, 4, read(OK, 2, "")), at(5, 6, write(OK, 2, "", "b")), at(7, 8, write(Refused, 1, "", "a"))}},
		{"a fence that is not raised by a read", Fenced(),
			[]Operation{at(1, 2, read(OK, 1, "")), at(3, 4, read(OK, 2, "")), at(5, 6, write(OK, 1, "", "a")), at(7, 8, read(OK, 2, "a"))},
			[]Operation{at(1, 2, read(OK, 1, "")), at(3, 6, read(OK, 2, "a")), at(5, 6, write(OK, 1, "", "a")), at(7, 8, read(OK, 2, "a"))}},
		{"a write that comes from nowhere", Fenced(),
			[]Operation{at(1, 2, write(Refused, 2, "", "a")), at(3, 4, read(OK, 3, "a"))},
			[]Operation{at(1, Never, write(Unknown, 2, "", "a")), at(3, 4, read(OK, 3, "a"))}},
		{"what runs twice", Agrees(),
			[]Operation{at(1, 2, decide(OK, "a")), at(3, 4, decide(OK, "b"))},
			[]Operation{at(1, 2, decide(OK, "a")), at(3, 4, decide(Learned, "a"))}},
		{"what one is told and another is not", Agrees(),
			[]Operation{at(1, Never, decide(Unknown, "")), at(3, 4, decide(Learned, "a")), at(5, 6, decide(Learned, "b"))},
			[]Operation{at(1, Never, decide(Unknown, "")), at(3, 4, decide(Learned, "a")), at(5, 6, decide(Learned, "a"))}},
		{"told before it was done", Agrees(),
			[]Operation{at(1, 2, decide(Learned, "a")), at(3, 4, decide(OK, "a"))},
			[]Operation{at(1, 4, decide(Learned, "a")), at(3, 4, decide(OK, "a"))}},
		{"told what did not run", Agrees(),
			[]Operation{at(1, 2, decide(Refused, "")), at(3, 4, decide(Learned, "a"))},
			[]Operation{at(1, Never, decide(Unknown, "a")), at(3, 4, decide(Learned, "a"))}},
		{"told of a claim that was lost, and then it ran", Agrees(),
			[]Operation{at(1, 2, because(decide(Refused, ""))), at(3, 4, because(decide(Learned, "a"))), at(5, 6, decide(OK, "b"))},
			[]Operation{at(1, 2, because(decide(Refused, ""))), at(3, 4, because(decide(Learned, "a"))), at(5, 6, because(decide(Learned, "a")))}},
		{"told as running what was refused", Agrees(),
			[]Operation{at(1, 2, because(decide(Refused, ""))), at(3, 4, decide(Learned, "a"))},
			[]Operation{at(1, 2, because(decide(Refused, ""))), at(3, 4, because(decide(Learned, "a")))}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := verdict(t, test.model, NewHistory(test.wrong...)); got != porcupine.Illegal {
				t.Errorf("the wrong history: %s", got)
			}
			if got := verdict(t, test.model, NewHistory(test.right...)); got != porcupine.Ok {
				t.Errorf("the right history: %s", got)
			}
		})
	}
}

// What a process has logged is read back, with what it had under way when it was killed.
func TestLogIsReadBack(t *testing.T) {
	dir := t.TempDir()
	log, err := NewLog(dir, "p")
	if err != nil {
		t.Fatal(err)
	}
	end := log.Call(Operation{Do: Acquire, Key: "key", Hold: "a", Units: 1})
	log.Call(Operation{Do: Write, Key: "register", Value: "v"})
	end(Operation{Out: OK, Token: 7})
	h, err := ReadHistory(dir)
	if err != nil || len(h.Operations) != 2 {
		t.Fatalf("%v, %v", h, err)
	}
	a, w := h.Operations[0], h.Operations[1]
	if a.Process != "p" || a.Do != Acquire || a.Out != OK || a.Token != 7 || a.Hold != "a" || a.Return <= a.Call || a.Return == Never {
		t.Errorf("%+v", a)
	}
	if w.Out != Unknown || w.Return != Never || w.Call <= a.Call {
		t.Errorf("%+v", w)
	}
}
