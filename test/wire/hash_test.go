package wire

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What stands in Redis after each operation, and what is published by it, as
// Redisson has it: keys, types, values, TTLs, channels, payloads. A test of a
// type makes a wire, and after each operation tells it what to expect.

// wire looks at a Redis that nobody else uses.
type wire struct {
	t     *testing.T
	rdb   redis.UniversalClient
	ear   *redis.PubSub
	marks int
}

// wireKey is a key of Redis. Of its value exactly one is given.
type wireKey struct {
	hash map[string]string
	text string
	list []string
	zset []redis.Z
	// ttl: between this and half of it is left; 0: the key has none. So tests
	// use leases of which half does not pass on a busy machine.
	ttl time.Duration
}

type wireKeys map[string]wireKey

func newWire(t *testing.T, rdb redis.UniversalClient) *wire {
	t.Helper()
	w := &wire{t: t, rdb: rdb, ear: rdb.PSubscribe(bg, "*")}
	t.Cleanup(func() { _ = w.ear.Close() })
	if _, err := w.ear.Receive(bg); err != nil {
		t.Fatal(err)
	}
	return w
}

// shows checks all keys but fencing clocks, and tombstones, which a busy machine
// may cause; and all messages since it was called last, each as "channel payload".
func (w *wire) shows(after string, want wireKeys, messages ...string) {
	w.t.Helper()
	for _, name := range locktest.Keys(w.t, w.rdb) {
		if _, ok := want[name]; !ok && !strings.Contains(name, ":rlock:gone:") {
			w.t.Errorf("after %s: there is a key %q", after, name)
		}
	}
	for name, key := range want {
		if got := w.key(name); !reflect.DeepEqual(got, wireKey{hash: key.hash, text: key.text, list: key.list, zset: key.zset}) {
			w.t.Errorf("after %s: %q is %+v, want %+v", after, name, got, key)
		}
		ttl := w.rdb.PTTL(bg, name).Val()
		if key.ttl == 0 && ttl != -1 || key.ttl > 0 && (ttl > key.ttl || ttl < key.ttl/2) {
			w.t.Errorf("after %s: %q has TTL %v, want %v", after, name, ttl, key.ttl)
		}
	}
	if got, want := strings.Join(w.heard(), ", "), strings.Join(messages, ", "); got != want {
		w.t.Errorf("after %s: published %q, want %q", after, got, want)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// key is a key's value, with the type that it has in Redis.
func (w *wire) key(name string) (k wireKey) {
	w.t.Helper()
	var err error
	switch kind := w.rdb.Type(bg, name).Val(); kind {
	case "hash":
		k.hash, err = w.rdb.HGetAll(bg, name).Result()
	case "string":
		k.text, err = w.rdb.Get(bg, name).Result()
	case "list":
		k.list, err = w.rdb.LRange(bg, name, 0, -1).Result()
	case "zset":
		k.zset, err = w.rdb.ZRangeWithScores(bg, name, 0, -1).Result()
	case "none":
	default:
		err = fmt.Errorf("type %s", kind)
	}
	if err != nil {
		w.t.Fatalf("key %q: %v", name, err)
	}
	return k
}

// heard is what was published since it was called last.
func (w *wire) heard() (messages []string) {
	w.t.Helper()
	w.marks++
	mark := fmt.Sprint(w.marks)
	if err := w.rdb.Publish(bg, "wire:mark", mark).Err(); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	for {
		m, err := w.ear.ReceiveMessage(ctx)
		switch {
		case err != nil:
			w.t.Fatal(err)
		case m.Channel != "wire:mark":
			messages = append(messages, m.Channel+" "+m.Payload)
		case m.Payload == mark:
			return messages
		}
	}
}

// The types whose place in Redis is one hash.
func TestWireOfOneHash(t *testing.T) {
	t.Parallel()
	type lock interface {
		rlock.Locker
		ForceUnlock(context.Context) (bool, error)
		ForceUnlockIf(context.Context, string) (bool, error)
	}
	kinds := []struct {
		name            string
		open            func(c *rlock.Client, name string) lock
		counts, publish bool
	}{
		{"Lock", func(c *rlock.Client, n string) lock { return c.NewLock(n) }, false, true},
		{"FencedLock", func(c *rlock.Client, n string) lock { return c.NewFencedLock(n) }, true, true},
		{"SpinLock", func(c *rlock.Client, n string) lock { return c.NewSpinLock(n) }, false, false},
	}
	names := []struct{ lock, channel, counter string }{
		{"order:7", "redisson_lock__channel:{order:7}", "redisson_lock_token:{order:7}"},
		{"{t}x", "redisson_lock__channel:{t}x", "redisson_lock_token:{t}x"},
	}
	const watchdog, fixed, long = 6 * time.Second, time.Minute, 10 * time.Minute
	for _, kind := range kinds {
		for _, name := range names {
			t.Run(kind.name+" "+name.lock, func(t *testing.T) {
				t.Parallel()
				locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
					rdb := b.Client(t)
					l := kind.open(locktest.NewClient(t, rdb, rlock.WithWatchdogLease(watchdog)), name.lock)
					other := kind.open(b.NewClient(t), name.lock)
					w := newWire(t, rdb)
					tokens := 0
					held := func(lease *rlock.Lease, count string, ttl time.Duration) wireKeys {
						keys := wireKeys{}
						if lease != nil {
							keys[name.lock] = wireKey{hash: map[string]string{lease.HoldID(): count}, ttl: ttl}
						}
						if kind.counts {
							keys[name.counter] = wireKey{text: fmt.Sprint(tokens)}
						}
						return keys
					}
					free := func() wireKeys { return held(nil, "", 0) }
					var zero []string
					if kind.publish {
						zero = []string{name.channel + " 0"}
					}
					taken := func(lease *rlock.Lease) *rlock.Lease {
						tokens++
						if kind.counts && lease.Token() != int64(tokens) {
							t.Fatalf("token %d, want %d", lease.Token(), tokens)
						}
						return lease
					}

					outer := taken(locktest.MustLock(t, l))
					w.shows("acquire", held(outer, "1", watchdog))

					if _, err := other.TryLock(bg, rlock.WithLease(long)); err == nil {
						t.Fatal("another got in")
					}
					w.shows("an acquire in vain", held(outer, "1", watchdog))

					if _, err := other.Lock(bg, rlock.WithLease(long), rlock.WithWait(50*time.Millisecond)); err == nil {
						t.Fatal("another got in")
					}
					w.shows("a wait in vain", held(outer, "1", watchdog))

					rdb.PExpire(bg, name.lock, watchdog*2/3)
					locktest.Eventually(t, "it is renewed", func() bool { return rdb.PTTL(bg, name.lock).Val() > watchdog*5/6 })
					w.shows("a renewal", held(outer, "1", watchdog))

					inner := locktest.MustLockCtx(t, outer.Context(bg), l, rlock.WithLease(fixed))
					w.shows("a re-entry", held(outer, "2", fixed))

					locktest.MustUnlock(t, inner)
					w.shows("a partial release", held(outer, "1", fixed))

					if err := outer.Extend(bg, long); err != nil {
						t.Fatal(err)
					}
					w.shows("an extension", held(outer, "1", long))

					if err := outer.Extend(bg, fixed); err != nil {
						t.Fatal(err)
					}
					w.shows("a shorter extension", held(outer, "1", long))

					locktest.MustUnlock(t, outer)
					w.shows("the release", free(), zero...)

					forced := taken(locktest.MustLock(t, l, rlock.WithLease(fixed)))
					w.shows("an acquire with a lease", held(forced, "1", fixed))
					if was, err := other.ForceUnlockIf(bg, outer.HoldID()); was || err != nil {
						t.Fatal(was, err)
					}
					w.shows("a force unlock of an earlier hold", held(forced, "1", fixed))
					if was, err := other.ForceUnlock(bg); !was || err != nil {
						t.Fatal(was, err)
					}
					w.shows("a force unlock", free(), zero...)
					if was, err := other.ForceUnlock(bg); was || err != nil {
						t.Fatal(was, err)
					}
					w.shows("a force unlock of a free lock", free())
					locktest.WantErr(t, forced.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
					w.shows("a release of what was lost", free())

					short := taken(locktest.MustLock(t, l, rlock.WithLease(locktest.Ample(200*time.Millisecond))))
					<-short.Done()
					locktest.Eventually(t, "it has run out", func() bool { return rdb.Exists(bg, name.lock).Val() == 0 })
					w.shows("the end of the lease", free())

					// As Java holds it: the first and a second entry of one thread.
					const java = "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:57"
					for range 2 {
						if kind.counts {
							rdb.Incr(bg, name.counter)
							tokens++
						}
						rdb.HIncrBy(bg, name.lock, java, 1)
						rdb.PExpire(bg, name.lock, long)
					}
					_, err := l.TryLock(bg)
					locktest.WantErr(t, err, rlock.ErrNotAcquired)
					keys := free()
					keys[name.lock] = wireKey{hash: map[string]string{java: "2"}, ttl: long}
					w.shows("an acquire beside Java", keys)
				})
			})
		}
	}
}
