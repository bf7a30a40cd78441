package protocol

import "time"

// What the lock types are made of.
var _ interface {
	QueuedInRedis() bool
	KeepsPlace() bool
	LongestPause(int64, int) time.Duration
	Hesitation() time.Duration
	GuardsFixedLease() bool
	Margin() time.Duration
	LongestLease() time.Duration
} = everyday{}

var _ Task = (*task)(nil)
var _ = keeps
