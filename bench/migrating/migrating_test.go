// Package migrating tests what docs/migrating.md says of other libraries, beside a Redis server.
package migrating

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-rlock/rlock"
	redislockafter "github.com/go-rlock/rlock/bench/migrating/redislock/after"
	redislockbefore "github.com/go-rlock/rlock/bench/migrating/redislock/before"
	redsyncafter "github.com/go-rlock/rlock/bench/migrating/redsync/after"
	redsyncbefore "github.com/go-rlock/rlock/bench/migrating/redsync/before"
	rueidislockafter "github.com/go-rlock/rlock/bench/migrating/rueidislock/after"
	rueidislockbefore "github.com/go-rlock/rlock/bench/migrating/rueidislock/before"
	setnxafter "github.com/go-rlock/rlock/bench/migrating/setnx/after"
	setnxbefore "github.com/go-rlock/rlock/bench/migrating/setnx/before"
	"github.com/go-rlock/rlock/internal/redistest"
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // of connections that tests cut
	os.Exit(m.Run())
}

// patience bounds what must come soon, on a busy machine too.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// renewal reports whether the time that a key has left has grown since the call before.
func renewal(rdb *redis.Client, key string) func() bool {
	last := rdb.PTTL(context.Background(), key).Val()
	return func() bool {
		before := last
		last = rdb.PTTL(context.Background(), key).Val()
		return last > before
	}
}

// process is what one process has: a connection, and a client of each library.
type process struct {
	addr      string
	rdb       *redis.Client
	rlock     *rlock.Client
	redsync   *redsync.Redsync
	redislock *redislock.Client
}

func newProcess(t *testing.T, addr string) *process {
	t.Helper()
	p := &process{addr: addr, rdb: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { _ = p.rdb.Close() })
	var err error
	if p.rlock, err = rlock.New(p.rdb); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.rlock.Close() })
	p.redsync, p.redislock = redsync.New(goredis.NewPool(p.rdb)), redislock.New(p.rdb)
	return p
}

// rueidislock is a client with one key for each lock. An attempt may take long here: one that takes
// longer than TryNextAfter fails, and then nothing wakes its waiter.
func (p *process) rueidislock(t *testing.T) rueidislock.Locker {
	t.Helper()
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{p.addr}},
		KeyMajority:    1,
		KeyValidity:    patience,
		TryNextAfter:   patience,
		NoLoopTracking: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// A job does work under a lock, in a new process. It reports whether it has done it.
type job func(ctx context.Context, work func(context.Context) error) (done bool, err error)

// A program is a function of the page.
type program struct {
	name  string
	key   string // of its lock in Redis
	waits bool   // while another has the lock, or returns at once
	open  func(t *testing.T, p *process) job
}

// again begins anew where rueidislock sleeps although the lock is free: seen in 2 of 10 runs of TestPairsDoTheSame.
func again(do job) job {
	return func(ctx context.Context, work func(context.Context) error) (bool, error) {
		for {
			attempt, cancel := context.WithCancel(ctx)
			asleep, begun := time.AfterFunc(2*time.Second, cancel), false
			done, err := do(attempt, func(inside context.Context) error {
				if begun = asleep.Stop(); !begun {
					return context.Canceled
				}
				return work(inside)
			})
			cancel()
			if begun || ctx.Err() != nil || !errors.Is(err, context.Canceled) {
				return done, err
			}
		}
	}
}

func waiting(err error) (bool, error) { return err == nil, err }

var programs = []program{
	{"redsync/before", "order:7", true, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return waiting(redsyncbefore.Ship(ctx, p.redsync, "7", work))
		}
	}},
	{"redsync/after", "lock:order:7", true, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return waiting(redsyncafter.Ship(ctx, p.rlock, "7", work))
		}
	}},
	{"redislock/before", "report:may", false, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return redislockbefore.Report(ctx, p.redislock, "may", work)
		}
	}},
	{"redislock/after", "lock:report:may", false, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return redislockafter.Report(ctx, p.rlock, "may", work)
		}
	}},
	{"rueidislock/before", "rueidislock:0:shop:7", true, func(t *testing.T, p *process) job {
		l := p.rueidislock(t)
		return again(func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return waiting(rueidislockbefore.Sync(ctx, l, "7", work))
		})
	}},
	{"rueidislock/after", "lock:shop:7", true, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return waiting(rueidislockafter.Sync(ctx, p.rlock, "7", work))
		}
	}},
	{"setnx/before", "clean:tmp", false, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return setnxbefore.Clean(ctx, p.rdb, "tmp", work)
		}
	}},
	{"setnx/after", "lock:clean:tmp", false, func(_ *testing.T, p *process) job {
		return func(ctx context.Context, work func(context.Context) error) (bool, error) {
			return setnxafter.Clean(ctx, p.rlock, "tmp", work)
		}
	}},
}

// Both sides of each pair pass the same test: processes exclude each other, errors of the work come
// back, the key is the one of the page, and it is gone afterwards.
func TestPairsDoTheSame(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, prog := range programs {
		t.Run(prog.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var jobs []job
			for range 3 {
				jobs = append(jobs, prog.open(t, newProcess(t, server.Addr())))
			}
			exclude(t, ctx, jobs)

			look := newProcess(t, server.Addr()).rdb
			boom, seen := errors.New("boom"), false
			if _, err := jobs[0](ctx, func(inside context.Context) error {
				seen = look.Exists(ctx, prog.key).Val() == 1
				if !prog.waits {
					if done, err := jobs[1](ctx, func(context.Context) error { t.Error("two at once"); return nil }); done || err != nil {
						t.Errorf("busy: %v, %v", done, err)
					}
					return boom
				}
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				if _, err := jobs[1](short, func(context.Context) error { t.Error("two at once"); return nil }); err == nil {
					t.Error("entered a lock that is held")
				}
				return boom
			}); !errors.Is(err, boom) {
				t.Errorf("the error of the work: %v", err)
			}
			if !seen {
				t.Errorf("there was no key %q", prog.key)
			}
			if n := look.Exists(ctx, prog.key).Val(); n != 0 {
				t.Errorf("key %q was left behind", prog.key)
			}
		})
	}
}

// exclude runs the jobs side by side until each has done its work five times, one at a time.
func exclude(t *testing.T, ctx context.Context, jobs []job) {
	t.Helper()
	var all sync.WaitGroup
	var inside, total atomic.Int64
	for _, do := range jobs {
		all.Go(func() {
			for n := 0; n < 5; {
				done, err := do(ctx, func(context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two at once")
					}
					time.Sleep(2 * time.Millisecond) // time for others to come in
					total.Add(1)
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				} else if done {
					n++
				} else {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	if got, want := total.Load(), int64(5*len(jobs)); got != want && !t.Failed() {
		t.Errorf("the work was done %d times, not %d", got, want)
	}
}

// What happens to work whose key goes away below it, by the end of its lease or otherwise.
func TestLossOfTheKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, prog := range programs {
		t.Run(prog.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			one, two := newProcess(t, server.Addr()), newProcess(t, server.Addr())
			after := strings.HasSuffix(prog.name, "/after")
			told := after || prog.name == "rueidislock/before"
			if after {
				one.rlock = client(t, one.rdb, rlock.WithWatchdogLease(3*time.Second)) // to hear of it in a second
			}
			do, other := prog.open(t, one), prog.open(t, two)
			var entered, ended bool
			_, err := do(ctx, func(inside context.Context) error {
				if n := two.rdb.Del(ctx, prog.key).Val(); n != 1 {
					t.Errorf("there was no key %q", prog.key)
				}
				_, err := other(ctx, func(context.Context) error { entered = true; return nil })
				if err != nil {
					t.Error(err)
				}
				if told {
					eventually(t, "the work hears of its loss", func() bool { return inside.Err() != nil })
				}
				ended = inside.Err() != nil
				return nil
			})
			if !entered {
				t.Error("the other did not enter")
			}
			if ended != told {
				t.Errorf("the context has ended: %v", ended)
			}
			if errors.Is(err, rlock.ErrLeaseLost) != after || !after && err != nil {
				t.Errorf("the error of the loss: %v", err)
			}
		})
	}
}

// The context of the caller ends during the work. Only the helper leaves its key behind.
func TestTheContextEndsDuringTheWork(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, prog := range programs {
		t.Run(prog.name, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t, server.Addr())
			do := prog.open(t, p)
			ctx, cancel := context.WithCancel(t.Context())
			_, _ = do(ctx, func(inside context.Context) error {
				cancel()
				<-inside.Done()
				return inside.Err()
			})
			left := p.rdb.Exists(t.Context(), prog.key).Val() == 1
			if want := prog.name == "setnx/before"; left != want {
				t.Errorf("the key was left behind: %v", left)
			}
		})
	}
}

func client(t *testing.T, rdb redis.UniversalClient, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	c, err := rlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A holder that was too slow: who unlocks the lock of its successor, and who renews.
func TestSlowHolder(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, ctx := newProcess(t, server.Addr()), t.Context()

	t.Run("SETNX with DEL frees the successor's lock", func(t *testing.T) {
		if done, err := setnxbefore.Clean(ctx, p.rdb, "slow", func(context.Context) error {
			p.rdb.Del(ctx, "clean:slow") // as at the end of the lease
			return p.rdb.SetNX(ctx, "clean:slow", "successor", patience).Err()
		}); !done || err != nil {
			t.Fatal(done, err)
		}
		if n := p.rdb.Exists(ctx, "clean:slow").Val(); n != 0 {
			t.Error("the successor kept its lock: the page says that it does not")
		}
	})
	t.Run("a redsync.Mutex that goroutines share frees the successor's lock", func(t *testing.T) {
		shared := p.redsync.NewMutex("shared")
		if err := shared.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		p.rdb.Del(ctx, "shared")
		if err := shared.LockContext(ctx); err != nil { // another goroutine
			t.Fatal(err)
		}
		if ok, err := shared.UnlockContext(ctx); !ok || err != nil { // the first one
			t.Fatal(ok, err)
		}
		if n := p.rdb.Exists(ctx, "shared").Val(); n != 0 {
			t.Error("the successor kept its lock: the page says that it does not")
		}
	})
	t.Run("a Lock that goroutines share does not", func(t *testing.T) {
		shared := p.rlock.NewLock("ours")
		first, err := shared.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		p.rdb.Del(ctx, "ours")
		second, err := p.rlock.NewLock("ours").TryLock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("the first: %v", err)
		}
		if n := p.rdb.Exists(ctx, "ours").Val(); n != 1 {
			t.Error("the successor lost its lock")
		}
		if err := second.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("only rueidislock and ours renew", func(t *testing.T) {
		mutex := p.redsync.NewMutex("r1", redsync.WithExpiry(patience))
		if err := mutex.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		lock, err := p.redislock.Obtain(ctx, "r2", patience, nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := client(t, p.rdb, rlock.WithWatchdogLease(3*time.Second)).NewLock("r3").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r1, r2, r3 := renewal(p.rdb, "r1"), renewal(p.rdb, "r2"), renewal(p.rdb, "r3")
		eventually(t, "ours is renewed", r3)
		if r1() || r2() {
			t.Error("redsync or redislock has renewed")
		}
		_, err1 := mutex.UnlockContext(ctx)
		if err := errors.Join(err1, lock.Release(ctx), lease.Unlock(ctx)); err != nil {
			t.Error(err)
		}
	})
}

// What the errors tell apart, while the lock is held and while Redis cannot be reached.
func TestErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, ctx := newProcess(t, server.Addr()), t.Context()
	for _, key := range []string{"redsync", "redislock"} {
		if err := p.rdb.SetNX(ctx, key, "held", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	held := client(t, p.rdb).NewLock("ours")
	lease, err := held.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err = p.redsync.NewMutex("redsync", redsync.WithTries(1000)).LockContext(short)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("redsync, ended while it waits: %v", err)
	}
	taken := (*redsync.ErrTaken)(nil)
	if err := p.redsync.NewMutex("redsync").TryLockContext(ctx); !errors.As(err, &taken) {
		t.Errorf("redsync, held: %v", err)
	}
	// Without a deadline, the lease bounds the wait. It ends in a pause: what ends in a request
	// has that request's error alone.
	_, err = p.redislock.Obtain(ctx, "redislock", time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, redislock.ErrNotObtained) {
		t.Errorf("redislock, after a wait: %v", err)
	}
	late, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := p.rlock.NewLock("ours").Lock(late); !errors.Is(err, rlock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ours, ended while it waits: %v", err)
	}

	away := redistest.Start(t)
	out := newProcess(t, away.Addr())
	away.Kill()
	if _, err := out.rlock.NewLock("ours").TryLock(ctx); !errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("ours, no Redis: %v", err)
	}
}

// One name for both libraries excludes, but nobody waits.
func TestSameNameAsTheOldLock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, ctx := newProcess(t, server.Addr()), t.Context()
	mutex, ours := p.redsync.NewMutex("same"), p.rlock.NewLock("same")
	if err := mutex.LockContext(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Lock(ctx); !errors.Is(err, rlock.ErrForeignKey) {
		t.Errorf("ours, while redsync holds it: %v", err)
	}
	if ok, err := mutex.UnlockContext(ctx); !ok || err != nil {
		t.Error("redsync's lock was disturbed", ok, err)
	}
	lease, err := ours.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	taken := (*redsync.ErrTaken)(nil)
	if err := mutex.TryLockContext(ctx); !errors.As(err, &taken) {
		t.Errorf("redsync, while it is ours: %v", err)
	}
	if _, err := p.redislock.Obtain(ctx, "same", time.Minute, nil); err == nil || errors.Is(err, redislock.ErrNotObtained) {
		t.Errorf("redislock, while it is ours: %v", err)
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Error("our lock was disturbed", err)
	}
}
