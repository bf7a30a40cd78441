package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// ReadWriteLock is a reentrant lock that any number of readers or one writer can hold,
// the counterpart of Redisson's RReadWriteLock. Its two sides are Lockers. They are
// fields, not methods, so that a statement which only names one does not compile.
//
// An owner may enter each side again. A writer may read too: an acquire of the read side
// with the context of its write lease is granted at once. If the write lease is unlocked
// first, the read hold continues, and other readers come in. Goroutines below one write
// lease have a read hold each. A reader cannot become a writer, because it would wait
// for itself, and two of them for each other: an acquire of the write side with the
// context of a read lease fails with ErrUpgrade and sends nothing.
//
// Each reader has a lease of its own in Redis too: a reader that dies is out when its
// lease is over, whatever others do. A writer that dies is out when its lease is over,
// and so are its read holds.
//
// Readers and writers alternate, as with a sync.RWMutex: new readers wait while a writer
// waits in Lock, and when a writer leaves, the waiting readers come in together before
// the next writer. So neither side starves the other. There is no other order among
// clients, and a TryLock keeps nobody out; for request order there is FairReadWriteLock.
// An owner that reads or writes may always read again. But a reader that waits for
// another owner which is about to read waits for a writer that waits for it: hand on the
// context.
//
// One reader and one writer of each client register their wait in Redis, and renew it
// each third of WithWaiterLease. One that dies, or is cut off from Redis, keeps the
// other side out for at most one waiter lease.
//
// Java readers come in while others read, before waiting writers. A Java writer neither
// lets waiting readers go first nor keeps any out. Exclusion does not depend on it. With
// a watchdog lease above 90 seconds, a Java reader that dies after a renewal may cost
// other readers their lock before its time (ErrRemoved, ErrTakenOver): see
// docs/redisson.md. Readers have keys of their own in Redis: an eviction policy that may
// remove them (volatile-*, allkeys-*) can end a hold, as with any lock.
type ReadWriteLock struct {
	Reader ReadLock  // the shared side
	Writer WriteLock // the exclusive side
}

// ReadLock is the shared side of a [ReadWriteLock] or [FairReadWriteLock]. Its leases
// have no fencing token: Token is 0. ForceUnlock ends all read holds; but while a writer
// holds a ReadWriteLock, its read holds end only with ForceUnlockIf, or with the write
// hold.
type ReadLock struct{ *core }

// WriteLock is the exclusive side of a [ReadWriteLock] or [FairReadWriteLock].
// ForceUnlock ends the write hold, and in a ReadWriteLock the writer's read holds too.
// ForceUnlockIf ends the write hold only.
type WriteLock struct{ *core }

var (
	_ Locker = ReadLock{}
	_ Locker = WriteLock{}
)

// NewReadWriteLock returns the read-write lock of a name: see [Client.NewLock]. Its options
// are those of both sides. It waits where another type holds the name.
func (c *Client) NewReadWriteLock(name string, opts ...ReadWriteLockOption) *ReadWriteLock {
	var cfg readWriteConfig
	err := applyEach(opts, func(o ReadWriteLockOption) { o.readWriteLock(&cfg) })
	read, names := newCore(c, rwFamily, name, cfg.lockConfig, err)
	read.side = shared
	read.asks = protocol.NewReadSide(&read.c.site, names, cfg.readerPreference)
	write, names := newCore(c, rwFamily, name, cfg.lockConfig, err)
	write.asks = protocol.NewWriteSide(&write.c.site, names, cfg.readerPreference)
	return &ReadWriteLock{ReadLock{read}, WriteLock{write}}
}

func (l *ReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}

type readWriteOption func(c *readWriteConfig)

func (o readWriteOption) readWriteLock(c *readWriteConfig) { o(c) }

// WithReaderPreference lets readers come in whenever others read, whoever waits, and
// registers no wait in Redis, as Redisson does. It is for locks that are written rarely
// or read briefly, so that there are pauses between readers: without pauses no writer
// ever gets in, and writers that follow each other may starve readers. All clients of a
// lock must use it or none: those with it overtake those that wait without it, as Java's
// do. Exclusion does not depend on it.
func WithReaderPreference() ReadWriteLockOption {
	return readWriteOption(func(c *readWriteConfig) { c.readerPreference = true })
}
