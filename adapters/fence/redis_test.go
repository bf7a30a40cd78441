package fence_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/fence"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestHSetRefusesALateHolder(t *testing.T) {
	t.Parallel()
	clients := map[string]func(t *testing.T) redis.UniversalClient{
		"server":  func(t *testing.T) redis.UniversalClient { return redistest.Start(t).Client() },
		"cluster": func(t *testing.T) redis.UniversalClient { return redistest.StartCluster(t, 3, 0).Client() },
		"memory":  func(t *testing.T) redis.UniversalClient { return rlocktest.New(t).Redis() },
	}
	for name, open := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := open(t)
			late, next := hold(t, rlocktest.New(t), "a")
			set := func(lease *rlock.Lease, fields map[string]string) error {
				return fence.HSet(t.Context(), rdb, lease, "account:7", fields)
			}
			if err := set(late, map[string]string{"value": "1", "other": "kept"}); err != nil {
				t.Fatal(err)
			}
			if err := set(next, nil); err != nil { // it only closes the fence
				t.Fatal(err)
			}
			var stale *fence.StaleError
			if err := set(late, map[string]string{"value": "2"}); !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Seen != next.Token() {
				t.Errorf("a late write: %v", err)
			}
			for range 2 {
				if err := set(next, map[string]string{"value": "3"}); err != nil {
					t.Fatal(err)
				}
			}
			got := rdb.HGetAll(t.Context(), "account:7").Val()
			delete(got, fence.TokenField)
			if want := map[string]string{"value": "3", "other": "kept"}; !maps.Equal(got, want) {
				t.Errorf("the hash is %v; want %v", got, want)
			}
		})
	}
}

func TestHSetRefusesInvalidArgumentsAndEndedLeases(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	lease := locktest.MustLock(t, srv.Client().NewLock("a"))
	reader := locktest.MustLock(t, srv.Client().NewReadWriteLock("rw").Reader)
	ctx, rdb := t.Context(), srv.Redis()
	for what, err := range map[string]error{
		"no client":       fence.HSet(ctx, nil, lease, "k", nil),
		"no key":          fence.HSet(ctx, rdb, lease, "", nil),
		"the token field": fence.HSet(ctx, rdb, lease, "k", map[string]string{"token": "1"}),
		"a read lock":     fence.HSet(ctx, rdb, reader, "k", nil),
	} {
		if !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := fence.HSet(ended, rdb, lease, "k", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := lease.Unlock(ended); err != nil {
		t.Error(err)
	}
	if err := fence.HSet(ctx, rdb, lease, "k", nil); !errors.Is(err, rlock.ErrUnlocked) {
		t.Errorf("after the unlock: %v", err)
	}
	if n := rdb.Exists(ctx, "k").Val(); n != 0 {
		t.Error("something was written")
	}
}
