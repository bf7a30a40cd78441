package main

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// all waits until all of n are inside.
func all(n int) func() <-chan struct{} {
	var inside atomic.Int32
	together := make(chan struct{})
	return func() <-chan struct{} {
		if int(inside.Add(1)) == n {
			close(together)
		}
		return together
	}
}

func TestShardsAreBuiltSideBySide(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	enter := all(3)
	err := rebuild(t.Context(), srv.Client(), 3, func(ctx context.Context, _ int) error {
		select {
		case <-enter():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		t.Error(err)
	}
	if locked, err := srv.Client().NewLock("index").IsLocked(t.Context()); locked || err != nil {
		t.Error(locked, err)
	}
}

func TestLossEndsAllShards(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	enter := all(3)
	var ended atomic.Int32
	err := rebuild(t.Context(), srv.Client(), 3, func(ctx context.Context, shard int) error {
		<-enter()
		if shard == 1 {
			srv.Steal("index")
		}
		<-ctx.Done()
		ended.Add(1)
		return ctx.Err()
	})
	if !errors.Is(err, rlock.ErrLeaseLost) || ended.Load() != 3 {
		t.Errorf("%v; %d of 3 have ended", err, ended.Load())
	}
}

func TestFailedShardEndsTheOthers(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	enter := all(3)
	err := rebuild(t.Context(), srv.Client(), 3, func(ctx context.Context, shard int) error {
		<-enter()
		if shard == 1 {
			return io.ErrUnexpectedEOF
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, rlock.ErrLeaseLost) {
		t.Error(err)
	}
}

func TestOneProcessBuilds(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	srv.Steal("index")
	err := rebuild(t.Context(), srv.Client(), 3, func(context.Context, int) error {
		t.Error("it builds beside another process")
		return nil
	})
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
}

// The program itself, to its end.
func TestProgramEnds(_ *testing.T) { main() }
