package world

import "sync"

// Register is the resource that the lock guards: a number that each holder reads, adds one to, and writes back.
type Register struct {
	mu      sync.Mutex // guards the rest
	fence   bool
	value   int
	changes int   // how often the value was written
	highest int64 // token, as far as the register got one
}

// Read is what a holder has read.
type Read struct {
	Value   int
	changes int
}

// Read returns the value. With the fence on it raises the token first, and refuses a lower one: otherwise a late write
// of the previous holder could come between this read and the write that depends on it.
func (r *Register) Read(token int64) (Read, Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.passesLocked(token) {
		return Read{}, Refused
	}
	return Read{r.value, r.changes}, Accepted
}

// Write writes the value that a holder has computed from what it read. Nothing but the token decides; that an update of
// another is overwritten is only reported.
func (r *Register) Write(token int64, from Read) (value int, outcome Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.passesLocked(token) {
		return r.value, Refused
	}
	outcome = Accepted
	if from.changes != r.changes {
		outcome = LostUpdate
	}
	r.value = from.Value + 1
	r.changes++
	return r.value, outcome
}

// SetFence turns the check of tokens on or off.
func (r *Register) SetFence(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fence = on
}

func (r *Register) passesLocked(token int64) bool {
	if !r.fence {
		return true
	}
	if token < r.highest {
		return false
	}
	r.highest = token
	return true
}

// State returns the value, how many updates it has got, and whether the fence is on. The value is less than the number
// of updates if some are lost.
func (r *Register) State() (value, updates int, fence bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.changes, r.fence
}
