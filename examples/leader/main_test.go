package main

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock/rlocktest"
)

func TestOneLeadsAtATimeWithGrowingTokens(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	var leading atomic.Int32
	var mu sync.Mutex // guards tokens
	var tokens []int64
	work := func(_ context.Context, token int64) error {
		if leading.Add(1) != 1 {
			t.Error("two lead")
		}
		defer leading.Add(-1)
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, token)
		return nil
	}
	var all sync.WaitGroup
	for range 4 {
		client := srv.NewClient()
		all.Go(func() {
			if err := serve(t.Context(), io.Discard, client, "here", work); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(tokens) != 4 {
		t.Fatalf("%d of 4 have led", len(tokens))
	}
	for i := range tokens[1:] {
		if tokens[i+1] <= tokens[i] {
			t.Errorf("tokens %v do not grow", tokens)
		}
	}
}

func TestLeaderThatIsDeposedLeadsAgain(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	terms := 0
	err := serve(t.Context(), io.Discard, srv.Client(), "here", func(ctx context.Context, _ int64) error {
		if terms++; terms == 2 {
			return nil
		}
		srv.Remove("scheduler")
		<-ctx.Done() // it has been told
		return ctx.Err()
	})
	if err != nil || terms != 2 {
		t.Errorf("%v after %d terms", err, terms)
	}
}

// The program itself, to its end.
func TestProgramEnds(_ *testing.T) { main() }
