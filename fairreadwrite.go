package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// FairReadWriteLock is a read-write lock that serves its waiters in the order in
// which they came, whatever they want and from whatever process. A writer waits
// for all who came before it; a reader waits for the nearest writer before it
// only. So readers that came one after the other are inside together, and neither
// side can starve the other: a reader does not overtake a writer that waits. What
// a reader calls must therefore get its context (Lease.Context): as a new owner it
// would wait for the writer, and the writer for the reader.
//
// Redisson has no such lock. Its keys are rlock's own: it does not exclude another
// type of lock of the same name. While such a lock is held, Lock and TryLock fail
// with ErrForeignKey. The other type does not look here, so do not change the type
// of a lock that is in use: take another name. (A RedLock and this see nothing of
// each other.)
//
// The order is that of arrival in Redis, and is kept across clients and a
// failover that keeps the data. A waiter that Redis did not hear from for a
// waiter lease (WithWaiterLease) loses its place; if none was heard, since Redis
// was away for less than a minute, all keep theirs. After a loss of the data the
// waiters queue anew, in the order in which they look.
//
// Waiters are each in the queue by themselves: each looks at the lock every third
// of a waiter lease, and has a channel on which it, and nobody else, hears that it
// can enter.
type FairReadWriteLock struct {
	// Reader is the side that any number of owners can hold together, while nobody
	// has the write lock. Its leases have no fencing token: Token is 0.
	//
	// Its owner enters again at once, also before writers that wait; else it would
	// wait for itself. So does the owner of the write lock, whose read hold stays
	// when the write lock is unlocked: other readers come in then, and no writer
	// in between.
	Reader ReadLock

	// Writer is the side that one owner has alone. An owner that has the read lock
	// but not the write lock gets ErrUpgrade: it would wait for itself.
	//
	// ForceUnlock ends the writer's hold, and on the read side those of all readers.
	// The queue stays.
	Writer WriteLock
}

// NewFairReadWriteLock returns the fair read-write lock of a name. It sends
// nothing; what is wrong with the arguments is reported by the first call. Names
// are those of [Client.NewLock].
func (c *Client) NewFairReadWriteLock(name string, opts ...LockOption) *FairReadWriteLock {
	const family = "fairrw"
	cfg, err := lockOptions(opts)
	read, names := newCore(c, family, name, cfg, err)
	read.side = shared
	read.asks = protocol.NewFairReadSide(&read.c.site, names)
	write, names := newCore(c, family, name, cfg, err)
	write.asks = protocol.NewFairWriteSide(&write.c.site, names)
	return &FairReadWriteLock{ReadLock{read}, WriteLock{write}}
}

// Name is the name of the lock, with the client's prefix.
func (l *FairReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}
