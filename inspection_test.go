package rlock_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// replyHook keeps the replies of scripts.
type replyHook struct {
	mu      sync.Mutex // guards replies
	replies []any
}

func (h *replyHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *replyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *replyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if c, ok := cmd.(interface{ Val() any }); ok && cmd.Name() == "evalsha" {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.replies = append(h.replies, c.Val())
		}
		return err
	}
}

// take returns the replies since the last call.
func (h *replyHook) take() []any {
	h.mu.Lock()
	defer h.mu.Unlock()
	replies := h.replies
	h.replies = nil
	return replies
}

// Whether a lock is held, and whether the caller holds it, costs one script with a
// reply of two numbers, and what that does in Redis does not depend on how many
// readers there are.
func TestInspectionCostsTheSameHoweverManyHoldTheLock(t *testing.T) {
	t.Parallel()
	addReaders := map[string]string{
		"ReadWriteLock": `for i = 1, ARGV[2] do
			redis.call('hset', ARGV[1], 'reader:' .. i, 1)
			redis.call('set', '{' .. ARGV[1] .. '}:reader:' .. i .. ':rwlock_timeout:1', 1, 'px', 3600000)
		end`,
		"FairReadWriteLock": `for i = 1, ARGV[2] do
			redis.call('hset', '{' .. ARGV[1] .. '}:rlock:fairrw', 'reader:' .. i, 1)
			redis.call('zadd', '{' .. ARGV[1] .. '}:rlock:fairrw:ends', redis.call('time')[1] * 1000 + 3600000, 'reader:' .. i)
		end`,
	}
	open := map[string]func(c *rlock.Client, name string) (reader, writer locktest.AnyLock){
		"ReadWriteLock": func(c *rlock.Client, name string) (reader, writer locktest.AnyLock) {
			l := c.NewReadWriteLock(name)
			return l.Reader, l.Writer
		},
		"FairReadWriteLock": func(c *rlock.Client, name string) (reader, writer locktest.AnyLock) {
			l := c.NewFairReadWriteLock(name)
			return l.Reader, l.Writer
		},
	}
	for kind := range open {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb, raw := b.Client(t), b.Client(t)
			hook := &replyHook{}
			rdb.AddHook(hook)
			c := locktest.NewClient(t, rdb, rlock.WithAnonymity()) // its introduction would be counted too
			var costs []map[string]map[string]int
			for _, n := range []int{10, 10_000} {
				name := fmt.Sprint("a", n)
				reader, writer := open[kind](c, name)
				lease := locktest.MustLock(t, reader, rlock.WithLease(time.Hour))
				again := locktest.MustLockCtx(t, lease.Context(bg), reader)
				if err := raw.Eval(bg, addReaders[kind], nil, name, n).Err(); err != nil && err != redis.Nil {
					t.Fatal(err)
				}
				costs = append(costs, map[string]map[string]int{})
				measure := func(what string, want []any, do func()) {
					t.Helper()
					do() // the server knows the script then
					hook.take()
					before := locktest.ScriptCommands(t, raw)
					do()
					calls := map[string]int{}
					for command, n := range locktest.ScriptCommands(t, raw) {
						if n > before[command] {
							calls[command] = n - before[command]
						}
					}
					costs[len(costs)-1][what] = calls
					if replies := hook.take(); len(replies) != 1 || !reflect.DeepEqual(replies[0], want) {
						t.Errorf("%d readers: %s: replies %.100v, want one: %v", n, what, replies, want)
					}
				}
				measure("Reader.IsLocked", []any{int64(1), int64(0)}, func() {
					if held, err := reader.IsLocked(bg); !held || err != nil {
						t.Errorf("%d readers: %v, %v", n, held, err)
					}
				})
				measure("Writer.IsLocked", []any{int64(0), int64(0)}, func() {
					if held, err := writer.IsLocked(bg); held || err != nil {
						t.Errorf("%d readers: %v, %v", n, held, err)
					}
				})
				measure("HoldCount", []any{int64(1), int64(2)}, func() {
					if entries, err := reader.HoldCount(lease.Context(bg)); entries != 2 || err != nil {
						t.Errorf("%d readers: %d, %v", n, entries, err)
					}
				})
				if s, err := reader.State(bg); err != nil || len(s.Holders) != n+1 {
					t.Errorf("%d holders of %d, %v", len(s.Holders), n+1, err)
				}
				locktest.MustUnlock(t, again)
				locktest.MustUnlock(t, lease)
			}
			t.Logf("%v", costs[1])
			for what, cost := range costs[0] {
				if !reflect.DeepEqual(costs[1][what], cost) {
					t.Errorf("%s: %v of 10 readers, %v of 10,000", what, cost, costs[1][what])
				}
			}
		})
	}
}

// A reader whose time is over is none, in IsLocked and HoldCount as in State, also where
// it stands among so many that few of them are looked at.
func TestDeadReadersDoNotHoldTheLock(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, c := b.Client(t), b.NewClient(t)
		for _, n := range []int{1, 5, 300} {
			name := fmt.Sprint("a", n)
			l := c.NewReadWriteLock(name)
			lease := locktest.MustLock(t, l.Reader, rlock.WithLease(time.Hour))
			for i := range n {
				rdb.HSet(bg, name, fmt.Sprint("dead:", i), 1)
			}
			check := func(want bool, entries int) {
				t.Helper()
				held, err := l.Reader.IsLocked(bg)
				mine, err2 := l.Reader.HoldCount(lease.Context(bg))
				if held != want || mine != entries || err != nil || err2 != nil {
					t.Errorf("%d dead: locked: %v, %v; entries of mine: %d, %v", n, held, err, mine, err2)
				}
				if s, err := l.Reader.State(bg); s.Locked() != want || err != nil {
					t.Errorf("%d dead: %+v, %v", n, s, err)
				}
			}
			check(true, 1)
			timer := "{" + name + "}:" + lease.HoldID() + ":rwlock_timeout:1"
			if n := rdb.Del(bg, timer).Val(); n != 1 {
				t.Fatal(timer)
			}
			check(false, 0)
			rdb.Del(bg, name)
			_ = lease.Unlock(bg)
		}
	})
}

func TestInspection(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, d := b.NewClient(t, rlock.WithPrefix("p:")), b.NewClient(t)
		l, same := c.NewLock("a"), d.NewLock("p:a")
		if l.Name() != "p:a" {
			t.Fatal(l.Name())
		}
		s, err := same.State(bg)
		if err != nil || s.Locked() || s.Mode != rlock.ModeFree || s.TTL != 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		lease := locktest.MustLock(t, l)
		ctx := lease.Context(bg)
		inner := locktest.MustLockCtx(t, ctx, l)
		for _, x := range []*rlock.Lock{l, same} {
			s, err := x.State(bg)
			if err != nil || !s.Locked() || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: lease.HoldID(), Count: 2}) || s.TTL < 25*time.Second {
				t.Fatalf("%+v, %v", s, err)
			}
			if mine := x == l; mine != (s.Token == lease.Token()) {
				t.Fatalf("token %d, the lease has %d", s.Token, lease.Token())
			}
			if locked, err := x.IsLocked(bg); !locked || err != nil {
				t.Fatal(locked, err)
			}
		}
		for ctx, want := range map[context.Context]int{ctx: 2, bg: 0, rlock.WithOwner(bg): 0} {
			if n, err := l.HoldCount(ctx); n != want || err != nil {
				t.Fatalf("held %d times, %v; want %d", n, err, want)
			}
		}
		locktest.MustUnlock(t, inner)
		if was, err := same.ForceUnlockIf(bg, "somebody:1"); was || err != nil {
			t.Fatal(was, err)
		}
		if was, err := same.ForceUnlockIf(bg, lease.HoldID()); !was || err != nil {
			t.Fatal(was, err)
		}
		if n, err := l.HoldCount(ctx); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		next := locktest.MustLock(t, same)
		if was, err := l.ForceUnlockIf(bg, lease.HoldID()); was || err != nil {
			t.Fatal("hit a newer holder", err)
		}
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		locktest.MustUnlock(t, next)
	})
}
