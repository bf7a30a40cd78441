package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What stands at the key of a lock and is no lock gets an error that says so, from
// whatever looks at it, and is left as it is.
func TestKeyThatIsNoLockIsToldAndLeftAlone(t *testing.T) {
	t.Parallel()
	type suspect struct {
		what string
		put  func(rdb redis.UniversalClient, key string) error
		says string
	}
	many := []any{"mode", "fast"}
	for i := range 1000 {
		many = append(many, fmt.Sprint("field", i), i)
	}
	hash := func(fields ...any) func(redis.UniversalClient, string) error {
		return func(rdb redis.UniversalClient, key string) error { return rdb.HSet(bg, key, fields...).Err() }
	}
	wrongType := []suspect{
		{"string", func(rdb redis.UniversalClient, key string) error {
			return rdb.Set(bg, key, "redsync's or redislock's", time.Hour).Err()
		}, "is a string"},
		{"list", func(rdb redis.UniversalClient, key string) error { return rdb.RPush(bg, key, 1, 2).Err() }, "is a list"},
		{"set", func(rdb redis.UniversalClient, key string) error { return rdb.SAdd(bg, key, 1, 2).Err() }, "is a set"},
	}
	others := []suspect{
		{"hash", hash("color", "red", "size", 3), "a hash with other data"},
		{"hash of one number", hash("size", 3), "a hash with other data"},
		{"hash of text", hash("user:7", "Ada"), "a hash with other data"},
		{"hash of a hash", hash("ZmxkOkxwRXN2Qmx1a29tYm", "user:7"), "a hash with other data"},
		{"large hash without a mode", hash(many[2:]...), "a hash with other data"},
		{"hash with a mode", hash("mode", "silent", "user:7", "1"), "a hash with other data"},
		{"large hash", hash(many...), "a hash with other data"},
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for _, k := range locktest.Types {
			suspects, queued := append([]suspect{}, wrongType...), true
			key := func(name string) string { return name }
			switch {
			case k.Name == "PriorityLock":
				key = func(name string) string { return "{" + name + "}:rlock:priority" }
			case strings.HasPrefix(k.Name, "fair "):
				key = func(name string) string { return "{" + name + "}:rlock:fairrw" }
			default:
				suspects, queued = append(suspects, others...), false
			}
			for _, s := range suspects {
				t.Run(k.Name+"/"+s.what, func(t *testing.T) {
					t.Parallel()
					name := k.Name + " " + s.what
					if err := s.put(rdb, key(name)); err != nil {
						t.Fatal(err)
					}
					was := rdb.Dump(bg, key(name)).Val()
					l := k.Open(c, name)
					ctx, cancel := context.WithTimeout(bg, 20*time.Second)
					defer cancel()
					for what, call := range map[string]func() error{
						"Lock":          func() error { _, err := l.Lock(ctx); return err },
						"TryLock":       func() error { _, err := l.TryLock(ctx); return err },
						"IsLocked":      func() error { _, err := l.IsLocked(ctx); return err },
						"State":         func() error { _, err := l.State(ctx); return err },
						"ForceUnlock":   func() error { _, err := l.ForceUnlock(ctx); return err },
						"ForceUnlockIf": func() error { _, err := l.ForceUnlockIf(ctx, "color"); return err },
					} {
						if queued && (what == "IsLocked" || what == "State") {
							continue // who holds such a lock stands in a key beside this one
						}
						err := call()
						locktest.WantErr(t, err, rlock.ErrForeignKey, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
						if !strings.Contains(err.Error(), s.says) {
							t.Errorf("%s: %v, want %q", what, err, s.says)
						}
					}
					if is := rdb.Dump(bg, key(name)).Val(); is != was {
						t.Error("the key was changed")
					}
				})
			}
		}
	})
}

// A hash without a TTL whose fields are those of a lock is a lock: Redisson's, or what
// is left of one.
func TestForceUnlockFreesWhatLooksLikeALock(t *testing.T) {
	t.Parallel()
	const java = "285475da-9152-4c83-822a-67ee2f116a79"
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for name, fields := range map[string][]any{
			"plain":       {java + ":52", 1},
			"negative":    {java + ":-52", 3},
			"transaction": {java + ":52:6ac8e8c2", 1},
			"writer":      {"mode", "write", java + ":52:write", 1, java + ":52", 1},
		} {
			l := locktest.AnyLock(c.NewLock(name))
			if name == "writer" {
				l = c.NewReadWriteLock(name).Writer
			}
			if err := rdb.HSet(bg, name, fields...).Err(); err != nil {
				t.Fatal(err)
			}
			if locked, err := l.IsLocked(bg); !locked || err != nil {
				t.Errorf("%s: %v, %v", name, locked, err)
			}
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNotAcquired)
			if !strings.Contains(err.Error(), "held by "+java+":") {
				t.Error(err)
			}
			if was, err := l.ForceUnlock(bg); !was || err != nil {
				t.Errorf("%s: %v, %v", name, was, err)
			}
		}
	})
}

// A lock of another type that looks at the name of a read-write lock says what it is.
func TestStateOfAReadWriteLockAsAnotherType(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		for name, side := range map[string]func(*rlock.ReadWriteLock) rlock.Locker{
			"read":  func(rw *rlock.ReadWriteLock) rlock.Locker { return rw.Reader },
			"write": func(rw *rlock.ReadWriteLock) rlock.Locker { return rw.Writer },
		} {
			lease := locktest.MustLock(t, side(c.NewReadWriteLock(name)))
			for as, l := range map[string]rlock.Inspector{
				"Lock": c.NewLock(name), "FairLock": c.NewFairLock(name), "SpinLock": c.NewSpinLock(name), "FencedLock": c.NewFencedLock(name),
			} {
				_, err := l.State(bg)
				if want := "in use for something else: it is a read-write lock"; !errors.Is(err, rlock.ErrForeignKey) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, of %s: %v, want %s", name, as, err, want)
				}
			}
			locktest.MustUnlock(t, lease)
		}
	})
}

// A group of values that Redisson has locked under one name is a lock, with a form of
// its own.
func TestGroupOfRedissonIsSeenAsHeld(t *testing.T) {
	t.Parallel()
	const one, two = "285475da-9152-4c83-822a-67ee2f116a79:52", "9b2c6a0e-1f5d-4f63-b0a4-7d1f3f6f0f11:-7"
	group := func(owners ...string) (fields []any) {
		for i, owner := range owners {
			hash := fmt.Sprintf("9+aW/%017d", i)
			fields = append(fields, hash, owner, hash+":"+owner+":expire_time", time.Now().Add(time.Hour).UnixMilli(),
				hash+":"+owner+":lock_count", 1+i%2)
		}
		return fields
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for _, k := range locktest.Types {
			if k.Name == "PriorityLock" || strings.HasPrefix(k.Name, "fair ") {
				continue // their keys are no other's
			}
			for what, g := range map[string]struct {
				fields  []any
				holders []rlock.Holder
				says    string
			}{
				"one value":     {group(one), []rlock.Holder{{HoldID: one, Count: 1}}, "held by " + one},
				"three values":  {group(one, one, one), []rlock.Holder{{HoldID: one, Count: 2}}, "held by " + one},
				"two holders":   {group(one, two), []rlock.Holder{{HoldID: one, Count: 1}, {HoldID: two, Count: 2}}, "and 1 more"},
				"many, of both": {group(one, two, one, two, one, two), []rlock.Holder{{HoldID: one, Count: 1}, {HoldID: two, Count: 2}}, "held by "},
			} {
				name := k.Name + what
				if err := rdb.HSet(bg, name, g.fields...).Err(); err != nil {
					t.Fatal(err)
				}
				rdb.PExpire(bg, name, time.Hour)
				l := k.Open(c, name)
				s, err := l.State(bg)
				if err != nil || s.Mode != rlock.ModeExclusive || !slices.Equal(s.Holders, g.holders) || s.TTL < time.Minute {
					t.Errorf("%s, %s: %+v, %v", k.Name, what, s, err)
				}
				_, err = l.TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrForeignKey)
				if !strings.Contains(err.Error(), g.says) {
					t.Errorf("%s, %s: %v", k.Name, what, err)
				}
				if strings.Contains(k.Name, "ReadLock") || strings.Contains(k.Name, "WriteLock") {
					continue // they free what is held as theirs
				}
				if was, err := l.ForceUnlock(bg); !was || err != nil {
					t.Errorf("%s, %s: %v, %v", k.Name, what, was, err)
				}
			}
		}
	})
}
