package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

func queue(n int) <-chan int {
	jobs := make(chan int, n)
	for job := range n {
		jobs <- job
	}
	close(jobs)
	return jobs
}

func TestNoMoreThanThePermitsAreAtWork(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var inside, most, done atomic.Int32
	call := func(context.Context, int) error {
		n := inside.Add(1)
		defer inside.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		done.Add(1)
		return nil
	}
	var all sync.WaitGroup
	for range 3 {
		client := srv.NewClient()
		all.Go(func() {
			if err := work(t.Context(), io.Discard, client, queue(20), call); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if done.Load() != 60 || most.Load() > permits {
		t.Errorf("%d of 60 jobs are done, %d at once", done.Load(), most.Load())
	}
}

func TestLostPermitEndsTheWork(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	err := work(t.Context(), io.Discard, srv.Client(), queue(1), func(ctx context.Context, _ int) error {
		srv.Remove("partner-api")
		return context.Cause(ctx)
	})
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Error(err)
	}
}

func TestFailedJobEndsTheOthers(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var inside atomic.Int32
	err := work(t.Context(), io.Discard, srv.Client(), queue(9), func(ctx context.Context, _ int) error {
		if inside.Add(1) == permits { // the last that gets one fails; the others are at work
			return io.ErrUnexpectedEOF
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// The program itself, to its end.
func TestProgramEnds(_ *testing.T) { main() }
