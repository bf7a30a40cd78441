package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// runs counts the runs of scripts of a client.
type runs struct {
	standBy, enter, releaseNext atomic.Int64
}

func (r *runs) hook() *locktest.ScriptHook {
	note := func(cmd redis.Cmder) {
		for script, n := range map[string]*atomic.Int64{
			"lock/stand_by": &r.standBy, "lock/enter": &r.enter, "lock/release_next": &r.releaseNext,
		} {
			if locktest.Runs(cmd, script) {
				n.Add(1)
			}
		}
	}
	return &locktest.ScriptHook{
		One: func(cmd redis.Cmder, next func() error) error { note(cmd); return next() },
		Pipe: func(cmds []redis.Cmder, next func() error) error {
			for _, cmd := range cmds {
				note(cmd)
			}
			return next()
		},
	}
}

// rivals are two clients for one lock: while mine has it, theirs waits.
type rivals struct {
	mine, theirs *rlock.Lock
	looks        *runs               // of theirs
	releases     *runs               // of mine
	sent         *locktest.CountHook // by theirs
}

// remembers is the option of a client whose lines remember other clients for as long as a test takes: a release grants the lock
// only if others have listened at one before it, not long ago.
func remembers() rlock.Option { return seam.Option(seam.Env{Keep: time.Hour}).(rlock.Option) }

func newRivals(t *testing.T, mine, theirs redis.UniversalClient, opts ...rlock.Option) *rivals {
	t.Helper()
	r := &rivals{looks: &runs{}, releases: &runs{}, sent: &locktest.CountHook{}}
	mine.AddHook(r.releases.hook())
	theirs.AddHook(r.looks.hook())
	theirs.AddHook(r.sent)
	patient := rlock.WithLongestPoll(locktest.Patient)
	r.mine = locktest.NewClient(t, mine, patient, remembers()).NewLock("a")
	r.theirs = locktest.NewClient(t, theirs, append([]rlock.Option{remembers(), patient}, opts...)...).NewLock("a")
	return r
}

// wait begins a wait of theirs, and returns when it sleeps.
func (r *rivals) wait(t *testing.T) *locktest.Attempt {
	t.Helper()
	next := locktest.Begin(t, bg, r.theirs)
	locktest.Eventually(t, "it waits", func() bool { return locktest.Waiters(t, r.theirs) == 1 })
	locktest.Eventually(t, "its client listens, and it has looked", func() bool {
		before := r.sent.N.Load()
		time.Sleep(100 * time.Millisecond)
		return rlock.Listens(r.theirs) && r.sent.N.Load() == before && r.sent.UnderWay.Load() == 0
	})
	return next
}

// warm has them wait for each other until a waiter stands by at its first look.
func (r *rivals) warm(t *testing.T) {
	t.Helper()
	for n := 0; n < 2 || n < 20 && !rlock.SubscribedToGrants(r.theirs); n++ { // more if theirs has a Keep of its own
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Held())
	}
	if !rlock.SubscribedToGrants(r.theirs) {
		t.Fatal("their client does not listen for turns")
	}
}

func TestReleaseGrantsTheLockToAnotherClient(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		r := newRivals(t, b.Client(t), b.Client(t))
		r.warm(t)
		once := 0
		for range 5 {
			lease := locktest.MustLock(t, r.mine)
			looks, grants := r.looks.standBy.Load(), r.releases.releaseNext.Load()
			others := r.looks.enter.Load()
			next := r.wait(t)
			locktest.MustUnlock(t, lease)
			got := next.Held()
			if got.Token() <= lease.Token() {
				t.Errorf("token %d after %d", got.Token(), lease.Token())
			}
			// The message of their own release before may call for a look.
			switch n := r.looks.standBy.Load() - looks; {
			case n == 1:
				once++
			case n > 2 || r.looks.enter.Load() != others:
				t.Errorf("it has looked %d times, and %d times in another way", n, r.looks.enter.Load()-others)
			}
			if n := r.releases.releaseNext.Load() - grants; n != 1 {
				t.Errorf("%d releases that grant", n)
			}
			if n := locktest.HoldCount(t, b.Client(t), "a", got.HoldID()); n != "1" {
				t.Errorf("the count of %s is %q", got.HoldID(), n)
			}
			if left := time.Until(got.Deadline()); left < 20*time.Second {
				t.Errorf("its lease lasts for %v", left)
			}
			locktest.MustUnlock(t, got)
		}
		if once == 0 {
			t.Error("it has looked again after each message")
		}
		locktest.NothingLeft(t, b.Client(t))
	})
}

// What the message promises counts from the look before it, however late it comes.
func TestGrantThatIsHeardLateLastsNoLonger(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]struct {
		by    time.Duration
		looks int64
	}{
		"a little":              {3 * time.Second, 1},
		"much of the lease":     {12 * time.Second, 2},
		"longer than the lease": {40 * time.Second, 2},
	} {
		locktest.Beside(t, name, func(t *testing.T) {
			b := locktest.OnMiniredis(t)
			var armed atomic.Bool
			heard, goOn := make(chan struct{}), make(chan struct{})
			clock := &locktest.Clock{}
			env := seam.Option(seam.Env{Clock: clock, Gate: func(point string) {
				if point == "message" && armed.CompareAndSwap(true, false) {
					close(heard)
					<-goOn
				}
			}}).(rlock.Option)
			r := newRivals(t, b.Client(t), b.Client(t), env, rlock.WithWatchdogLease(rlock.DefaultWatchdogLease))
			r.warm(t)
			lease := locktest.MustLock(t, r.mine)
			began := clock.Now()
			next := r.wait(t)
			looked := clock.Now()
			looks := r.looks.standBy.Load() - 1
			armed.Store(true)
			locktest.MustUnlock(t, lease)
			<-heard
			clock.Forward(late.by)
			close(goOn)
			got := next.Held()
			defer func() { _ = got.Unlock(bg) }()
			if n := r.looks.standBy.Load() - looks; n != late.looks {
				t.Errorf("it has looked %d times, want %d", n, late.looks)
			}
			const watchdogLease = rlock.DefaultWatchdogLease
			if late.looks == 1 {
				if d := got.Deadline(); d.After(looked.Add(watchdogLease)) || d.Before(began) {
					t.Errorf("the deadline is %v after the look", d.Sub(looked))
				}
			} else if left := got.Deadline().Sub(clock.Now()); left > watchdogLease || left < watchdogLease/2 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

// The lock is never left to a waiter that has gone when a release grants it.
func TestCanceledWhileAReleaseGrants(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		r := newRivals(t, b.Client(t), b.Client(t))
		r.warm(t)
		third := b.NewClient(t).NewLock("a")
		granted := 0
		for range 60 {
			lease := locktest.MustLock(t, r.mine)
			next := r.wait(t)
			var both sync.WaitGroup
			both.Go(func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				next.Cancel()
			})
			both.Go(func() { locktest.MustUnlock(t, lease) })
			both.Wait()
			<-next.Done
			if next.Err == nil {
				granted++
				locktest.MustUnlock(t, next.Lease)
			} else if !errors.Is(next.Err, context.Canceled) {
				t.Fatal(next.Err)
			}
			lease, err := third.Lock(bg, rlock.WithWait(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, lease)
		}
		t.Logf("it was granted the lock %d times of 60", granted)
	})
}

// A lock that two clients hand to each other without end is released for all again and again.
func TestReleasesGrantOnlySoManyInARow(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	ctx, stop := context.WithCancel(bg)
	defer stop()
	told := b.Client(t).PSubscribe(bg, "redisson_lock__channel:{a}:*")
	defer told.Close()
	if _, err := told.Receive(bg); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 2 {
		l := b.NewClient(t).NewLock("a")
		work.Go(func() {
			for ctx.Err() == nil {
				if lease, err := l.Lock(ctx); err == nil {
					time.Sleep(100 * time.Microsecond) // the other one comes to wait
					_ = lease.Unlock(bg)
				}
			}
		})
	}
	full := 0 // so often there were as many in a row as may be
	locktest.Eventually(t, "there were as many in a row as may be, ten times", func() bool {
		var id string
		var token, n int64
		var inRow int
		m, err := told.ReceiveTimeout(bg, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(m.(*redis.Message).Payload, &id, &token, &n, &inRow); err != nil { // and the look
			t.Fatal(err)
		}
		if inRow > rlock.MostInRow {
			t.Fatalf("%d releases in a row have granted it", inRow)
		}
		if inRow == rlock.MostInRow {
			full++
		}
		return full == 10
	})
	// One that never stands by, as its lease is fixed, gets it too.
	lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Minute))
	locktest.MustUnlock(t, lease)
	stop()
	work.Wait()
}

// Waiting does not depend on messages: a grant of which nobody told is found by a glance.
func TestGrantWithoutAMessageIsFound(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		r := newRivals(t, b.Client(t), b.Client(t))
		r.theirs = locktest.NewClient(t, b.Client(t), rlock.WithLongestPoll(time.Second)).NewLock("a")
		r.warm(t)
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		who, _, _ := strings.Cut(rdb.Get(bg, "{a}:rlock:next").Val(), " ")
		if who == "" {
			t.Fatal("nobody stands by")
		}
		// As lock/release_next, but for the messages.
		if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
			p.Del(bg, "a", "{a}:rlock:next")
			p.HSet(bg, "a", who, 1)
			p.PExpire(bg, "a", 30*time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		got := next.Held()
		if got.HoldID() != who {
			t.Errorf("%s has it, not %s", got.HoldID(), who)
		}
		locktest.MustUnlock(t, got)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	})
}

func TestLostReplyOfAReleaseThatGrants(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/release_next", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		r := newRivals(t, b.Client(t), b.Client(t))
		r.mine = c.NewLock("a")
		r.warm(t)
		locktest.LoadScripts(t, rdb, "lock/release_next")
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		locktest.OnNth(t, proxy, "lock/release_next", 1, action)
		locktest.UnlockLossy(t, lease, action)
		got := next.Held()
		if n := locktest.HoldCount(t, rdb, "a", got.HoldID()); n != "1" || got.Token() <= lease.Token() {
			t.Errorf("the count is %q; token %d after %d", n, got.Token(), lease.Token())
		}
		time.Sleep(50 * time.Millisecond) // a late copy
		locktest.MustUnlock(t, got)
		locktest.NothingLeft(t, rdb)
	})
}

func TestLostReplyOfALookThatStandsBy(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/stand_by", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		c, proxy, rdb := b.Faulty(t)
		r := newRivals(t, b.Client(t), b.Client(t))
		r.theirs = c.NewLock("a")
		r.warm(t)
		locktest.LoadScripts(t, rdb, "lock/stand_by")
		lease := locktest.MustLock(t, r.mine)
		locktest.OnNth(t, proxy, "lock/stand_by", 1, action)
		next := r.wait(t)
		locktest.MustUnlock(t, lease)
		got := next.Held()
		if n := locktest.HoldCount(t, rdb, "a", got.HoldID()); n != "1" || got.Token() <= lease.Token() {
			t.Errorf("the count is %q; token %d after %d", n, got.Token(), lease.Token())
		}
		locktest.MustUnlock(t, got)
		locktest.OnlyTombstones(t, rdb)
	})
}

// The message of a grant comes after that hold has run out, another has the lock, and the waiter
// has looked and stands by again, under the same id.
func TestMessageOfAGrantThatIsOver(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var armed atomic.Bool
	heard, goOn := make(chan struct{}), make(chan struct{})
	env := seam.Option(seam.Env{Gate: func(point string) {
		if point == "message" && armed.CompareAndSwap(true, false) {
			close(heard)
			<-goOn
		}
	}}).(rlock.Option)
	r := newRivals(t, b.Client(t), b.Client(t))
	trdb := b.Client(t)
	looks := &runs{}
	trdb.AddHook(looks.hook())
	sent := &locktest.CountHook{}
	trdb.AddHook(sent)
	r.looks, r.sent = looks, sent
	r.theirs = locktest.NewClient(t, trdb, env, rlock.WithWatchdogLease(2*time.Second), rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
	r.warm(t)
	// When it ends, the waiter looks: two seconds after the end of the grant.
	lease := locktest.MustLock(t, r.mine, rlock.WithLease(4*time.Second))
	next := r.wait(t)
	armed.Store(true)
	locktest.MustUnlock(t, lease) // grants it to theirs, whose message is late
	<-heard
	third := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Minute))
	n := looks.standBy.Load()
	asleep := func() bool { return looks.standBy.Load() > n && sent.UnderWay.Load() == 0 }
	locktest.Eventually(t, "it looks, without a message", asleep)
	n = looks.standBy.Load()
	close(goOn)
	// It looks for each message, if it does not take the first for its own.
	b.Client(t).Publish(bg, "redisson_lock__channel:{a}", "0")
	locktest.Eventually(t, "it looks again", func() bool { return !next.Waits() || asleep() })
	if !next.Waits() {
		t.Errorf("two owners: %v has token %d until %v, %s has token %d: %v", next.Lease.HoldID(), next.Lease.Token(), time.Until(next.Lease.Deadline()), third.HoldID(), third.Token(), third.Err())
	}
	locktest.MustUnlock(t, third)
	locktest.MustUnlock(t, next.Held())
}

// A watch in the client of the waiter, or of the holder, sees the next holder.
func TestWatchSeesAGrant(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"mine", "theirs", "third"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			r := newRivals(t, b.Client(t), b.Client(t))
			r.warm(t)
			l := map[string]*rlock.Lock{"mine": r.mine, "theirs": r.theirs,
				"third": locktest.NewClient(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient)).NewLock("a")}[where]
			lease := locktest.MustLock(t, r.mine)
			states := watching(t, l)
			watchUntil(t, states, "held", func(s rlock.State) bool { return len(s.Holders) == 1 })
			time.Sleep(3 * time.Second) // its pauses double: the next look by itself is two seconds away
			next := r.wait(t)
			locktest.MustUnlock(t, lease)
			got := next.Held()
			began := time.Now()
			watchUntil(t, states, "held by the next", func(s rlock.State) bool { return len(s.Holders) == 1 && s.Holders[0].HoldID == got.HoldID() })
			if d := time.Since(began); d > time.Second {
				t.Errorf("seen after %v", d)
			}
			locktest.MustUnlock(t, got)
		})
	}
}

// The user of Redis may listen to the channel of the lock, by its name, and not to that of grants.
func TestUserWhoMayListenToTheLockOnly(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "resetchannels", "&redisson_lock__channel:{a}", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	user := func() redis.UniversalClient {
		rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	r := newRivals(t, user(), user())
	for i := range 4 {
		lease := locktest.MustLock(t, r.mine)
		next := r.wait(t)
		if i == 3 { // their connection breaks
			if err := admin.ClientKillByFilter(bg, "type", "pubsub").Err(); err != nil {
				t.Fatal(err)
			}
			locktest.Eventually(t, "they listen again", func() bool {
				return admin.PubSubNumSub(bg, "redisson_lock__channel:{a}").Val()["redisson_lock__channel:{a}"] == 1
			})
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, next.Held())
	}
}

// A client whose wait lasts identifies itself on the channel of its grants. It does not stand by there: direct passes are
// for clients that have had the lock, and everyone else waits for them.
func TestWaitThatLastsDoesNotStandBy(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	held := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	waiter := locktest.Begin(t, bg, b.NewClient(t, rlock.WithLongestPoll(100*time.Millisecond)).NewLock("a"))
	const channel = "redisson_lock__channel:{a}"
	locktest.Eventually(t, "it has identified its client", func() bool {
		return len(rdb.PubSubChannels(bg, channel+":*").Val()) == 1
	})
	for range 3 {
		polls := locktest.EvalCounter(t, b)
		rdb.Publish(bg, channel, 0)
		locktest.Eventually(t, "it polls", func() bool { return polls() > 0 })
		if n := rdb.Exists(bg, "{a}:rlock:next").Val(); n != 0 {
			t.Fatal("it stands by")
		}
	}
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, waiter.Held())
}

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
		r.theirs = locktest.NewClient(t, rdb, remembers(), rlock.WithLongestPoll(locktest.Patient), rlock.WithObserver(o)).NewLock("a", rlock.WithMaxHold(2*time.Second))
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
		r.theirs = locktest.NewClient(t, rdb, remembers(), rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
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
			b.Mini.SetTime(time.Now()) // stands still: for 3 s only a waiter stands by after its look
			rdb := b.Client(t)
			r := newRivals(t, b.Client(t), rdb)
			r.theirs = locktest.NewClient(t, rdb, remembers(), rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
			r.warm(t)
			third := locktest.NewClient(t, b.Client(t)).NewLock("a")
			lease := locktest.MustLock(t, r.mine)
			next := r.wait(t)
			var copies atomic.Int64
			var first any        // the number of the first look
			var anew atomic.Bool // the second is another look: on a machine that stood still the first had no time for a copy
			ran, again, other := make(chan struct{}), make(chan struct{}), make(chan struct{})
			hold := func(cmd redis.Cmder, next func() error) error {
				if !locktest.Runs(cmd, "lock/stand_by") {
					return next()
				}
				args := cmd.Args()
				switch copies.Add(1) {
				case 1:
					first = args[len(args)-1]
					err := next()
					close(ran)
					<-again
					if !answered {
						return errors.Join(err, context.DeadlineExceeded)
					}
					return err
				case 2:
					anew.Store(args[len(args)-1] != first)
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
				return !next.Waits() || (copies.Load() > 2 || anew.Load()) && r.sent.UnderWay.Load() == 0
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

// A client that may not listen to its channel of grants does not take the place of one that may.
func TestClientThatCannotListenDoesNotStandBy(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "resetchannels", "&redisson_lock__channel:{a}", "+@all").Err(); err != nil {
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
