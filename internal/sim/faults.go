package sim

import (
	"fmt"
	"time"
)

// Kind is a fault that a schedule can have.
type Kind string

const (
	Pause     Kind = "pause"     // a process stops
	Partition Kind = "partition" // a host reaches no server, or with several servers perhaps just one not
	Slow      Kind = "slow"      // a hundred times the latency
	Reset     Kind = "reset"     // all connections of a host break
	Restart   Kind = "restart"   // a server restarts and keeps its data
	Lose      Kind = "lose"      // a server restarts without its data, as after a failover to an empty replica
	Freeze    Kind = "freeze"    // a server takes no requests for a while, and runs them afterwards
	Jump      Kind = "jump"      // the clock of a server is set wrong, or right again
)

// Mix is a choice of faults. One that is in it twice comes twice as often.
type Mix []Kind

var (
	// Network has the faults that a lock must survive without any violation.
	Network = Mix{Partition, Slow, Reset, Restart, Freeze}
	// Everything adds those against which a lease alone cannot help: after a
	// pause a holder may act late, after a loss there may be two holders.
	Everything = Mix{Pause, Partition, Slow, Reset, Restart, Lose, Freeze}
)

// Fault is one entry of a schedule.
type Fault struct {
	After  time.Duration // since the previous entry
	Kind   Kind
	Host   int           // index, in the order in which hosts were added, modulo their number
	Server int           // servers that are hit; AllServers only for Partition
	For    time.Duration // of a Jump: by how much the clock is ahead of the others
}

// AllServers as Fault.Server cuts a host off from everything.
const AllServers = -1

func (f Fault) String() string {
	return fmt.Sprintf("+%v %s host %d server %d for %v", f.After, f.Kind, f.Host, f.Server, f.For)
}

// Schedule draws n faults from the seed, spread over about span. It only
// returns them: a test that fails can print the list, or play parts of it.
func (w *World) Schedule(m Mix, n int, span time.Duration) []Fault {
	r := w.Rand("nemesis")
	var fs []Fault
	for range n {
		if len(m) == 0 {
			break
		}
		f := Fault{
			After:  time.Duration(r.Int64N(max(1, 2*int64(span)/int64(n)))),
			Kind:   m[r.IntN(len(m))],
			Host:   r.IntN(1 << 16),
			Server: r.IntN(len(w.servers)),
			For:    time.Duration(r.Int64N(int64(4 * time.Second))),
		}
		if f.Kind == Partition && (len(w.servers) == 1 || r.IntN(2) == 0) {
			f.Server = AllServers
		}
		switch f.Kind {
		case Restart, Lose, Freeze: // they hit everybody
			f.For /= 4
		case Jump:
			f.For = 2*f.For - 4*time.Second
			if r.IntN(3) == 0 {
				f.For = 0
			}
		}
		fs = append(fs, f)
	}
	return fs
}

// Play makes the faults happen, each when its time has come. It returns with
// the last; [World.Heal] waits until they are over.
func (w *World) Play(fs []Fault) {
	for _, f := range fs {
		time.Sleep(f.After)
		w.Inject(f)
	}
}

// Inject makes one fault happen now.
func (w *World) Inject(f Fault) {
	w.mu.Lock()
	h := w.hosts[f.Host%len(w.hosts)]
	w.mu.Unlock()
	server := max(0, f.Server) % len(w.servers)
	switch f.Kind {
	case Pause:
		h.Pause(f.For)
	case Partition:
		if f.Server == AllServers {
			h.Partition(f.For)
		} else {
			h.PartitionFrom(server, f.For)
		}
	case Slow:
		h.Slow(f.For)
	case Reset:
		h.Reset()
	case Restart:
		w.Restart(server, f.For, false)
	case Lose:
		w.Restart(server, f.For, true)
	case Freeze:
		w.Freeze(server, f.For)
	case Jump:
		w.Jump(server, f.For)
	default:
		panic("sim: unknown fault " + f.Kind)
	}
}

// Restart takes a server down for d. Its connections break, its scripts are
// forgotten, and with lose so are its keys. Keys that stay go on expiring.
func (w *World) Restart(i int, d time.Duration, lose bool) {
	s := w.servers[i]
	w.count(func(st *Stats) {
		st.Restarts++
		if lose {
			st.Losses++
			w.lost = time.Now()
		}
	})
	s.until(&s.down, d)
	now := time.Now()
	for _, l := range w.established() {
		if l.server == s {
			l.reset(now, true)
		}
	}
	if lose {
		s.redis.FlushAll()
	}
	s.mu.Lock()
	s.process++
	s.mu.Unlock()
	s.run("SCRIPT", "FLUSH")
}

// Freeze keeps a server from taking requests for d, as a slow disk or a fork
// does. Its clock goes on, so keys expire meanwhile, and the requests run
// afterwards, when their callers may be gone.
func (w *World) Freeze(i int, d time.Duration) {
	w.count(func(st *Stats) { st.Freezes++ })
	s := w.servers[i]
	s.until(&s.frozen, d)
}

// Jump sets the clock of a server ahead of the others', or behind if ahead is
// negative. Keys with a TTL are nearer to their end, or farther from it, by as
// much as the clock has jumped.
func (w *World) Jump(i int, ahead time.Duration) {
	s := w.servers[i]
	s.mu.Lock()
	by := ahead - s.ahead
	s.ahead = ahead
	s.mu.Unlock()
	w.count(func(st *Stats) {
		st.Jumps++
		if by > 0 {
			st.Leaps++
			w.lost = time.Now()
		}
	})
	s.redis.FastForward(by)
}
