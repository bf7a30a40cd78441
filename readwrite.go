package rlock

import (
	"strconv"
	"strings"
	"time"
)

// ReadWriteLock is a reentrant lock that any number of readers or one writer
// can hold, the counterpart of Redisson's RReadWriteLock. Its two sides are
// Lockers.
//
// An owner may enter each side again. A writer may read too: a Lock of the read
// side with the context of its write lease is let in at once, and if the write
// lease is unlocked first, it reads on, and other readers come in. Goroutines below
// one write lease have a read hold each. A reader cannot become a writer: it would
// wait for itself, and two of them for each other; an acquire of the write side with
// the context of a read lease fails with ErrUpgrade and sends nothing.
//
// Each reader has a lease of its own, by Redis's clock too: one that dies is out
// when its lease is over, whatever others do. A writer that dies is out when its
// lease is over, and those of what it read.
//
// Readers and writers take turns, as with a sync.RWMutex: new readers wait while
// a writer waits in Lock, and when a writer leaves, the readers that wait come in
// together before the next writer. So neither side starves the other. There is no
// other order among clients, and a TryLock keeps nobody out; for first come, first
// served there is FairReadWriteLock. An owner that reads or writes may read on
// whoever waits. But an owner that reads, and waits for another owner that wants
// to begin to read, waits for a writer that waits for it: hand on the context.
//
// Who waits shows itself in Redis, one reader and one writer of each client, and
// refreshes that each third of WithWaiterLease. One that dies, or is cut off from
// Redis, keeps the other side out for at most one waiter lease.
//
// Readers in Java do not know of that: they come in while others read, and pass
// writers by that wait, in Go as in Java. A Java writer does not let waiting readers
// go first, neither does it keep any out. Exclusion does not depend on it.
//
// Beside Java clients this holds too, with one limit: a renewal of a Java reader
// cuts the time of the lock to 30 seconds, whatever others were promised. Readers
// of this package put that right each third of the watchdog lease. With a
// watchdog lease above 90 seconds, should the Java process die after such a
// renewal, a reader may lose the lock (with ErrRemoved or ErrTakenOver) before its
// lease is over. A Java thread that has begun to wait, but does not sleep yet, misses
// the message of a writer that leaves, and comes in with its timer.
//
// Readers are keys of their own in Redis beside the lock: an eviction policy that
// may remove them (volatile-*, allkeys-*) can end a hold, as with any lock.
//
// The sides are fields, not methods: naming one acquires nothing, and a statement that
// only names one does not compile.
type ReadWriteLock struct {
	Reader ReadLock  // the shared side
	Writer WriteLock // the exclusive side
}

// ReadLock is the shared side of a [ReadWriteLock] or [FairReadWriteLock]. Its
// leases have no fencing token: Token is 0. ForceUnlock ends all read holds. Not so
// in a ReadWriteLock that a writer holds: what a writer reads can be ended there by
// its owner's id only, or with the write hold.
type ReadLock struct{ *core }

// WriteLock is the exclusive side of a [ReadWriteLock] or [FairReadWriteLock].
// ForceUnlock ends the write hold; in a ReadWriteLock, what the writer reads too.
// ForceUnlockIf ends the write hold only.
type WriteLock struct{ *core }

var (
	_ Locker = ReadLock{}
	_ Locker = WriteLock{}
)

// NewReadWriteLock returns the read-write lock of a name. What NewLock says of
// names holds here too. The options are those of both sides. A name is either
// that of a read-write lock or of another: where another type of lock stands,
// this one waits until it is free.
func (c *Client) NewReadWriteLock(name string, opts ...LockOption) *ReadWriteLock {
	const family = "rwlock"
	read := newCore(c, family, name, opts, optReaderPreference)
	read.side, read.kept = shared, true
	read.standing = !read.opts.readerPreference
	read.protocol = readSide{rwSide{plain{read}}}

	write := newCore(c, family, name, opts, optReaderPreference)
	write.standing = !write.opts.readerPreference
	write.protocol = writeSide{rwSide{plain{write}}}
	return &ReadWriteLock{ReadLock{read}, WriteLock{write}}
}

// Name is the name of the lock, with the client's prefix.
func (l *ReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}

const optReaderPreference = "WithReaderPreference"

// WithReaderPreference lets readers come in whenever others read, whoever waits,
// and nobody shows in Redis that he waits: this is what Redisson does. It is an
// option of a ReadWriteLock, for locks that are written so rarely, or so briefly
// read, that there are pauses between readers. Without pauses no writer ever gets
// in, and readers may be starved by writers that follow each other.
//
// It is for all clients of a lock or for none: those with it pass by those that
// wait without it, as Java's do. Exclusion does not depend on it.
func WithReaderPreference() LockOption {
	return func(c *lockConfig) {
		c.readerPreference = true
		c.special = append(c.special, optReaderPreference)
	}
}

// rwSide is what the protocols of both sides have in common. The scripts make
// up the names of readers' timers, which share the slot of the lock. Those
// without which a request must not run are declared too, so that a cluster
// that moves the slot has it wait.
type rwSide struct{ plain }

// args are the arguments that all scripts of a read-write lock begin with.
func (p rwSide) args(stay string, more ...any) []any {
	return append([]any{stay, suffixed(p.name, "")}, more...)
}

// leaving are the arguments of the scripts that may free the lock.
func (p rwSide) leaving(stay string, more ...any) []any {
	return append(p.args(stay, p.channel(stay), p.announce()), more...)
}

// turns are the keys of those who wait, by what they are called in
// scripts/shared/rw_turns.lua; none if readers are preferred.
func (p rwSide) turns(zsets ...string) (keys []string) {
	if p.opts.readerPreference {
		return nil
	}
	for _, zset := range zsets {
		keys = append(keys, suffixed(p.name, "rlock:"+zset))
	}
	return keys
}

// place is for how long a look of an attempt keeps its place among those who
// wait, ms; and 1 if it may have one from an earlier look.
func (p rwSide) place(a *attempt) (ms int64, had int) {
	if a.leads && !p.opts.readerPreference && a.under == nil {
		ms = p.c.cfg.waiterLease.Milliseconds()
	}
	if a.stands {
		had = 1
	}
	return ms, had
}

func (p rwSide) channel(string) string { return prefixed("redisson_rwlock", p.name) }

// tombstone is that of one side of a stay: the two may end at different times.
func (p rwSide) tombstone(stay string) string {
	if p.side == exclusive {
		stay += ":write"
	}
	return p.keys.tombstone(stay)
}

func (p rwSide) quit(script string, late bool, stay string, keys ...string) *request {
	ttl := int64(0)
	if late {
		ttl = tombstoneTTL.Milliseconds()
	}
	return &request{
		script: p.script(script),
		keys:   append([]string{p.keys.lock, p.tombstone(stay)}, keys...),
		args:   p.leaving(stay, ttl),
		ends:   true,
	}
}

func (p rwSide) force(side, owner string) *request {
	return &request{
		script: p.script("rw_force_unlock"),
		keys:   []string{p.keys.lock},
		args:   p.leaving(owner, side),
		single: owner == "",
	}
}

func (p rwSide) inspect() *request {
	return &request{script: p.script("rw_inspect"), keys: []string{p.keys.lock}, args: p.args("")}
}

func (p rwSide) probe(stay string) *request {
	side := "write"
	if p.side == shared {
		side = "read"
	}
	return &request{script: p.script("rw_probe"), keys: []string{p.keys.lock}, args: p.args(stay, side)}
}

func (p rwSide) state(reply []any) (State, error) {
	var s State
	for _, on := range []side{exclusive, shared} {
		s.Waiters += p.c.queues.waiting(lineKey{lock: p.id, side: on})
	}
	ttl, _, fields, err := stateReply(reply)
	if err != nil {
		return s, err
	}
	s.TTL = ttl
	mode := ""
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "mode" {
			mode, _ = fields[i+1].(string)
		}
	}
	for len(fields) > 0 {
		if fields[0] == "mode" {
			fields = fields[2:]
			continue
		}
		var h Holder
		if h, fields, err = nextHolder(fields); err != nil {
			return s, err
		}
		// Another type's holds have no mode: they shut out everybody. The field
		// of a Java transaction goes on after ":write".
		owner, rest, writes := strings.Cut(h.Owner, ":write")
		writes = writes && mode == "write" && (rest == "" || rest[0] == ':')
		if writes {
			h.Owner = owner + rest
		}
		h.Shared = mode != "" && !writes
		s.Holders = append(s.Holders, h)
	}
	return s, nil
}

// readSide is the protocol of the shared side.
type readSide struct{ rwSide }

// timer is the key that lives as long as the n-th entry of a stay.
func (p readSide) timer(stay string, n int) string {
	return suffixed(p.name, stay+":rwlock_timeout:"+strconv.Itoa(n))
}

func (p readSide) enter(a *attempt, _ bool) *request {
	under := ""
	if a.under != nil {
		under = a.under.stay
	}
	round := ""
	if a.round != noRound {
		round = strconv.FormatInt(a.round, 10)
	}
	place, had := p.place(a)
	return &request{
		script: p.script("rw_read_enter"),
		keys: append([]string{p.keys.lock, p.tombstone(a.stay), p.timer(a.stay, 1)},
			p.turns("writers", "readers", "admitted")...),
		args: p.args(a.stay, a.opts.lease.Milliseconds(), under, place, round, had),
	}
}

func (p readSide) reenter(stay string, lease time.Duration, n int) *request {
	return &request{
		script: p.script("rw_read_reenter"),
		keys:   []string{p.keys.lock, p.timer(stay, 1), p.timer(stay, n)},
		args:   p.args(stay, lease.Milliseconds(), n),
	}
}

func (p readSide) release(stay string, n int) *request {
	return &request{
		script: p.script("rw_read_release"),
		keys:   []string{p.keys.lock},
		args:   p.leaving(stay, n),
		ends:   n == 0,
	}
}

func (p readSide) abandon(stay string, late bool) *request {
	return p.quit("rw_read_abandon", late, stay, p.turns("readers", "admitted")...)
}

func (p readSide) renew(stay string, lease time.Duration) *request {
	return &request{
		script: p.script("rw_read_renew"),
		keys:   []string{p.keys.lock, p.timer(stay, 1)},
		args:   p.args(stay, lease.Milliseconds()),
		lease:  lease,
	}
}

func (p readSide) forceUnlock(owner string) *request { return p.force("read", owner) }

// writeSide is the protocol of the exclusive side.
type writeSide struct{ rwSide }

func (p writeSide) enter(a *attempt, _ bool) *request {
	place, had := p.place(a)
	return &request{
		script: p.script("rw_write_enter"),
		keys: append([]string{p.keys.lock, p.keys.clock, p.tombstone(a.stay)},
			p.turns("writers", "admitted")...),
		args: p.args(a.stay, a.opts.lease.Milliseconds(), place, had),
	}
}

func (p writeSide) reenter(stay string, lease time.Duration, n int) *request {
	return &request{
		script: p.script("rw_write_reenter"),
		keys:   []string{p.keys.lock},
		args:   p.args(stay, lease.Milliseconds(), n),
	}
}

func (p writeSide) release(stay string, n int) *request {
	return &request{
		script: p.script("rw_write_release"),
		keys:   []string{p.keys.lock},
		args:   p.leaving(stay, n),
		ends:   n == 0,
	}
}

func (p writeSide) abandon(stay string, late bool) *request {
	return p.quit("rw_write_abandon", late, stay, p.turns("writers")...)
}

func (p writeSide) renew(stay string, lease time.Duration) *request {
	return &request{
		script: p.script("rw_write_renew"),
		keys:   []string{p.keys.lock},
		args:   p.args(stay, lease.Milliseconds()),
		lease:  lease,
	}
}

func (p writeSide) forceUnlock(owner string) *request { return p.force("write", owner) }
