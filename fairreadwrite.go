package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// FairReadWriteLock is a read-write lock that serves waiters of both sides in request order, across
// processes, so neither side starves. What a reader calls must get its context: as a new owner it would
// wait for a waiting writer, which waits for the reader. Its keys are rlock's own: if another type holds
// its name, it fails with ErrForeignKey, but that type does not see this lock. Details:
// https://go-rlock.github.io/rlock/latest/locks/#fairreadwritelock
type FairReadWriteLock struct {
	Reader ReadLock  // the shared side: owners of either side enter it again before waiting writers
	Writer WriteLock // the exclusive side: ErrUpgrade for an owner of the shared side only
}

// NewFairReadWriteLock returns a read-write lock that grants in request order.
func (c *Client) NewFairReadWriteLock(name string, opts ...AnyLockOption) *FairReadWriteLock {
	cfg, err := lockOptions(lockConfig{}, opts, AnyLockOption.optionOfAnyLock)
	read, names := newCore(c, protocol.FairRWFamily, name, cfg, err)
	read.side = protocol.Shared
	read.proto = protocol.NewFairReadSide(&read.c.site, names)
	write, names := newCore(c, protocol.FairRWFamily, name, cfg, err)
	write.proto = protocol.NewFairWriteSide(&write.c.site, names)
	return &FairReadWriteLock{ReadLock{newLocker(read)}, WriteLock{newLocker(write)}}
}

// Name is the name of both sides, with the prefix of the client.
func (l *FairReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}
