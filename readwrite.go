package rlock

import "github.com/go-rlock/rlock/internal/protocol"

// ReadWriteLock is a reentrant lock that any number of readers or one writer can hold, the counterpart
// of Redisson's RReadWriteLock. A writer may read too, with the context of its write lease, and keeps
// that read hold when it unlocks the write lease. A reader that asks to write gets ErrUpgrade.
//
// Readers and writers alternate, so neither side starves the other; there is no other order among
// clients. Java readers, and those of clients WithReaderPreference, overtake waiting writers. A waiter
// that died keeps the other side out for at most a waiter lease. Details: docs/locks.md.
type ReadWriteLock struct {
	Reader ReadLock  // the shared side
	Writer WriteLock // the exclusive side
}

// ReadLock is the shared side of a read-write lock. Its leases have no fencing token: Token is 0.
// ForceUnlock ends all read holds, but in a ReadWriteLock not those of a writer, which end with the
// write hold or ForceUnlockIf.
type ReadLock struct{ *core }

// WriteLock is the exclusive side of a read-write lock. ForceUnlock ends the write hold, and in a
// ReadWriteLock the writer's read holds too. ForceUnlockIf ends the write hold only.
type WriteLock struct{ *core }

var (
	_ Locker = ReadLock{}
	_ Locker = WriteLock{}
)

// NewReadWriteLock returns the lock of a name: see [Client.NewLock].
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

// WithReaderPreference lets readers enter whenever others read, whoever waits, as in Redisson. Without
// pauses between readers no writer ever enters, and writers that follow each other may starve readers.
// All clients of a lock must use it, or none. Exclusion does not depend on it.
func WithReaderPreference() ReadWriteLockOption {
	return readWriteOption(func(c *readWriteConfig) { c.readerPreference = true })
}
