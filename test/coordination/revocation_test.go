package coordination

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// patient is an option that makes holders depend on messages: they look by themselves after
// a third of it.
var patient = rlock.WithWatchdogLease(3 * time.Hour)

// request asks for a lock, and wants somebody to be there, or nobody.
func request(t testing.TB, l rlock.Locker, want bool) {
	t.Helper()
	asked, err := l.(rlock.ReleaseRequester).RequestRelease(bg)
	if err != nil || asked != want {
		t.Fatalf("RequestRelease of %s: %v, %v, want %v", l.Name(), asked, err, want)
	}
}

// hears waits until leases are asked for.
func hears(t testing.TB, leases ...*rlock.Lease) {
	t.Helper()
	for _, l := range leases {
		select {
		case <-l.ReleaseRequested():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s of %s hears nothing", l.HoldID(), l.Name())
		}
	}
}

// deaf checks that leases were not asked for, as far as they know.
func deaf(t testing.TB, leases ...*rlock.Lease) {
	t.Helper()
	for _, l := range leases {
		select {
		case <-l.ReleaseRequested():
			t.Fatalf("%s of %s hears what does not concern it", l.HoldID(), l.Name())
		default:
		}
	}
}

func TestRequestOfAnotherProcessReachesTheHolderByMessage(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.Types {
		each := locktest.EachRedis
		if k.Name == "Lock" || k.Name == "SpinLock" {
			each = locktest.EveryRedis
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b *locktest.Backend) {
				a, other := b.NewClient(t, patient), b.NewClient(t)
				l, theirs := k.Open(a, "a"), k.Blocker(other, "a")
				if k.Shared {
					// Readers are asked by who wants to write.
					theirs = map[string]rlock.Locker{
						"ReadLock":      other.NewReadWriteLock("a").Writer,
						"fair ReadLock": other.NewFairReadWriteLock("a").Writer,
					}[k.Name]
				}
				request(t, theirs, false)
				bystander := locktest.MustLock(t, k.Open(a, "b"))
				for range 2 { // the second hold is another one
					lease := locktest.MustLock(t, l)
					deaf(t, lease, bystander)
					request(t, theirs, true)
					hears(t, lease)
					request(t, theirs, true)
					locktest.MustUnlock(t, lease)
					hears(t, lease) // it stays so
					request(t, theirs, false)
				}
				deaf(t, bystander)
				locktest.MustUnlock(t, bystander)
			})
		})
	}
}

// The request comes before the holder listens, in the earliest case before it knows that it holds
// the lock.
func TestRequestBeforeTheHolderListens(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		other := b.NewClient(t).NewLock("a")
		var early atomic.Bool
		rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if args := cmd.Args(); early.Load() && len(args) > 1 && args[1] == locktest.SHA("lock/enter") && err == nil {
				if asked, err := other.RequestRelease(bg); !asked || err != nil {
					t.Errorf("the lock is granted, but nobody was asked: %v", err)
				}
			}
			return err
		}})
		l := locktest.NewClient(t, rdb, patient).NewLock("a")
		lease := locktest.MustLock(t, l)
		request(t, other, true)
		hears(t, lease)
		locktest.MustUnlock(t, lease)

		early.Store(true)
		lease = locktest.MustLock(t, l)
		hears(t, lease)
		locktest.MustUnlock(t, lease)
	})
}

func TestRequestsOfBothSidesOfAReadWriteLock(t *testing.T) {
	t.Parallel()
	type sides struct{ reader, writer locktest.AnyLock }
	for name, open := range map[string]func(c *rlock.Client) sides{
		"read-write":      func(c *rlock.Client) sides { l := c.NewReadWriteLock("a"); return sides{l.Reader, l.Writer} },
		"fair read-write": func(c *rlock.Client) sides { l := c.NewFairReadWriteLock("a"); return sides{l.Reader, l.Writer} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				other := open(b.NewClient(t))
				a, c := open(b.NewClient(t, patient)), open(b.NewClient(t, patient))
				one, two := locktest.MustLock(t, a.reader), locktest.MustLock(t, a.reader)
				three := locktest.MustLock(t, c.reader)
				deaf(t, one, two, three)
				request(t, other.reader, false) // readers do not keep it out
				deaf(t, one, two, three)
				request(t, other.writer, true)
				hears(t, one, two, three)
				late := locktest.MustLock(t, c.reader) // not there when the others were asked
				deaf(t, late)
				for _, lease := range []*rlock.Lease{one, two, three, late} {
					locktest.MustUnlock(t, lease)
				}

				writes := locktest.MustLock(t, a.writer)
				reads := locktest.MustLockCtx(t, writes.Context(bg), a.reader) // under the same id
				deaf(t, writes, reads)
				request(t, other.reader, true)
				hears(t, writes, reads)
				locktest.MustUnlock(t, writes)
				request(t, other.reader, false)
				locktest.MustUnlock(t, reads)
			})
		})
	}
}

func TestMoreReadersThanOneRequestAsks(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	a, other := b.NewClient(t, patient).NewReadWriteLock("a"), b.NewClient(t).NewReadWriteLock("a")
	leases := make([]*rlock.Lease, 600)
	for i := range leases {
		leases[i] = locktest.MustLock(t, a.Reader)
		deaf(t, leases[i])
	}
	request(t, other.Writer, true)
	hears(t, leases...)
}

func TestEachLeaseOfAHoldGetsARequestToRelease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t, patient)
	l, other := c.NewLock("a"), b.NewClient(t).NewLock("a")
	outer := locktest.MustLock(t, l)
	inner := locktest.MustLockCtx(t, outer.Context(bg), l)
	left := locktest.MustLockCtx(t, outer.Context(bg), c.NewFencedLock("a"))
	newest := locktest.MustLockCtx(t, outer.Context(bg), l)
	deaf(t, outer, inner, newest, left) // from now on they listen
	unheard := locktest.MustLockCtx(t, outer.Context(bg), l)
	locktest.MustUnlock(t, left)
	request(t, other, true)
	hears(t, outer, newest, inner, unheard)
	deaf(t, left) // it had ended
	later := locktest.MustLockCtx(t, outer.Context(bg), l)
	select {
	case <-later.ReleaseRequested(): // at once
	default:
		t.Error("a re-entry of a hold that was asked hears nothing")
	}
	for _, lease := range []*rlock.Lease{later, unheard, newest, inner, outer} {
		locktest.MustUnlock(t, lease)
	}
}

func TestMultiLockGetsARequestToAMember(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.MultiLocks {
		names := k.Names[:2]
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				c, other := b.NewClient(t, patient), b.NewClient(t)
				m := k.Of(t, c, names...)
				all := locktest.MultiLockOf(t, other, append(slices.Clone(names), names[0]+"more")...)
				for _, l := range []rlock.Locker{other.NewLock(names[1]), all} {
					request(t, l, false)
					lease := locktest.MustLock(t, m)
					deaf(t, lease)
					deaf(t, lease.Members()...)
					request(t, l, true)
					hears(t, lease, lease.Members()[1])
					locktest.MustUnlock(t, lease)
				}
				// Nobody has the first and the last.
				lease := locktest.MustLock(t, c.NewLock(names[1]))
				deaf(t, lease)
				request(t, all, true)
				hears(t, lease)
				locktest.MustUnlock(t, lease)
			})
		})
	}
}

func TestLeaderGetsARequestToResign(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		e, other := b.NewClient(t, patient).NewElection("a"), b.NewClient(t).NewElection("a")
		if asked, err := other.RequestRelease(bg); asked || err != nil {
			t.Error(asked, err)
		}
		lease, err := e.Campaign(bg, "me")
		if err != nil {
			t.Fatal(err)
		}
		deaf(t, lease)
		if asked, err := other.RequestRelease(bg); !asked || err != nil {
			t.Error(asked, err)
		}
		hears(t, lease)
		locktest.MustUnlock(t, lease)
	})
}

// A request stands at a hold that is handed over: who did not listen could not hear it. Who has
// heard it does not hand over, so that the one who asked is next.
func TestRequestAtAHandOver(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rival := b.NewClient(t).NewLock("a")
		l := b.NewClient(t, patient, rlock.WithLongestPoll(locktest.Patient)).NewLock("a", rlock.WithHandOver(100, time.Hour))
		// A waiter is handed a hold only while it sleeps.
		for range 50 {
			if handsOver(t, rival, l) {
				return
			}
		}
		t.Error("never handed over")
	})
}

// handsOver reports whether a hold was handed over once.
func handsOver(t *testing.T, rival, l *rlock.Lock) bool {
	first := locktest.MustLock(t, rival)
	const n = 4
	got := make(chan *rlock.Lease, n)
	for i := range n {
		go func() { got <- locktest.MustLock(t, l) }()
		locktest.Eventually(t, "it stands in line", func() bool { return locktest.Waiters(t, l) == i+1 })
	}
	locktest.MustUnlock(t, first)
	leases := []*rlock.Lease{<-got}
	next := func() *rlock.Lease {
		time.Sleep(5 * time.Millisecond) // the next one goes to sleep, usually
		locktest.MustUnlock(t, leases[len(leases)-1])
		lease := <-got
		leases = append(leases, lease)
		return lease
	}
	request(t, rival, true)
	two := next()
	handed := leases[0].HoldID() == two.HoldID()
	if handed {
		hears(t, two)
		if three := next(); three.HoldID() == two.HoldID() {
			t.Error("a hold was handed over whose holder has heard a request")
		}
	}
	for len(leases) < n {
		next()
	}
	locktest.MustUnlock(t, leases[n-1])
	return handed
}

func TestRequestReachesTheHolderOfARedLock(t *testing.T) {
	t.Parallel()
	b := make([]*locktest.Backend, 5)
	open := func(opts ...rlock.Option) *rlock.RedLock {
		var clients []*rlock.Client
		for i := range b {
			if b[i] == nil {
				b[i] = locktest.OnServer(t)
			}
			clients = append(clients, b[i].NewClient(t, opts...))
		}
		return locktest.NewRedLock(t, "a", clients, rlock.WithNodeTimeout(5*time.Second))
	}
	l, other := open(patient), open()
	request(t, other, false)
	lease := locktest.MustLock(t, l)
	deaf(t, lease)
	request(t, other, true)
	hears(t, lease)
	locktest.MustUnlock(t, lease)
	request(t, other, false)

	// A hold needs three votes. A node that has yet to hear of the release of the one before
	// refuses the fourth or fifth.
	var nodes []redis.UniversalClient
	for _, node := range b {
		nodes = append(nodes, node.Client(t))
	}
	allVote := func(down int) (lease *rlock.Lease) {
		locktest.Eventually(t, "all nodes vote for a hold", func() bool {
			lease = locktest.MustLock(t, l)
			for range 100 {
				votes := 0
				for _, rdb := range nodes[down:] {
					votes += int(rdb.Exists(bg, "{a}:rlock:red").Val())
				}
				if votes == len(b)-down {
					return true
				}
				time.Sleep(5 * time.Millisecond)
			}
			locktest.MustUnlock(t, lease)
			return false
		})
		return lease
	}
	// With two of five nodes down, those that heard the request before it listened included.
	lease = allVote(0)
	b[0].Real.Kill()
	request(t, other, true)
	b[1].Real.Kill()
	hears(t, lease)
	locktest.MustUnlock(t, lease)
	lease = allVote(2)
	deaf(t, lease)
	request(t, other, true)
	hears(t, lease)
	locktest.MustUnlock(t, lease)

	lease = locktest.MustLock(t, l)
	b[2].Real.Kill()
	_, err := other.RequestRelease(bg)
	locktest.WantErr(t, err, rlock.ErrNoQuorum, rlock.ErrUnreachable)
	_ = lease.Unlock(bg)
}

func TestListeningEndsWithTheLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		listeners := func() int64 {
			n := rdb.PubSubNumSub(bg, "{a}:rlock:asked").Val()
			return n["{a}:rlock:asked"]
		}
		l, other := b.NewClient(t, patient).NewLock("a"), b.NewClient(t).NewLock("a")
		unlocked, lost, heard := locktest.MustLock(t, l), (*rlock.Lease)(nil), (*rlock.Lease)(nil)
		deaf(t, unlocked)
		locktest.Eventually(t, "it listens", func() bool { return listeners() == 1 })
		locktest.MustUnlock(t, unlocked)
		locktest.Eventually(t, "it listens no more", func() bool { return listeners() == 0 })

		lost = locktest.MustLock(t, l, rlock.WithLease(500*time.Millisecond))
		deaf(t, lost)
		<-lost.Done()
		locktest.Eventually(t, "it listens no more", func() bool { return listeners() == 0 })
		heard = locktest.MustLock(t, l)
		deaf(t, heard)
		request(t, other, true)
		hears(t, heard)
		locktest.Eventually(t, "it listens no more", func() bool { return listeners() == 0 })
		locktest.MustUnlock(t, heard)
		deaf(t, unlocked, lost)
		locktest.WantErr(t, unlocked.Err(), rlock.ErrUnlocked)
		if lost.ReleaseRequested() == nil {
			t.Error("a lease that has ended has no channel")
		}
	})
}

func TestRequestsOfNoLeaseAndNoLock(t *testing.T) {
	t.Parallel()
	var none *rlock.Lease
	if none.ReleaseRequested() != nil || (&rlock.Lease{}).ReleaseRequested() != nil {
		t.Error("a nil lease can be asked")
	}
	c := locktest.OnMiniredis(t).NewClient(t)
	for what, l := range map[string]rlock.Locker{
		"zero Lock": &rlock.Lock{}, "nil MultiLock": (*rlock.MultiLock)(nil), "zero RedLock": &rlock.RedLock{},
		"no name": c.NewLock(""),
	} {
		if asked, err := l.(rlock.ReleaseRequester).RequestRelease(bg); asked {
			t.Error(what, "has a holder")
		} else {
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
	}
	//lint:ignore SA1012 on purpose
	if _, err := c.NewLock("a").RequestRelease(nil); err == nil {
		t.Error("no context, no error")
	}
	lease := locktest.MustLock(t, c.NewLock("a"))
	deaf(t, lease)
	done := locktest.ShutDown(bg, c, lease)
	locktest.MustUnlock(t, lease)
	if err := <-done; err != nil {
		t.Error(err)
	}
	deaf(t, lease)
	_, err := c.NewLock("a").RequestRelease(bg)
	locktest.WantErr(t, err, rlock.ErrClosed)
}

// What Redisson sees stays as it was: the keys of a lock, their values and TTLs, and what is
// published on its channels.
func TestARequestOnTheWire(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			var l rlock.Locker = k.Open(b.NewClient(t), "a")
			ask := l
			if k.Shared {
				ask = map[string]rlock.Locker{
					"ReadLock":      b.NewClient(t).NewReadWriteLock("a").Writer,
					"fair ReadLock": b.NewClient(t).NewFairReadWriteLock("a").Writer,
				}[k.Name]
			}
			lease := locktest.MustLock(t, l, rlock.WithLease(time.Hour))
			dump := func() (all string) {
				for _, key := range slices.Sorted(slices.Values(locktest.Keys(t, rdb))) {
					if !strings.Contains(key, ":rlock:asked:") {
						all += fmt.Sprintf("%s %q until %v\n", key, rdb.Dump(bg, key).Val(), rdb.Do(bg, "pexpiretime", key).Val())
					}
				}
				return all
			}
			before := dump()
			messages := rdb.PSubscribe(bg, "*")
			defer messages.Close()
			if _, err := messages.Receive(bg); err != nil {
				t.Fatal(err)
			}
			request(t, ask, true)
			if after := dump(); before != after || before == "" {
				t.Errorf("was\n%sand is\n%s", before, after)
			}
			key := "{a}:rlock:asked:" + lease.HoldID()
			if v, ttl := rdb.Get(bg, key).Val(), rdb.PTTL(bg, key).Val(); v != "1" || ttl > 10*time.Minute || ttl < 9*time.Minute {
				t.Errorf("%s is %q for %v", key, v, ttl)
			}
			m, err := messages.ReceiveMessage(bg)
			if err != nil || m.Channel != "{a}:rlock:asked" || m.Payload != "1" {
				t.Errorf("published: %v, %v", m, err)
			}
			locktest.MustUnlock(t, lease)
		})
	}
}

// Who does not listen pays nothing, and who does little.
func TestCostOfListening(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	sent := &locktest.SentCommands{}
	rdb := b.Client(t)
	rdb.AddHook(sent)
	asker := locktest.NewClient(t, rdb, patient).NewLock("b")
	request(t, asker, false)         // it loads scripts
	first := b.NewClient(t, patient) // a look of the holder does not count for the request
	lease := locktest.MustLock(t, first.NewLock("b"))
	request(t, asker, true)
	hears(t, lease)
	before := sent.N.Load()
	request(t, asker, true)
	if n := sent.N.Load() - before; n != 2 {
		t.Errorf("a request took %d commands, not 2", n)
	}
	locktest.MustUnlock(t, lease)
	// Its holder was told by a look, perhaps before it had subscribed. Nothing of that may come
	// later.
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	l := locktest.NewClient(t, rdb, patient, rlock.WithAnonymity()).NewLock("a")
	request(t, l, false) // its client finds out how to publish
	lease = locktest.MustLock(t, l)
	before = sent.N.Load()
	counter := b.Client(t)
	subscribes := locktest.CommandCount(t, counter, "subscribe")
	for range 100 {
		lease.ReleaseRequested()
	}
	locktest.Eventually(t, "it listens", func() bool { return locktest.CommandCount(t, counter, "subscribe") > subscribes })
	locktest.Eventually(t, "it has looked", func() bool { return sent.N.Load()-before >= 1 })
	request(t, l, true)
	hears(t, lease)
	// A look at once, one when it is subscribed, and one when it is told; or fewer at once.
	if n := sent.N.Load() - before; n > 5 {
		t.Errorf("beside the subscribe, the listener and the request took %d commands, more than 5", n)
	}
	if n := locktest.CommandCount(t, counter, "subscribe") - subscribes; n != 1 {
		t.Errorf("the listener subscribed %d times, not once", n)
	}
	locktest.MustUnlock(t, lease)
}
