package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/seam"
)

func TestReleaseWakesAWaiterOfAnotherClientByMessage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		holder, waiter := b.NewClient(t), locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
		for i := range 20 {
			name := fmt.Sprint(i)
			lease := locktest.MustLock(t, holder.NewLock(name), rlock.WithLease(time.Hour))
			got := make(chan *rlock.Lease)
			go func() { got <- locktest.MustLock(t, waiter.NewLock(name)) }()
			locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, name) == 1 })
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, <-got)
		}
		locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*").Val()) == 0 })
	})
}

// Only the head of a line asks Redis: who comes while others wait does not look, neither where the
// client listens already nor where it does not.
func TestNewWaitersBehindOthersSendNoRequest(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(c *rlock.Client) rlock.Locker{
		"Lock":       func(c *rlock.Client) rlock.Locker { return c.NewLock("a") },
		"FencedLock": func(c *rlock.Client) rlock.Locker { return c.NewFencedLock("a") },
		"SpinLock": func(c *rlock.Client) rlock.Locker {
			return c.NewSpinLock("a", rlock.WithBackoff(rlock.ConstantBackoff(time.Hour)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			rival := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
			rdb := b.Client(t)
			var mu sync.Mutex         // guards looks
			looks := map[string]int{} // by the id of the hold to be
			rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
				err := next()
				if args := cmd.Args(); err == nil && strings.HasPrefix(cmd.Name(), "eval") {
					mu.Lock()
					looks[fmt.Sprint(args[3+args[2].(int)])]++ // the first argument of each script of theirs
					mu.Unlock()
				}
				return err
			}})
			looked := func() (by, n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, of := range looks {
					n += of
				}
				return len(looks), n
			}
			l := open(locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)))
			all := []*locktest.Attempt{locktest.Begin(t, bg, l)}
			locktest.Eventually(t, "the head sleeps", func() bool {
				_, n := looked()
				listens := name == "SpinLock" || n >= locktest.LooksBeforeSleep
				return rlock.InLine(l) == 1 && n > 0 && listens
			})
			for range 10 {
				all = append(all, locktest.Begin(t, bg, l))
			}
			locktest.Eventually(t, "they stand in line", func() bool { return rlock.InLine(l) == len(all) })
			if by, n := looked(); by != 1 {
				t.Errorf("%d looks, by %d waiters", n, by)
			}
			locktest.MustUnlock(t, rival)
			for _, a := range all {
				a.Cancel()
			}
		})
	}
}

// A lock that was waited for stays subscribed for a while. Then a hand-over between two
// processes takes three commands: the look of the waiter that comes, the release, and its
// look after the message.
func TestReturningWaiterDoesNotSubscribeAgain(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb, looked := b.Client(t), locktest.EvalCounter(t, b)
	var locks [2]*rlock.Lock
	for i := range locks {
		locks[i] = b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
	}
	lease := locktest.MustLock(t, locks[0], rlock.WithLease(time.Hour))
	const rounds = 100
	var before, subscribes int
	for i := range rounds + 2 {
		if i == 2 { // each has waited once
			before, subscribes = looked(), locktest.CommandCount(t, rdb, "subscribe", "unsubscribe")
		}
		looks := looked()
		got := make(chan *rlock.Lease)
		go func() { got <- locktest.MustLock(t, locks[(i+1)%2], rlock.WithLease(time.Hour)) }()
		locktest.Eventually(t, "it has looked", func() bool { return looked() > looks })
		if i < 2 {
			locktest.Eventually(t, "it is subscribed", func() bool {
				return locktest.Subscribers(t, rdb, "a") == int64(i+1) && looked() >= looks+locktest.LooksBeforeSleep
			})
		}
		locktest.MustUnlock(t, lease)
		lease = <-got
	}
	// A message of the release before may come so late that it is news. Without the kept
	// line it would be four for each.
	if n := looked() - before; n > 3*rounds+rounds/4 {
		t.Errorf("%d hand-overs took %d scripts", rounds, n)
	}
	if n := locktest.CommandCount(t, rdb, "subscribe", "unsubscribe") - subscribes; n > rounds/10 {
		// A pause of the machine for longer than subscriptions are kept is possible.
		t.Errorf("%d hand-overs took %d commands of subscriptions", rounds, n)
	}
	locktest.MustUnlock(t, lease)
}

// The release comes after the waiter's look, and its message before the waiter has a place
// in line.
func TestReleaseBetweenTheLookAndTheLineOfAWaiterThatComesAgain(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		holder := b.NewClient(t)
		var messages atomic.Int64 // that the subscribed connection of the waiter has read
		var afterLook atomic.Pointer[func()]
		looking := b.Client(t)
		looking.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if fn := afterLook.Load(); fn != nil && locktest.Runs(cmd, "lock/enter") && afterLook.CompareAndSwap(fn, nil) {
				(*fn)()
			}
			return err
		}})
		c := locktest.NewClient(t, looking, rlock.WithLongestPoll(locktest.Patient), seam.Option(seam.Env{Gate: func(point string) {
			if point == "message" {
				messages.Add(1)
			}
		}}).(rlock.Option))
		// waits has a waiter come, and returns what it got.
		waits := func(name string) <-chan *rlock.Lease {
			got := make(chan *rlock.Lease, 1)
			go func() { got <- locktest.MustLock(t, c.NewLock(name)) }()
			return got
		}
		for _, name := range []string{"a", "b"} { // from here on both are subscribed
			lease := locktest.MustLock(t, holder.NewLock(name), rlock.WithLease(time.Hour))
			got := waits(name)
			locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, name) == 1 })
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, <-got)
		}
		lease := locktest.MustLock(t, holder.NewLock("a"), rlock.WithLease(time.Hour))
		released := func() {
			before := messages.Load()
			locktest.MustUnlock(t, lease)
			// Messages are dealt with one by one: when that for b has been read, a has heard.
			rdb.Publish(bg, "redisson_lock__channel:{b}", "0")
			locktest.Eventually(t, "both were read", func() bool { return messages.Load() >= before+2 })
		}
		afterLook.Store(&released)
		locktest.MustUnlock(t, <-waits("a"))
	})
}

func TestForeignReleaseWakesAWaiter(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
		// As a Java process would hold and release it.
		rdb.HSet(bg, "a", "6c1f0a4e-8a3c-4f0e-9f6e-0d9a4f8f2b11:57", 1)
		rdb.PExpire(bg, "a", time.Hour)
		got := make(chan *rlock.Lease)
		go func() { got <- locktest.MustLock(t, l) }()
		locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
		if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
			p.Del(bg, "a")
			p.Publish(bg, "redisson_lock__channel:{a}", "0")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, <-got)
	})
}

func TestExpiryWakesAWaiterByItsTimer(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
		start := time.Now() // the reply may be late
		rdb.HSet(bg, "a", redistest.HoldID("dead:1"), 1)
		rdb.PExpire(bg, "a", 300*time.Millisecond)
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		if took := time.Since(start); took < 250*time.Millisecond || took > locktest.Patience {
			t.Fatalf("waited %v for a lease of 300ms", took)
		}
	})
}

func TestLockWithoutTTLIsPolled(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(100*time.Millisecond)).NewLock("a")
		rdb.HSet(bg, "a", redistest.HoldID("strange:1"), 1)
		_, err := l.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		got := make(chan *rlock.Lease)
		go func() { got <- locktest.MustLock(t, l) }()
		locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
		rdb.Del(bg, "a") // and nothing is published
		locktest.MustUnlock(t, <-got)
	})
}

func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		l := locktest.NewClient(t, rdb).NewLock("a")
		lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
		const short, long = 1500 * time.Millisecond, time.Minute
		type begin func() context.Context // made when its own wait begins
		deadline := func(d time.Duration) begin {
			return func() context.Context {
				ctx, cancel := context.WithTimeout(bg, d)
				t.Cleanup(cancel)
				return ctx
			}
		}
		mine := errors.New("mine")
		cancelled := func(cause error) begin {
			return func() context.Context {
				ctx, cancel := context.WithCancelCause(bg)
				time.AfterFunc(short, func() { cancel(cause) })
				return ctx
			}
		}
		unbounded := func() context.Context { return bg }
		for name, c := range map[string]struct {
			ctx  begin
			opts []rlock.AcquireOption
			want []error
		}{
			"deadline":                  {deadline(short), nil, []error{rlock.ErrNotAcquired, context.DeadlineExceeded}},
			"cancel":                    {cancelled(nil), nil, []error{rlock.ErrNotAcquired, context.Canceled, nil, context.DeadlineExceeded}},
			"cancel with a cause":       {cancelled(mine), nil, []error{rlock.ErrNotAcquired, context.Canceled, mine}},
			"WithWait":                  {unbounded, []rlock.AcquireOption{rlock.WithWait(short)}, []error{rlock.ErrNotAcquired, nil, context.DeadlineExceeded, context.Canceled}},
			"WithWait 0":                {unbounded, []rlock.AcquireOption{rlock.WithWait(0)}, []error{rlock.ErrNotAcquired, nil, context.DeadlineExceeded}},
			"both, WithWait is shorter": {deadline(long), []rlock.AcquireOption{rlock.WithWait(short)}, []error{rlock.ErrNotAcquired, nil, context.DeadlineExceeded}},
			"both, deadline is shorter": {deadline(short), []rlock.AcquireOption{rlock.WithWait(long)}, []error{rlock.ErrNotAcquired, context.DeadlineExceeded}},
		} {
			t.Run(name, func(t *testing.T) {
				start := time.Now()
				_, err := l.Lock(c.ctx(), c.opts...)
				locktest.WantErr(t, err, c.want...)
				took := time.Since(start)
				if took < short && name != "WithWait 0" {
					t.Fatalf("waited only %v", took)
				}
				if took > 30*time.Second { // a short wait, on a machine that does other things
					t.Fatalf("took %v", took)
				}
			})
		}
		locktest.MustUnlock(t, lease)
		locktest.OnlyTombstones(t, rdb) // of looks that were under way
	})
}

func TestWaitersOfOneClientAreServedInOrder(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		l := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, l)
		const n = 20
		order := make(chan int, n)
		var wg sync.WaitGroup
		defer wg.Wait() // the last one unlocks after the test has heard of it
		for i := range n {
			wg.Go(func() {
				lease := locktest.MustLock(t, l)
				order <- i
				locktest.MustUnlock(t, lease)
			})
			locktest.Eventually(t, "it stands in line", func() bool { return locktest.Waiters(t, l) == i+1 })
		}
		locktest.MustUnlock(t, lease)
		for i := range n {
			if got := <-order; got != i {
				t.Fatalf("waiter %d was served as number %d", got, i)
			}
		}
	})
}

// The first in line is cancelled when it has been woken, but has not looked yet: its
// wake-up is the next one's. A second message, to nobody yet, changes nothing.
func TestCancelledWaiterPassesItsWakeUpOn(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			if k.Name == "SpinLock" || k.Name == "fair ReadLock" {
				continue // nobody wakes its waiters; Redis wakes each by itself
			}
			for messages := 1; messages <= 2; messages++ {
				locktest.Beside(t, fmt.Sprintf("%s, %d messages", k.Name, messages), func(t *testing.T) {
					passOnWakeUp(t, b, k, fmt.Sprintf("wake-%s-%d", strings.ReplaceAll(k.Name, " ", "-"), messages), messages)
				})
			}
		}
	})
}

// subscriptions counts those that were confirmed.
type subscriptions struct {
	locktest.Ignoring
	n atomic.Int64
}

func (s *subscriptions) Subscription(e rlock.SubscriptionEvent) {
	if e.On {
		s.n.Add(1)
	}
}

func passOnWakeUp(t *testing.T, b *locktest.Backend, k locktest.Type, name string, messages int) {
	var armed atomic.Bool
	woken, look := make(chan struct{}), make(chan struct{})
	env := seam.Option(seam.Env{Gate: func(point string) {
		if strings.HasPrefix(point, "woken") && armed.CompareAndSwap(true, false) {
			close(woken)
			<-look
		}
	}}).(rlock.Option)
	rdb := b.Client(t)
	sent := &locktest.CountHook{}
	rdb.AddHook(sent)
	heard := &subscriptions{}
	l := k.Open(locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient), env, rlock.WithObserver(heard)), name)
	rival := k.Blocker(b.NewClient(t), name)
	held := locktest.MustLock(t, rival, rlock.WithLease(2*time.Hour))
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	first, second := make(chan error, 1), make(chan *rlock.Lease, 1)
	go func() { _, err := l.Lock(ctx); first <- err }()
	asleep := func(want int) {
		t.Helper()
		locktest.Eventually(t, "they wait, and have looked", func() bool {
			s, err := l.State(bg)
			before := sent.N.Load()
			// A look that is under way, or comes soon after the confirmation of a
			// subscription, could take the lock.
			time.Sleep(200 * time.Millisecond)
			channels := 1
			if k.Name == "FairLock" {
				channels = want // each waiter has one of its own
			}
			return err == nil && s.Waiters == want && heard.n.Load() == int64(channels) && sent.N.Load() == before && sent.UnderWay.Load() == 0
		})
	}
	asleep(1)
	go func() {
		lease, err := l.Lock(bg, rlock.WithWait(time.Minute)) // if the test has failed
		if err == nil {
			second <- lease
		}
	}()
	asleep(2)

	armed.Store(true)
	locktest.MustUnlock(t, held)
	select {
	case <-woken:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was woken")
	}
	if messages == 2 {
		if again, err := rival.TryLock(bg); err == nil { // not where Redis keeps it for the first in line
			locktest.MustUnlock(t, again)
		}
	}
	cancel()
	close(look)
	locktest.WantEnded(t, <-first, context.Canceled)
	select {
	case lease := <-second:
		locktest.MustUnlock(t, lease)
	case <-time.After(20 * time.Second): // the next look is in an hour
		t.Fatal("the second waiter was not woken")
	}
}

func TestManyNamesShareOneSubscribedConnection(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	holder, c := b.NewClient(t), locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
	const n = 200
	leases := make([]*rlock.Lease, n)
	got := make(chan *rlock.Lease, n)
	for i := range leases {
		leases[i] = locktest.MustLock(t, holder.NewLock(fmt.Sprint("l", i)), rlock.WithLease(time.Hour))
		go func() { got <- locktest.MustLock(t, c.NewLock(fmt.Sprint("l", i))) }()
	}
	locktest.Eventually(t, "all have subscribed", func() bool {
		channels, err := rdb.PubSubChannels(bg, "*").Result()
		return err == nil && len(channels) == n
	})
	if list := rdb.Do(bg, "client", "list", "type", "pubsub").Val().(string); countLines(list) != 1 {
		t.Fatalf("subscribed connections:\n%s", list)
	}
	for _, lease := range leases {
		locktest.MustUnlock(t, lease)
	}
	for range leases {
		locktest.MustUnlock(t, <-got)
	}
	locktest.Eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*").Val()) == 0 })
}

func countLines(s string) (n int) {
	for _, r := range s {
		if r == '\n' {
			n++
		}
	}
	return n
}

// worksAt notes how much is at work, as a test's clock counts it, when an attempt begins to wait.
type worksAt struct {
	locktest.Ignoring
	works, contended atomic.Int64
}

func (o *worksAt) Contended(context.Context, rlock.ContentionEvent) {
	o.contended.Store(o.works.Load())
}

// A clock that is put forward between the first look of an attempt and its sleep would fire no timer
// of it: so the attempt is at work there, and not any more when it sleeps, or has ended.
func TestAttemptIsAtWorkUntilItSleeps(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &worksAt{}
	o.contended.Store(-1)
	l := b.NewClient(t, rlock.WithAnonymity(), rlock.WithObserver(o), rlock.WithLongestPoll(locktest.Patient), seam.Option(seam.Env{Work: func() (end func()) {
		o.works.Add(1)
		return func() { o.works.Add(-1) }
	}}).(rlock.Option)).NewLock("a")
	held := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
	if _, err := l.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatal(err)
	}
	locktest.Eventually(t, "nothing is at work after a TryLock", func() bool { return o.works.Load() == 0 })
	a := locktest.Begin(t, bg, l)
	locktest.Eventually(t, "the attempt sleeps", func() bool { return o.contended.Load() >= 0 && o.works.Load() == 0 })
	if o.contended.Load() == 0 {
		t.Error("it is at work for nobody between its look and its sleep")
	}
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, a.Held())
}

// Waiters counts those of this client, and each other client that listens, whatever the type of a
// lock publishes; also for a client that only looks.
func TestWaitersOfOtherClientsAreCounted(t *testing.T) {
	t.Parallel()
	types := map[string]func(c *rlock.Client) locktest.AnyLock{
		"Lock":          func(c *rlock.Client) locktest.AnyLock { return c.NewLock("waiters of a Lock") },
		"FencedLock":    func(c *rlock.Client) locktest.AnyLock { return c.NewFencedLock("waiters of a FencedLock") },
		"FairLock":      func(c *rlock.Client) locktest.AnyLock { return c.NewFairLock("waiters of a FairLock") },
		"ReadWriteLock": func(c *rlock.Client) locktest.AnyLock { return c.NewReadWriteLock("waiters of a ReadWriteLock").Writer },
	}
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		for name, open := range types {
			t.Run(name, func(t *testing.T) {
				c := []*rlock.Client{b.NewClient(t), b.NewClient(t), b.NewClient(t), b.NewClient(t)}
				lease := locktest.MustLock(t, open(c[0]))
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				var all []*locktest.Attempt
				wait := func(i int) { all = append(all, locktest.Begin(t, ctx, open(c[i]))) }
				slotted := b.Mini == nil && b.Real == nil
				count := func(i, want int) {
					t.Helper()
					if slotted && redistest.IsOld() && name != "FairLock" {
						t.Skip("in a cluster without sharded channels State counts the waiters of its own client only")
					}
					locktest.Eventually(t, "all are counted", func() bool { return locktest.MustState(t, open(c[i])).Waiters == want })
				}
				wait(1)
				count(0, 1)
				count(1, 1) // its own subscription does not count twice
				wait(2)
				count(0, 2)
				count(1, 2)
				count(3, 2) // it has never waited
				wait(2)
				if name == "FairLock" {
					count(0, 3)
				}
				count(2, 3)
				cancel()
				for _, a := range all {
					if err := a.GiveUp(); err == nil {
						t.Error("a waiter has the lock")
					}
				}
				for i := range c {
					count(i, 0)
				}
				locktest.MustUnlock(t, lease)
			})
		}
	})
}

// A SpinLock has no channel: only the waiters of the own client are known.
func TestWaitersOfASpinLockAreThoseOfTheClient(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	mine, theirs := b.NewClient(t), b.NewClient(t)
	lease := locktest.MustLock(t, mine.NewSpinLock("a"))
	next := locktest.Begin(t, bg, theirs.NewSpinLock("a"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, theirs.NewSpinLock("a")).Waiters == 1 })
	if n := locktest.MustState(t, mine.NewSpinLock("a")).Waiters; n != 0 {
		t.Errorf("%d waiters", n)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
}

// A client that may not ask who listens counts its own waiters.
func TestWaitersWithoutPermissionToCountThem(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	if err := b.Client(t).Do(bg, "acl", "setuser", "default", "-pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	mine, theirs := b.NewClient(t), b.NewClient(t)
	lease := locktest.MustLock(t, mine.NewLock("a"))
	next := locktest.Begin(t, bg, theirs.NewLock("a"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, theirs.NewLock("a")).Waiters == 1 })
	if n := locktest.MustState(t, mine.NewLock("a")).Waiters; n != 0 {
		t.Errorf("%d waiters", n)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
}

// stoppable is a client whose watchdog is not called any more from stop on, as in a process that was
// stopped and goes on: others of its goroutines may run first.
func stoppable(t *testing.T, b *locktest.Backend, clock *locktest.Clock) (c *rlock.Client, stop func()) {
	var stopped atomic.Bool
	goOn := make(chan struct{})
	c = b.NewClient(t, rlock.WithWatchdogLease(time.Hour), seam.Option(seam.Env{Clock: clock, Gate: func(point string) {
		if point == "watchdog" && stopped.Load() {
			<-goOn
		}
	}}).(rlock.Option))
	t.Cleanup(func() { close(goOn) }) // before the client is closed
	return c, func() { stopped.Store(true) }
}

// After a pause of the process, the first look at the context of a lease finds the loss, not the second.
func TestContextOfALeaseComparesTheDeadline(t *testing.T) {
	t.Parallel()
	wantLost := func(t *testing.T, ctx context.Context) {
		t.Helper()
		if ctx.Err() != context.Canceled {
			t.Fatalf("Err is %v", ctx.Err())
		}
		select {
		case <-ctx.Done():
		default:
			t.Fatal("Err says that the context has ended, and Done is open")
		}
		locktest.WantErr(t, context.Cause(ctx), rlock.ErrLeaseLost, rlock.ErrExpired)
	}
	for name, scenario := range map[string]func(t *testing.T, c *rlock.Client, pause func()){
		"renewed": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, c.NewLock("a")).Context(bg)
			below, cancel := context.WithCancel(context.WithValue(ctx, t, t))
			defer cancel()
			pause()
			wantLost(t, context.WithValue(ctx, t, t))
			wantLost(t, ctx)
			wantLost(t, below)
		},
		"fixed": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Minute)).Context(bg)
			pause()
			wantLost(t, ctx)
		},
		"further out": func(t *testing.T, c *rlock.Client, pause func()) {
			outer := locktest.MustLock(t, c.NewLock("a"), rlock.WithLease(time.Minute)).Context(bg)
			inner := locktest.MustLock(t, c.NewLock("b"), rlock.WithLease(10*time.Hour)).Context(outer)
			pause()
			wantLost(t, inner)
		},
		"MultiLock": func(t *testing.T, c *rlock.Client, pause func()) {
			ctx := locktest.MustLock(t, locktest.MultiLockOf(t, c, "{a}1", "{a}2")).Context(bg)
			pause()
			wantLost(t, ctx)
		},
		"by several": func(t *testing.T, c *rlock.Client, pause func()) {
			lease := locktest.MustLock(t, c.NewLock("a"))
			ctx := lease.Context(bg)
			pause()
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if lease.Err() == nil || ctx.Err() == nil { // whoever is the first to see the end
						t.Error("the lease is valid")
					}
				})
			}
			all.Wait()
			wantLost(t, ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock locktest.Clock
			c, stop := stoppable(t, locktest.OnMiniredis(t), &clock)
			scenario(t, c, func() { stop(); clock.Forward(2 * time.Hour) })
		})
	}
}

// Who extends a lease below its own context may look at that while the hold is being changed.
func TestExtendBelowTheContextOfTheLease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	lease := locktest.MustLock(t, b.NewClient(t, rlock.WithCommandTimeout(3*time.Second)).NewLock("a"))
	ctx := lease.Context(bg)
	if err := lease.Extend(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	b.Mini.Close()
	locktest.WantErr(t, lease.Extend(ctx, time.Minute), rlock.ErrUnreachable)
	if ctx.Err() != nil {
		t.Error(context.Cause(ctx))
	}
}

// idle are waiters of one client for locks that others hold for an hour, one for each lock.
type idle struct {
	names  []string
	cancel []context.CancelFunc
	done   []chan error // nil: it got the lock
}

func newIdle(t *testing.T, b *locktest.Backend, c *rlock.Client, n int) *idle {
	t.Helper()
	rdb := b.Client(t)
	w := &idle{}
	for i := range n {
		name, done := fmt.Sprint("idle:", i), make(chan error, 1)
		rdb.HSet(bg, name, redistest.HoldID("first:1"), 1)
		rdb.PExpire(bg, name, time.Hour)
		ctx, cancel := context.WithCancel(bg)
		t.Cleanup(cancel)
		w.names, w.cancel, w.done = append(w.names, name), append(w.cancel, cancel), append(w.done, done)
		go func() {
			lease, err := c.NewLock(name).Lock(ctx)
			if err == nil {
				err = lease.Unlock(bg)
			}
			done <- err
		}()
	}
	locktest.Eventually(t, "all have subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*idle:*").Val()) >= n })
	return w
}

// ends returns what became of a waiter, and how long that took.
func (w *idle) ends(t *testing.T, i int) (took time.Duration, err error) {
	t.Helper()
	start := time.Now()
	select {
	case err := <-w.done[i]:
		return time.Since(start), err
	case <-time.After(20 * time.Second):
		t.Fatalf("the waiter for %s sleeps on", w.names[i])
		return 0, nil
	}
}

func TestIdleWaitersPollTogether(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	const locks, poll, polls = 250, 500 * time.Millisecond, 4
	c := b.NewClient(t, rlock.WithLongestPoll(poll))
	newIdle(t, b, c, locks)
	rdb := b.Client(t)
	locktest.Eventually(t, "each has polled once more, and identified its client", func() bool {
		return len(rdb.PubSubChannels(bg, "*idle:*").Val()) == 2*locks
	})
	start := time.Now()
	looks := locktest.EvalCounter(t, b)
	time.Sleep(polls * poll)
	n := looks()
	// A round may be under way at the beginning, and a head whose wait had lasted just when it identified its client
	// polls once more.
	rounds := int(time.Since(start)/(poll*7/8)) + 3
	if n < 3 || n > 3*rounds {
		t.Errorf("%d looks in %d rounds at %d locks, want 3 in each", n, rounds, locks)
	}
}

func TestGlanceFindsAFreeLockWithoutAMessage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		const poll = 300 * time.Millisecond
		w := newIdle(t, b, b.NewClient(t, rlock.WithLongestPoll(poll)), 5)
		time.Sleep(2 * poll) // they leave looking to glances

		rdb.Del(bg, w.names[0])
		if took, err := w.ends(t, 0); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}

		// The holder has died: its lease ends, at last.
		rdb.PExpire(bg, w.names[1], 4*poll)
		if took, err := w.ends(t, 1); err != nil || took < 3*poll || took > 5*time.Second {
			t.Errorf("the lease of %v has ended, and the waiter: %v after %v", 4*poll, err, took)
		}

		// Another holds the lock by now.
		if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
			p.Del(bg, w.names[2])
			p.HSet(bg, w.names[2], redistest.HoldID("second:2"), 1)
			p.PExpire(bg, w.names[2], time.Minute)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * poll)
		w.cancel[2]()
		var e *rlock.Error
		if _, err := w.ends(t, 2); !errors.As(err, &e) || e.HolderID != redistest.HoldID("second:2") || e.Left > time.Minute || e.Left < 30*time.Second {
			t.Errorf("a waiter for a lock that second:2 holds for a minute: %v", err)
		}

		// A key that cannot be looked at keeps nobody from getting other locks.
		rdb.Set(bg, w.names[3], "not a lock", 0)
		rdb.Del(bg, w.names[4])
		_, err := w.ends(t, 3)
		locktest.WantErr(t, err, rlock.ErrForeignKey)
		if took, err := w.ends(t, 4); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}
	})
}

// A hook that ends the goroutine of a glance costs that glance its answer, and no later one.
func TestGlancesOutlastAHookThatEndsOne(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	const poll = 300 * time.Millisecond
	rdb := b.Client(t)
	ended := make(chan struct{})
	var once sync.Once
	rdb.AddHook(&locktest.ScriptHook{Pipe: func(cmds []redis.Cmder, next func() error) error {
		if locktest.Runs(cmds[0], "lock/glance") {
			once.Do(func() {
				close(ended)
				runtime.Goexit()
			})
		}
		return next()
	}})
	w := newIdle(t, b, locktest.NewClient(t, rdb, rlock.WithLongestPoll(poll)), 2)
	<-ended
	time.Sleep(2 * poll) // they leave looking to glances again
	for i, name := range w.names {
		b.Client(t).Del(bg, name)
		if took, err := w.ends(t, i); err != nil || took > 5*time.Second {
			t.Errorf("the lock was free, and the waiter: %v after %v", err, took)
		}
	}
}
