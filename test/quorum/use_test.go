package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestRedLockArguments(t *testing.T) {
	t.Parallel()
	var rdbs []*redis.Client
	for range 6 {
		rdb := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", len(rdbs)+1)}) // nobody is asked
		defer rdb.Close()
		rdbs = append(rdbs, rdb)
	}
	var five []*rlock.Client
	for _, rdb := range rdbs[:5] {
		five = append(five, locktest.NewClient(t, rdb))
	}
	nobody := locktest.NewClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}))
	for _, c := range []struct {
		what    string
		name    string
		clients []*rlock.Client
		opts    []rlock.RedLockOption
		says    string // "": it is right
	}{
		{"five", "a", five, nil, ""},
		{"one", "a", five[:1], nil, ""},
		{"two", "a", five[:2], nil, ""},
		{"none", "a", nil, nil, "no clients"},
		{"nil", "a", []*rlock.Client{five[0], nil}, nil, "client 1 is nil"},
		{"nil first", "a", []*rlock.Client{nil, five[0]}, nil, "client 0 is nil"},
		{"twice", "a", []*rlock.Client{five[0], five[1], five[0]}, nil, "client 2 occurs twice"},
		{"one node twice", "a", []*rlock.Client{five[0], locktest.NewClient(t, rdbs[0])}, nil, "client 1 uses the go-redis client of another"},
		{"no name", "", five, nil, "no name"},
		{"brace", "a{", five, nil, "{"},
		{"cluster", "a", []*rlock.Client{five[0], five[1], nobody}, nil, "client 2 connects to a cluster"},
		{"quorum 2", "a", five, []rlock.RedLockOption{rlock.WithQuorum(2)}, "WithQuorum(2): must be from 3 to 5 of 5"},
		{"quorum 0", "a", five, []rlock.RedLockOption{rlock.WithQuorum(0)}, "WithQuorum(0)"},
		{"quorum 3", "a", five, []rlock.RedLockOption{rlock.WithQuorum(3)}, ""},
		{"quorum 5", "a", five, []rlock.RedLockOption{rlock.WithQuorum(5)}, ""},
		{"quorum 6", "a", five, []rlock.RedLockOption{rlock.WithQuorum(6)}, "WithQuorum(6)"},
		{"quorum 2 of 4", "a", five[:4], []rlock.RedLockOption{rlock.WithQuorum(2)}, "from 3 to 4 of 4"},
		{"no time", "a", five, []rlock.RedLockOption{rlock.WithNodeTimeout(0)}, "WithNodeTimeout(0s)"},
		{"1 ms", "a", five, []rlock.RedLockOption{rlock.WithNodeTimeout(time.Millisecond)}, ""},
		{"less", "a", five, []rlock.RedLockOption{rlock.WithNodeTimeout(time.Millisecond - 1)}, "from 1ms"},
		{"a sixth", "a", five, []rlock.RedLockOption{rlock.WithNodeTimeout(locktest.Lease / 6)}, ""},
		{"too long", "a", five, []rlock.RedLockOption{rlock.WithNodeTimeout(locktest.Lease/6 + 1)}, "a sixth of the watchdog lease"},
	} {
		t.Run(c.what, func(t *testing.T) {
			l, err := rlock.NewRedLock(c.name, c.clients, c.opts...)
			if c.says == "" {
				if err != nil || l.Name() != c.name {
					t.Fatalf("%v, %v", l, err)
				}
				return
			}
			if l != nil || !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "rlock: NewRedLock: ") {
				t.Fatalf("%v, %v", l, err)
			}
		})
	}
	l := locktest.NewRedLock(t, "a", five)
	for what, call := range map[string]func() error{
		"lease": func() error { _, err := l.TryLock(bg, rlock.WithLease(time.Millisecond)); return err },
		"wait":  func() error { _, err := l.Lock(bg, rlock.WithWait(-1)); return err },
		"owner": func() error { _, err := l.ForceUnlockIf(bg, ""); return err },
	} {
		if err := call(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestRedLockReentry(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.unequal(t, "stock") // so that each vote has a stamp of its own
	cs := n.clients(t)
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(2*time.Second))
	other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
	counted := func(of *rlock.RedLock, ctx context.Context, want int) {
		t.Helper()
		if got, err := of.HoldCount(ctx); err != nil || got != want {
			t.Errorf("held %d times (%v), want %d", got, err, want)
		}
	}
	counted(l, bg, 0)
	outer := locktest.MustLock(t, l)
	ctx := outer.Context(bg)
	counted(l, ctx, 1)
	counted(l, rlock.WithOwner(bg), 0)
	inner := locktest.MustLockCtx(t, ctx, l)
	if inner.Token() != outer.Token() || inner.HoldID() != outer.HoldID() {
		t.Errorf("the inner lease has token %d and owner %s", inner.Token(), inner.HoldID())
	}
	counted(l, ctx, 2)

	// Another RedLock of the same name and nodes is the same lock, in whatever
	// order the nodes are given.
	same := locktest.NewRedLock(t, "stock", []*rlock.Client{cs[0], cs[3], cs[2], cs[4], cs[1]}, rlock.WithNodeTimeout(2*time.Second))
	third, err := same.TryLock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	counted(same, ctx, 3)
	counted(l, ctx, 3)
	if s, err := same.State(bg); err != nil || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: outer.HoldID(), Count: 3}) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := third.Extend(bg, time.Minute); err != nil {
		t.Error(err)
	}

	// In any order, and it is free with the last one only.
	for i, lease := range []*rlock.Lease{outer, third, inner} {
		if _, err := other.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatalf("after %d of 3: %v", i, err)
		}
		if _, err := l.TryLock(rlock.WithoutOwner(context.WithoutCancel(ctx))); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatalf("another owner of the same client: %v", err)
		}
		locktest.MustUnlock(t, lease)
		locktest.WantErr(t, lease.Unlock(bg), rlock.ErrUnlocked)
		if i < 2 {
			counted(l, inner.Context(bg), 2-i)
			if err := inner.Extend(bg, time.Minute); err != nil {
				t.Error(err)
			}
		}
	}
	n.nothing(t, "stock")
	next := locktest.MustLock(t, other)
	if next.Token() <= outer.Token() {
		t.Errorf("token %d after %d", next.Token(), outer.Token())
	}
	// The owner's hold is over: to enter again is to wait like anybody.
	if _, err := l.TryLock(ctx); err == nil {
		t.Error("entered what another holds")
	}
	locktest.MustUnlock(t, next)

	// A re-entry never creates a hold.
	n.nothing(t, "stock") // so that all can vote at once
	lease := locktest.MustLock(t, l)
	n.allVoteFor(t, lease)
	for _, rdb := range n.plain {
		rdb.FlushAll(bg)
	}
	_, err = l.TryLock(lease.Context(bg))
	locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	n.nothing(t, "stock")
}

// A context that ends at any step leaves nothing, and nobody waits for what it
// has left: neither the caller, nor the next one.
func TestRedLockCancelledAtEachStep(t *testing.T) {
	t.Parallel() // it waits for timeouts most of the time
	for _, script := range []string{"quorum/acquire", "quorum/raise", "quorum/release", "waiting"} {
		for _, action := range []faultproxy.Action{faultproxy.Pass, faultproxy.SwallowReply, faultproxy.Hold} {
			if script == "waiting" && action != faultproxy.Pass {
				continue
			}
			locktest.Beside(t, fmt.Sprint(script, " ", action), func(t *testing.T) {
				n := startMasters(t)
				n.warm(t)
				const timeout = time.Second
				straight := n.straight(t)
				// Clients are closed at the end of all: that takes until requests are not waited
				// for any more.
				// On a busy machine a look may end before all nodes are asked: the next one must not be at the end of
				// the holder's lease.
				fresh := func() *rlock.RedLock {
					return locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithLongestPoll(time.Second)), rlock.WithNodeTimeout(timeout))
				}
				for _, nodes := range [][]int{{0, 1}, {0, 1, 2, 3, 4}} {
					t.Run(fmt.Sprintf("on %d", len(nodes)), func(t *testing.T) {
						l := fresh()
						n.pass()
						n.unequal(t, "stock")
						other := locktest.NewRedLock(t, "stock", straight, rlock.WithNodeTimeout(timeout)) // its tokens start again
						ctx, cancel := context.WithCancel(bg)
						defer cancel()
						id := "none"
						if script != "waiting" {
							id = locktest.SHA(script)
						}
						var holder *rlock.Lease
						switch script {
						case "waiting":
							holder = locktest.MustLock(t, other)
							time.AfterFunc(50*time.Millisecond, cancel)
						case "quorum/release": // of votes that were not enough: the others go to a holder
							holder = locktest.MustLock(t, other)
							n.allVoteFor(t, holder)
							if err := holder.Extend(bg, time.Minute); err != nil { // no vote has come too late to count
								t.Fatal(err)
							}
							n.answered(t) // a renewal that is under way would bring the votes back
							for _, i := range []int{0, 1} {
								n.plain[i].Del(bg, recordKey("stock"))
							}
						}
						for _, i := range nodes {
							n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
								if c.IsScript(id) {
									cancel()
									return action
								}
								return faultproxy.Pass
							})
						}
						// On a busy machine it may never come to the step: then it is canceled as it waits.
						defer time.AfterFunc(locktest.Patience/4, cancel).Stop()
						start := time.Now()
						lease, err := l.Lock(ctx)
						took := time.Since(start)
						switch {
						case err == nil && script != "quorum/raise" && script != "quorum/acquire":
							t.Fatal("acquired")
						case err == nil: // the votes were quicker than the end
							locktest.MustUnlock(t, lease)
						default:
							locktest.WantEnded(t, err, context.Canceled)
							if took > locktest.Patience { // far above the timeout, for a busy machine
								t.Errorf("returned after %v", took)
							}
						}
						for _, p := range n.proxies {
							p.Handle(nil)
							p.Release()
						}
						if holder != nil {
							// With three votes of five, one reply that stalls until a second copy is sent leaves the release in doubt.
							start := time.Now()
							err := holder.Unlock(bg)
							inDoubt := script == "quorum/release" && errors.Is(err, rlock.ErrUnconfirmed) && time.Since(start) > 50*time.Millisecond
							if err != nil && !inDoubt {
								t.Fatal(err)
							}
						}
						n.nothing(t, "stock")
						locktest.MustUnlock(t, locktest.MustLock(t, other))
						n.nothing(t, "stock")
						locktest.Eventually(t, "a quorum tells that nobody waits", func() bool {
							w, err := l.State(bg)
							return err == nil && w.Waiters == 0
						})
					})
				}
			})
		}
	}
}

// One who is given up when he has votes enough, but no hold yet, may have looked
// like a holder to others. They do not sleep until his lease would be over.
func TestRedLockGivenUpWakesWhoTookItForAHold(t *testing.T) {
	t.Parallel() // it waits for timeouts most of the time
	n := startMasters(t)
	n.warm(t)
	n.unequal(t, "stock")
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(2*time.Second))
	// Nothing but a message wakes this one soon.
	other := locktest.NewRedLock(t, "stock", n.straight(t, rlock.WithLongestPoll(time.Minute)), rlock.WithNodeTimeout(2*time.Second))
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	raising := make(chan struct{})
	var once sync.Once
	id := locktest.SHA("quorum/raise")
	for _, p := range n.proxies {
		p.Handle(func(c faultproxy.Command) faultproxy.Action {
			if c.IsScript(id) {
				once.Do(func() { close(raising) })
				return faultproxy.Hold
			}
			return faultproxy.Pass
		})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if _, err := l.Lock(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
	})
	<-raising
	got := make(chan *rlock.Lease, 1)
	wg.Go(func() {
		lease, err := other.Lock(bg, rlock.WithWait(20*time.Second))
		if err != nil {
			t.Errorf("the one who waits: %v", err)
		}
		got <- lease
	})
	locktest.Eventually(t, "he waits, and hears all nodes", func() bool {
		heard := 0
		for _, rdb := range n.plain {
			heard += int(rdb.PubSubNumSub(bg, recordKey("stock")+":free").Val()[recordKey("stock")+":free"])
		}
		return heard == 5
	})
	// The confirmation of each subscription wakes him once more: let him see that
	// it is taken, and fall asleep.
	locktest.Eventually(t, "he sleeps", func() bool {
		before := scriptCalls(t, n)
		time.Sleep(100 * time.Millisecond) // the pace of looking whether he looks
		return scriptCalls(t, n) == before
	})
	n.pass()
	cancel()
	if lease := <-got; lease != nil {
		locktest.MustUnlock(t, lease)
	}
	n.nothing(t, "stock")
}

// Who holds a lock, as the nodes say it, some of which may be away.
func TestRedLockStateAndForce(t *testing.T) {
	t.Parallel() // it waits for timeouts most of the time
	for _, away := range []int{0, 2} {
		locktest.Beside(t, fmt.Sprint(away, " nodes are stopped"), func(t *testing.T) {
			if away > 0 {
				locktest.Thorough(t) // half a minute of timeouts
			}
			n := startMasters(t)
			l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(locktest.RedLockLease)), rlock.WithNodeTimeout(locktest.RedLockTimeout))
			admin := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(5*time.Second))
			isFree := func(when string) {
				t.Helper()
				s, err := admin.State(bg)
				if err != nil || s.Mode != rlock.ModeFree || s.Locked() || s.Token != 0 || s.TTL != 0 {
					t.Errorf("%s: %+v, %v", when, s, err)
				}
				if is, err := admin.IsLocked(bg); err != nil || is {
					t.Errorf("%s: locked %v, %v", when, is, err)
				}
			}
			isHeld := func(by *rlock.Lease, seen *rlock.RedLock, token bool) {
				t.Helper()
				s, err := seen.State(bg)
				if err != nil || s.Mode != rlock.ModeExclusive || len(s.Holders) != 1 || locktest.Unnamed(s.Holders)[0] != (rlock.Holder{HoldID: by.HoldID(), Count: 1}) {
					t.Errorf("%+v, %v", s, err)
				}
				if s.TTL <= 0 || s.TTL > locktest.RedLockLease {
					t.Errorf("TTL %v", s.TTL)
				}
				if s.Token != by.Token() && (token || s.Token != 0) {
					t.Errorf("token %d, is %d", s.Token, by.Token())
				}
			}
			isFree("before")
			lease := locktest.MustLock(t, l)
			n.allVoteFor(t, lease)
			for i := range away {
				n.servers[1+i].Pause()
			}
			start := time.Now()
			isHeld(lease, l, true)
			isHeld(lease, admin, false)
			if took := time.Since(start); took >= 2*locktest.RedLockTimeout {
				t.Errorf("two looks at three nodes that answer took %v", took)
			}
			if did, err := admin.ForceUnlockIf(bg, "somebody else"); did || err != nil {
				t.Errorf("freed another's hold: %v, %v", did, err)
			}
			isHeld(lease, admin, false)
			watchCtx, cancel := context.WithCancel(bg)
			defer cancel()
			states, err := admin.Watch(watchCtx)
			if err != nil {
				t.Fatal(err)
			}
			if s := <-states; len(s.Holders) != 1 || s.Holders[0].HoldID != lease.HoldID() {
				t.Errorf("watched: %+v", s)
			}

			if did, err := admin.ForceUnlockIf(bg, lease.HoldID()); !did || err != nil {
				t.Errorf("did not free it: %v, %v", did, err)
			}
			if s := <-states; s.Locked() {
				t.Errorf("watched: %+v", s)
			}
			isFree("after ForceUnlockIf")
			next := locktest.MustLock(t, admin)
			if s := <-states; len(s.Holders) != 1 || s.Holders[0].HoldID != next.HoldID() {
				t.Errorf("watched: %+v", s)
			}
			if did, err := admin.ForceUnlockIf(bg, lease.HoldID()); did || err != nil {
				t.Errorf("hit a newer hold: %v, %v", did, err)
			}
			// The holder is told by his next renewal.
			<-lease.Done()
			if err := lease.Err(); !errors.Is(err, rlock.ErrLeaseLost) || !errors.Is(err, rlock.ErrRemoved) && !errors.Is(err, rlock.ErrTakenOver) {
				t.Errorf("the holder: %v", err)
			}
			if err := next.Err(); err != nil {
				t.Error(err)
			}
			if did, err := admin.ForceUnlock(bg); !did || err != nil {
				t.Errorf("did not free it: %v, %v", did, err)
			}
			isFree("after ForceUnlock")
			if did, err := admin.ForceUnlock(bg); did || err != nil {
				t.Errorf("freed what is free: %v, %v", did, err)
			}
			locktest.WantErr(t, next.Extend(bg, locktest.RedLockLease), rlock.ErrLeaseLost, rlock.ErrRemoved)
			isFree("after the renewal of who was forced out")
			for i := range away {
				n.servers[1+i].Resume()
			}
			n.nothing(t, "stock")
			locktest.MustUnlock(t, locktest.MustLock(t, l))
		})
	}
}

// The tombstone that keeps a hold from coming back lasts for as long as its holder
// may believe in it, which may be long.
func TestRedLockForcedOutOfALongLease(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(2*time.Second))
	lease := locktest.MustLock(t, l, rlock.WithLease(time.Hour))
	n.allVoteFor(t, lease)
	if did, err := l.ForceUnlock(bg); !did || err != nil {
		t.Fatal(did, err)
	}
	for i, rdb := range n.plain {
		ttl := time.Duration(0)
		for _, k := range rdb.Keys(bg, "*:rlock:gone:*").Val() {
			ttl = rdb.PTTL(bg, k).Val()
		}
		if ttl < time.Hour {
			t.Errorf("node %d forgets in %v that it was forced out of a lease of an hour", i+1, ttl)
		}
	}
	locktest.WantErr(t, lease.Extend(bg, time.Hour), rlock.ErrLeaseLost, rlock.ErrRemoved)
}

func TestRedLockExtend(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	l := locktest.NewRedLock(t, "stock", n.clients(t), rlock.WithNodeTimeout(2*time.Second))
	lease := locktest.MustLock(t, l, rlock.WithLease(20*time.Second))
	rest := func(least, most time.Duration) {
		t.Helper()
		if d := time.Until(lease.Deadline()); d < least || d > most {
			t.Errorf("valid for %v", d)
		}
		// The first that answer may be some on which it has not been extended yet.
		locktest.Eventually(t, "the nodes say the same", func() bool {
			s, err := l.State(bg)
			if err != nil {
				t.Fatal(err)
			}
			return s.TTL >= least && s.TTL <= most
		})
	}
	rest(10*time.Second, 20*time.Second)
	if err := lease.Extend(bg, time.Minute); err != nil {
		t.Fatal(err)
	}
	rest(50*time.Second, time.Minute)
	if err := lease.Extend(bg, time.Second); err != nil { // never shortens
		t.Fatal(err)
	}
	rest(50*time.Second, time.Minute)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	locktest.WantErr(t, lease.Extend(ctx, time.Minute), context.Canceled)
	locktest.WantErr(t, lease.Extend(bg, 0), rlock.ErrInvalidArgument)
	locktest.MustUnlock(t, lease)
	locktest.WantErr(t, lease.Extend(bg, time.Minute), rlock.ErrUnlocked)
	n.nothing(t, "stock")

	short := locktest.MustLock(t, l, rlock.WithLease(200*time.Millisecond))
	<-short.Done()
	locktest.WantErr(t, short.Err(), rlock.ErrLeaseLost, rlock.ErrExpired)
	locktest.WantErr(t, short.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrExpired)
	locktest.WantErr(t, short.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
	n.nothing(t, "stock")
}

// Shutdown of the home client ends the leases and the waiting, on all nodes, also
// with some of them hung, and waits for the holders. The other clients are ways to
// their nodes, also when they were shut down before.
func TestRedLockShutdown(t *testing.T) {
	t.Parallel()
	for _, away := range []int{0, 2} {
		t.Run(fmt.Sprint(away, " nodes are stopped"), func(t *testing.T) {
			n := startMasters(t)
			silence := time.Duration(max(away, 1)) * time.Second
			cs := n.clients(t, rlock.WithWatchdogLease(6*silence))
			l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(silence))
			others := n.straight(t)
			other := locktest.NewRedLock(t, "stock", others, rlock.WithNodeTimeout(time.Second))
			lease := locktest.MustLock(t, l)
			n.allVoteFor(t, lease)
			waiting := make(chan error, 1)
			go func() { _, err := other.Lock(bg); waiting <- err }()
			locktest.Eventually(t, "the other one waits", func() bool {
				s, err := other.State(bg)
				return err == nil && s.Waiters == 1
			})
			if err := others[0].Close(); err != nil {
				t.Error(err)
			}
			locktest.WantErr(t, <-waiting, rlock.ErrClosed)
			stopped := time.Now()
			for i := range away {
				n.servers[1+i].Pause()
			}
			for _, c := range cs[1:] {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			done := locktest.ShutDown(bg, cs[0], lease)
			locktest.WantErr(t, lease.Err(), rlock.ErrClosed)
			if away == 0 {
				for was := lease.Deadline(); !lease.Deadline().After(was); {
					time.Sleep(10 * time.Millisecond) // it is renewed
				}
			}
			locktest.StillRunning(t, done)
			locktest.MustUnlock(t, lease)
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrClosed)
			_, err = l.State(bg)
			locktest.WantErr(t, err, rlock.ErrClosed)
			for i := range away {
				n.servers[1+i].Resume()
			}
			clean := []int{0, 1, 2, 3, 4}
			if away > 0 && time.Since(stopped) >= silence { // Shutdown need not wait for nodes that are known not to answer
				clean = []int{0, 3, 4}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			n.nothing(t, "stock", clean...)
			third := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(2*time.Second))
			if next := locktest.MustLock(t, third); next.Token() <= lease.Token() {
				t.Errorf("token %d after %d", next.Token(), lease.Token())
			} else {
				locktest.MustUnlock(t, next)
			}
		})
	}
}

// A release that has been confirmed by a quorum may still be on its way to other
// nodes. Shutdown waits for that, in whatever order the clients are closed.
func TestRedLockShutdownWaitsForReleases(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	n.warm(t)
	for _, homeFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("home first: ", homeFirst), func(t *testing.T) {
			cs := n.clients(t)
			l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(2*time.Second))
			lease := locktest.MustLock(t, l)
			n.allVoteFor(t, lease)
			id := locktest.SHA("quorum/release")
			for _, i := range []int{2, 4} {
				n.proxies[i].Delay(func(c faultproxy.Command) time.Duration {
					if c.IsScript(id) {
						return 500 * time.Millisecond
					}
					return 0
				})
				// A request that is cut off after it was sent would run all the same.
				n.proxies[i].Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(id) {
						n.proxies[i].Handle(nil)
						return faultproxy.ResetBefore
					}
					return faultproxy.Pass
				})
			}
			locktest.MustUnlock(t, lease)
			if !homeFirst {
				slices.Reverse(cs)
			}
			for _, c := range cs {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			n.pass()
			if left := strings.Join(n.votes(t, "stock"), " "); strings.TrimSpace(left) != "" {
				t.Errorf("left: %s", left)
			}
			n.nothing(t, "stock")
		})
	}
}

// With the clients of some nodes closed the lock goes on with the others, be the
// go-redis clients closed too, or not.
func TestRedLockWithClientsOfNodesClosed(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("go-redis too: ", all), func(t *testing.T) {
			n := startMasters(t)
			var cs []*rlock.Client
			var rdbs []redis.UniversalClient
			for _, s := range n.servers {
				rdbs = append(rdbs, locktest.Dialer(s.Addr())(t, nil))
				cs = append(cs, locktest.NewClient(t, rdbs[len(rdbs)-1]))
			}
			l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(time.Second))
			other := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithNodeTimeout(time.Second))
			lease := locktest.MustLock(t, l)
			n.allVoteFor(t, lease)
			for i := 1; i <= 2; i++ {
				if err := cs[i].Close(); err != nil {
					t.Error(err)
				}
				if all {
					_ = rdbs[i].Close()
				}
			}
			if err := lease.Extend(bg, time.Minute); err != nil {
				t.Error(err)
			}
			start := time.Now()
			locktest.MustUnlock(t, lease)
			for range 3 {
				holder := locktest.MustLock(t, other)
				got := make(chan *rlock.Lease, 1)
				go func() { got <- locktest.MustLock(t, l) }()
				locktest.Eventually(t, "it waits", func() bool {
					s, err := l.State(bg)
					return err == nil && s.Waiters == 1
				})
				locktest.MustUnlock(t, holder)
				locktest.MustUnlock(t, <-got)
			}
			// It would be the longest poll, five seconds each, if nobody were woken.
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			if all { // the two nodes cannot be reached any more to take their votes back
				n.nothing(t, "stock", 0, 3, 4)
			} else {
				n.nothing(t, "stock")
			}
		})
	}
}

// A greater quorum is one: with too few nodes left nobody gets in, and who is in
// is not pushed out by a hold of fewer.
func TestRedLockQuorums(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	for q := 3; q <= 5; q++ {
		t.Run(fmt.Sprint(q), func(t *testing.T) {
			l := locktest.NewRedLock(t, "stock", n.straight(t), rlock.WithQuorum(q), rlock.WithNodeTimeout(3*time.Second))
			for killed := range 5 - q + 2 {
				n.nothing(t, "stock", []int{0, 1, 2, 3, 4}[max(killed-1, 0):]...) // all can vote
				if killed > 0 {
					n.servers[killed-1].Kill()
				}
				lease, err := l.TryLock(bg)
				if killed <= 5-q {
					if err != nil {
						t.Fatalf("with %d nodes killed: %v", killed, err)
					}
					if err := lease.Extend(bg, time.Minute); err != nil {
						t.Errorf("with %d nodes killed: %v", killed, err)
					}
					locktest.MustUnlock(t, lease)
					continue
				}
				locktest.WantErr(t, err, rlock.ErrNoQuorum)
				if want := fmt.Sprintf("%d of 5 nodes could not vote, %d have to", killed, q); !strings.Contains(err.Error(), want) {
					t.Errorf("does not say that %s: %v", want, err)
				}
			}
			for i := range 5 - q + 1 {
				n.servers[i].Restart()
			}
			n.nothing(t, "stock")
		})
	}
}
