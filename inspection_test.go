package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
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
			redis.call('hset', ARGV[1], ARGV[3] .. i, 1)
			redis.call('set', '{' .. ARGV[1] .. '}:' .. ARGV[3] .. i .. ':rwlock_timeout:1', 1, 'px', 3600000)
		end`,
		"FairReadWriteLock": `for i = 1, ARGV[2] do
			redis.call('hset', '{' .. ARGV[1] .. '}:rlock:fairrw', ARGV[3] .. i, 1)
			redis.call('zadd', '{' .. ARGV[1] .. '}:rlock:fairrw:ends', redis.call('time')[1] * 1000 + 3600000, ARGV[3] .. i)
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
				if err := raw.Eval(bg, addReaders[kind], nil, name, n, strings.TrimSuffix(redistest.HoldID("reader:1"), "1")).Err(); err != nil && err != redis.Nil {
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
				rdb.HSet(bg, name, redistest.HoldID(fmt.Sprint("dead:", i)), 1)
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

// refused is the error of a wait that is long enough for a look, on any machine.
func refused(waits func(wait time.Duration) error) (err error) {
	for wait := 50 * time.Millisecond; wait < locktest.Patience; wait *= 2 {
		if err = waits(wait); err == nil || strings.Contains(err.Error(), "held by ") {
			break
		}
	}
	return err
}

func refusedWait(l rlock.Locker) error {
	return refused(func(wait time.Duration) error {
		_, err := l.Lock(bg, rlock.WithWait(wait))
		return err
	})
}

// Who is kept out by a hold of its own client may wait for itself, for ever, with the context from
// outside the lease. The error says what to do, if there is something.
func TestRefusalByTheOwnClientSaysHowToEnterAgain(t *testing.T) {
	t.Parallel()
	const again, unless = "; whoever holds it enters again with the context of its lease", "; whoever holds it enters again with the context of its lease, unless it is a reader's"
	type refusal struct {
		held, asks rlock.Locker
		advice     string
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		mine, other := b.NewClient(t, rlock.WithAnonymity()), b.NewClient(t)
		refusals := map[string]func(c *rlock.Client) refusal{
			"a reader keeps the writer out": func(c *rlock.Client) refusal {
				return refusal{mine.NewReadWriteLock("rw").Reader, c.NewReadWriteLock("rw").Writer, unless}
			},
			"Lock, not reentrant": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("once"), c.NewLock("once", rlock.WithNonReentrant()), ""}
			},
			"another type of lock": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("types"), c.NewSpinLock("types"), again}
			},
			"MultiLock in one script": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("{m}b"), locktest.MultiLockOf(t, c, "{m}a", "{m}b"), again}
			},
			"MultiLock of types": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("n"), locktest.NewMultiLock(t, c.NewFairLock("m"), c.NewLock("n")), again}
			},
			"MultiLock that is not reentrant": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("{o}b"), locktest.NewMultiLock(t, c.NewLock("{o}a", rlock.WithNonReentrant()), c.NewLock("{o}b", rlock.WithNonReentrant())), ""}
			},
			"RedLock": func(c *rlock.Client) refusal {
				open := func(c *rlock.Client) rlock.Locker {
					return locktest.NewRedLock(t, "red", []*rlock.Client{c}, rlock.WithNodeTimeout(5*time.Second))
				}
				return refusal{open(mine), open(c), again}
			},
			"PermitSemaphore": func(c *rlock.Client) refusal {
				open := func(c *rlock.Client) rlock.Locker {
					return locktest.PermitLocker{PermitSemaphore: locktest.MustSetPermits(t, c.NewPermitSemaphore("permits", rlock.WithFairness()), 1), N: 1}
				}
				return refusal{open(mine), open(c), ""}
			},
		}
		for _, k := range locktest.Types {
			advice := again
			if strings.HasSuffix(k.Name, "WriteLock") {
				advice = unless
			}
			refusals[k.Name] = func(c *rlock.Client) refusal {
				return refusal{k.Blocker(mine, "type:"+k.Name), k.Open(c, "type:"+k.Name), advice}
			}
		}
		for name, of := range refusals {
			t.Run(name, func(t *testing.T) {
				for _, c := range []*rlock.Client{mine, other} {
					r := of(c)
					lease := locktest.MustLock(t, r.held, rlock.WithLease(time.Hour))
					for how, ask := range map[string]func() (*rlock.Lease, error){
						"TryLock": func() (*rlock.Lease, error) { return r.asks.TryLock(bg) },
						"Lock":    func() (*rlock.Lease, error) { return nil, refusedWait(r.asks) },
					} {
						var err error
						// What an earlier wait had of a MultiLock may not have been given back yet.
						for tries := 0; tries < 20; tries++ {
							_, err = ask()
							// Nor does one that ended before its last look was answered know what is left.
							if err != nil && strings.Contains(err.Error(), lease.HoldID()) && strings.Contains(err.Error(), " left") {
								break
							}
						}
						locktest.WantErr(t, err, rlock.ErrNotAcquired)
						who, advice := "held by "+lease.HoldID(), ""
						if c == mine {
							who, advice = "held by this client ("+lease.HoldID()+")", r.advice
						}
						_, text, found := strings.Cut(err.Error(), who)
						_, rest, left := strings.Cut(text, " left")
						if !found || !left || rest != advice {
							t.Errorf("%s of the same client: %v: %v\nis not %q, and %q at the end", how, c == mine, err, who, advice)
						}
						var e *rlock.Error
						oneScript := strings.Contains(err.Error(), "one of the locks is")
						if !errors.As(err, &e) || e.HolderID != lease.HoldID() && !oneScript {
							t.Errorf("held by %s: %+v", lease.HoldID(), e)
						}
					}
					locktest.MustUnlock(t, lease)
				}
			})
		}
	})
}

// Several holders are readers, and a reader that asks to write is refused.
func TestRefusalByReadersOfTheOwnClientGivesNoAdvice(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for name, rw := range map[string]bothSides{
		"ReadWriteLock": {c.NewReadWriteLock("rw").Reader, c.NewReadWriteLock("rw").Writer},
		"fair":          {c.NewFairReadWriteLock("fair").Reader, c.NewFairReadWriteLock("fair").Writer},
	} {
		reader, writer := rw.reader, rw.writer
		leases := []*rlock.Lease{locktest.MustLock(t, reader), locktest.MustLock(t, reader)}
		_, err := writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "held by this client (") || !strings.Contains(err.Error(), ") and 1 more") || strings.Contains(err.Error(), "pass on") {
			t.Errorf("%s: %v", name, err)
		}
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
	}
}

type bothSides struct{ reader, writer rlock.Locker }

// A waiter behind others of its client has not looked itself, and is told the same. What it asked for
// decides whether there is advice: the one before it need not be of its type.
func TestErrorOfAWaiterBehindOthersNamesTheOwnClient(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	lease := locktest.MustLock(t, c.NewLock("a"))
	first := locktest.Begin(t, bg, c.NewLock("a", rlock.WithNonReentrant()))
	locktest.Eventually(t, "the first waits", func() bool { return locktest.Waiters(t, c.NewLock("a")) == 1 })
	if err := refusedWait(c.NewLock("a")); !strings.HasSuffix(err.Error(), " left; whoever holds it enters again with the context of its lease") {
		t.Error(err)
	}
	if err := first.GiveUp(); strings.Contains(err.Error(), "pass on") ||
		!strings.Contains(err.Error(), "held by this client ("+lease.HoldID()+")") && !errors.Is(err, rlock.ErrUnreachable) { // a look that was cut off, on a busy machine
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)
}

// The leader of a client of which another candidate waits, and who runs a Once, are named so, too.
func TestErrorNamesALeaderOfTheSameClient(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	e := c.NewElection("job")
	lease, err := e.Campaign(bg, "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Campaign(bg, "b", rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if !strings.Contains(err.Error(), "held by this client ("+lease.HoldID()+")") || strings.Contains(err.Error(), "pass on") {
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)

	o := c.NewOnce("once", time.Minute)
	_, _, err = o.Do(bg, func(context.Context) ([]byte, error) {
		return nil, refused(func(wait time.Duration) error {
			ctx, cancel := context.WithTimeout(bg, wait)
			defer cancel()
			_, _, err := o.Do(ctx, func(context.Context) ([]byte, error) { return nil, errors.New("it ran") })
			return err
		})
	})
	locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
	if !strings.Contains(err.Error(), "held by this client (") || strings.Contains(err.Error(), "pass on") {
		t.Error(err)
	}
}

// A server has its channels for all databases, so waiters of another one are counted, unless a prefix tells them apart.
func TestWaitersInAnotherDatabaseAreApartByAPrefix(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	second := func(o *redis.Options) { o.DB = 1 }
	for prefix, want := range map[string]int{"": 1, "second:": 0} {
		mine := locktest.NewClient(t, srv.Client()).NewLock("a" + prefix)
		theirs := func() *rlock.Lock {
			return locktest.NewClient(t, srv.Client(second), rlock.WithPrefix(prefix), rlock.WithLongestPoll(locktest.Patient)).NewLock("a" + prefix)
		}
		lease, held := locktest.MustLock(t, mine), locktest.MustLock(t, theirs())
		waits := theirs()
		next := locktest.Begin(t, bg, waits)
		locktest.Eventually(t, "it listens", func() bool { return rlock.Listens(waits) })
		locktest.Eventually(t, "it is counted, or not", func() bool {
			s, err := mine.State(bg)
			return err == nil && s.Waiters == want
		})
		locktest.MustUnlock(t, held)
		locktest.MustUnlock(t, next.Held())
		locktest.MustUnlock(t, lease)
	}
}
