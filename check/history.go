// Package check explains histories of real runs: several processes lock and unlock, and write to a register below the
// lock, while some are killed, stopped, or lose replies. Each process logs what it is about to do and what came of it.
// The log is an execution of a model of the lock, or the lock is at fault: porcupine decides which.
//
//	history.go   the log, and what it says about each key
//	models.go    what may happen: exclusion, a register, one decision for all
//	register.go  what the locks protect
//	chaos/       servers with faults too, and what each topology promises meanwhile
package check

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Action is what a process does.
type Action string

const (
	Acquire Action = "acquire" // a new hold
	Enter   Action = "enter"   // the hold again, by its owner
	Leave   Action = "leave"   // what Enter entered
	Release Action = "release" // the hold ends
	Look    Action = "look"    // the holder asks whether its lease lasts
	See     Action = "see"     // somebody asks who leads
	Decide  Action = "decide"  // to do what is to be done once, or to learn who has
	Read    Action = "read"    // of a register
	Write   Action = "write"   // to a register
	Turn    Action = "turn"    // a wait for the lock when all faults are over
	Fault   Action = "fault"   // Key is the process that it hits, Value its kind
)

// Outcome is what came of an action.
type Outcome string

const (
	OK      Outcome = "ok"
	Learned Outcome = "learned" // of Decide: somebody else has done it
	Refused Outcome = "refused" // for sure without an effect
	Lost    Outcome = "lost"    // the lease was over
	Unknown Outcome = ""        // it may take effect, at any time from its call on
)

// Never is the return of an operation whose outcome is not known.
const Never = math.MaxInt64

// An Operation is what a process did. In its log it is two lines: one before, and one after it.
type Operation struct {
	ID      int     // in the log of its process
	Do      Action  `json:",omitempty"`
	Out     Outcome `json:",omitempty"`
	Key     string  `json:",omitempty"` // the lock, register or job
	Hold    string  `json:",omitempty"` // which hold this belongs to
	Units   int     `json:",omitempty"` // how many permits
	Token   int64   `json:",omitempty"`
	Value   string  `json:",omitempty"` // read, written or decided
	Prev    string  `json:",omitempty"` // of Write: the value that it was computed from
	Call    int64   `json:",omitempty"` // by the clock of the machine
	Return  int64   `json:",omitempty"`
	Process string  `json:"-"`
}

// A Log is written by one process. What was logged outlives its process.
type Log struct {
	mu   sync.Mutex
	file *os.File
	last int
}

// NewLog makes the log of a process in a folder.
func NewLog(dir, process string) (*Log, error) {
	file, err := os.Create(filepath.Join(dir, process+".jsonl"))
	return &Log{file: file}, err
}

// Call logs that op is about to begin, or has begun at a time that is given, and returns what logs how it has ended. If that is never called, the outcome of
// op is unknown.
func (l *Log) Call(op Operation) func(Operation) {
	l.mu.Lock()
	l.last++
	op.ID = l.last
	l.mu.Unlock()
	if op.Call == 0 {
		op.Call = Now() // before the line is written, so before anything is sent
	}
	l.write(op)
	return func(end Operation) {
		end.ID, end.Return = op.ID, Now()
		l.write(end)
	}
}

func (l *Log) write(op Operation) {
	line, err := json.Marshal(op)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// One write a line: a process that is killed leaves whole lines.
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// Pulse logs, for as long as the process runs, when it did not run for so long that a renewal may have come too late: it
// was stopped, or the machine had no time for it.
func (l *Log) Pulse(process string, late time.Duration) {
	for last := Now(); ; last = Now() {
		time.Sleep(late / 12)
		if Now()-last > int64(late) {
			l.Call(Operation{Do: Fault, Key: process, Value: "late", Call: last})(Operation{Out: OK})
		}
	}
}

// A History is what all processes did.
type History struct {
	Operations []Operation
	faults     map[string][]Operation // by process
	acquired   map[string]Operation   // by hold
}

// NewHistory puts operations in relation to each other.
func NewHistory(operations ...Operation) *History {
	h := &History{faults: map[string][]Operation{}, acquired: map[string]Operation{}}
	for _, op := range operations {
		switch {
		case op.Do == Fault:
			h.faults[op.Key] = append(h.faults[op.Key], op)
			continue
		case op.Do == Acquire && op.Out == OK:
			h.acquired[op.Hold] = op
		}
		h.Operations = append(h.Operations, op)
	}
	return h
}

// Faults are all faults, of all processes.
func (h *History) Faults() (all []Operation) {
	for _, some := range h.faults {
		all = append(all, some...)
	}
	return all
}

// ReadHistory reads the logs of a folder.
func ReadHistory(dir string) (*History, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Operation
	for _, file := range files {
		operations, err := readLog(file)
		if err != nil {
			return nil, err
		}
		all = append(all, operations...)
	}
	return NewHistory(all...), nil
}

func readLog(name string) ([]Operation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	process := strings.TrimSuffix(filepath.Base(name), ".jsonl")
	var operations []Operation
	at := map[int]int{} // where an operation is
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		op := Operation{}
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
		if op.Call != 0 {
			op.Process, op.Return = process, Never
			at[op.ID] = len(operations)
			operations = append(operations, op)
			continue
		}
		// The line of a return has only what is new.
		if err := json.Unmarshal(lines.Bytes(), &operations[at[op.ID]]); err != nil {
			return nil, err
		}
	}
	return operations, lines.Err()
}

// firstFault is when the first fault began that can have hit a hold: one that was over before its acquire was called
// cannot.
func (h *History) firstFault(acquire Operation) int64 {
	first := int64(Never)
	for _, fault := range h.faults[acquire.Process] {
		if fault.Return >= acquire.Call {
			first = min(first, max(fault.Call, acquire.Call))
		}
	}
	return first
}

// An End is how a hold ends: at one moment of its interval, whichever explains what the others saw.
type End struct {
	Operation
	Ghost      bool // nobody saw it: it is open
	Lost       bool // its holder saw that
	Unprovoked bool // the lease was lost, and no fault had hit its process
}

// Ends returns how each hold of a key ended. There is no time in it, and no length of a lease:
//
//   - if Unlock has confirmed the release, between its call and its return;
//   - if the holder saw that the lease was lost, before that, and not before the first fault that hit its process;
//   - else the hold is a ghost, of a process that was killed or got no answer: it may end at any time after the first
//     fault, or after the call of Unlock.
func (h *History) Ends(key string) ([]End, error) {
	released, lost := map[string]Operation{}, map[string]Operation{}
	for _, op := range h.Operations {
		if op.Key != key {
			continue
		}
		if op.Do == Release {
			released[op.Hold] = op
		}
		if op.Out == Lost {
			if first, is := lost[op.Hold]; !is || op.Return < first.Return {
				lost[op.Hold] = op
			}
		}
	}
	var ends []End
	for _, acquire := range h.Operations {
		if acquire.Key != key || acquire.Do != Acquire || acquire.Out != OK {
			continue
		}
		release, called := released[acquire.Hold]
		end := End{Operation: Operation{Do: Release, Out: OK, Key: key, Hold: acquire.Hold, Process: acquire.Process}}
		loss, seen := lost[acquire.Hold]
		switch fault := h.firstFault(acquire); {
		case release.Out == OK && called:
			if seen && loss.Return <= release.Call {
				return nil, fmt.Errorf("%s: the lease of %s was lost, and then released", key, acquire.Hold)
			}
			end.Call, end.Return = release.Call, release.Return
		case seen:
			end.Lost, end.Unprovoked, end.Value = true, fault > loss.Return, loss.Value
			end.Call, end.Return = fault, loss.Return
			if end.Unprovoked {
				end.Call = acquire.Call
			}
		default:
			end.Ghost = true
			end.Call, end.Return = fault, Never
			if called {
				end.Call = min(fault, release.Call)
			}
			if end.Call == Never {
				return nil, fmt.Errorf("%s: %s has neither released it nor met a fault", key, acquire.Hold)
			}
		}
		ends = append(ends, end)
	}
	return ends, nil
}
