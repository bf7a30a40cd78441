package accounts

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/go-rlock/rlock"
	after "github.com/go-rlock/rlock/bench/migrating/etcd/after"
	before "github.com/go-rlock/rlock/bench/migrating/etcd/before"
	"github.com/go-rlock/rlock/internal/redistest"
)

const patience = time.Minute

func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = t.TempDir(), "fatal"
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = free, free
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(patience):
		t.Fatal("etcd does not start")
	}
	client := v3client.New(e.Server)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type job func(ctx context.Context, work func(context.Context) error) error

// Both programs pass the same test, and one with both locks excludes old ones and new ones.
func TestMove(t *testing.T) {
	etcd, addr := startEtcd(t), redistest.Start(t).Addr()
	ours := func() *rlock.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		c, err := rlock.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	one, two := ours(), ours()
	under := func(c *rlock.Client) (old, both, now job) {
		return func(ctx context.Context, work func(context.Context) error) error {
				return before.Move(ctx, etcd, "7", work)
			},
			func(ctx context.Context, work func(context.Context) error) error {
				return Move(ctx, c, etcd, "7", work)
			},
			func(ctx context.Context, work func(context.Context) error) error {
				return after.Move(ctx, c, "7", work)
			}
	}
	old, both1, new1 := under(one)
	_, both2, new2 := under(two)
	for name, jobs := range map[string][]job{
		"before": {old, old, old}, "after": {new1, new1, new2},
		"old and both": {old, both1, both2, old}, "both and new": {both1, new1, new2, both2},
	} {
		t.Run(name, func(t *testing.T) { exclude(t, jobs) })
	}
	t.Run("a loss of etcd's lock ends the work", func(t *testing.T) {
		err := both1(t.Context(), func(inside context.Context) error {
			leases, err := etcd.Leases(t.Context())
			if err != nil || len(leases.Leases) != 1 {
				t.Fatal(leases, err)
			}
			if _, err := etcd.Revoke(t.Context(), leases.Leases[0].ID); err != nil {
				t.Fatal(err)
			}
			select {
			case <-inside.Done():
			case <-time.After(patience):
				t.Error("the work did not hear of the loss")
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func exclude(t *testing.T, jobs []job) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	var inside, total atomic.Int64
	for _, do := range jobs {
		all.Go(func() {
			for range 5 {
				if err := do(ctx, func(context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two at once")
					}
					time.Sleep(2 * time.Millisecond) // time for others to come in
					inside.Add(-1)
					total.Add(1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if total.Load() != int64(5*len(jobs)) {
		t.Error("done", total.Load())
	}
}
