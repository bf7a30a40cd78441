package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// found are the locks that match a pattern, as "name type holder".
func found(t *testing.T, c *rlock.Client, pattern string) []string {
	t.Helper()
	all := map[string]bool{}
	for f, err := range c.Locks(bg, pattern) {
		if err != nil {
			t.Fatal(err)
		}
		line := f.Name + " " + f.Type
		for _, h := range f.State.Holders {
			line += " " + h.HoldID
		}
		all[line] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func wantFound(t *testing.T, c *rlock.Client, pattern string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := found(t, c, pattern); !slices.Equal(got, want) {
		t.Errorf("%q finds\n%s\nnot\n%s", pattern, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Each type is found with its name, its type and its holder, and nothing that is beside a lock.
func TestLocksFindsEachType(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, prefix := range []string{"", "app:", "{app}:", "[*?]\\"} {
			t.Run("prefix "+prefix, func(t *testing.T) {
				c, other := b.NewClient(t, rlock.WithPrefix(prefix)), b.NewClient(t, rlock.WithPrefix(prefix))
				var want []string
				hold := func(name, kind string, l rlock.Locker) *rlock.Lease {
					lease := locktest.MustLock(t, l)
					want = append(want, name+" "+kind+" "+lease.HoldID())
					t.Cleanup(func() { locktest.MustUnlock(t, lease) })
					return lease
				}
				hold("find lock", "Lock", c.NewLock("find lock"))
				hold("find spin", "Lock", c.NewSpinLock("find spin"))
				hold("find fenced", "FencedLock", c.NewFencedLock("find fenced"))
				hold("find fair", "FairLock", c.NewFairLock("find fair"))
				hold("find reader", "ReadWriteLock", c.NewReadWriteLock("find reader").Reader)
				hold("find writer", "ReadWriteLock", c.NewReadWriteLock("find writer").Writer)
				hold("find fairrw", "FairReadWriteLock", c.NewFairReadWriteLock("find fairrw").Reader)
				hold("find priority", "PriorityLock", c.NewPriorityLock("find priority"))
				hold("find election", "Election", locktest.Electing{Election: c.NewElection("find election")})
				hold("find {tag} lock", "Lock", c.NewLock("find {tag} lock"))
				hold("find {tag} priority", "PriorityLock", c.NewPriorityLock("find {tag} priority"))
				timeouts := 0
				if !strings.Contains(prefix, "{") { // else these names are refused
					timeouts = 1
					hold("find:timeout", "Lock", c.NewLock("find:timeout"))
					hold("find:rlock:red", "Lock", c.NewLock("find:rlock:red"))
				}
				place, err := c.NewDoubleBarrier("find double", 1).Enter(bg)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, "find double DoubleBarrier "+place.HoldID())
				for _, opts := range [][]rlock.PermitSemaphoreOption{nil, {rlock.WithFairness()}} {
					name := fmt.Sprint("find permits ", len(opts))
					s := c.NewPermitSemaphore(name, opts...)
					if err := s.SetPermits(bg, 3); err != nil {
						t.Fatal(err)
					}
					lease, err := s.Acquire(bg, 2)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { locktest.MustUnlock(t, lease) })
					id := lease.HoldID()
					if len(opts) == 0 {
						id = "" // in Redis it has the id of its first permit
					}
					want = append(want, fmt.Sprint(name, " PermitSemaphore ", id))
				}
				going, done := make(chan struct{}), make(chan error, 1)
				ended := make(chan struct{})
				go func() {
					_, _, err := c.NewOnce("find once", time.Hour).Do(bg, func(context.Context) ([]byte, error) { close(going); <-ended; return nil, nil })
					done <- err
				}()
				<-going
				runs, ran := make(chan string, 1), make(chan error, 1)
				go func() {
					_, err := c.NewCronJob("find job").Do(bg, time.Now().Truncate(time.Second), func(ctx context.Context) error {
						lease, _ := rlock.LeaseFrom(ctx)
						runs <- lease.HoldID()
						<-ended
						return nil
					})
					ran <- err
				}()
				want = append(want, "find job CronJob "+<-runs)
				next := locktest.Begin(t, bg, other.NewFairLock("find fair"))
				locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, c.NewFairLock("find fair")).Waiters == 1 })

				// What is no lock, or is not held.
				rdb := b.Client(t)
				for i, fn := range []func(key string) error{
					func(key string) error { return rdb.Set(bg, key, "1", 0).Err() },
					func(key string) error { return rdb.HSet(bg, key, "page:12", 1).Err() },
					func(key string) error { return rdb.HSet(bg, key, "mode", "dark").Err() },
					func(key string) error {
						return rdb.HSet(bg, key, "123e4567-e89b-12d3-a456-426614174000:1", 1).Err() // without a TTL
					},
					func(key string) error { return rdb.RPush(bg, key, 1).Err() },
					func(key string) error { return rdb.SAdd(bg, "{"+key+"}:timeout", 1).Err() },
				} {
					if err := fn(prefix + fmt.Sprint("find foreign ", i)); err != nil {
						t.Fatal(err)
					}
				}
				if err := rdb.HSet(bg, "another:find foreign", "mode", "read").Err(); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("find free")))
				locktest.MustUnlock(t, locktest.MustLock(t, c.NewPriorityLock("find free priority")))
				if _, err := c.NewLock("find lock").TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
					t.Error(err)
				}

				var got []string
				for _, line := range found(t, c, "find*") {
					if name, _, once := strings.Cut(line, " Once "); once {
						if name != "find once" {
							t.Errorf("found %q", line)
						}
						continue
					}
					if head, _, unfair := strings.Cut(line, "find permits 0 PermitSemaphore "); unfair && head == "" {
						line = "find permits 0 PermitSemaphore "
					}
					got = append(got, line)
				}
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("found\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				for pattern, n := range map[string]int{"find lock": 1, "find l?ck": 1, "find [k-m]ock": 1, "find [^k-m]ock": 0, `find \lock`: 1, "lock": 0, "find fa*": 2, "*{tag}*": 2, "*:timeout": timeouts} {
					if got := found(t, c, pattern); len(got) != n {
						t.Errorf("%q finds %q", pattern, got)
					}
				}
				close(ended)
				if err := errors.Join(<-done, <-ran); err != nil {
					t.Error(err)
				}
				next.Cancel()
				<-next.Done
				locktest.MustUnlock(t, place)
			})
		}
	})
}

// A vote for a RedLock is found on each of its servers.
func TestLocksFindsVotes(t *testing.T) {
	t.Parallel()
	var clients []*rlock.Client
	for range 3 {
		clients = append(clients, locktest.OnMiniredis(t).NewClient(t, rlock.WithPrefix("app:")))
	}
	lease := locktest.MustLock(t, locktest.NewRedLock(t, "red", clients, rlock.WithQuorum(3), rlock.WithNodeTimeout(3*time.Second)))
	for _, c := range clients {
		wantFound(t, c, "", "red RedLock "+lease.HoldID())
	}
	locktest.MustUnlock(t, lease)
	for _, c := range clients {
		wantFound(t, c, "")
	}
}

func TestLocksReportsInvalidPatterns(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t)
	one := func(c *rlock.Client, ctx context.Context, pattern string) (err error) {
		n := 0
		for f, e := range c.Locks(ctx, pattern) {
			if n++; e == nil || n > 1 {
				t.Errorf("%+v, %v", f, e)
			}
			err = e
		}
		return err
	}
	over, cancel := context.WithCancel(bg)
	cancel()
	locktest.WantErr(t, one(nil, bg, ""), rlock.ErrInvalidArgument)
	locktest.WantErr(t, one(c, nil, ""), rlock.ErrInvalidArgument) //nolint:staticcheck // it is refused
	locktest.WantErr(t, one(c, bg, "a["), rlock.ErrInvalidArgument)
	locktest.WantErr(t, one(c, bg, `a\`), rlock.ErrInvalidArgument)
	locktest.WantErr(t, one(c, over, ""), context.Canceled)
	if err := b.Client(t).Do(bg, "acl", "setuser", "default", "-scan").Err(); err != nil {
		t.Fatal(err)
	}
	locktest.WantErr(t, one(c, bg, ""), rlock.ErrRefused)
	locktest.Stop(c)
	locktest.WantErr(t, one(c, bg, ""), rlock.ErrClosed)
}
