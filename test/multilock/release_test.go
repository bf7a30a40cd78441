package multilock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// verdicts are what an Observer is told of the Unlocks of members.
type verdicts struct {
	locktest.Ignoring
	mu  sync.Mutex // guards the rest
	all map[string]error
}

func (v *verdicts) Unlocked(_ context.Context, e rlock.UnlockEvent) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = map[string]error{}
	}
	v.all[e.Lock] = e.Err
}

// want checks what was told of each lock: an error to match, nil for none.
func (v *verdicts) want(t *testing.T, want map[string]error) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, err := range want {
		got, told := v.all[name]
		if !told || !errors.Is(got, err) {
			t.Errorf("%s: told: %v, %v; want %v", name, told, got, err)
		}
	}
	if len(v.all) != len(want) {
		t.Errorf("told %v", v.all)
	}
}

// absent checks that these locks are free.
func absent(t *testing.T, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, n := range names {
		if rdb.Exists(bg, n).Val() != 0 {
			t.Errorf("%s is held: %v", n, rdb.HGetAll(bg, n).Val())
		}
	}
}

// Five Locks of one slot are freed by one script, which tells those who wait for
// each of them.
func TestMultiLockOfOneSlotIsReleasedByOneScript(t *testing.T) {
	t.Parallel()
	names := []string{"{m}a", "{m}b", "{m}c", "{m}d", "{m}e"}
	for name, b := range map[string]*locktest.Backend{"standalone": locktest.OnServer(t), "cluster": locktest.OnCluster(t)} {
		t.Run(name, func(t *testing.T) {
			rdb := b.Client(t)
			sent := &locktest.SentCommands{}
			// So that a reply that is late is not asked for again.
			c := locktest.NewClient(t, rdb, rlock.WithUnlockTimeout(time.Minute))
			m := locktest.MultiLockOf(t, c, names...)
			locktest.MustUnlock(t, locktest.MustLock(t, m)) // loads the scripts, and finds the node
			rdb.AddHook(sent)
			lease := locktest.MustLock(t, m)
			from, scripts := sent.N.Load(), 0
			stats := locktest.Dialer(b.Addr)(t, nil)
			var heard *redis.PubSub
			if b.Real != nil {
				heard = stats.PSubscribe(bg, "redisson_lock__channel:*")
				defer func() { _ = heard.Close() }()
				if _, err := heard.Receive(bg); err != nil {
					t.Fatal(err)
				}
				scripts = locktest.CommandCount(t, stats, "evalsha", "eval")
			}
			locktest.MustUnlock(t, lease)
			if n := sent.N.Load() - from; n != 1 {
				t.Errorf("sent %d commands", n)
			}
			absent(t, rdb, names...)
			if b.Real == nil {
				return
			}
			if n := locktest.CommandCount(t, stats, "evalsha", "eval") - scripts; n != 1 {
				t.Errorf("ran %d scripts", n)
			}
			for _, n := range names {
				ctx, cancel := context.WithTimeout(bg, locktest.Patience)
				message, err := heard.ReceiveMessage(ctx)
				cancel()
				if err != nil || message.Channel != "redisson_lock__channel:"+n || message.Payload != "0" {
					t.Fatalf("%v, %v; want that of %s", message, err, n)
				}
			}
		})
	}
}

// The reply to the release of all members may be lost, and the request come twice.
func TestMultiLockReleaseOfAllWithLostReplyReleasesOnce(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/release_all", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		told := &verdicts{}
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(3*time.Second), rlock.WithObserver(told))
		loadScripts(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
		locktest.OnNth(t, proxy, "lock/release_all", 1, action)
		if action == faultproxy.Duplicate {
			// The reply that comes is that of one of two runs.
			_ = lease.Unlock(bg)
		} else {
			var want error
			if locktest.LosesReply(action) {
				want = rlock.ErrUnconfirmed
			}
			locktest.UnlockLossy(t, lease, action)
			told.want(t, map[string]error{names[0]: want, names[1]: want, names[2]: want})
		}
		absent(t, rdb, names...)
		locktest.OnlyTombstones(t, rdb)
	})
}

// The first run frees the members and its reply is lost, and the server refuses the second: then each member is released
// alone, and that its hold is gone proves no loss.
func TestMultiLockReleaseOfAllIsRefusedAfterALostReply(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		told := &verdicts{}
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second), rlock.WithObserver(told))
		loadScripts(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
		var runs atomic.Int64
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			if !c.IsScript(locktest.SHA("lock/release_all")) {
				return faultproxy.Pass
			}
			switch runs.Add(1) {
			case 1:
				return faultproxy.ResetAfter
			case 2:
				return faultproxy.Error
			}
			return faultproxy.Pass
		})
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost)
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs for all", n)
		}
		told.want(t, map[string]error{names[0]: rlock.ErrUnconfirmed, names[1]: rlock.ErrUnconfirmed, names[2]: rlock.ErrUnconfirmed})
		absent(t, rdb, names...)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A late copy of the release of all members takes nothing from those who have them
// by then.
func TestLateCopyOfAReleaseOfAllTakesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, unsure := range []bool{false, true} {
			t.Run(fmt.Sprint("unsure ", unsure), func(t *testing.T) {
				c, proxy, rdb := b.Faulty(t)
				loadScripts(t, rdb)
				names := []string{"{m}a", "{m}b", "{m}c"}
				m := locktest.MultiLockOf(t, c, names...)
				if unsure {
					locktest.OnNth(t, proxy, "lock/enter_all", 1, faultproxy.SwallowReply)
				}
				lease := locktest.MustLock(t, m)
				locktest.OnNth(t, proxy, "lock/release_all", 1, faultproxy.Hold)
				locktest.MustUnlock(t, lease)
				if tombs := locktest.Tombstones(locktest.Keys(t, rdb)); unsure && tombs != len(names) || !unsure && tombs != 0 {
					t.Errorf("%d tombstones: %q", tombs, locktest.Keys(t, rdb))
				}
				next := locktest.MustLock(t, locktest.MultiLockOf(t, locktest.NewClient(t, rdb), names...))
				if n := proxy.Release(); n != 1 {
					t.Fatalf("%d late copies", n)
				}
				for _, n := range names {
					if n := locktest.HoldCount(t, rdb, n, next.HoldID()); n != "1" {
						t.Errorf("count %q", n)
					}
				}
				locktest.MustUnlock(t, next)
				absent(t, rdb, names...)
				for _, k := range locktest.Keys(t, rdb) {
					_ = rdb.Del(bg, k).Err() // the next scenario counts its own
				}
				proxy.ResetAll() // ends what waits for the held copy's reply
			})
		}
	})
}

// Each member has a verdict of its own, and the loss of some keeps none of the others.
func TestMultiLockReleaseOfAllNamesTheLostMembers(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		told := &verdicts{}
		c := locktest.NewClient(t, rdb, rlock.WithObserver(told))
		names := []string{"{m}a", "{m}b", "{m}c", "{m}d"}
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
		rdb.Del(bg, names[1], names[2])
		rdb.HSet(bg, names[2], redistest.HoldID("other:1"), 1)
		err := lease.Unlock(bg)
		locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrTakenOver)
		told.want(t, map[string]error{names[0]: nil, names[1]: rlock.ErrRemoved, names[2]: rlock.ErrTakenOver, names[3]: nil})
		absent(t, rdb, names[0], names[1], names[3])
		if n := locktest.HoldCount(t, rdb, names[2], redistest.HoldID("other:1")); n != "1" {
			t.Errorf("the other's lock has count %q", n)
		}
	})
}

// What stands at the key of one member keeps none of the others.
func TestMultiLockReleaseOfAllWithAForeignMember(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		told := &verdicts{}
		c := locktest.NewClient(t, rdb, rlock.WithObserver(told))
		names := []string{"{m}a", "{m}b", "{m}c"}
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
		if err := rdb.Set(bg, names[1], "text", 0).Err(); err != nil {
			t.Fatal(err)
		}
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrForeignKey, nil, rlock.ErrUnconfirmed)
		told.want(t, map[string]error{names[0]: nil, names[1]: rlock.ErrForeignKey, names[2]: nil})
		absent(t, rdb, names[0], names[2])
		if text := rdb.Get(bg, names[1]).Val(); text != "text" {
			t.Errorf("%q", text)
		}
	})
}

// A member that was entered again is held until that is unlocked too.
func TestMultiLockReleaseOfAllKeepsAMemberThatWasEnteredAgain(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
		again := locktest.MustLockCtx(t, lease.Members()[1].Context(bg), c.NewLock(names[1]))
		locktest.MustUnlock(t, lease)
		absent(t, rdb, names[0], names[2])
		if n := locktest.HoldCount(t, rdb, names[1], again.HoldID()); n != "1" || again.Err() != nil {
			t.Fatalf("count %q, %v", n, again.Err())
		}
		locktest.MustUnlock(t, again)
		absent(t, rdb, names...)
	})
}

// What one copy of the release has freed, the other does not find. Both are heard:
// here the first finds one member removed, and its reply comes after the second was
// sent.
func TestRepliesOfBothCopiesOfAReleaseOfAllCount(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	told := &verdicts{}
	rdb := b.Client(t)
	loadScripts(t, rdb)
	hook := &lateReply{script: locktest.SHA("lock/release_all"), second: make(chan struct{})}
	mine := b.Client(t)
	mine.AddHook(hook)
	c := locktest.NewClient(t, mine, rlock.WithObserver(told), rlock.WithUnlockTimeout(6*time.Second))
	names := []string{"{m}a", "{m}b", "{m}c"}
	lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
	rdb.Del(bg, names[1])
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	if hook.runs != 2 {
		t.Fatalf("%d copies", hook.runs)
	}
	told.want(t, map[string]error{names[0]: nil, names[1]: rlock.ErrRemoved, names[2]: nil})
}

// lateReply keeps the reply to the first run of a script until the second has run.
type lateReply struct {
	script string
	mu     sync.Mutex // guards runs
	runs   int
	second chan struct{}
}

func (h *lateReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lateReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if len(cmd.Args()) < 2 || cmd.Args()[1] != h.script {
			return err
		}
		h.mu.Lock()
		h.runs++
		first := h.runs == 1
		h.mu.Unlock()
		if first {
			<-h.second
		} else {
			close(h.second)
			// The other order would come out right without any care. Nothing waits for
			// this one.
			time.Sleep(50 * time.Millisecond)
		}
		return err
	}
}

// A server without memory lets go of locks, and keeps their tombstones.
func TestMultiLockIsReleasedByAServerWithoutMemory(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	// So that only a reset connection has a request sent again, on a busy machine too.
	c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second))
	loadScripts(t, rdb)
	names := []string{"{m}a", "{m}b", "{m}c"}
	locktest.OnNth(t, proxy, "lock/enter_all", 1, faultproxy.ResetAfter)
	lease := locktest.MustLock(t, locktest.MultiLockOf(t, c, names...))
	if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	seen := locktest.OnNth(t, proxy, "lock/release_all", 1, faultproxy.Pass)
	locktest.MustUnlock(t, lease)
	if n := proxy.Count(func(c faultproxy.Command) bool { return c.IsScript(locktest.SHA("lock/abandon")) }); n > 0 || seen.Load() != 1 {
		t.Errorf("%d runs, and %d for single members", seen.Load(), n)
	}
	absent(t, rdb, names...)
	if n := locktest.Tombstones(locktest.Keys(t, rdb)); n != len(names) {
		t.Errorf("%d tombstones", n)
	}
}

// What a round has taken of one server is given back by one script.
func TestRoundGivesBackByOneScript(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(20*time.Second), rlock.WithUnlockTimeout(20*time.Second))
		loadScripts(t, rdb)
		names := []string{"{m}a", "{m}b", "{m}c"}
		long := locktest.MustLock(t, locktest.NewClient(t, rdb).NewLock(names[2]))
		m, err := rlock.NewMultiLock([]*rlock.Lock{c.NewLock(names[0]), c.NewLock(names[1]), c.NewLock(names[2])}, rlock.WithRound(300*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		seen := locktest.OnNth(t, proxy, "lock/release_all", 1, faultproxy.Pass)
		got := make(chan locktest.Grant, 1)
		go func() {
			lease, err := m.Lock(bg, rlock.WithWait(time.Minute))
			got <- locktest.Grant{Lease: lease, Err: err}
		}()
		locktest.Eventually(t, "the round is over", func() bool { return seen.Load() == 1 })
		locktest.Eventually(t, "nothing is held", func() bool { return rdb.Exists(bg, names[0], names[1]).Val() == 0 })
		locktest.MustUnlock(t, long)
		g := <-got
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		locktest.MustUnlock(t, g.Lease)
		absent(t, rdb, names...)
	})
}
