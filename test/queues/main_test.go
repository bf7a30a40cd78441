// Package queues shows what the locks promise that keep their waiters in Redis (FairLock,
// FairReadWriteLock, PriorityLock): order, places, expiry, dead waiters, lost replies.
package queues

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
