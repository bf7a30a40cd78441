// Package queues shows how waiters wait for each other: what the locks promise that keep them
// in Redis (FairLock, FairReadWriteLock, PriorityLock), such as order, places, expiry, dead
// waiters and lost replies; and in files readwrite_*, how the readers and writers of a
// ReadWriteLock do, also with Redisson's, and what lost replies and dead readers do.
package queues

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
