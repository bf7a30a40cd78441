package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/redistest"
)

// What holds for the locks with a queue of their own whatever they are: faults,
// expiry, dead waiters, leftovers.

// queuedLocker is what the sides of a FairReadWriteLock and a PriorityLock have.
type queuedLocker interface {
	rlock.Locker
	State(context.Context) (rlock.State, error)
	IsLocked(context.Context) (bool, error)
	HeldBy(context.Context) (int, error)
	ForceUnlock(context.Context) (bool, error)
	ForceUnlockIf(context.Context, string) (bool, error)
}

type queuedKind struct {
	name   string
	what   string
	shared bool
	open   func(c *rlock.Client, name string, opts ...rlock.LockOption) queuedLocker
	// rival is a lock that this one has to wait for.
	rival func(c *rlock.Client, name string) queuedLocker
}

func (k queuedKind) base(name string) string { return "{" + name + "}:rlock:" + k.what }

func (k queuedKind) queue(name string) string {
	if k.shared {
		return k.base(name) + ":queue:shared"
	}
	return k.base(name) + ":queue"
}

func fairWrite(c *rlock.Client, name string, opts ...rlock.LockOption) queuedLocker {
	return c.NewFairReadWriteLock(name, opts...).Writer
}

func fairRead(c *rlock.Client, name string, opts ...rlock.LockOption) queuedLocker {
	return c.NewFairReadWriteLock(name, opts...).Reader
}

func priority(c *rlock.Client, name string, opts ...rlock.LockOption) queuedLocker {
	return c.NewPriorityLock(name, opts...)
}

var queuedKinds = []queuedKind{
	{"read", "fairrw", true, fairRead, func(c *rlock.Client, name string) queuedLocker { return fairWrite(c, name) }},
	{"write", "fairrw", false, fairWrite, func(c *rlock.Client, name string) queuedLocker { return fairRead(c, name) }},
	{"priority", "priority", false, priority, func(c *rlock.Client, name string) queuedLocker { return priority(c, name) }},
}

// eachQueued runs a scenario for each of them, each with a Redis of its own. They
// wait for time-outs and leases most of the time, so they do it beside each other.
func eachQueued(t *testing.T, scenario func(t *testing.T, b *backend, k queuedKind)) {
	t.Helper()
	for _, k := range queuedKinds {
		queuedRun(t, "miniredis", k, scenario)
		queuedRun(t, "standalone", k, scenario)
	}
}

// eachQueuedMode is eachQueued for what depends on the scripts and the connection
// only: a priority lock is to them what a write lock is, and miniredis is asked
// once.
func eachQueuedMode(t *testing.T, scenario func(t *testing.T, b *backend, k queuedKind)) {
	t.Helper()
	read, write := queuedKinds[0], queuedKinds[1]
	queuedRun(t, "miniredis", write, scenario)
	queuedRun(t, "standalone", read, scenario)
	queuedRun(t, "standalone", write, scenario)
}

func queuedRun(t *testing.T, on string, k queuedKind, scenario func(t *testing.T, b *backend, k queuedKind)) {
	t.Run(on+" "+k.name, func(t *testing.T) {
		t.Parallel()
		if on == "miniredis" {
			scenario(t, onMiniredis(t), k)
		} else {
			scenario(t, onServer(t), k)
		}
	})
}

// queuedOn runs a scenario for each of them on one Redis.
func queuedOn(t *testing.T, b *backend, scenario func(t *testing.T, b *backend, k queuedKind)) {
	t.Helper()
	for _, k := range queuedKinds {
		t.Run(k.name, func(t *testing.T) {
			queuedFlush(t, b.client(t))
			scenario(t, b, k)
		})
	}
}

func queuedFlush(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	if keys := keysOf(t, rdb); len(keys) > 0 {
		if err := rdb.Del(bg, keys...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// eachQueuedLoss runs a scenario for each way to lose a reply of a script.
func eachQueuedLoss(t *testing.T, scenario func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action)) {
	t.Helper()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		for name, action := range lossy {
			t.Run(name, func(t *testing.T) {
				queuedFlush(t, b.client(t))
				scenario(t, b, k, action)
			})
		}
	})
}

// queuedFaulty is faulty with the scripts loaded. Nothing but the faults and
// messages moves its waiters.
func queuedFaulty(t testing.TB, b *backend, k queuedKind, opts ...rlock.Option) (*rlock.Client, *faultproxy.Proxy, redis.UniversalClient) {
	t.Helper()
	opts = append([]rlock.Option{rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)}, opts...)
	c, proxy, rdb := b.faulty(t, opts...)
	for _, name := range []string{"enter", "reenter", "release", "abandon", "renew", "force_unlock", "inspect", "probe"} {
		if err := rdb.ScriptLoad(bg, rlock.ScriptText("queued_"+name)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return c, proxy, rdb
}

func queuedState(t testing.TB, l queuedLocker) rlock.State {
	t.Helper()
	s, err := l.State(bg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// queuedEntry is a Lock call under way.
type queuedEntry struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{} // closed when the call has returned
	lease  *rlock.Lease
	err    error
}

func queuedLock(t testing.TB, ctx context.Context, l rlock.Locker, opts ...rlock.AcquireOption) *queuedEntry {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	e := &queuedEntry{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.lease, e.err = l.Lock(ctx, opts...)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.done
		if e.err == nil {
			_ = e.lease.Unlock(bg)
		}
	})
	return e
}

// enqueue begins a Lock call and waits until it stands in the queue in Redis and
// has subscribed to its channel.
func (k queuedKind) enqueue(t testing.TB, rdb redis.UniversalClient, l queuedLocker, opts ...rlock.AcquireOption) *queuedEntry {
	t.Helper()
	before := rdb.ZRange(bg, k.queue(l.Name()), 0, -1).Val()
	e := queuedLock(t, bg, l, opts...)
	var stay string
	eventually(t, "it stands in the queue", func() bool {
		for _, s := range rdb.ZRange(bg, k.queue(l.Name()), 0, -1).Val() {
			if !slices.Contains(before, s) {
				stay = s
			}
		}
		return stay != ""
	})
	channel := k.base(l.Name()) + ":turn:" + stay
	eventually(t, "it has subscribed", func() bool {
		return rdb.PubSubNumSub(bg, channel).Val()[channel] == 1
	})
	return e
}

func (e *queuedEntry) held() *rlock.Lease {
	e.t.Helper()
	select {
	case <-e.done:
	case <-time.After(20 * time.Second): // far above what a busy machine needs
		e.t.Fatal("waited too long for the lock")
	}
	if e.err != nil {
		e.t.Fatal(e.err)
	}
	return e.lease
}

func (e *queuedEntry) waits() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

// queuedHolders checks how many hold the lock and how many wait, and that each
// holder has entered n times.
func queuedHolders(t testing.TB, l queuedLocker, holders, n, waiters int) {
	t.Helper()
	s := queuedState(t, l)
	ok := len(s.Holders) == holders && s.Waiters == waiters
	for _, h := range s.Holders {
		ok = ok && h.Count == n
	}
	if !ok {
		t.Fatalf("%+v; want %d holders with %d entries and %d waiters", s, holders, n, waiters)
	}
}

func TestQueuedAcquireWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := newClientOn(t, rdb)
		for _, acquire := range []func(queuedLocker) (*rlock.Lease, error){
			func(l queuedLocker) (*rlock.Lease, error) { return l.Lock(bg) },
			func(l queuedLocker) (*rlock.Lease, error) { return l.TryLock(bg) },
		} {
			seen := onNth(t, proxy, "queued_enter", 1, action)
			lease, err := acquire(k.open(c, "a"))
			if err != nil {
				t.Fatal(err)
			}
			if action != faultproxy.Duplicate && seen.Load() < 2 {
				t.Fatal("it was not sent again")
			}
			queuedHolders(t, k.open(plain, "a"), 1, 1, 0)
			s := queuedState(t, k.open(plain, "a"))
			if s.Holders[0].Owner != lease.Owner() || s.Token != lease.Token() || k.shared != (lease.Token() == 0) {
				t.Fatalf("%+v; the lease has owner %s and token %d", s, lease.Owner(), lease.Token())
			}
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
			next := mustLock(t, k.open(plain, "a"))
			if !k.shared && next.Token() <= lease.Token() {
				t.Fatalf("token %d after %d", next.Token(), lease.Token())
			}
			mustUnlock(t, next)
		}
	})
}

func TestQueuedPlaceWithLostReplyIsKept(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := newClientOn(t, rdb, rlock.WithWaiterLease(patient))
		holder := mustLock(t, k.rival(plain, "a"))
		onNth(t, proxy, "queued_enter", 1, action)
		first := k.enqueue(t, rdb, k.open(c, "a"))
		rank := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val()
		eventually(t, "it was looked at again", func() bool {
			return proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(sha("queued_enter")) }) >= 2
		})
		if now := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val(); len(now) != 1 || now[0] != rank[0] {
			t.Fatalf("the queue was %v and is %v", rank, now)
		}
		mustUnlock(t, holder)
		mustUnlock(t, first.held())
		onlyTombstones(t, rdb)
	})
}

func TestQueuedEntryFromTheQueueWithLostReplyHoldsOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := newClientOn(t, rdb, rlock.WithWaiterLease(patient))
		id := sha("queued_enter")
		var after atomic.Int64 // looks that came after the release
		for try := 0; after.Load() == 0; try++ {
			if try == 50 {
				t.Fatal("it never came in by a look after the release")
			}
			holder := mustLock(t, k.rival(plain, "a"))
			e := k.enqueue(t, rdb, k.open(c, "a"))
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) && after.Add(1) == 1 {
					return action
				}
				return faultproxy.Pass
			})
			// The look after its subscription may be under way, and the one to enter.
			mustUnlock(t, holder)
			lease := e.held()
			proxy.Handle(nil)
			queuedHolders(t, k.open(plain, "a"), 1, 1, 0)
			mustUnlock(t, lease)
			onlyTombstones(t, rdb)
		}
	})
}

func TestQueuedReentryWithLostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		l := k.open(c, "a")
		outer := mustLock(t, l)
		onNth(t, proxy, "queued_reenter", 1, action)
		inner := mustLockCtx(t, outer.Context(bg), l)
		if inner.Owner() != outer.Owner() || inner.Token() != outer.Token() {
			t.Fatal("a re-entry has another owner or token")
		}
		queuedHolders(t, l, 1, 2, 0)
		mustUnlock(t, outer)
		// On a busy machine the copy without a reply may run only now: the next
		// operation puts the count right.
		eventually(t, "the count is right", func() bool {
			if queuedState(t, l).Holders[0].Count == 1 {
				return true
			}
			mustUnlock(t, mustLockCtx(t, inner.Context(bg), l))
			return false
		})
		queuedHolders(t, l, 1, 1, 0)
		mustUnlock(t, inner)
		onlyTombstones(t, rdb)
	})
}

func TestQueuedUnlockWithLostReplyWakesTheNextOnce(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		plain := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		lease := mustLock(t, k.open(c, "a"))
		rival := k.rival(plain, "a")
		next := k.enqueueRival(t, rdb, rival)
		onNth(t, proxy, "queued_release", 1, action)
		mustUnlock(t, lease) // a resend may find the successor there
		got := next.held()
		if err := got.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		queuedHolders(t, rival, 1, 1, 0)
		mustUnlock(t, got)
		onlyTombstones(t, rdb)
	})
}

// enqueueRival is enqueue for the rival of a kind.
func (k queuedKind) enqueueRival(t testing.TB, rdb redis.UniversalClient, rival queuedLocker) *queuedEntry {
	t.Helper()
	if k.what == "fairrw" {
		k.shared = !k.shared
	}
	return k.enqueue(t, rdb, rival)
}

func TestQueuedWaiterThatLeavesWithLostReplyLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		holder := mustLock(t, k.rival(newClientOn(t, rdb), "a"))
		e := k.enqueue(t, rdb, k.open(c, "a"))
		onNth(t, proxy, "queued_abandon", 1, action)
		e.cancel()
		<-e.done
		wantErr(t, e.err, rlock.ErrNotAcquired, context.Canceled)
		eventually(t, "the queue is empty", func() bool { return rdb.Exists(bg, k.queue("a"), k.base("a")+":alive").Val() == 0 })
		mustUnlock(t, holder)
		onlyTombstones(t, rdb)
	})
}

func TestQueuedExtendWithLostReply(t *testing.T) {
	t.Parallel()
	eachQueuedLoss(t, func(t *testing.T, b *backend, k queuedKind, action faultproxy.Action) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		lease := mustLock(t, k.open(c, "a"), rlock.WithLease(10*time.Second))
		onNth(t, proxy, "queued_renew", 1, action)
		if err := lease.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := queuedState(t, k.open(c, "a")); s.TTL < 50*time.Second || s.TTL > time.Minute {
			t.Fatalf("TTL %v", s.TTL)
		}
		if err := lease.Extend(bg, time.Second); err != nil {
			t.Fatal(err)
		}
		if s := queuedState(t, k.open(c, "a")); s.TTL < 40*time.Second {
			t.Fatalf("shortened to %v", s.TTL)
		}
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

// A copy of an acquire that was held up on its way arrives when its stay is over.
func TestQueuedLateCopyOfAnAcquireMeetsATombstone(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		t.Run("after release", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			queuedFlush(t, rdb)
			onNth(t, proxy, "queued_enter", 1, faultproxy.Hold)
			mustUnlock(t, mustLock(t, k.open(c, "a"))) // by the resend
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
		})
		t.Run("after the waiter has left", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			queuedFlush(t, rdb)
			holder := mustLock(t, k.rival(newClientOn(t, rdb), "a"))
			id := sha("queued_enter")
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(id) {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			_, err := k.open(c, "a").Lock(bg, rlock.WithWait(ample(1800*time.Millisecond)))
			wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
			eventually(t, "it was given up in Redis", func() bool { return tombstones(keysOf(t, rdb)) == 1 })
			if n := proxy.Release(); n < 2 {
				t.Fatalf("%d copies were late", n)
			}
			queuedHolders(t, k.open(newClientOn(t, rdb), "a"), 1, 1, 0)
			mustUnlock(t, holder)
			onlyTombstones(t, rdb)
		})
		t.Run("after expiry", func(t *testing.T) {
			c, proxy, rdb := queuedFaulty(t, b, k)
			queuedFlush(t, rdb)
			onNth(t, proxy, "queued_enter", 1, faultproxy.Hold)
			lease := mustLock(t, k.open(c, "a"), rlock.WithLease(ample(300*time.Millisecond)))
			<-lease.Done()
			wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
			eventually(t, "the stay was ended in Redis", func() bool { return tombstones(keysOf(t, rdb)) == 1 })
			if n := proxy.Release(); n != 1 {
				t.Fatalf("%d copies were late", n)
			}
			onlyTombstones(t, rdb)
		})
	})
}

func TestQueuedForceUnlockIsNotRepeated(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		seen := onNth(t, proxy, "queued_force_unlock", 1, faultproxy.ResetAfter)
		mustLock(t, k.open(c, "a"))
		_, err := k.open(c, "a").ForceUnlock(bg)
		wantErr(t, err, rlock.ErrUnreachable)
		if n := seen.Load(); n != 1 {
			t.Fatalf("sent %d times: a second one could hit a newer holder", n)
		}
		onlyTombstones(t, rdb)
	})
}

func TestQueuedForceUnlockEndsTheHoldAndKeepsTheQueue(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		l := k.open(c, "a")
		if was, err := l.ForceUnlock(bg); was || err != nil {
			t.Fatal(was, err)
		}
		lease := mustLock(t, l)
		next := k.enqueueRival(t, rdb, k.rival(c, "a"))
		for _, owner := range []string{"nobody:1", "exclusive", "count", "token"} {
			if was, err := l.ForceUnlockIf(bg, owner); was || err != nil {
				t.Fatal(owner, was, err)
			}
		}
		if k.what == "fairrw" { // the other side does not touch it
			if was, err := k.rival(c, "a").ForceUnlock(bg); was || err != nil {
				t.Fatal(was, err)
			}
		}
		if was, err := l.ForceUnlockIf(bg, lease.Owner()); !was || err != nil {
			t.Fatal(was, err)
		}
		got := next.held()
		wantErr(t, lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		if was, err := k.rival(c, "a").ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		wantErr(t, got.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		onlyTombstones(t, rdb)
	})
}

func TestQueuedExpiryOfTheHolderLetsTheNextIn(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		lease := mustLock(t, k.rival(c, "a"), rlock.WithLease(300*time.Millisecond))
		deadline := lease.Deadline()
		next := mustLock(t, k.open(b.newClient(t, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)), "a"))
		if now := time.Now(); now.Before(deadline) {
			t.Fatalf("another has the lock %v before the deadline", deadline.Sub(now))
		}
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
		queuedHolders(t, k.open(c, "a"), 1, 1, 0)
		mustUnlock(t, next)
	})
}

func TestQueuedHoldsAreRenewed(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(1500*time.Millisecond))
		lease := mustLock(t, k.open(c, "a"))
		was := lease.Deadline()
		for range 2 {
			eventually(t, "it is renewed", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
			was = lease.Deadline()
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		rdb.Del(bg, k.base("a")+":ends") // as an eviction would
		<-lease.Done()
		wantErr(t, lease.Err(), rlock.ErrLeaseLost, rlock.ErrRemoved)
	})
}

// queuedCorpse puts a waiter into the queue that nobody is at.
func queuedCorpse(t testing.TB, rdb redis.UniversalClient, k queuedKind, name string, rank float64, alive time.Duration) {
	t.Helper()
	until := float64(rdb.Time(bg).Val().Add(alive).UnixMilli())
	for key, z := range map[string]redis.Z{
		k.base(name) + ":queue": {Score: rank, Member: "dead:1"},
		k.base(name) + ":alive": {Score: until, Member: "dead:1"},
	} {
		if err := rdb.ZAdd(bg, key, z).Err(); err != nil {
			t.Fatal(err)
		}
		rdb.PExpire(bg, key, time.Minute)
	}
}

const queuedFirst = -9e15 + 1 // a rank before all others

func TestDeadWaiterDelaysOthersForAWaiterLeaseAtMost(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		const waiterLease = 600 * time.Millisecond
		rdb := b.client(t)
		l := k.open(newClientOn(t, rdb, rlock.WithWaiterLease(waiterLease), rlock.WithLongestPoll(patient)), "a")
		queuedCorpse(t, rdb, k, l.Name(), queuedFirst, waiterLease)
		start := time.Now()
		lease := mustLock(t, l)
		// It came while the dead one still counted as alive, and was heard all the time.
		if took := time.Since(start); took < waiterLease/2 || took > waiterLease+5*time.Second {
			t.Fatalf("a dead waiter with a lease of %v was waited for for %v", waiterLease, took)
		}
		mustUnlock(t, lease)
		if n := rdb.Exists(bg, k.base(l.Name())+":queue", k.base(l.Name())+":alive", k.base(l.Name())).Val(); n != 0 {
			t.Fatalf("%d keys are left", n)
		}
	})
}

// Those who only look must not keep a dead waiter in the queue, although nobody
// else is heard.
func TestDeadWaiterIsGivenOneMoreLeaseOnly(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		const waiterLease = 300 * time.Millisecond
		rdb := b.client(t)
		l := k.open(newClientOn(t, rdb, rlock.WithWaiterLease(waiterLease)), "a")
		queuedCorpse(t, rdb, k, l.Name(), queuedFirst, -time.Second) // long dead
		start := time.Now()
		var lease *rlock.Lease
		eventually(t, "a visitor gets the lock", func() bool {
			got, err := l.TryLock(bg)
			lease = got
			return err == nil
		})
		if took := time.Since(start); took < waiterLease/2 || took > waiterLease+5*time.Second {
			t.Fatalf("it took %v", took)
		}
		mustUnlock(t, lease)

		// What has been silent for longer than anybody bears goes at once.
		queuedCorpse(t, rdb, k, l.Name(), queuedFirst, -2*time.Minute)
		lease, err := l.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	})
}

// The sign of life of a waiter can be lost by an eviction only. It must not block
// the queue, which others keep alive.
func TestWaiterWithoutASignOfLifeIsSkipped(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		queuedCorpse(t, rdb, k, "a", queuedFirst, time.Hour)
		rdb.Del(bg, k.base("a")+":alive")
		lease, err := k.open(newClientOn(t, rdb), "a").TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		onlyTombstones(t, rdb)
	})
}

// Nor does it cost a waiter its place that is alive and looks before others do.
func TestWaiterWithoutASignOfLifeKeepsItsPlace(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithWaiterLease(time.Second))
		lease := mustLock(t, k.rival(c, "a"))
		e := k.enqueue(t, rdb, k.open(c, "a"))
		was := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val()
		rdb.Del(bg, k.base("a")+":alive")
		eventually(t, "it has looked", func() bool { return rdb.Exists(bg, k.base("a")+":alive").Val() == 1 })
		if is := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val(); !slices.Equal(is, was) {
			t.Errorf("the queue is %v, and was %v", is, was)
		}
		mustUnlock(t, lease)
		mustUnlock(t, e.held())
		onlyTombstones(t, rdb)
	})
}

func TestQueuedTryLockNeverOvertakesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		l := k.open(newClientOn(t, rdb), "a")
		// The lock is free; the waiter has not come yet.
		queuedCorpse(t, rdb, k, "a", queuedFirst, time.Hour)
		before := keysOf(t, rdb)
		for range 3 {
			_, err := l.TryLock(bg)
			wantErr(t, err, rlock.ErrNotAcquired)
			if !strings.Contains(err.Error(), "kept for one who waits") {
				t.Errorf("%v", err)
			}
			_, err = l.Lock(bg, rlock.WithWait(0))
			wantErr(t, err, rlock.ErrNotAcquired)
		}
		queuedHolders(t, l, 0, 0, 1)
		if after := keysOf(t, rdb); len(after) != len(before) {
			t.Fatalf("keys were %q and are %q", before, after)
		}
	})
}

func TestQueuedWaitIsBoundedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		l := k.open(newClientOn(t, rdb), "a")
		holder := mustLock(t, k.rival(b.newClient(t), "a"))
		const short = 60 * time.Millisecond
		start := time.Now()
		_, err := l.Lock(bg, rlock.WithWait(short))
		wantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
		ctx, cancel := context.WithTimeout(bg, short)
		defer cancel()
		_, err = l.Lock(ctx)
		wantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
		if took := time.Since(start); took < 2*short || took > 5*time.Second {
			t.Fatalf("two waits of %v took %v", short, took)
		}
		queuedHolders(t, l, 1, 1, 0)
		eventually(t, "nobody is subscribed", func() bool { return len(rdb.PubSubChannels(bg, "*:turn:*").Val()) == 0 })
		mustUnlock(t, holder)
		onlyTombstones(t, rdb)
	})
}

func TestQueuedKeysHaveATTLAndVanish(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		queuedOn(t, b, func(t *testing.T, b *backend, k queuedKind) {
			rdb := b.client(t)
			for _, name := range []string{"order:7", "{t}x", "x{t}", "bin\x00\xff\n"} {
				c := newClientOn(t, rdb)
				holder := mustLock(t, k.rival(c, name))
				inner := mustLockCtx(t, holder.Context(bg), k.rival(c, name))
				e := queuedLock(t, bg, k.open(c, name))
				eventually(t, "it waits", func() bool { return queuedState(t, k.open(c, name)).Waiters == 1 })
				keys := keysOf(t, rdb)
				if len(keys) != 5 {
					t.Fatalf("keys: %q", keys)
				}
				for _, key := range keys {
					if ttl := rdb.PTTL(bg, key).Val(); ttl < 20*time.Second || ttl > 71*time.Second {
						t.Fatalf("%q has TTL %v", key, ttl)
					}
				}
				mustUnlock(t, inner)
				mustUnlock(t, holder)
				mustUnlock(t, e.held())
				onlyTombstones(t, rdb)
			}
		})
	})
}

func TestQueuedShutdownLeavesNothing(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c, other := newClientOn(t, rdb), newClientOn(t, rdb)
		lease := mustLock(t, k.rival(c, "a"))
		var waits []*queuedEntry
		for range 5 {
			waits = append(waits, k.enqueue(t, rdb, k.open(c, "a")))
		}
		next := k.enqueue(t, rdb, k.open(other, "a"))
		done := shutDown(bg, c, lease)
		for _, e := range waits {
			<-e.done
			wantErr(t, e.err, rlock.ErrClosed)
		}
		wantErr(t, lease.Err(), rlock.ErrClosed)
		running(t, done)
		mustUnlock(t, lease)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, next.held())
		onlyTombstones(t, rdb)
	})
}

func TestQueuedNonReentrantAndMaxHold(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		c := b.newClient(t)
		l := k.open(c, "a", rlock.WithNonReentrant())
		lease := mustLock(t, l)
		_, err := l.Lock(lease.Context(bg))
		wantErr(t, err, rlock.ErrReentrant)
		mustUnlock(t, lease)
		lease = mustLock(t, k.open(c, "a", rlock.WithMaxHold(50*time.Millisecond)))
		<-lease.Done()
		wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrMaxHold)
		mustUnlock(t, mustLock(t, k.rival(c, "a")))
	})
}

func TestQueuedReentryAfterLossFailsUntilUnlocked(t *testing.T) {
	t.Parallel()
	eachQueued(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		l := k.open(newClientOn(t, rdb), "a")
		ctx := rlock.WithOwner(bg)
		lost := mustLockCtx(t, ctx, l)
		queuedFlush(t, rdb)
		for range 2 {
			_, err := l.Lock(ctx)
			wantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrNotAcquired)
		}
		onlyTombstones(t, rdb)
		wantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
		again := mustLockCtx(t, ctx, l)
		if n, err := l.HeldBy(ctx); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		mustUnlock(t, again)
	})
}

// The server was away for longer than a waiter lease: all waiters are silent, and
// whoever comes first must not take the places of the others away.
func TestWaitersKeepTheirOrderOverAnOutage(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	queuedOn(t, b, func(t *testing.T, b *backend, k queuedKind) {
		const waiterLease = 500 * time.Millisecond
		rdb := b.client(t)
		holder := mustLock(t, k.rival(newClientOn(t, rdb), "a"), rlock.WithLease(time.Hour))
		var entries []*queuedEntry
		for range 3 {
			c := b.newClient(t, rlock.WithWaiterLease(waiterLease), rlock.WithCommandTimeout(10*time.Second))
			entries = append(entries, k.enqueue(t, rdb, k.open(c, "a")))
		}
		before := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val()
		b.real.Pause()
		time.Sleep(2 * waiterLease) // the subject of the test
		b.real.Resume()
		var alive float64
		for _, z := range rdb.ZRangeWithScores(bg, k.base("a")+":alive", 0, -1).Val() {
			alive = max(alive, z.Score)
		}
		eventually(t, "all are heard again", func() bool {
			signs := rdb.ZRangeWithScores(bg, k.base("a")+":alive", 0, -1).Val()
			for _, z := range signs {
				if z.Score <= alive {
					return false
				}
			}
			return true
		})
		if after := rdb.ZRangeWithScores(bg, k.queue("a"), 0, -1).Val(); !slices.Equal(before, after) {
			t.Fatalf("the queue was %v and is %v", before, after)
		}
		mustUnlock(t, holder)
		for _, e := range entries {
			mustUnlock(t, e.held())
		}
		onlyTombstones(t, rdb)
	})
}

func TestQueuedWaitersSurviveARestartWithoutData(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	for _, k := range queuedKinds {
		t.Run(k.name, func(t *testing.T) {
			rdb := b.client(t)
			holder := mustLock(t, k.rival(b.newClient(t), "a"), rlock.WithLease(time.Hour))
			var entries []*queuedEntry
			for range 3 {
				entries = append(entries, k.enqueue(t, rdb, k.open(b.newClient(t, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient)), "a")))
			}
			b.real.Kill()
			b.real.Restart() // empty: the lock is free, and nobody says so
			var wg sync.WaitGroup
			for _, e := range entries {
				wg.Go(func() {
					<-e.done
					if e.err != nil {
						t.Error(e.err)
					} else if err := e.lease.Unlock(bg); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			wantErr(t, holder.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
			onlyTombstones(t, b.client(t))
		})
	}
}

func TestQueuedLockAtTheMemoryLimit(t *testing.T) {
	t.Parallel()
	b := onServer(t)
	queuedOn(t, b, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		defer rdb.ConfigSet(bg, "maxmemory", "0")
		c := newClientOn(t, rdb, rlock.WithWatchdogLease(time.Second), rlock.WithWaiterLease(600*time.Millisecond))
		l := k.rival(c, "a")
		outer := mustLock(t, l)
		inner := mustLockCtx(t, outer.Context(bg), l)
		stays := k.enqueue(t, rdb, k.open(c, "a"))
		leaves := k.enqueue(t, rdb, k.open(c, "a"))
		rdb.ConfigSet(bg, "maxmemory", "1")
		if err := rdb.Set(bg, "x", "y", 0).Err(); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatal("the server is not at its limit:", err)
		}
		oom := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Fatal(what, err)
			}
		}
		before := fmt.Sprint(keysOf(t, rdb))
		_, err := l.Lock(outer.Context(bg))
		oom("a re-entry at the memory limit:", err)
		_, err = k.open(c, "free").Lock(bg)
		oom("an acquire at the memory limit:", err)
		_, err = k.open(c, "a").Lock(bg, rlock.WithWait(time.Second))
		oom("a place in the queue at the memory limit:", err)
		for _, key := range keysOf(t, rdb) {
			if !strings.Contains(before, key) && !strings.Contains(key, ":rlock:gone:") {
				t.Fatalf("%q has come into being", key)
			}
		}
		was := outer.Deadline()
		eventually(t, "it is renewed all the same", func() bool { return outer.Deadline().After(was) || outer.Err() != nil })
		signs := rdb.ZRangeWithScores(bg, k.base("a")+":alive", 0, 0).Val()
		eventually(t, "the waiters live on", func() bool {
			now := rdb.ZRangeWithScores(bg, k.base("a")+":alive", 0, 0).Val()
			return len(now) > 0 && now[0].Score > signs[0].Score
		})
		leaves.cancel()
		eventually(t, "a waiter leaves", func() bool { return queuedState(t, l).Waiters == 1 })
		mustUnlock(t, inner)
		queuedHolders(t, l, 1, 1, 1)
		mustUnlock(t, outer)
		<-stays.done
		oom("an entry from the queue at the memory limit:", stays.err)
		eventually(t, "nothing but tombstones is left", func() bool {
			keys := keysOf(t, rdb)
			return tombstones(keys) == len(keys)
		})
	})
}

func TestQueuedLocksExcludeUnderLoad(t *testing.T) {
	t.Parallel()
	everyRedis(t, func(t *testing.T, b *backend) {
		clients := []*rlock.Client{b.newClient(t), b.newClient(t), b.newClient(t)}
		t.Run("fair read-write", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewFairReadWriteLock("load")
				wg.Go(func() {
					for i := range 12 {
						if (g+i)%3 > 0 {
							lease, err := l.Reader.Lock(bg)
							if err != nil {
								t.Error(err)
								return
							}
							_ = written // unsynchronised on purpose: the race detector watches too
							if err := lease.Unlock(bg); err != nil {
								t.Error(err)
							}
							continue
						}
						lease, err := l.Writer.Lock(bg)
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 48 {
				t.Fatalf("%d of 48 sections", written)
			}
		})
		t.Run("priority", func(t *testing.T) {
			var wg sync.WaitGroup
			written, last := 0, int64(0)
			for g := range 12 {
				l := clients[g%3].NewPriorityLock("load", rlock.WithAgeing(time.Millisecond))
				wg.Go(func() {
					for i := range 8 {
						lease, err := l.Lock(bg, rlock.WithPriority(1+(g+i)%10))
						if err != nil {
							t.Error(err)
							return
						}
						written++
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = lease.Token()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if written != 96 {
				t.Fatalf("%d of 96 sections", written)
			}
		})
		onlyTombstones(t, b.client(t)) // of replies that were late
	})
}

func TestQueuedBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	rdb := onMiniredis(t).client(t)
	hook := &countHook{}
	rdb.AddHook(hook)
	c := newClientOn(t, rdb)
	for _, k := range queuedKinds {
		for _, name := range []string{"", "a{b", "{}z"} {
			_, err := k.open(c, name).Lock(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
			_, err = k.open(c, name).State(bg)
			wantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	for _, p := range []int{-1, 0, 11} {
		_, err := c.NewPriorityLock("a").Lock(bg, rlock.WithPriority(p))
		wantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, l := range []rlock.Locker{c.NewLock("a"), fairRead(c, "a"), fairWrite(c, "a")} {
		for _, p := range []int{0, 5} {
			_, err := l.TryLock(bg, rlock.WithPriority(p))
			wantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond - 1, rlock.MaxAgeing + 1} {
		_, err := c.NewPriorityLock("a", rlock.WithAgeing(d)).Lock(bg)
		wantErr(t, err, rlock.ErrInvalidArgument)
	}
	for _, l := range []rlock.Locker{c.NewLock("a", rlock.WithAgeing(time.Second)), fairRead(c, "a", rlock.WithAgeing(time.Second))} {
		_, err := l.TryLock(bg)
		wantErr(t, err, rlock.ErrInvalidArgument)
	}
	if n := hook.n.Load(); n != 0 {
		t.Fatalf("%d commands were sent", n)
	}
}

// Cancelled waiters and releases race for the same wake-ups; nobody may be left
// asleep.
func TestQueuedCancelledWaitersPassTheirTurnOn(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		rdb := b.client(t)
		c := newClientOn(t, rdb, rlock.WithLongestPoll(patient), rlock.WithWaiterLease(patient))
		for range 10 {
			holder := mustLock(t, k.rival(c, "a"))
			first := k.enqueue(t, rdb, k.open(c, "a"))
			second := k.enqueueRival(t, rdb, k.rival(c, "a"))
			go first.cancel()
			mustUnlock(t, holder)
			<-first.done
			if first.err == nil {
				mustUnlock(t, first.lease)
			} else if !errors.Is(first.err, context.Canceled) {
				t.Fatal(first.err)
			}
			mustUnlock(t, second.held())
		}
		onlyTombstones(t, rdb)
	})
}

func TestQueuedWaitersLookByThemselvesIfAllMessagesAreLost(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		const waiterLease = 600 * time.Millisecond
		c, proxy, rdb := queuedFaulty(t, b, k, rlock.WithWaiterLease(waiterLease))
		proxy.DropMessages(true)
		holder := mustLock(t, k.rival(newClientOn(t, rdb), "a"))
		e := k.enqueue(t, rdb, k.open(c, "a"))
		start := time.Now()
		mustUnlock(t, holder)
		mustUnlock(t, e.held())
		if took := time.Since(start); took > waiterLease/3+5*time.Second { // of a busy machine
			t.Fatalf("waited %v, it looks each %v", took, waiterLease/3)
		}
	})
}

func TestQueuedLateCopyOfARenewalBringsNothingBack(t *testing.T) {
	t.Parallel()
	eachQueuedMode(t, func(t *testing.T, b *backend, k queuedKind) {
		c, proxy, rdb := queuedFaulty(t, b, k)
		lease := mustLock(t, k.open(c, "a"), rlock.WithLease(time.Second))
		// The keys outlive the hold, as they do when others have held the lock longer.
		rdb.PExpire(bg, k.base("a"), time.Minute)
		rdb.PExpire(bg, k.base("a")+":ends", time.Minute)
		id := sha("queued_renew")
		proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
			if cmd.IsScript(id) {
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
		_ = lease.Extend(bg, time.Minute) // lost on its way
		<-lease.Done()
		eventually(t, "it has run out in Redis", func() bool { return !queuedState(t, k.open(c, "a")).Locked() })
		if n := proxy.Release(); n == 0 {
			t.Fatal("no copy was late")
		}
		queuedHolders(t, k.open(newClientOn(t, rdb), "a"), 0, 0, 0)
		mustUnlock(t, mustLock(t, k.rival(newClientOn(t, rdb), "a")))
	})
}

// A renewal and a re-entry need the hold only: the queue may stand elsewhere, or
// not at all, while the slot moves from one node to another.
func TestQueuedHoldsLastWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for _, k := range queuedKinds {
		t.Run(k.name, func(t *testing.T) {
			name := "{queued moves " + k.name + "}"
			l := k.open(newClientOn(t, c.Client(), rlock.WithWatchdogLease(1500*time.Millisecond)), name)
			lease := mustLock(t, l)
			slot := c.Slot(name)
			var again *rlock.Lease
			c.MigrateSlotWith(slot, elsewhere(c, slot), func() {
				for range 4 {
					was := lease.Deadline()
					eventually(t, "it is renewed or lost", func() bool { return lease.Deadline().After(was) || lease.Err() != nil })
				}
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				again = mustLockCtx(t, lease.Context(bg), l)
				if err := again.Extend(bg, time.Second); err != nil {
					t.Error(err)
				}
			})
			mustUnlock(t, again)
			mustUnlock(t, lease)
		})
	}
}
