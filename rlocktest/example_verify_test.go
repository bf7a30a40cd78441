package rlocktest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// counted is a lock of yours: a wrapper that counts the acquires under way.
type counted struct {
	rlock.Locker
	underWay *atomic.Int64
}

// The mistake to find would be an option or a context that is not passed on.
func (c counted) Lock(ctx context.Context,
	opts ...rlock.AcquireOption) (*rlock.Lease, error) {

	c.underWay.Add(1)
	defer c.underWay.Add(-1)
	return c.Locker.Lock(ctx, opts...)
}

func TestCountedLockIsALock(t *testing.T) {
	var underWay atomic.Int64
	rlocktest.Verify(t, func(s *rlocktest.Server, name string) counted {
		process := s.NewClient()
		return counted{process.NewLock(name), &underWay}
	})
}
