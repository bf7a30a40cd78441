package rlock

import (
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// Mode is how a lock is held.
type Mode string

const (
	ModeFree      Mode = "free"
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared" // by readers only
)

// State is what Redis shows of a lock at one moment, of a read-write lock on both sides:
// https://go-rlock.github.io/rlock/latest/observing/#state
type State struct {
	Mode    Mode
	Holders []Holder      // sorted by hold id, a writer before the readers
	TTL     time.Duration // rest of the longest lease; -1 if a lease does not end
	Token   int64         // token of the holder; 0 if free, held by readers, or unknown outside its client
	// Waiters counts all waiters if Redis keeps the queue. Otherwise it counts this client's, and one for each
	// other client subscribed to releases: it waits, has waited within three seconds, or watches.
	Waiters int
}

// Holder is one hold that has a lock.
type Holder struct {
	HoldID  string
	Count   int     // how often the owner has entered
	Shared  bool    // the holder is a reader
	Process Process // process of the holder
}

// Locked reports whether the lock has a holder.
func (s State) Locked() bool { return len(s.Holders) > 0 }

func (s State) held(on protocol.Side) bool {
	return slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Shared == (on == protocol.Shared) })
}

// watchedState is the state of a lock, and the value of the leader of an election.
type watchedState struct {
	State
	value string
}

// Process is the process of a client of this package, as the client says, or zero: see
// https://go-rlock.github.io/rlock/latest/observing/#who-holds-it
type Process struct {
	Label   string    // of WithLabel
	Program string    // the base name of the executable
	Host    string    // the host's name; in a container mostly the container's
	PID     int       // as the process itself sees it
	Started time.Time // by the clock of the host, in whole seconds
}

// String is as "billing@web-3 (pid 4121)": label or program; "" if unknown.
func (p Process) String() string {
	if p == (Process{}) {
		return ""
	}
	who := p.Label
	if who == "" {
		who = p.Program
	}
	return who + "@" + p.Host + " (pid " + strconv.Itoa(p.PID) + ")"
}
