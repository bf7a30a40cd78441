package rlock

import "time"

// BackoffPause is how long a waiter sleeps after a look.
func BackoffPause(b Backoff, seed uint64, who int64, look int) time.Duration {
	return b.pause(seed, who, look)
}
