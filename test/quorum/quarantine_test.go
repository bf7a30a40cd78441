package quorum

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// shortLease is the lease of most of these tests, which wait until some are over.
// A request of a busy machine ends within a part of it, and what is not ended then is tried again.
const shortLease = 4 * time.Second

var roundsOfFaults = flag.Int("quarantine.rounds", 4, "number of rounds of restarts or clock jumps, for each test that has rounds")

func addressesOf(servers []*redistest.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// cutOff makes addresses of some nodes, counted from 1, ones that nobody reaches.
func cutOff(t testing.TB, addrs []string, cut ...int) []string {
	t.Helper()
	addrs = append([]string{}, addrs...)
	for _, i := range cut {
		p := faultproxy.New(t, addrs[i-1])
		p.Refuse(true)
		addrs[i-1] = p.Addr()
	}
	return addrs
}

// clientsAt is what one process has: a client for each node.
func clientsAt(t testing.TB, addrs []string, opts ...rlock.Option) (cs []*rlock.Client) {
	t.Helper()
	opts = append([]rlock.Option{rlock.WithWatchdogLease(shortLease)}, opts...)
	for _, addr := range addrs {
		rdb := locktest.Dialer(addr)(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
		cs = append(cs, locktest.NewClient(t, rdb, opts...))
	}
	return cs
}

// shortNodeTimeout is as long as it may be: these tests are not about it.
var shortNodeTimeout = rlock.WithNodeTimeout(shortLease / 6)

func stockLock(t testing.TB, cs []*rlock.Client, quarantine bool, opts ...rlock.RedLockOption) *rlock.RedLock {
	t.Helper()
	opts = append([]rlock.RedLockOption{shortNodeTimeout}, opts...)
	if quarantine {
		opts = append(opts, rlock.WithRestartQuarantine())
	}
	return locktest.NewRedLock(t, "stock", cs, opts...)
}

// bootstrap lets all nodes vote.
func bootstrap(t testing.TB, addrs []string) {
	t.Helper()
	l := stockLock(t, clientsAt(t, addrs), true)
	// On a busy machine a node may miss the timeout.
	locktest.Eventually(t, "all nodes vote", func() bool {
		err := l.BootstrapNodes(bg)
		if errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// waysToForget are the ways in which a node may forget.
var waysToForget = map[string]func(s *redistest.Server){
	"empty": func(s *redistest.Server) {
		s.Kill()
		s.Wipe()
		s.Restart()
	},
	"old data": func(s *redistest.Server) { // of the last SAVE
		s.Kill()
		s.Restart()
	},
	"flushed": func(s *redistest.Server) { s.Client().FlushAll(bg) },
}

// One holds by the votes of nodes 1 to 3. Then some of these forget. The other,
// who reaches all nodes, does not get in while the first holds, nor before the
// nodes that he needs have been silent for the longest lease.
func TestNodeThatForgetsDoesNotLetASecondIn(t *testing.T) {
	t.Parallel()
	for how, forget := range waysToForget {
		for _, forgetful := range []int{1, 2, 3} {
			locktest.Beside(t, fmt.Sprint(how, " ", forgetful), func(t *testing.T) {
				if forgetful != 3 {
					locktest.Thorough(t)
				}
				letsNoSecondIn(t, forget, forgetful, true)
			})
		}
		// The same without a quarantine: the tests above notice.
		locktest.Beside(t, how+" without quarantine", func(t *testing.T) { letsNoSecondIn(t, forget, 1, false) })
	}
}

func letsNoSecondIn(t *testing.T, forget func(*redistest.Server), forgetful int, quarantine bool) {
	servers := redistest.StartMasters(t, 5)
	addrs := addressesOf(servers)
	if quarantine {
		bootstrap(t, addrs)
	}
	// It will not be able to clean up at the nodes that it does not reach.
	one := stockLock(t, clientsAt(t, cutOff(t, addrs, 4, 5), rlock.WithUnlockTimeout(200*time.Millisecond)), quarantine)
	two := stockLock(t, clientsAt(t, addrs), quarantine)
	judge := &holdJudge{}
	for range 3 { // so that counters have something to lose
		judge.unlock(judge.lock(t, two))
	}
	for _, s := range servers {
		if err := s.Client().Save(bg).Err(); err != nil {
			t.Fatal(err)
		}
	}
	first := judge.lock(t, one, rlock.WithLease(shortLease)) // it ends, whatever happens
	from := time.Now()                                       // before anything is lost
	for _, s := range servers[:forgetful] {
		forget(s)
	}
	if !quarantine {
		// On a busy machine the first try may miss a timeout.
		var second *rlock.Lease
		locktest.Eventually(t, "the second gets in", func() (ok bool) {
			var err error
			second, err = judge.try(two)
			return err == nil
		})
		t.Logf("without quarantine: %d hold beside another, %d tokens out of order", judge.together, judge.backward)
		// The token is out of order as well, unless the first try counted in vain.
		if first.Err() == nil && judge.together != 1 {
			t.Error("want a hold beside another")
		}
		_ = second.Unlock(bg)
		_ = first.Unlock(bg)
		return
	}
	looks := 0
	for ; first.Err() == nil; looks++ {
		time.Sleep(50 * time.Millisecond) // the pace of looking, of a dozen tests side by side
		lease, err := judge.try(two)
		if err == nil {
			judge.unlock(lease) // a try goes on for a while, and the first may be over: judged below
			break
		}
		if !errors.Is(err, rlock.ErrNoQuorum) && !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatal(err)
		}
	}
	judge.clean(t)
	second := judge.lock(t, two)
	waited := time.Since(from)
	judge.clean(t)
	// Where three have forgotten, one of these has to vote.
	if forgetful == 3 && waited < shortLease {
		t.Errorf("nodes voted %v after they forgot", waited)
	}
	t.Logf("the first held during %d looks of the second, who got in after %v", looks, waited)
	judge.unlock(second)
	judge.unlock(first)
}

// In a new deployment nobody votes within the longest lease, unless the operator
// says that it is one. That needs all nodes.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	servers := redistest.StartMasters(t, 5)
	addrs := addressesOf(servers)
	cs := clientsAt(t, addrs)
	l := stockLock(t, cs, true)
	// On a busy machine nodes may miss the timeout, which is another error.
	bootstrap := func(want error, text string) {
		t.Helper()
		locktest.Eventually(t, "Bootstrap says "+text, func() bool {
			err := l.BootstrapNodes(bg)
			if err == nil {
				t.Fatalf("Bootstrap succeeds, want %v: %s", want, text)
			}
			return errors.Is(err, want) && strings.Contains(err.Error(), text)
		})
	}
	locktest.Eventually(t, "nodes say why they do not vote", func() bool {
		_, err := l.TryLock(bg)
		if err == nil {
			t.Fatal("nodes vote before they are let")
		}
		return errors.Is(err, rlock.ErrNotAcquired) && strings.Contains(err.Error(), "in quarantine for ")
	})

	if err := stockLock(t, cs, false).BootstrapNodes(bg); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("without quarantine: %v", err)
	}
	three := servers[2].Client()
	policy := func(p string) {
		t.Helper()
		if err := three.ConfigSet(bg, "maxmemory-policy", p).Err(); err != nil {
			t.Fatal(err)
		}
	}
	policy("allkeys-lru")
	bootstrap(rlock.ErrNoQuorum, "maxmemory-policy allkeys-lru may evict the record of a hold: set noeviction")
	policy("noeviction")
	servers[4].Kill()
	bootstrap(rlock.ErrNoQuorum, servers[4].Addr())
	servers[4].Restart()

	// It may be called again when it has failed half-way: not before all nodes
	// have answered its first question, which on a busy machine takes more than
	// one call.
	proxy := faultproxy.New(t, addrs[2])
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(locktest.SHA("quorum/admit")) {
			return faultproxy.ResetBefore
		}
		return faultproxy.Pass
	})
	half := stockLock(t, clientsAt(t, append([]string{proxy.Addr()}, addrs[0], addrs[1], addrs[3], addrs[4])), true)
	locktest.Eventually(t, "node 1 votes", func() bool {
		if err := half.BootstrapNodes(bg); !errors.Is(err, rlock.ErrNoQuorum) {
			t.Fatalf("half of a Bootstrap: %v", err)
		}
		return votes(t, servers[0].Client())
	})
	if votes(t, three) {
		t.Error("node 3 votes, which was not told that it may")
	}
	locktest.Eventually(t, "the new deployment votes", func() bool {
		err := l.BootstrapNodes(bg)
		if errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatal(err)
		}
		return err == nil
	})
	first := lockPatiently(t, l)
	unlock(first)
	locktest.Eventually(t, "there is nothing to do", func() bool { return l.BootstrapNodes(bg) == nil })

	// A node that evicts keys for a while is as good as one that has lost them.
	policy("volatile-ttl")
	other := stockLock(t, clientsAt(t, addrs), true) // has not looked yet
	unlock(lockPatiently(t, other))
	locktest.Eventually(t, "somebody has seen it", func() bool { return three.HExists(bg, "rlock:red:admitted", "run_id").Val() == false })
	policy("noeviction")
	if votes(t, three) {
		t.Error("a node votes that has evicted keys")
	}
	bootstrap(rlock.ErrInvalidArgument, "4 of 5 nodes vote already")
	servers[0].Client().FlushAll(bg)
	bootstrap(rlock.ErrInvalidArgument, "3 of 5 nodes vote already")
	last := lockPatiently(t, l)
	if last.Token() <= first.Token() {
		t.Errorf("token %d after %d", last.Token(), first.Token())
	}
	unlock(last)
	locktest.Eventually(t, "all vote", func() bool {
		_, _ = l.IsLocked(bg)
		return l.BootstrapNodes(bg) == nil
	})
}

// With one of three nodes dead, and one that forgets, nobody gets in until that
// one is out of quarantine. The token is then that of the time, as one node alone
// cannot tell what the others knew.
func TestQuarantineOfThreeNodes(t *testing.T) {
	t.Parallel()
	servers := redistest.StartMasters(t, 3)
	addrs := addressesOf(servers)
	bootstrap(t, addrs)
	one, two := stockLock(t, clientsAt(t, addrs), true), stockLock(t, clientsAt(t, addrs), true)
	judge := &holdJudge{}
	enter, leave := func(l *rlock.RedLock) *rlock.Lease { return judge.lock(t, l) }, judge.unlock
	leave(enter(one))
	servers[2].Kill()
	leave(enter(two))
	leave(enter(one))

	held := judge.lock(t, one, rlock.WithLease(shortLease))
	forgot := time.Now()
	waysToForget["empty"](servers[1])
	floor := time.Now().Add(shortLease).UnixMicro()
	for held.Err() == nil {
		if lease, err := judge.try(two); err == nil {
			judge.unlock(lease) // a try goes on for a while, and the first may be over: judged below
			break
		}
		time.Sleep(50 * time.Millisecond) // the pace of looking, of a dozen tests side by side
	}
	next := enter(two)
	if took := time.Since(forgot); took < shortLease {
		t.Errorf("taken after %v", took)
	}
	if next.Token() < floor {
		t.Errorf("token %d: not of the time", next.Token())
	}
	leave(next)
	leave(held)

	// The dead one comes back with nothing, and is restored by the others.
	servers[2].Restart()
	rdb := servers[2].Client()
	locktest.Eventually(t, "the third votes", func() bool {
		leave(enter(one))
		return votes(t, rdb)
	})
	servers[0].Kill()
	leave(enter(two))
	judge.clean(t)
}

// Nodes that hang delay nobody who looks at all nodes for the first time.
func TestHungNodesDoNotDelayTheFirstRequest(t *testing.T) {
	t.Parallel()
	// Far above what three nodes need to answer on a busy machine.
	const timeout = 5 * time.Second
	servers := redistest.StartMasters(t, 5)
	addrs := addressesOf(servers)
	bootstrap(t, addrs)
	servers[1].Pause()
	servers[3].Pause()
	cs := clientsAt(t, addrs, rlock.WithWatchdogLease(6*timeout), rlock.WithCommandTimeout(2*timeout), rlock.WithUnlockTimeout(200*time.Millisecond))
	l := locktest.NewRedLock(t, "stock", cs, rlock.WithRestartQuarantine(), rlock.WithNodeTimeout(timeout))
	began := time.Now()
	lease, err := l.TryLock(bg)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= timeout {
		t.Errorf("took %v", took)
	}
	_ = lease.Unlock(bg)
}

// A client that comes late and sees only the tail of a quarantine waits for a
// whole one. It does not matter that each of its locks is used once: what they see
// is the client's.
func TestQuarantineIsOfTheClient(t *testing.T) {
	t.Parallel()
	servers := redistest.StartMasters(t, 3)
	addrs := addressesOf(servers)
	early := stockLock(t, clientsAt(t, addrs), true)
	if _, err := early.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) || errors.Is(err, rlock.ErrUnreachable) {
		t.Fatal(err)
	}
	time.Sleep(shortLease / 2) // so much of the quarantine is over
	cs := clientsAt(t, addrs)
	began := time.Now()
	locktest.Eventually(t, "a lock is taken", func() bool {
		lease, err := locktest.NewRedLock(t, "once "+time.Now().String(), cs, shortNodeTimeout, rlock.WithRestartQuarantine()).TryLock(bg)
		if err != nil {
			return false
		}
		if took := time.Since(began); took < shortLease {
			t.Errorf("taken %v after the first sight", took)
		}
		unlock(lease)
		return true
	})
}

// Locks that differ in the longest lease share the nodes: after a restart the
// longest counts, which the nodes that are left remember.
func TestLongestLeaseOfAllLocksCounts(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	const long = 2 * shortLease
	servers := redistest.StartMasters(t, 3)
	addrs := addressesOf(servers)
	bootstrap(t, addrs)
	longer := stockLock(t, clientsAt(t, addrs), true, rlock.WithLongestLease(long))
	unlock(lockPatiently(t, longer))

	shorter := stockLock(t, clientsAt(t, addrs), true)
	rdb := servers[0].Client()
	for range 2 { // the second time the node has to remember what it was told on admission
		forgot := time.Now()
		waysToForget["empty"](servers[0])
		locktest.Eventually(t, "the node votes", func() bool {
			unlock(lockPatiently(t, shorter))
			return votes(t, rdb)
		})
		if took := time.Since(forgot); took < long {
			t.Errorf("votes %v after it has forgotten holds of up to %v", took, long)
		}
	}
	for i, opts := range [][]rlock.RedLockOption{
		{rlock.WithLongestLease(time.Minute)},
		{rlock.WithRestartQuarantine(), rlock.WithLongestLease(shortLease - 1)},
		{rlock.WithRestartQuarantine(), rlock.WithLongestLease(rlock.MaxLease + 1)},
	} {
		if _, err := rlock.NewRedLock("stock", clientsAt(t, addrs), append(opts, shortNodeTimeout)...); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%d: %v", i, err)
		}
	}
	// It takes 2 s off each lease.
	brief := clientsAt(t, addrs, rlock.WithWatchdogLease(1500*time.Millisecond))
	if _, err := rlock.NewRedLock("stock", brief, rlock.WithRestartQuarantine(), rlock.WithLongestLease(time.Minute), rlock.WithNodeTimeout(250*time.Millisecond)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("nothing is left of a lease: %v", err)
	}
	_, err := longer.TryLock(bg, rlock.WithLease(long+1))
	if !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("a lease longer than the longest: %v", err)
	}
	lease := lockPatiently(t, longer)
	if err := lease.Extend(bg, long+time.Millisecond); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("extended beyond the longest: %v", err)
	}
	unlock(lease)
}

// A node whose replica takes over has lost what was not replicated, and is in
// quarantine; also when the old master is back at once, with the replica's data.
func TestQuarantineAfterFailover(t *testing.T) {
	t.Parallel()
	locktest.Beside(t, "there", func(t *testing.T) { failOver(t, false) })
	locktest.Beside(t, "there and back", func(t *testing.T) { failOver(t, true) })
}

func failOver(t *testing.T, back bool) {
	pair := redistest.StartReplicated(t, 1)
	was, other := pair.Master, pair.Replicas[0]
	front := faultproxy.New(t, was.Addr())
	addrs := append([]string{front.Addr()}, addressesOf(redistest.StartMasters(t, 4))...)
	bootstrap(t, addrs)
	one := stockLock(t, clientsAt(t, cutOff(t, addrs, 4, 5), rlock.WithUnlockTimeout(200*time.Millisecond)), true)
	two := stockLock(t, clientsAt(t, addrs), true)
	judge := &holdJudge{}
	pair.Settle()
	if err := other.Client().ReplicaOf(bg, "no", "one").Err(); err != nil { // it misses what comes
		t.Fatal(err)
	}
	first := judge.lock(t, one, rlock.WithLease(shortLease)) // it ends, whatever happens
	turn := func(to *redistest.Server) {
		front.Upstream(to.Addr())
		front.ResetAll()
	}
	look := func() {
		t.Helper()
		if lease, err := judge.try(two); err == nil {
			judge.unlock(lease) // a try goes on for a while, and the first may be over
		}
		judge.clean(t)
	}
	turn(other)
	if back {
		// Somebody has to ask the one in between.
		locktest.Eventually(t, "the new master was asked", func() bool {
			look()
			return other.Client().Exists(bg, "rlock:red:since").Val() == 1
		})
		if err := was.Client().ReplicaOf(bg, "127.0.0.1", strconv.Itoa(other.Port())).Err(); err != nil {
			t.Fatal(err)
		}
		(&redistest.Replicated{Master: other, Replicas: []*redistest.Server{was}}).Settle()
		if err := was.Client().ReplicaOf(bg, "no", "one").Err(); err != nil {
			t.Fatal(err)
		}
		turn(was)
	}
	looks := 0
	for ; first.Err() == nil; looks++ {
		look()
		time.Sleep(50 * time.Millisecond) // the pace of looking, of a dozen tests side by side
	}
	if looks == 0 {
		t.Log("the machine was too slow: the lease was over before there was anything to see")
	}
	second := judge.lock(t, two)
	judge.clean(t)
	judge.unlock(second)
	judge.unlock(first)
}

// votes reports whether a server is one that may vote.
func votes(t testing.TB, rdb *redis.Client) bool {
	t.Helper()
	info, err := rdb.Info(bg, "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, run, _ := strings.Cut(info, "run_id:")
	run, _, _ = strings.Cut(run, "\r")
	return rdb.HGet(bg, "rlock:red:admitted", "run_id").Val() == run && rdb.Exists(bg, "rlock:red:since").Val() == 0
}

// Contenders go on while nodes are killed, one and two at a time, and come back
// without data or with old data. Never do two hold, and tokens grow. A node does
// not vote within the longest lease, and does so after that.
func TestContendersWhileNodesForget(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	servers := redistest.StartMasters(t, 5)
	addrs := addressesOf(servers)
	bootstrap(t, addrs)
	judge, stop := contend(t, addrs, true)
	shortest, longest := time.Hour, time.Duration(0)
	ways := []string{"empty", "old data", "flushed"}
	for round := range *roundsOfFaults {
		if round%3 == 0 {
			for _, s := range servers {
				if err := s.Client().Save(bg).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		judge.more(t, 3)
		picked := rand.Perm(5)[:1+round%2]
		way := ways[rand.IntN(len(ways))]
		// They are back one after the other.
		for _, i := range picked {
			at := time.Now()
			waysToForget[way](servers[i])
			rdb := servers[i].Client()
			defer func() { _ = rdb.Close() }()
			if votes(t, rdb) {
				t.Fatalf("%s: node %d votes at once", way, i+1)
			}
			if i != picked[len(picked)-1] {
				continue
			}
			locktest.Eventually(t, "the node votes", func() bool { return votes(t, rdb) })
			took := time.Since(at)
			shortest, longest = min(shortest, took), max(longest, took)
			if took < shortLease {
				t.Errorf("%s: node %d votes after %v", way, i+1, took)
			}
		}
	}
	stop()
	judge.clean(t)
	t.Logf("%d holds in %d rounds; nodes voted again after %v to %v", judge.holds, *roundsOfFaults, shortest, longest)
}

// contend has three processes with two goroutines each take the lock all the
// time, until stop.
func contend(t *testing.T, addrs []string, quarantine bool) (judge *holdJudge, stop func()) {
	judge = &holdJudge{}
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	for range 3 {
		l := stockLock(t, clientsAt(t, addrs), quarantine)
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					before := judge.before()
					lease, err := l.Lock(ctx)
					if err != nil {
						// A call may begin after stop, and says only that its context is over.
						if ctx.Err() == nil && !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrNoQuorum) && !errors.Is(err, rlock.ErrUnreachable) {
							t.Error(err)
						}
						continue
					}
					judge.enter(lease, before)
					select { // a section; some last until they are lost
					case <-time.After(rand.N(20 * time.Millisecond)):
					case <-lease.Done():
					}
					judge.unlock(lease)
				}
			})
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return judge, stop
}

// lockPatiently takes a lock. With leases so short Lock gives up soon when a busy machine
// is too slow for the nodes to vote.
func lockPatiently(t testing.TB, l *rlock.RedLock, opts ...rlock.AcquireOption) (lease *rlock.Lease) {
	t.Helper()
	locktest.Eventually(t, "the lock is taken", func() bool {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		var err error
		lease, err = l.Lock(ctx, opts...)
		if err != nil && !errors.Is(err, rlock.ErrNoQuorum) {
			t.Fatal(err)
		}
		return err == nil
	})
	return lease
}

// unlock unlocks a lease that is perhaps lost by now: with leases so short a
// busy machine may be too slow.
func unlock(lease *rlock.Lease) { _ = lease.Unlock(bg) }
