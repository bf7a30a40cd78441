package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// heldFor is for how long each lease was held, as an Observer hears.
type heldFor struct {
	locktest.Ignoring
	all chan time.Duration
}

func (o *heldFor) Unlocked(_ context.Context, e rlock.UnlockEvent) { o.all <- e.Held }

// A lease of a grant counts from the look before it; its owner has it from the message on.
func TestHoldThatAReleaseGrantsBeginsWithTheMessage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		o := &heldFor{all: make(chan time.Duration, 100)}
		r := newRivals(t, b.Client(t), b.Client(t))
		rdb := b.Client(t)
		rdb.AddHook(r.sent)
		rdb.AddHook(r.looks.hook())
		r.theirs = locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithObserver(o)).NewLock("a", rlock.WithMaxHold(2*time.Second))
		r.warm(t)
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		const wait = 2200 * time.Millisecond
		time.Sleep(wait)
		locktest.MustUnlock(t, lease)
		got := next.Held()
		if err := got.Err(); err != nil {
			t.Errorf("just acquired, and lost: %v", err)
		}
		for len(o.all) > 0 {
			<-o.all
		}
		locktest.MustUnlock(t, got)
		if d := <-o.all; d >= wait {
			t.Errorf("held for %v, before it was acquired too", d)
		}
	})
}

// gateOf lets a test stop a command of a go-redis client once.
type gateOf struct {
	armed     atomic.Bool
	here, end chan struct{}
}

func newGate(rdb redis.UniversalClient, script string) *gateOf {
	g := &gateOf{here: make(chan struct{}), end: make(chan struct{})}
	stop := func(cmd redis.Cmder) {
		if locktest.Runs(cmd, script) && g.armed.CompareAndSwap(true, false) {
			close(g.here)
			<-g.end
		}
	}
	rdb.AddHook(&locktest.ScriptHook{
		One: func(cmd redis.Cmder, next func() error) error { stop(cmd); return next() },
		Pipe: func(cmds []redis.Cmder, next func() error) error {
			for _, cmd := range cmds {
				stop(cmd)
			}
			return next()
		},
	})
	return g
}

// A look that comes after a grant, and finds another holder, knows better than its message: an
// operator has ended the hold.
func TestLookAfterAGrantKnowsBetter(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		r := newRivals(t, b.Client(t), b.Client(t))
		rdb := b.Client(t)
		rdb.AddHook(r.sent)
		rdb.AddHook(r.looks.hook())
		look := newGate(rdb, "lock/stand_by")
		r.theirs = locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
		r.warm(t)
		third := locktest.NewClient(t, b.Client(t)).NewLock("a")
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		look.armed.Store(true)
		b.Client(t).Publish(bg, "redisson_lock__channel:{a}", "0")
		<-look.here
		before := r.releases.releaseNext.Load()
		locktest.MustUnlock(t, lease)
		if r.releases.releaseNext.Load() != before+1 {
			t.Fatal("no release that grants")
		}
		locktest.Eventually(t, "the message is there", func() bool { return rlock.Given(r.theirs) })
		if ok, err := third.ForceUnlock(bg); !ok || err != nil {
			t.Fatal(ok, err)
		}
		other := locktest.MustLock(t, third)
		looks := r.looks.standBy.Load()
		close(look.end)
		locktest.Eventually(t, "it looks again", func() bool {
			return !next.Waits() || r.looks.standBy.Load() > looks && rlock.HeadSleeps(r.theirs) && r.sent.UnderWay.Load() == 0
		})
		if !next.Waits() {
			t.Errorf("two owners: %s with token %d, and %s with token %d until %v", other.HoldID(), other.Token(), next.Lease.HoldID(), next.Lease.Token(), next.Lease.Deadline())
		}
		locktest.MustUnlock(t, other)
		locktest.MustUnlock(t, next.Held())
	})
}

// A second copy of a look finds another holder, after a release has granted the lock by what the
// first one has done, and an operator has ended that hold: the message of the grant names a look
// that was answered as if it came after.
func TestSecondCopyOfALookKnowsBetter(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("the first answered %v", answered), func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			rdb := b.Client(t)
			r := newRivals(t, b.Client(t), rdb)
			r.theirs = locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
			r.warm(t)
			third := locktest.NewClient(t, b.Client(t)).NewLock("a")
			lease := locktest.MustLock(t, r.mine)
			next := r.wait(t)
			var copies atomic.Int64
			ran, again, other := make(chan struct{}), make(chan struct{}), make(chan struct{})
			hold := func(cmd redis.Cmder, next func() error) error {
				if !locktest.Runs(cmd, "lock/stand_by") {
					return next()
				}
				switch copies.Add(1) {
				case 1:
					err := next()
					close(ran)
					<-again
					if !answered {
						return errors.Join(err, context.DeadlineExceeded)
					}
					return err
				case 2:
					<-other
					defer close(again)
				}
				return next()
			}
			rdb.AddHook(&locktest.ScriptHook{One: hold, Pipe: func(cmds []redis.Cmder, next func() error) error { return hold(cmds[0], next) }})
			b.Client(t).Publish(bg, "redisson_lock__channel:{a}", "0")
			<-ran
			before := r.releases.releaseNext.Load()
			locktest.MustUnlock(t, lease)
			if r.releases.releaseNext.Load() != before+1 {
				t.Fatal("no release that grants")
			}
			if ok, err := third.ForceUnlock(bg); !ok || err != nil {
				t.Fatal(ok, err)
			}
			hers := locktest.MustLock(t, third)
			close(other)
			<-again
			locktest.Eventually(t, "it looks again", func() bool {
				return !next.Waits() || copies.Load() > 2 && r.sent.UnderWay.Load() == 0
			})
			if !next.Waits() {
				t.Errorf("two owners: %s with token %d, and %s with token %d until %v", hers.HoldID(), hers.Token(), next.Lease.HoldID(), next.Lease.Token(), next.Lease.Deadline())
			}
			locktest.MustUnlock(t, hers)
			locktest.MustUnlock(t, next.Held())
		})
	}
}

// Those who take the lock from each other do not keep others out: after so many releases that
// grant, one is for all, also where a waiter finds its grant by a look.
func TestReleasesOfAllClientsGrantOnlySoManyInARow(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	told := b.Client(t).PSubscribe(bg, "redisson_lock__channel:{a}*")
	defer told.Close()
	if _, err := told.Receive(bg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	var work sync.WaitGroup
	for range 4 {
		l := b.NewClient(t).NewLock("a")
		work.Go(func() {
			for ctx.Err() == nil {
				if lease, err := l.Lock(ctx); err == nil {
					time.Sleep(200 * time.Microsecond)
					_ = lease.Unlock(bg)
				}
			}
		})
	}
	run, granted, runs := 0, false, 0
	for runs < 20 {
		m, err := told.ReceiveTimeout(bg, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *redis.Message:
			if strings.Count(m.Channel, ":") > 1 { // to one client, and next to all
				granted = true
				continue
			}
		}
		if !granted {
			if run > 0 {
				runs++
			}
			run = 0
			continue
		}
		granted = false
		if run++; run > rlock.MostInRow {
			t.Errorf("%d releases in a row have granted the lock", run)
			break
		}
	}
	cancel()
	work.Wait()
}

// Many goroutines ask at once for a lock that their client has waited for before: one of them stands
// by, and no other has a place to give up.
func TestBurstOfWaitersLeavesNothing(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	var abandons atomic.Int64
	count := func(cmd redis.Cmder) {
		if locktest.Runs(cmd, "lock/abandon") {
			abandons.Add(1)
		}
	}
	rdb.AddHook(&locktest.ScriptHook{
		One: func(cmd redis.Cmder, next func() error) error { count(cmd); return next() },
		Pipe: func(cmds []redis.Cmder, next func() error) error {
			for _, cmd := range cmds {
				count(cmd)
			}
			return next()
		},
	})
	r := newRivals(t, b.Client(t), rdb)
	r.warm(t)
	lease := locktest.MustLock(t, r.mine)
	abandons.Store(0)
	const n = 200
	var all sync.WaitGroup
	for range n {
		all.Go(func() { locktest.MustUnlock(t, locktest.MustLock(t, r.theirs)) })
	}
	locktest.Eventually(t, "all wait", func() bool { return locktest.Waiters(t, r.theirs) == n })
	locktest.Eventually(t, "nothing is sent", func() bool { return r.sent.UnderWay.Load() == 0 })
	// Those that ask before the first stands in line look by themselves: on a busy machine a few.
	if got := abandons.Load(); got > n/4 {
		t.Errorf("%d of %d have given up a place", got, n)
	}
	locktest.MustUnlock(t, lease)
	all.Wait()
}

// A client that may not listen to its channel of turns does not take the place of one that may.
func TestClientThatCannotListenDoesNotStandBy(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "&redisson_lock__channel:{a}", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
	t.Cleanup(func() { _ = rdb.Close() })
	deaf := newRivals(t, b.Client(t), rdb)
	for range 2 { // as warm does
		lease := locktest.MustLock(t, deaf.mine)
		next := deaf.wait(t)
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Held())
	}
	lease := locktest.MustLock(t, deaf.mine)
	next := deaf.wait(t)
	if who := admin.Get(bg, "{a}:rlock:next").Val(); who != "" {
		t.Errorf("%s stands by", who)
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, next.Held())
}
