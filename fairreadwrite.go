package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// FairReadWriteLock is a read-write lock that serves waiters of both sides in request order, across
// processes. A writer waits for all who came before it, a reader for the nearest writer before it. So
// neither side starves the other. What a reader calls must get its context: as a new owner it would
// wait for a waiting writer, which waits for the reader.
//
// Its keys are rlock's own. While another type holds its name, acquires fail with ErrForeignKey, but
// that type does not see this lock: to change the type of a lock in use, change its name. A waiter
// keeps its place by reporting each third of the waiter lease ([WithWaiterLease]). Details:
// docs/locks.md.
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
