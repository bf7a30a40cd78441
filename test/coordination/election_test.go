package coordination

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

func mustLead(t testing.TB, e *rlock.Election, value string, opts ...rlock.AcquireOption) *rlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	lease, err := e.Campaign(ctx, value, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// led is the leader with a lease and a value.
func led(l *rlock.Lease, value string) rlock.Leader {
	return rlock.Leader{Value: value, HoldID: l.HoldID(), Token: l.Token()}
}

// unnamed is a leader without the process, which is found out apart from the election.
func unnamed(l rlock.Leader) rlock.Leader {
	l.Process = rlock.Process{}
	return l
}

func wantLeader(t testing.TB, e *rlock.Election, want rlock.Leader) {
	t.Helper()
	got, err := e.Leader(bg)
	if want == (rlock.Leader{}) {
		locktest.WantErr(t, err, rlock.ErrNoLeader)
	} else if err != nil {
		t.Fatal(err)
	}
	if unnamed(got) != want {
		t.Fatalf("leader %+v, want %+v", got, want)
	}
}

// candidate is a Campaign that waits.
type candidate struct {
	*locktest.Attempt
	value string
}

func campaigns(t locktest.TB, e *rlock.Election, value string) candidate {
	return candidate{locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) { return e.Campaign(ctx, value) }), value}
}

// candidates waits until so many wait.
func candidates(t testing.TB, e *rlock.Election, n int) {
	t.Helper()
	locktest.Eventually(t, "the candidates wait", func() bool { return locktest.MustState(t, e).Waiters == n })
}

func TestCandidatesLeadInOrderOfArrival(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		opts := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}
		one, two := b.NewClient(t, opts...).NewElection("job"), b.NewClient(t, opts...).NewElection("job")
		wantLeader(t, one, rlock.Leader{})
		lease := mustLead(t, one, "a")
		wantLeader(t, two, led(lease, "a"))
		if _, err := two.Campaign(bg, "x", rlock.WithWait(0)); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		var next []candidate
		for i, value := range []string{"b", "c", "d"} {
			next = append(next, campaigns(t, []*rlock.Election{one, two}[i%2], value))
			candidates(t, one, i+1)
		}
		for _, c := range next {
			token := lease.Token()
			locktest.MustUnlock(t, lease) // a message wakes the next: nobody polls
			lease = c.Held()
			wantLeader(t, one, led(lease, c.value))
			if lease.Token() <= token {
				t.Errorf("token %d after %d", lease.Token(), token)
			}
		}
		locktest.MustUnlock(t, lease)
		wantLeader(t, two, rlock.Leader{})
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestProclaimNeedsTheLeadership(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		e, other := c.NewElection("job"), c.NewElection("other")
		lease := mustLead(t, e, "a")
		if err := e.Proclaim(bg, lease, "b"); err != nil {
			t.Fatal(err)
		}
		wantLeader(t, e, led(lease, "b"))
		wantLeader(t, other, rlock.Leader{})
		for _, test := range []struct {
			e     *rlock.Election
			lease *rlock.Lease
			value string
			want  error
		}{
			{other, lease, "x", rlock.ErrInvalidArgument},
			{b.NewClient(t).NewElection("job"), lease, "x", rlock.ErrInvalidArgument},
			{e, locktest.MustLock(t, c.NewLock("job")), "x", rlock.ErrInvalidArgument},
			{e, lease, strings.Repeat("x", rlock.MaxValueLength+1), rlock.ErrInvalidArgument},
			{e, nil, "x", rlock.ErrNotHeld},
		} {
			locktest.WantErr(t, test.e.Proclaim(bg, test.lease, test.value), test.want)
		}
		wantLeader(t, e, led(lease, "b"))

		// It is deposed, and does not know it yet.
		if was, err := b.NewClient(t).NewElection("job").ForceUnlock(bg); err != nil || !was {
			t.Fatal(was, err)
		}
		next := mustLead(t, e, "c")
		locktest.WantErr(t, e.Proclaim(bg, lease, "x"), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		wantLeader(t, e, led(next, "c"))
		locktest.WantErr(t, e.Proclaim(bg, lease, "x"), rlock.ErrLeaseLost)
		locktest.MustUnlock(t, next)
		locktest.WantErr(t, e.Proclaim(bg, next, "x"), rlock.ErrUnlocked)
		wantLeader(t, e, rlock.Leader{})
	})
}

// Candidates are told by their owners, in the order in which they will lead.
func TestCandidates(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		one, two := b.NewClient(t), b.NewClient(t)
		e := one.NewElection("job")
		waiting := func(want int) []string {
			t.Helper()
			var owners []string
			locktest.Eventually(t, "they wait", func() bool {
				var err error
				owners, err = e.Candidates(bg)
				return err == nil && len(owners) == want
			})
			return owners
		}
		waiting(0)
		lease := mustLead(t, e, "a")
		var all []*locktest.Attempt
		for i, c := range []*rlock.Client{two, one, two} {
			all = append(all, locktest.Call(t, bg, func(ctx context.Context) (*rlock.Lease, error) {
				return c.NewElection("job").Campaign(ctx, "b")
			}))
			waiting(i + 1)
		}
		owners := waiting(3)
		for i, c := range []*rlock.Client{two, one, two} {
			if client, _, _ := strings.Cut(owners[i], ":"); client != c.ID() {
				t.Errorf("candidate %d is %s, not of %s", i, owners[i], c.ID())
			}
		}
		for i, next := range all {
			locktest.MustUnlock(t, lease)
			if lease = next.Held(); lease.HoldID() != owners[i] {
				t.Errorf("%s leads, not %s", lease.HoldID(), owners[i])
			}
			waiting(2 - i)
		}
		locktest.MustUnlock(t, lease)
	})
	_, err := (&rlock.Election{}).Candidates(bg)
	locktest.WantErr(t, err, rlock.ErrInvalidArgument)
}

// leadership notes the leaderships of a client.
type leadership struct {
	locktest.Ignoring
	events chan rlock.LeadershipEvent
}

func (l *leadership) Leadership(_ context.Context, e rlock.LeadershipEvent) { l.events <- e }

// An Observer hears of each leadership, of its end however it ends, and of nothing else.
func TestObserverGetsLeaderships(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	o := &leadership{events: make(chan rlock.LeadershipEvent, 100)}
	var clock locktest.Clock
	c := b.NewClient(t, rlock.WithObserver(o), clock.Option())
	e := c.NewElection("job")
	hears := func(lease *rlock.Lease, leads bool, cause error) {
		t.Helper()
		select {
		case e := <-o.events:
			if e.Lock != "job" || e.HoldID != lease.HoldID() || e.Token != lease.Token() || e.Leads != leads || !errors.Is(e.Cause, cause) {
				t.Errorf("%+v, want leads: %v, %v", e, leads, cause)
			}
		case <-time.After(30 * time.Second): // it never comes
			t.Fatal("no event")
		}
	}
	lease := mustLead(t, e, "a")
	hears(lease, true, nil)
	_, err := b.NewClient(t).NewElection("job").Campaign(bg, "b", rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	_, err = e.Campaign(bg, "b", rlock.WithWait(0)) // that is no change
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.MustUnlock(t, lease)
	hears(lease, false, rlock.ErrUnlocked)
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("job"))) // nor this

	lease = mustLead(t, e, "c")
	hears(lease, true, nil)
	if was, err := e.ForceUnlock(bg); !was || err != nil {
		t.Fatal(was, err)
	}
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost)
	hears(lease, false, rlock.ErrUnlocked) // the caller had left; that it was deposed is the error of Unlock

	fixed := mustLead(t, e, "d", rlock.WithLease(time.Minute))
	hears(fixed, true, nil)
	clock.Forward(time.Minute)
	hears(fixed, false, rlock.ErrExpired)
	locktest.WantErr(t, fixed.Unlock(bg), rlock.ErrExpired) // it leaves Redis too

	lease = mustLead(t, e, "e")
	hears(lease, true, nil)
	locktest.Stop(c)
	hears(lease, false, rlock.ErrClosed)
	if len(o.events) > 0 {
		t.Errorf("and %+v", <-o.events)
	}
}

func TestCampaignIsNotReentrant(t *testing.T) {
	t.Parallel()
	e := locktest.OnMiniredis(t).NewClient(t).NewElection("job")
	lease := mustLead(t, e, "a")
	_, err := e.Campaign(lease.Context(bg), "b")
	locktest.WantErr(t, err, rlock.ErrReentrant)
	if _, err := e.Campaign(bg, strings.Repeat("x", rlock.MaxValueLength+1)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if seen, err := (&rlock.Election{}).Observe(bg); seen != nil || !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error("an election that was not made by a constructor:", err)
	}
	if err := e.Run(bg, "a", nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
}

// A lock of the same name, and its types with a queue, have nothing to do with an election.
func TestElectionDoesNotExcludeLocksOfItsName(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c := b.NewClient(t)
		lease := mustLead(t, c.NewElection("job"), "a")
		p := locktest.MustLock(t, c.NewPriorityLock("job"))
		locktest.MustUnlock(t, p)
		l := locktest.MustLock(t, c.NewLock("job"))
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, mustLead(t, c.NewElection("job"), "b"))
		locktest.MustUnlock(t, l)
	})
}

// A copy of a Proclaim that comes late does not undo a later one, or touch the next leader.
func TestLateCopyOfAProclaimChangesNothing(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t)
		e := c.NewElection("job")
		locktest.LoadScripts(t, rdb, "election/proclaim", "election/inspect", "queue/enter", "queue/release")
		lease := mustLead(t, e, "a")
		locktest.OnNth(t, proxy, "election/proclaim", 1, faultproxy.Hold)
		for _, value := range []string{"b", "c"} { // the first by a resend
			if err := e.Proclaim(bg, lease, value); err != nil {
				t.Fatal(err)
			}
		}
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		wantLeader(t, e, led(lease, "c"))
		locktest.OnNth(t, proxy, "election/proclaim", 1, faultproxy.Hold)
		if err := e.Proclaim(bg, lease, "d"); err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		next := mustLead(t, e, "e")
		if n := proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		wantLeader(t, e, led(next, "e"))
		locktest.MustUnlock(t, next)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestLostRepliesOfAnElection(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"queue/enter", "election/proclaim", "queue/release"} {
		locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			c, proxy, rdb := b.Faulty(t)
			e := c.NewElection("job")
			locktest.LoadScripts(t, rdb, "queue/enter", "queue/release", "election/proclaim", "election/inspect")
			locktest.OnNth(t, proxy, script, 1, action)
			lease := mustLead(t, e, "a")
			if err := e.Proclaim(bg, lease, "b"); err != nil {
				t.Fatal(err)
			}
			wantLeader(t, e, led(lease, "b"))
			if script == "queue/release" {
				locktest.UnlockLossy(t, lease, action)
			} else {
				locktest.MustUnlock(t, lease)
			}
			wantLeader(t, e, rlock.Leader{})
			locktest.OnlyTombstones(t, rdb)
		})
	}
}

func TestRunCampaignsAgainAfterALoss(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		e := b.NewClient(t, rlock.WithWatchdogLease(locktest.Ample(time.Second))).NewElection("job")
		admin := b.NewClient(t).NewElection("job")
		failed := errors.New("failed")
		var turns atomic.Int64
		err := e.Run(bg, "a", func(ctx context.Context) error {
			if turns.Add(1) == 3 {
				return failed
			}
			if _, err := admin.ForceUnlock(bg); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil // is dropped: it does not lead any more
		})
		if err != failed || turns.Load() != 3 {
			t.Fatal(turns.Load(), err)
		}
		wantLeader(t, e, rlock.Leader{})
		if err := e.Run(bg, "a", func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}

		// The end of the context, while it leads and while it waits.
		ctx, cancel := context.WithCancel(bg)
		err = e.Run(ctx, "a", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		lease := mustLead(t, admin, "b")
		ctx, cancel = context.WithTimeout(bg, 50*time.Millisecond)
		defer cancel()
		err = e.Run(ctx, "a", func(context.Context) error { panic("it leads") })
		locktest.WantEnded(t, err, context.DeadlineExceeded)
		locktest.MustUnlock(t, lease)

		func() {
			defer func() { _ = recover() }()
			_ = e.Run(bg, "a", func(context.Context) error { panic("on purpose") })
		}()
		wantLeader(t, e, rlock.Leader{})
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestRunOfAnElectionEndsWithTheClient(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	e := c.NewElection("job")
	lease := mustLead(t, b.NewClient(t).NewElection("job"), "other")
	ran := make(chan error, 1)
	go func() { ran <- e.Run(bg, "a", func(context.Context) error { return nil }) }()
	candidates(t, e, 1)
	if err := c.Shutdown(bg); err != nil {
		t.Fatal(err)
	}
	locktest.WantErr(t, <-ran, rlock.ErrClosed)
	locktest.MustUnlock(t, lease)
	locktest.OnlyTombstones(t, b.Client(t))
}

// The function of Run has its lease, and can change the value of the leader with it.
func TestRunHasItsLeaseInTheContext(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		e := b.NewClient(t).NewElection("job")
		err := e.Run(bg, "a", func(ctx context.Context) error {
			lease, ok := rlock.LeaseFrom(ctx)
			if !ok || lease.Token() == 0 {
				t.Error("no lease, or no token")
			}
			wantLeader(t, e, rlock.Leader{Value: "a", HoldID: lease.HoldID(), Token: lease.Token()})
			return e.Proclaim(ctx, lease, "b")
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A leader that leaves because its client shuts down says so: no caller has gone away.
func TestRunThatLeavesAtAShutdownSaysSo(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	closed := make(chan error, 1)
	err := c.NewElection("job").Run(bg, "a", func(ctx context.Context) error {
		go func() { closed <- c.Shutdown(bg) }()
		<-ctx.Done()
		return ctx.Err()
	})
	locktest.WantErr(t, err, rlock.ErrClosed, nil, context.Canceled, rlock.ErrLeaseLost)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	locktest.OnlyTombstones(t, b.Client(t))
}
