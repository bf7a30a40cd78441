package rlockgocron

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-rlock/rlock"
)

// ErrNotLeader: another scheduler leads, or nobody does for the moment. gocron skips the job.
var ErrNotLeader = errors.New("rlockgocron: this scheduler does not lead")

// Elector is a gocron.Elector on an rlock.Election: one scheduler of the fleet runs all jobs.
//
// It is the weaker choice. When the leadership passes to a scheduler whose clock is behind, a tick may run on both; one
// that falls between two leaders runs nowhere: for up to 30 s after a crash. A [Job] has neither. With an Elector
// gocron asks no Locker.
type Elector struct {
	election *rlock.Election
	value    string

	mu    sync.Mutex // guards lease
	lease *rlock.Lease
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns the elector of an election, for gocron.WithDistributedElector. The value is what others read of the leader,
// such as an address. It campaigns while [Elector.Run] runs.
func NewElector(election *rlock.Election, value string) (*Elector, error) {
	if election == nil {
		return nil, fmt.Errorf("rlockgocron: %w: the election is nil", rlock.ErrInvalidArgument)
	}
	return &Elector{election: election, value: value}, nil
}

// Run campaigns, and leads, until ctx ends; then it resigns, and another leads immediately. It returns the errors of Run of an
// rlock.Election. End the scheduler first (its Shutdown waits for the jobs), and then ctx.
func (e *Elector) Run(ctx context.Context) error {
	return e.election.Run(ctx, e.value, func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		e.set(lease)
		defer e.set(nil)
		<-ctx.Done()
		return ctx.Err()
	})
}

func (e *Elector) set(lease *rlock.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = lease
}

// IsLeader returns nil while this scheduler leads: it looks at the lease, and does not ask Redis. Otherwise the error
// matches [ErrNotLeader].
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	lease := e.lease
	e.mu.Unlock()
	if lease == nil {
		return ErrNotLeader
	}
	if err := lease.Err(); err != nil {
		return errors.Join(ErrNotLeader, err)
	}
	return nil
}
