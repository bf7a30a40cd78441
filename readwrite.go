package rlock

import "github.com/go-rlock/rlock/internal/protocol"

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
func (c *Client) NewReadWriteLock(name string, opts ...ReadWriteLockOption) *ReadWriteLock {
	const family = "rwlock"
	var cfg readWriteConfig
	err := applyEach(opts, func(o ReadWriteLockOption) { o.readWriteLock(&cfg) })
	read, names := newCore(c, family, name, cfg.lockConfig, err)
	read.side = shared
	read.asks = protocol.NewReadSide(&read.c.site, names, cfg.readerPreference)
	write, names := newCore(c, family, name, cfg.lockConfig, err)
	write.asks = protocol.NewWriteSide(&write.c.site, names, cfg.readerPreference)
	return &ReadWriteLock{ReadLock{read}, WriteLock{write}}
}

// Name is the name of the lock, with the client's prefix.
func (l *ReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}

type readWriteOption func(c *readWriteConfig)

func (o readWriteOption) readWriteLock(c *readWriteConfig) { o(c) }

// WithReaderPreference lets readers come in whenever others read, whoever waits,
// and nobody shows in Redis that he waits: this is what Redisson does. It is an
// option of a ReadWriteLock, for locks that are written so rarely, or so briefly
// read, that there are pauses between readers. Without pauses no writer ever gets
// in, and readers may be starved by writers that follow each other.
//
// It is for all clients of a lock or for none: those with it pass by those that
// wait without it, as Java's do. Exclusion does not depend on it.
func WithReaderPreference() ReadWriteLockOption {
	return readWriteOption(func(c *readWriteConfig) { c.readerPreference = true })
}
