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

// javas is a hold of Redisson's.
const javas = "285475da-9152-4c83-822a-67ee2f116a79"

// data is what somebody else may have at the name of a lock.
type data struct {
	what string
	put  func(rdb redis.UniversalClient, key string) error
	says string
}

// sortsOfData are the sorts of data that are no lock.
func sortsOfData() []data {
	items := func(first ...any) []any {
		for i := range 1000 {
			first = append(first, fmt.Sprint("item:", i), i)
		}
		return first
	}
	var sessions, visits []any
	for i := range 20 {
		sessions = append(sessions, fmt.Sprintf("285475da-9152-4c83-822a-67ee2f1160%02d", i), 1)
		visits = append(visits, fmt.Sprint(javas, ":", i), i+1)
	}
	hash := func(what string, fields ...any) data {
		return data{what, func(rdb redis.UniversalClient, key string) error { return rdb.HSet(bg, key, fields...).Err() }, "a hash with other data"}
	}
	return []data{
		{"a string", func(rdb redis.UniversalClient, key string) error {
			return rdb.Set(bg, key, "redsync's or redislock's", 0).Err()
		}, "is a string"},
		{"a list", func(rdb redis.UniversalClient, key string) error { return rdb.RPush(bg, key, 1, 2).Err() }, "is a list"},
		{"a set", func(rdb redis.UniversalClient, key string) error { return rdb.SAdd(bg, key, 1, 2).Err() }, "is a set"},
		{"a sorted set", func(rdb redis.UniversalClient, key string) error {
			return rdb.ZAdd(bg, key, redis.Z{Score: 1, Member: javas + ":5"}).Err()
		}, "is a zset"},
		{"a stream", func(rdb redis.UniversalClient, key string) error {
			return rdb.XAdd(bg, &redis.XAddArgs{Stream: key, ID: "1-1", Values: []string{javas + ":5", "1"}}).Err()
		}, "is a stream"},
		hash("a cart", "product:12", 3),
		hash("a cart of many", items()...),
		hash("text and numbers", "color", "red", "size", 3),
		hash("numbers by number", "1", 1, "2", 2),
		hash("numbers below colons", "a:1:b", 2),
		hash("text by number", "user:7", "Ada"),
		hash("a session", javas, 1),
		hash("a session whose lock has ended", javas, 1, "mode", "read"),
		hash("sessions", sessions...),
		hash("sessions with a mode", append(sessions, "mode", "write")...),
		hash("text of a hold", javas+":5", "Ada"),
		hash("no count", javas+":5", "99999999999999999999"),
		hash("what a hold does", javas+":5:reads", 1),
		hash("whose hold it is", "user:"+javas+":5", 1),
		hash("no number of 64 bits", javas+":"+strings.Repeat("5", 100), 1),
		hash("counts of holds", javas+":5", 1, javas+":6", 1),
		hash("many counts of holds", visits...),
		hash("a mode", "mode", "read"),
		hash("another mode", "mode", "silent", javas+":5", 1),
		hash("a mode and data", "mode", "read", "product:12", 3),
		hash("a mode and much data", items("mode", "read")...),
		hash("another mode and much data", items("mode", "fast")...),
		hash("a hold and data", javas+":5", 1, "product:12", 3),
		hash("readers and data", "mode", "read", javas+":5", 1, "product:12", 3),
		hash("a writer and data", "mode", "write", javas+":5:write", 1, "product:12", 3),
		hash("a group of other values", "ZmxkOkxwRXN2Qmx1a29tYm", "user:7"),
		hash("a group of numbers", "ZmxkOkxwRXN2Qmx1a29tYm:product:12:lock_count", 3),
		hash("a group and a reader", "mode", "read", "ZmxkOkxwRXN2Qmx1a29tYm", javas+":5"),
		hash("a group and a hold", "ZmxkOkxwRXN2Qmx1a29tYm", javas+":5", javas+":5", 1),
		hash("text for a terminal", "\x1b[31m:7", 3),
	}
}

// contents is all that a server has at and beside a name, but for tombstones.
func contents(t testing.TB, rdb redis.UniversalClient, name string) string {
	t.Helper()
	keys := rdb.Keys(bg, "*"+name+"*").Val()
	slices.Sort(keys)
	var all strings.Builder
	for _, key := range keys {
		if strings.Contains(key, ":rlock:gone:") {
			continue
		}
		kind := rdb.Type(bg, key).Val()
		read := map[string][]any{
			"string": {"get", key}, "list": {"lrange", key, 0, -1}, "set": {"smembers", key}, "zset": {"zrange", key, 0, -1, "withscores"},
			"stream": {"xrange", key, "-", "+"}, "hash": {"hgetall", key},
		}[kind]
		if read == nil {
			continue // it has expired
		}
		value, err := rdb.Do(bg, read...).Result()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%q %s %v, for %v\n", key, kind, value, rdb.PTTL(bg, key).Val().Round(time.Hour))
	}
	return all.String()
}

// What stands at the key of a lock and is no lock gets an error that says so, from
// whatever looks at it, and is left as it is.
func TestKeyOfAnotherProgramIsReportedAndNotChanged(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for _, k := range locktest.Types {
			// Those with keys of their own look at the name before they grant; who holds them stands beside it.
			apart := k.Name == "PriorityLock" || strings.HasPrefix(k.Name, "fair ")
			for i, s := range sortsOfData() {
				for _, ttl := range []time.Duration{0, 50 * time.Hour} {
					t.Run(fmt.Sprintf("%s/%s/%v", k.Name, s.what, ttl), func(t *testing.T) {
						t.Parallel()
						name := fmt.Sprintf("<%d> of %s, %v.", i, k.Name, ttl)
						if err := s.put(rdb, name); err != nil {
							t.Fatal(err)
						}
						if ttl > 0 {
							rdb.PExpire(bg, name, ttl)
						}
						was := contents(t, rdb, name)
						l := k.Open(c, name)
						ctx, cancel := context.WithTimeout(bg, 20*time.Second)
						defer cancel()
						for _, grants := range []func() error{
							func() error { _, err := l.Lock(ctx); return err },
							func() error { _, err := l.TryLock(ctx); return err },
						} {
							err := grants()
							locktest.WantErr(t, err, rlock.ErrForeignKey, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
							if !apart && !strings.Contains(err.Error(), s.says) || strings.Contains(err.Error(), "\x1b") {
								t.Errorf("%v, want %q", err, s.says)
							}
						}
						for what, looks := range map[string]func() (bool, error){
							"IsLocked":              func() (bool, error) { return l.IsLocked(ctx) },
							"State":                 func() (bool, error) { s, err := l.State(ctx); return s.Locked(), err },
							"ForceUnlock":           func() (bool, error) { return l.ForceUnlock(ctx) },
							"ForceUnlockIf a hold":  func() (bool, error) { return l.ForceUnlockIf(ctx, javas+":5") },
							"ForceUnlockIf a field": func() (bool, error) { return l.ForceUnlockIf(ctx, "product:12") },
							"RequestRelease":        func() (bool, error) { return l.RequestRelease(ctx) },
						} {
							is, err := looks()
							if is || apart != (err == nil) {
								t.Errorf("%s: %v, %v", what, is, err)
							}
							if !apart {
								locktest.WantErr(t, err, rlock.ErrForeignKey)
								if !strings.Contains(err.Error(), s.says) || strings.Contains(err.Error(), "\x1b") {
									t.Errorf("%s: %v, want %q", what, err, s.says)
								}
							}
						}
						if is := contents(t, rdb, name); is != was {
							t.Errorf("it was\n%sand is\n%s", was, is)
						}
						if ttl > 0 {
							for found, err := range c.Locks(ctx, name) {
								t.Errorf("Locks: %+v, %v", found, err)
							}
						}
					})
				}
			}
		}
	})
}

// The types with keys of their own tell when something else is at the first of them.
func TestOwnKeyWithForeignDataIsReportedAndNotChanged(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for _, k := range locktest.Types {
			beside := map[bool]string{true: "rlock:priority", false: "rlock:fairrw"}[k.Name == "PriorityLock"]
			if k.Name != "PriorityLock" && !strings.HasPrefix(k.Name, "fair ") {
				continue
			}
			for _, s := range sortsOfData()[:3] {
				name := s.what + " of " + k.Name
				if err := s.put(rdb, "{"+name+"}:"+beside); err != nil {
					t.Fatal(err)
				}
				was := contents(t, rdb, name)
				l := k.Open(c, name)
				for what, call := range map[string]func() error{
					"Lock":          func() error { _, err := l.Lock(bg); return err },
					"TryLock":       func() error { _, err := l.TryLock(bg); return err },
					"ForceUnlock":   func() error { _, err := l.ForceUnlock(bg); return err },
					"ForceUnlockIf": func() error { _, err := l.ForceUnlockIf(bg, "color"); return err },
				} {
					err := call()
					locktest.WantErr(t, err, rlock.ErrForeignKey, nil, rlock.ErrNotAcquired, rlock.ErrUnreachable)
					if !strings.Contains(err.Error(), s.says) {
						t.Errorf("%s: %v, want %q", what, err, s.says)
					}
				}
				if is := contents(t, rdb, name); is != was {
					t.Errorf("it was\n%sand is\n%s", was, is)
				}
			}
		}
	})
}

// Each lock of Redisson and of this package has a TTL. What looks like one without is never freed by force.
func TestForceUnlockFreesOnlyLocksWithATTL(t *testing.T) {
	t.Parallel()
	const transaction = "6ac8e8c26ac8e8c26ac8e8c26ac8e8c2"
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for what, fields := range map[string][]any{
			"plain":               {javas + ":52", 1},
			"negative":            {javas + ":-52", 3},
			"transaction":         {javas + ":52:" + transaction, 1},
			"writer":              {"mode", "write", javas + ":52:write", 1, javas + ":52", 1},
			"writing transaction": {"mode", "write", javas + ":52:write:" + transaction, 1},
			"readers":             {"mode", "read", javas + ":52", 2, javas + ":53", 1, javas + ":54:" + transaction, 1},
		} {
			l, fair := locktest.AnyLock(c.NewLock(what)), locktest.AnyLock(c.NewFairLock(what))
			switch fields[1] {
			case "write":
				l, fair = c.NewReadWriteLock(what).Writer, nil
			case "read":
				l, fair = c.NewReadWriteLock(what).Reader, nil
				for i := 2; i < len(fields); i += 2 {
					rdb.Set(bg, locktest.ReaderTimer(what, fields[i].(string), 1), 1, time.Hour)
				}
			}
			for _, l := range []locktest.AnyLock{l, fair} {
				if l == nil {
					continue
				}
				if err := rdb.HSet(bg, what, fields...).Err(); err != nil {
					t.Fatal(err)
				}
				if locked, err := l.IsLocked(bg); !locked || err != nil {
					t.Errorf("%s: %v, %v", what, locked, err)
				}
				if s, err := l.State(bg); len(s.Holders) == 0 || err != nil {
					t.Errorf("%s: %+v, %v", what, s, err)
				}
				if fields[1] != "read" {
					_, err := l.TryLock(bg)
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
					if !strings.Contains(err.Error(), "held by "+javas+":") {
						t.Error(err)
					}
				}
				was := contents(t, rdb, what)
				for _, id := range []string{"", javas + ":52"} {
					is, err := force(l, id)
					if locktest.WantErr(t, err, rlock.ErrForeignKey); is || !strings.Contains(err.Error(), "without a TTL") {
						t.Errorf("%s: %v, %v", what, is, err)
					}
				}
				if is := contents(t, rdb, what); is != was {
					t.Errorf("%s: it was\n%sand is\n%s", what, was, is)
				}
				rdb.PExpire(bg, what, time.Hour)
				if was, err := l.ForceUnlock(bg); !was || err != nil || rdb.Exists(bg, what).Val() == 1 {
					t.Errorf("%s: %v, %v", what, was, err)
				}
			}
		}
	})
}

// force is a ForceUnlock, or with an id a ForceUnlockIf.
func force(l locktest.AnyLock, id string) (bool, error) {
	if id == "" {
		return l.ForceUnlock(bg)
	}
	return l.ForceUnlockIf(bg, id)
}

// A caller may pass any text for the id of a hold, also the name of another field of the lock.
func TestForceUnlockIfEndsNothingButHolds(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		rw := c.NewReadWriteLock("both")
		outer := locktest.MustLock(t, rw.Writer)
		inner := locktest.MustLockCtx(t, outer.Context(bg), rw.Reader)
		was := contents(t, rdb, "both")
		for _, l := range []locktest.AnyLock{rw.Writer, rw.Reader} {
			for _, id := range []string{"mode", outer.HoldID() + ":write", "another:1", javas + ":1"} {
				if did, err := l.ForceUnlockIf(bg, id); did || err != nil {
					t.Errorf("%T of %q: %v, %v", l, id, did, err)
				}
			}
		}
		for _, l := range []locktest.AnyLock{c.NewLock("both"), c.NewFairLock("both")} {
			for _, id := range []string{"", "mode", outer.HoldID(), outer.HoldID() + ":write"} {
				did, err := force(l, id)
				if locktest.WantErr(t, err, rlock.ErrForeignKey); did || !strings.Contains(err.Error(), "it is a read-write lock") {
					t.Errorf("%T of %q: %v, %v", l, id, did, err)
				}
			}
		}
		if is := contents(t, rdb, "both"); is != was {
			t.Errorf("it was\n%sand is\n%s", was, is)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
	})
}

// What somebody puts into the hash of a lock that is held is left there when the holder goes, and
// nobody gets the lock over it.
func TestDataInTheHashOfAHeldLockStays(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		for _, k := range locktest.Types {
			if k.Name == "PriorityLock" || strings.HasPrefix(k.Name, "fair ") {
				continue // their hash is not at the name
			}
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				name := "data in " + k.Name
				c, rival := locktest.NewClient(t, rdb), locktest.NewClient(t, rdb)
				l := k.Open(c, name)
				lease := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
				rw := c.NewReadWriteLock(name)
				if k.Shared {
					// And a reader that has died.
					locktest.JavaReadLock{RDB: rdb, Name: name}.Read(javas+":5", time.Minute)
					rdb.Del(bg, locktest.ReaderTimer(name, javas+":5", 1))
				}
				waits := locktest.Begin(t, bg, k.Blocker(rival, name))
				rdb.HSet(bg, name, "product:12", 3)
				inner := locktest.MustLockCtx(t, lease.Context(bg), l)
				if err := lease.Extend(bg, 2*time.Minute); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, inner)
				locktest.MustUnlock(t, lease)
				<-waits.Done
				locktest.WantErr(t, waits.Err, rlock.ErrForeignKey)
				if got := rdb.HGet(bg, name, "product:12").Val(); got != "3" {
					t.Errorf("%q", rdb.HGetAll(bg, name).Val())
				}
				for _, next := range []locktest.AnyLock{c.NewLock(name), rw.Writer, rw.Reader, c.NewFairLock(name), c.NewPriorityLock(name)} {
					_, err := next.TryLock(bg)
					locktest.WantErr(t, err, rlock.ErrForeignKey)
				}
				if got := rdb.HGet(bg, name, "product:12").Val(); got != "3" {
					t.Errorf("%q", rdb.HGetAll(bg, name).Val())
				}
				rdb.HDel(bg, name, "product:12")
			})
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
