package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// overwrite puts something else at the keys that bear holds, and returns which these are.
func overwrite(t *testing.T, rdb redis.UniversalClient) (keys []string) {
	t.Helper()
	for _, key := range locktest.Keys(t, rdb) {
		if kind := rdb.Type(bg, key).Val(); kind == "hash" || kind == "zset" {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		if err := rdb.Set(bg, key, "text", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys) == 0 {
		t.Fatal("nothing is held")
	}
	return keys
}

// A hold whose key was overwritten is gone, and Redis says so: its holder hears of it by the next look, not at the
// end of the lease.
func TestOverwrittenHoldIsLostImmediately(t *testing.T) {
	t.Parallel()
	type kind struct {
		name string
		lock func(t *testing.T, c *rlock.Client) *rlock.Lease
	}
	var kinds []kind
	for _, k := range locktest.Types {
		kinds = append(kinds, kind{k.Name, func(t *testing.T, c *rlock.Client) *rlock.Lease { return locktest.MustLock(t, k.Open(c, "a")) }})
	}
	kinds = append(kinds, kind{"Election", func(t *testing.T, c *rlock.Client) *rlock.Lease {
		lease, err := c.NewElection("a").Campaign(bg, "value")
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}})
	for _, fair := range []bool{false, true} {
		var opts []rlock.PermitSemaphoreOption
		if fair {
			opts = append(opts, rlock.WithFairness())
		}
		kinds = append(kinds, kind{map[bool]string{false: "PermitSemaphore", true: "PermitSemaphore with fairness"}[fair], func(t *testing.T, c *rlock.Client) *rlock.Lease {
			s := c.NewPermitSemaphore("a", opts...)
			if _, err := s.TrySetPermits(bg, 3); err != nil {
				t.Fatal(err)
			}
			lease, err := s.Acquire(bg, 2)
			if err != nil {
				t.Fatal(err)
			}
			return lease
		}})
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			lost := func(t *testing.T, err error) {
				t.Helper()
				locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, rlock.ErrForeignKey,
					nil, rlock.ErrRefused, rlock.ErrUnreachable, rlock.ErrUnconfirmed, rlock.ErrExpired)
			}
			for what, told := range map[string]func(t *testing.T, clock *locktest.Clock, lease *rlock.Lease){
				"renewal": func(t *testing.T, clock *locktest.Clock, lease *rlock.Lease) {
					clock.Forward(25 * time.Minute)
					locktest.Eventually(t, "the lease is lost", func() bool { return lease.Err() != nil })
					lost(t, lease.Err())
					lost(t, lease.Unlock(bg))
				},
				"Extend": func(t *testing.T, _ *locktest.Clock, lease *rlock.Lease) {
					lost(t, lease.Extend(bg, 2*time.Hour))
					lost(t, lease.Err())
				},
				"Unlock": func(t *testing.T, _ *locktest.Clock, lease *rlock.Lease) { lost(t, lease.Unlock(bg)) },
			} {
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
						var clock locktest.Clock
						c := b.NewClient(t, rlock.WithWatchdogLease(time.Hour), clock.Option())
						lease := k.lock(t, c)
						rdb := b.Client(t)
						keys := overwrite(t, rdb)
						told(t, &clock, lease)
						locktest.Eventually(t, "no clean-up goes on", func() bool { return c.Stats().CleanUps == 0 })
						for _, key := range keys {
							if text, err := rdb.Get(bg, key).Result(); text != "text" {
								t.Errorf("%q is %q, %v", key, text, err)
							}
						}
					})
				})
			}
		})
	}
}

// What is wrong with a key beside that of the hold says nothing about the hold.
func TestForeignTypeOfAnotherKeyIsNoLoss(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var clock locktest.Clock
		c := b.NewClient(t, rlock.WithWatchdogLease(time.Hour), clock.Option())
		fair := locktest.MustLock(t, c.NewFairLock("fair"))
		s := c.NewPermitSemaphore("permits")
		if _, err := s.TrySetPermits(bg, 3); err != nil {
			t.Fatal(err)
		}
		permit, err := s.Acquire(bg, 1)
		if err != nil {
			t.Fatal(err)
		}
		rdb.Set(bg, "redisson_lock_queue:{fair}", "text", 0)
		rdb.Del(bg, "permits")
		rdb.HSet(bg, "permits", "some", "thing")
		renewed := c.Stats().Renewals
		clock.Forward(25 * time.Minute)
		locktest.Eventually(t, "both are renewed", func() bool { return c.Stats().Renewals >= renewed+2 })
		for _, lease := range []*rlock.Lease{fair, permit} {
			if err := lease.Err(); err != nil {
				t.Error(err)
			}
			locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, rlock.ErrForeignKey, nil, rlock.ErrLeaseLost)
		}
	})
}

// A node of a RedLock whose vote was overwritten counts as one without it.
func TestVotesThatWereOverwritten(t *testing.T) {
	t.Parallel()
	for gone := 1; gone <= 2; gone++ {
		t.Run(map[int]string{1: "one of three", 2: "two of three"}[gone], func(t *testing.T) {
			t.Parallel()
			for _, what := range []string{"renewal", "Extend", "Unlock"} {
				var clock locktest.Clock
				var clients []*rlock.Client
				var rdbs []redis.UniversalClient
				for range 3 {
					b := locktest.OnMiniredis(t)
					clients = append(clients, b.NewClient(t, rlock.WithWatchdogLease(time.Hour), clock.Option()))
					rdbs = append(rdbs, b.Client(t))
				}
				lease := locktest.MustLock(t, locktest.NewRedLock(t, "red", clients, rlock.WithNodeTimeout(5*time.Second)))
				for _, rdb := range rdbs {
					locktest.Eventually(t, "the node has voted", func() bool {
						return slices.ContainsFunc(locktest.Keys(t, rdb), func(key string) bool { return rdb.Type(bg, key).Val() == "hash" })
					})
				}
				for _, rdb := range rdbs[:gone] {
					overwrite(t, rdb)
				}
				check := func(err error) {
					t.Helper()
					switch {
					case gone == 1 && err != nil:
						t.Errorf("%s: %v", what, err)
					case gone == 2:
						locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrUnconfirmed, rlock.ErrUnreachable)
					}
				}
				switch what {
				case "renewal":
					renewed := clients[0].Stats().Renewals
					clock.Forward(25 * time.Minute)
					locktest.Eventually(t, "it is renewed or lost", func() bool {
						return clients[0].Stats().Renewals > renewed || lease.Err() != nil
					})
					check(lease.Err())
				case "Extend":
					check(lease.Extend(bg, 2*time.Hour))
				}
				check(lease.Unlock(bg))
			}
		})
	}
}
