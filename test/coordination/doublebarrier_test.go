package coordination

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// enters begins an Enter, and leaves a Leave.
func enters(t locktest.TB, b *rlock.DoubleBarrier, opts ...rlock.AcquireOption) *locktest.Attempt {
	return locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) { return b.Enter(ctx, opts...) })
}

func leaves(t locktest.TB, b *rlock.DoubleBarrier, lease *rlock.Lease) *locktest.Attempt {
	return locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) { return nil, b.Leave(ctx, lease) })
}

// inside waits until so many wait to enter, or are in.
func inside(t testing.TB, b *rlock.DoubleBarrier, waiting, in int) {
	t.Helper()
	var s rlock.State
	locktest.Eventually(t, "the members are there", func() bool {
		var err error
		s, err = b.State(bg)
		return err == nil && s.Waiters == waiting && len(s.Holders) == in
	})
}

func TestMembersBeginAndEndTogether(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		var all []*rlock.DoubleBarrier
		for range 2 {
			// Only messages wake: nobody polls.
			c := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
			all = append(all, c.NewDoubleBarrier("phase", 4))
		}
		var token int64
		for generation := range 2 {
			var coming []*locktest.Attempt
			for i := range 3 {
				coming = append(coming, enters(t, all[i%2]))
			}
			inside(t, all[0], 3, 0)
			for _, c := range coming {
				c.MustWait()
			}
			if held, err := all[0].IsLocked(bg); held || err != nil {
				t.Fatal(held, err)
			}
			coming = append(coming, enters(t, all[1]))
			var leases []*rlock.Lease
			for _, c := range coming {
				leases = append(leases, c.Held())
			}
			for _, l := range leases {
				if l.Token() != leases[0].Token() || l.Token() <= token {
					t.Errorf("token %d; %d before", l.Token(), token)
				}
			}
			token = leases[0].Token()
			inside(t, all[1], 0, 4)

			// One more than there are members waits for the next generation.
			var late *locktest.Attempt
			if generation == 0 {
				late = enters(t, all[0])
			}
			locktest.MustUnlock(t, leases[3]) // waits for nobody
			var going []*locktest.Attempt
			for i, l := range leases[:2] {
				going = append(going, leaves(t, all[i%2], l))
			}
			inside(t, all[1], 0, 1)
			for _, c := range going {
				c.MustWait()
			}
			if err := all[0].Leave(bg, leases[2]); err != nil {
				t.Fatal(err)
			}
			for _, c := range going {
				c.Held()
			}
			if late != nil {
				inside(t, all[1], 1, 0)
				locktest.WantEnded(t, late.GiveUp(), context.Canceled)
			}
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestDoubleBarrierOfOne(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t).NewClient(t).NewDoubleBarrier("phase", 1)
	for range 3 {
		lease := enters(t, b).Held()
		if n, err := b.HoldCount(lease.Context(bg)); err != nil {
			t.Error(n, err)
		}
		if err := b.Leave(bg, lease); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMembersMustAgreeOnTheirNumber(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		two, three := c.NewDoubleBarrier("phase", 2), c.NewDoubleBarrier("phase", 3)
		first := enters(t, two)
		inside(t, two, 1, 0)
		_, err := three.Enter(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		second := enters(t, two).Held()
		_, err = three.Enter(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, second)
		first = enters(t, three)
		inside(t, three, 1, 0)
		_, err = two.Enter(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		first.GiveUp()
		locktest.OnlyTombstones(t, b.Client(t))
	})
}

// Who comes too early waits for the members of the generation before, of which there is a number
// and no names.
func TestEnterBeforeAllHaveLeftReportsTheRemainingMembers(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	one := b.NewClient(t).NewDoubleBarrier("phase", 2)
	first, second := enters(t, one), enters(t, one)
	lease := first.Held()
	locktest.MustUnlock(t, second.Held())
	_, err := b.NewClient(t).NewDoubleBarrier("phase", 2).Enter(bg, rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if !strings.HasSuffix(err.Error(), ": not acquired: members that are still in: 1") {
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)
}

// Who gives up leaves no place, whether others wait or not; WithWait(0) never takes one.
func TestEnterThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		d := b.NewClient(t).NewDoubleBarrier("phase", 2)
		_, err := d.Enter(bg, rlock.WithWait(0))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		locktest.MustBeEmpty(t, rdb)
		first := enters(t, d)
		inside(t, d, 1, 0)
		locktest.WantEnded(t, first.GiveUp(), context.Canceled)
		locktest.OnlyTombstones(t, rdb)
		first = enters(t, d)
		inside(t, d, 1, 0)
		second, err := d.Enter(bg, rlock.WithWait(0)) // the last
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, second)
		locktest.MustUnlock(t, first.Held())
		_, err = d.Enter(bg, rlock.WithWait(20*time.Millisecond))
		locktest.WantEnded(t, err, nil)
		locktest.OnlyTombstones(t, rdb)
	})
}

// A member that dies leaves by its lease: before all have come, and after.
func TestDeadMembersLeaveByTheirLeases(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		short := locktest.Ample(1500 * time.Millisecond) // of the one that dies, which may die earlier, but not while it enters
		proxy := faultproxy.New(t, b.Addr)
		dying := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), rlock.WithWatchdogLease(short), rlock.WithWaiterLease(short)).NewDoubleBarrier("phase", 2)
		d := b.NewClient(t).NewDoubleBarrier("phase", 2)

		dead := enters(t, dying)
		inside(t, d, 1, 0)
		proxy.Blackhole(true)
		inside(t, d, 0, 0) // it does not count any more
		first, second := enters(t, d), enters(t, d)
		one, two := first.Held(), second.Held()
		locktest.MustUnlock(t, one)
		locktest.MustUnlock(t, two)
		dead.Cancel()
		proxy.Blackhole(false)
		<-dead.Done
		if dead.Err == nil {
			t.Fatal("it has entered")
		}

		entering := enters(t, dying)
		lease := enters(t, d).Held()
		entering.Held()
		proxy.Blackhole(true)
		late := enters(t, d)
		if err := d.Leave(bg, lease); err != nil { // waits until the other's lease is over
			t.Fatal(err)
		}
		inside(t, d, 1, 0)
		if held, err := d.IsLocked(bg); err != nil || held {
			t.Error(held, err)
		}
		late.GiveUp()
	})
}

// A member that has died counts no more when its time is over, though others live beside it: while
// it waited, and when it was in. Else the others would begin one short.
func TestDeadMemberIsNotCountedWithLivingMembers(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const places = "{phase}:rlock:double:places"
		rdb := b.Client(t)
		d := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)).NewDoubleBarrier("phase", 3)
		dies := func() {
			t.Helper()
			if n, err := rdb.ZAdd(bg, places, redis.Z{Score: 1, Member: "dead:1"}).Result(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		first := enters(t, d)
		inside(t, d, 1, 0)
		dies()
		inside(t, d, 1, 0)
		_, err := d.Enter(bg, rlock.WithWait(0)) // the second of three
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if !strings.HasSuffix(err.Error(), "members that are still to come: 1") {
			t.Error(err)
		}
		if n := rdb.ZCard(bg, places).Val(); n != 1 {
			t.Errorf("%d places, want that of the first", n)
		}
		second := enters(t, d)
		inside(t, d, 2, 0)
		dies()
		third := enters(t, d)
		leases := []*rlock.Lease{first.Held(), second.Held(), third.Held()}

		dies()
		inside(t, d, 0, 3)
		_, err = d.Enter(bg, rlock.WithWait(0))
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if !strings.HasSuffix(err.Error(), "members that are still in: 3") {
			t.Error(err)
		}
		locktest.MustUnlock(t, leases[0])
		locktest.MustUnlock(t, leases[1])
		dies()
		leaving := leaves(t, d, leases[2])
		<-leaving.Done // it does not wait for one that is dead
		if leaving.Err != nil {
			t.Error(leaving.Err)
		}
	})
}

func TestLeaveThatIsGivenUp(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		d, other := c.NewDoubleBarrier("phase", 2), c.NewDoubleBarrier("other", 1)
		entering := enters(t, d)
		lease := enters(t, d).Held()
		stays := entering.Held()
		locktest.WantErr(t, other.Leave(bg, lease), rlock.ErrInvalidArgument)
		locktest.WantErr(t, b.NewClient(t).NewDoubleBarrier("phase", 2).Leave(bg, lease), rlock.ErrInvalidArgument)
		locktest.WantErr(t, d.Leave(bg, nil), rlock.ErrNotHeld)
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		defer cancel()
		locktest.WantErr(t, d.Leave(ctx, lease), context.DeadlineExceeded) // an answer may have come, or not
		inside(t, d, 0, 1)                                                 // it has left all the same
		locktest.WantErr(t, d.Leave(bg, lease), rlock.ErrUnlocked)
		if was, err := d.ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		locktest.WantErr(t, d.Leave(bg, stays), rlock.ErrLeaseLost)

		entering = enters(t, d)
		lease, stays = enters(t, d).Held(), entering.Held()
		going := leaves(t, d, lease)
		inside(t, d, 0, 1)
		if was, err := d.ForceUnlockIf(bg, stays.HoldID()); !was || err != nil {
			t.Fatal(was, err)
		}
		going.Held()

		// With a bound for its wait a member leaves as well.
		for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
			entering = enters(t, d)
			lease, stays = enters(t, d).Held(), entering.Held()
			locktest.WantErr(t, d.Leave(bg, lease, rlock.WithWait(-1)), rlock.ErrInvalidArgument)
			err := d.Leave(bg, lease, rlock.WithWait(wait))
			if !errors.Is(err, rlock.ErrUnreachable) { // no answer came in so short a time
				locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, context.DeadlineExceeded)
			}
			inside(t, d, 0, 1)
			if err := d.Leave(bg, stays, rlock.WithWait(0)); err != nil {
				t.Fatal(err)
			}
		}
		locktest.OnlyTombstones(t, b.Client(t))
	})
}

func TestInvalidArgumentsOfADoubleBarrier(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for _, d := range []*rlock.DoubleBarrier{
		c.NewDoubleBarrier("phase", 0), c.NewDoubleBarrier("phase", -1), c.NewDoubleBarrier("phase", rlock.MaxMembers+1),
		c.NewDoubleBarrier("phase", math.MaxInt), c.NewDoubleBarrier("", 2), (*rlock.Client)(nil).NewDoubleBarrier("phase", 2), {},
	} {
		_, err := d.Enter(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		locktest.WantErr(t, d.Leave(bg, nil), rlock.ErrInvalidArgument)
	}
}

func TestShutdownEndsWaitsForMembers(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	d, other := c.NewDoubleBarrier("phase", 2), c.NewDoubleBarrier("other", 2)
	first, second := enters(t, d), enters(t, d)
	stays, goes := first.Held(), second.Held()
	coming, going := enters(t, other), leaves(t, d, goes)
	inside(t, other, 1, 0)
	inside(t, d, 0, 1)
	done := locktest.ShutDown(bg, c, stays)
	<-coming.Done
	<-going.Done
	locktest.WantErr(t, coming.Err, rlock.ErrClosed)
	locktest.WantErr(t, going.Err, rlock.ErrClosed)
	locktest.MustUnlock(t, stays)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	locktest.OnlyTombstones(t, b.Client(t))
}

func TestLostRepliesOfADoubleBarrier(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"places/enter", "places/release", "places/left"} {
		locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			c, proxy, rdb := b.Faulty(t)
			d, plain := c.NewDoubleBarrier("phase", 2), b.NewClient(t).NewDoubleBarrier("phase", 2)
			locktest.LoadScripts(t, rdb, "places/enter", "places/release", "places/left")
			locktest.OnNth(t, proxy, script, 1, action)
			entering := enters(t, d)
			inside(t, plain, 1, 0)
			theirs := enters(t, plain).Held()
			mine := entering.Held()
			if mine.Token() != theirs.Token() {
				t.Errorf("tokens %d and %d", mine.Token(), theirs.Token())
			}
			going := leaves(t, d, mine)
			inside(t, plain, 0, 1)
			if !going.Waits() {
				t.Error("it does not wait for the other")
			}
			locktest.MustUnlock(t, theirs)
			if <-going.Done; script == "places/release" && locktest.LosesReply(action) {
				locktest.WantErr(t, going.Err, rlock.ErrUnconfirmed, rlock.ErrUnreachable)
			} else if going.Err != nil {
				t.Error(going.Err)
			}
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

// A copy of an Enter that comes when its hold is over takes no place.
func TestLateCopyOfAnEnterTakesNoPlace(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		d := c.NewDoubleBarrier("phase", 1)
		locktest.LoadScripts(t, rdb, "places/enter")
		locktest.OnNth(t, proxy, "places/enter", 1, faultproxy.Hold)
		locktest.MustUnlock(t, enters(t, d).Held()) // by a resend
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		locktest.OnlyTombstones(t, rdb)
	})
}

// Members cannot be asked to leave, and whoever tries is told so.
func TestMembersCannotBeAskedToLeave(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t).NewClient(t).NewDoubleBarrier("d", 1)
	lease, err := b.Enter(bg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.RequestRelease(bg)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	select {
	case <-lease.ReleaseRequested():
		t.Error("a member was asked")
	default:
	}
	locktest.MustUnlock(t, lease)
}
