package locktest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// NewRedLock is a RedLock on the nodes of some clients.
func NewRedLock(t testing.TB, name string, clients []*rlock.Client, opts ...rlock.RedLockOption) *rlock.RedLock {
	t.Helper()
	l, err := rlock.NewRedLock(name, clients, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// DialOnce makes a dial fail immediately if no server is there. A request that waits in go-redis
// for the next dial could outlast two kills of a node, and with them its tombstone.
func DialOnce(o *redis.Options) { o.DialerRetries = 1 }

var (
	// RedLockLease is the watchdog lease of tests that wait for renewals and losses,
	// and RedLockTimeout the longest node timeout that goes with it: a busy machine
	// answers within it.
	RedLockLease   = Ample(9 * time.Second)
	RedLockTimeout = RedLockLease / 6
)
