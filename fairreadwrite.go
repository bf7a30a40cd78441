package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// FairReadWriteLock is a read-write lock that serves its waiters in request order,
// readers and writers, from whatever process. A writer waits for all who came before it;
// a reader only for the nearest writer before it. So readers that came one after the
// other are inside together, and neither side can starve the other: a reader does not
// overtake a waiting writer. What a reader calls must therefore get its context
// (Lease.Context): as a new owner it would wait for the writer, and the writer for the
// reader.
//
// Redisson has no such lock. Its keys are rlock's own, and it does not exclude another
// type of lock of the same name. While such a lock is held, Lock and TryLock fail with
// ErrForeignKey, but the other type does not look here: to change the type of a lock in
// use, change its name.
//
// The order is that of arrival in Redis, across clients and a failover that keeps the
// data. Each waiter has a place of its own in the queue, looks each third of a waiter
// lease (WithWaiterLease), and is told by name, on a channel of its client, when it can
// enter.
// A waiter that Redis did not hear from for a waiter lease loses its place; if Redis
// heard from none, because it was away for less than a minute, all keep theirs. After a
// loss of the data the waiters queue again as they look.
type FairReadWriteLock struct {
	Reader ReadLock  // the shared side: owners of either side enter it again before waiting writers
	Writer WriteLock // the exclusive side: ErrUpgrade for an owner of the shared side only
}

// NewFairReadWriteLock returns the lock of a name: see [Client.NewLock].
func (c *Client) NewFairReadWriteLock(name string, opts ...FairReadWriteLockOption) *FairReadWriteLock {
	cfg, err := lockOptions(opts, FairReadWriteLockOption.fairReadWriteLock)
	read, names := newCore(c, fairRWFamily, name, cfg, err)
	read.side = shared
	read.asks = protocol.NewFairReadSide(&read.c.site, names)
	write, names := newCore(c, fairRWFamily, name, cfg, err)
	write.asks = protocol.NewFairWriteSide(&write.c.site, names)
	return &FairReadWriteLock{ReadLock{read}, WriteLock{write}}
}

func (l *FairReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}
