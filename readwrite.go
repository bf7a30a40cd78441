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
// lease is unlocked first, it reads on, and other readers come in. A reader
// cannot become a writer: it would wait for itself, and two of them for each
// other; such an acquire fails with ErrUpgrade and sends nothing.
//
// Each reader has a lease of its own, by Redis's clock too: one that dies is out
// when its lease is over, whatever others do. A writer that dies is out when its
// lease is over, and those of what it read.
//
// Who waits is not in order. Readers come in while others read, so without a
// pause between them no writer gets in, as in Java: see WithWriterPreference.
// When the lock becomes readable all waiting readers of a client come in at
// once.
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
	read := newCore(c, family, name, opts, optWriterPreference)
	read.side, read.kept = shared, true
	read.protocol = readSide{rwSide{plain{read}}}

	write := newCore(c, family, name, opts, optWriterPreference)
	write.standing = write.opts.writerPreference
	write.protocol = writeSide{rwSide{plain{write}}}
	return &ReadWriteLock{ReadLock{read}, WriteLock{write}}
}

// Name is the name of the lock, with the client's prefix.
func (l *ReadWriteLock) Name() string { return l.Reader.Name() }

const optWriterPreference = "WithWriterPreference"

// WithWriterPreference makes readers wait while a writer waits in Lock, so that
// writers are not starved by readers that follow each other without a pause. It
// is an option of a ReadWriteLock. By default readers come in while others read,
// as in Java. Between two writers the waiting readers have a chance; a writer's
// TryLock holds nobody back.
//
// All clients of the lock must use it: readers without it, those of Java among
// them, pass waiting writers by. Exclusion does not depend on it.
//
// A waiting writer shows itself in Redis and refreshes that each third of
// WithWaiterLease. One that dies, or is cut off from Redis, keeps new readers
// out for at most one waiter lease.
//
// An owner that reads or writes may read on whoever waits. But an owner that
// reads, and waits for another owner that wants to begin to read, waits for a
// writer that waits for it: like a sync.RWMutex, the lock is not for that.
func WithWriterPreference() LockOption {
	return func(c *lockConfig) {
		c.writerPreference = true
		c.special = append(c.special, optWriterPreference)
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

// withWriters adds the waiting writers to the keys if they are preferred.
func (p rwSide) withWriters(keys ...string) []string {
	if p.opts.writerPreference {
		keys = append(keys, suffixed(p.name, "rlock:writers"))
	}
	return keys
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
	return &request{
		script: p.script("rw_read_enter"),
		keys:   p.withWriters(p.keys.lock, p.tombstone(a.stay), p.timer(a.stay, 1)),
		args:   p.args(a.stay, a.opts.lease.Milliseconds(), under),
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
	return p.quit("rw_read_abandon", late, stay)
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

func (p writeSide) enter(a *attempt, wait bool) *request {
	place := int64(0)
	if wait {
		place = p.c.cfg.waiterLease.Milliseconds()
	}
	return &request{
		script: p.script("rw_write_enter"),
		keys:   p.withWriters(p.keys.lock, p.keys.clock, p.tombstone(a.stay)),
		args:   p.args(a.stay, a.opts.lease.Milliseconds(), place),
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
	return p.quit("rw_write_abandon", late, stay, p.withWriters()...)
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
