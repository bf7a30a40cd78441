package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// ReadWriteLock is a reentrant lock that any number of readers or one writer can hold, the counterpart
// of Redisson's RReadWriteLock. A writer may read too; a reader that asks to write gets ErrUpgrade.
// Readers and writers alternate, so neither side starves, but Java readers, and readers of clients
// WithReaderPreference, overtake waiting writers. Details:
// https://go-rlock.github.io/rlock/latest/locks/#readwritelock
type ReadWriteLock struct {
	Reader ReadLock  // the shared side
	Writer WriteLock // the exclusive side
}

// ReadLock is the shared side of a read-write lock. Its leases have no token. In a ReadWriteLock
// ForceUnlock does not end the read holds of a writer. Other methods: [Inspection].
type ReadLock struct{ locker }

// WriteLock is the exclusive side of a read-write lock. In a ReadWriteLock ForceUnlock ends the writer's
// read holds too, and ForceUnlockIf does not. Other methods: [Inspection].
type WriteLock struct{ locker }

var (
	_ Locker = ReadLock{}
	_ Locker = WriteLock{}
)

// NewReadWriteLock returns a lock with a shared side (Reader) and an exclusive one (Writer), each a
// [Locker].
func (c *Client) NewReadWriteLock(name string, opts ...ReadWriteLockOption) *ReadWriteLock {
	cfg, err := lockOptions(readWriteConfig{}, opts, ReadWriteLockOption.optionOfNewReadWriteLock)
	read, names := newCore(c, protocol.RWFamily, name, cfg.lockConfig, err)
	read.side = protocol.Shared
	read.proto = protocol.NewReadSide(&read.c.site, names, cfg.readerPreference)
	write, names := newCore(c, protocol.RWFamily, name, cfg.lockConfig, err)
	write.proto = protocol.NewWriteSide(&write.c.site, names, cfg.readerPreference)
	return &ReadWriteLock{ReadLock{newLocker(read)}, WriteLock{newLocker(write)}}
}

// Name is the name of both sides, with the prefix of the client.
func (l *ReadWriteLock) Name() string {
	if l == nil {
		return ""
	}
	return l.Reader.Name()
}

type readWriteOption func(c *readWriteConfig)

func (o readWriteOption) optionOfNewReadWriteLock(c *readWriteConfig) { o(c) }

// WithReaderPreference lets readers enter whenever others read, as in Redisson: writers may starve. It is
// off by default. All clients of a lock must use it, or none.
func WithReaderPreference() ReadWriteLockOption {
	return readWriteOption(func(c *readWriteConfig) { c.readerPreference = true })
}
