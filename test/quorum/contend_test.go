package quorum

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// direct are the clients of one process that does not go through the proxies.
func directLock(t testing.TB, n *masters, name string, opts ...rlock.Option) *rlock.RedLock {
	t.Helper()
	return locktest.NewRedLock(t, name, n.straight(t, opts...), rlock.WithNodeTimeout(2*time.Second))
}

// Sixteen processes want one lock, all the time: each gets it as often as it wants,
// nobody waits for ever, and splitting the votes costs little.
func TestRedLockSixteenClientsMakeProgress(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const clients, rounds = 16, 8
	n := startMasters(t)
	j := newWitness(t)
	var mu sync.Mutex
	var waits durations
	looks := 0
	var wg sync.WaitGroup
	start := time.Now()
	for range clients {
		r := &locktest.Recorder{}
		l := directLock(t, n, "stock", rlock.WithObserver(r))
		wg.Go(func() {
			for range rounds {
				floor, asked := j.asks(), time.Now()
				lease := locktest.MustLock(t, l)
				j.got(lease, floor)
				took := time.Since(asked)
				j.leaves(lease)
				locktest.MustUnlock(t, lease)
				mu.Lock()
				waits = append(waits, took)
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			for _, e := range r.Acquires {
				looks += e.Attempts
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	t.Logf("%d clients, %d holds in %v, %.1f looks for each; waits: %v", clients, j.holds, took.Round(time.Millisecond), float64(looks)/float64(j.holds), waits)
	if j.holds != clients*rounds {
		t.Errorf("%d holds", j.holds)
	}
	// A live-lock would show as a wait that does not end: locktest.MustLock is not patient for ever.
	// Some ms for each hold are usual; this allows a busy machine some hundred times that.
	if most := time.Duration(j.holds) * time.Second; took > most {
		t.Errorf("%d holds took %v", j.holds, took)
	}
	n.nothing(t, "stock")
}

// One who waits is woken by the nodes, not by a timer.
func TestRedLockWakesWhoWaits(t *testing.T) {
	t.Parallel()
	n := startMasters(t)
	for _, stopped := range []int{0, 2} {
		t.Run(fmt.Sprint(stopped, " nodes are stopped"), func(t *testing.T) {
			var clients []*rlock.Client
			var locks []*rlock.RedLock
			for range 2 {
				// No timer ends the wait while locktest.MustLock is patient.
				cs := n.straight(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWatchdogLease(locktest.Patient))
				clients = append(clients, cs...)
				locks = append(locks, locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(10*time.Second)))
			}
			for i := range stopped {
				n.servers[2*i].Pause()
				defer n.servers[2*i].Resume()
			}
			var times durations
			lease := locktest.MustLock(t, locks[0])
			for i := range 30 {
				l := locks[(i+1)%2]
				type entry struct {
					lease *rlock.Lease
					at    time.Time
				}
				next := make(chan entry, 1)
				go func() {
					defer close(next)
					lease := locktest.MustLock(t, l)
					next <- entry{lease, time.Now()}
				}()
				locktest.Eventually(t, "it waits, and hears the nodes", func() bool {
					s, err := l.State(bg)
					heard := int64(0)
					for i, rdb := range n.plain {
						if i == 0 && stopped > 0 || i == 2 && stopped > 1 {
							continue
						}
						heard += rdb.PubSubNumSub(bg, recordKey("stock")+":free").Val()[recordKey("stock")+":free"]
					}
					return err == nil && s.Waiters == 1 && heard >= 3
				})
				called := time.Now()
				locktest.MustUnlock(t, lease)
				e, woken := <-next
				if !woken {
					t.FailNow() // MustLock has said why
				}
				times, lease = append(times, e.at.Sub(called)), e.lease
			}
			locktest.MustUnlock(t, lease)
			for i := range stopped {
				n.servers[2*i].Resume()
			}
			// What reaches a node only now is undone before the clients have closed.
			for _, c := range clients {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			n.nothing(t, "stock")
			t.Logf("from Unlock to the next one's return: %v", times)
		})
	}
}

// Whatever the network and up to two stopped nodes do, nobody believes to hold
// what another one holds, and tokens grow.
func TestRedLockUnderFire(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	lasts := 5 * time.Second
	if testing.Short() {
		lasts = 2 * time.Second
	}
	n := startMasters(t)
	const clients, lease = 5, 1500 * time.Millisecond
	j := newWitness(t)
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	var faults, tokens atomic.Int64
	// It has shown something only if there were some holds and faults, for which a
	// busy machine needs more time.
	few := int64(lasts / time.Second)
	for i, p := range n.proxies {
		rnd := rand.New(rand.NewPCG(uint64(i), 1))
		var mu sync.Mutex
		var past []faultproxy.Command
		p.Handle(func(c faultproxy.Command) faultproxy.Action {
			if !isScript(c) || ctx.Err() != nil {
				return faultproxy.Pass
			}
			mu.Lock()
			defer mu.Unlock()
			fault := rnd.IntN(60)
			if fault < 3 { // there are no copies of what was answered
				past = append(past, c)
			}
			switch fault {
			case 0:
				faults.Add(1)
				return faultproxy.ResetAfter
			case 1:
				faults.Add(1)
				return faultproxy.ResetBefore
			case 2:
				faults.Add(1)
				return faultproxy.SwallowReply
			case 3:
				faults.Add(1)
				return faultproxy.Duplicate
			case 4:
				faults.Add(1)
				return faultproxy.Error
			case 5: // a late copy of what was sent some time ago
				if len(past) == 0 {
					break
				}
				faults.Add(1)
				again := past[rnd.IntN(len(past))]
				go func() { _ = p.Replay(again) }()
			}
			return faultproxy.Pass
		})
		p.Delay(func(c faultproxy.Command) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if !isScript(c) || rnd.IntN(30) > 0 {
				return 0
			}
			return time.Duration(rnd.IntN(int(lease / 3)))
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for end := time.Now().Add(lasts); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) && tokens.Load() >= few && faults.Load() >= few {
				cancel()
			}
		}
	})
	wg.Go(func() { // stops nodes, at most two at a time
		rnd := rand.New(rand.NewPCG(7, 7))
		for ctx.Err() == nil {
			nodes := rnd.Perm(5)[:rnd.IntN(3)]
			for _, i := range nodes {
				n.servers[i].Pause()
				faults.Add(1)
			}
			select {
			case <-time.After(time.Duration(rnd.IntN(int(lease)))):
			case <-ctx.Done():
			}
			for _, i := range nodes {
				n.servers[i].Resume()
			}
		}
	})
	for i := range clients {
		l := locktest.NewRedLock(t, "stock", n.clients(t, rlock.WithWatchdogLease(lease)), rlock.WithNodeTimeout(lease/6))
		rnd := rand.New(rand.NewPCG(uint64(i), 2))
		wg.Go(func() {
			for ctx.Err() == nil {
				floor := j.asks()
				var opts []rlock.AcquireOption
				if rnd.IntN(4) == 0 {
					opts = append(opts, rlock.WithLease(lease/time.Duration(2+rnd.IntN(3))))
				}
				held, err := l.Lock(ctx, opts...)
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, rlock.ErrNoQuorum) && !errors.Is(err, rlock.ErrNotAcquired) {
						t.Errorf("Lock: %v", err)
					}
					continue
				}
				j.got(held, floor)
				switch rnd.IntN(20) {
				case 0: // for longer than a lease
					select {
					case <-held.Done():
					case <-time.After(lease * 3 / 2):
					}
				case 1:
					_ = held.Extend(ctx, lease)
				case 2:
					if inner, err := l.TryLock(held.Context(ctx)); err == nil {
						if inner.Token() != held.Token() {
							t.Errorf("re-entry has token %d, not %d", inner.Token(), held.Token())
						}
						_ = inner.Unlock(bg)
					}
				}
				j.leaves(held)
				tokens.Add(1)
				if err := held.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrLeaseLost) && !errors.Is(err, rlock.ErrUnconfirmed) {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	wg.Wait()
	n.pass()
	t.Logf("%d holds, %d lost, %d faults", j.holds, j.lost, faults.Load())
	if tokens.Load() < few || faults.Load() < few {
		t.Errorf("%d holds, %d faults", j.holds, faults.Load())
	}
	n.nothing(t, "stock")
	l := directLock(t, n, "stock")
	floor := j.asks()
	last := locktest.MustLock(t, l)
	j.got(last, floor)
	j.leaves(last)
	locktest.MustUnlock(t, last)
}

// A node that refuses is as good as one that is away: two of them change nothing,
// with three there is no quorum, and the error says why.
func TestRedLockWithNodesThatRefuse(t *testing.T) {
	t.Parallel()
	refusals := []struct {
		name, says string
		begin, end func(t *testing.T, rdb redis.UniversalClient)
		user       string
		releases   bool // all the same
		repeats    bool // a release that it has refused is sent again
	}{
		{"OOM", "OOM command not allowed",
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "config", "set", "maxmemory", "1") },
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "config", "set", "maxmemory", "0") }, "", true, true},
		{"READONLY", "READONLY",
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "replicaof", "127.0.0.1", "1") },
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "replicaof", "no", "one") }, "", false, true},
		{"NOPERM", "NOPERM",
			func(t *testing.T, rdb redis.UniversalClient) {
				do(t, rdb, "acl", "setuser", "locker", "-evalsha", "-eval")
			},
			func(t *testing.T, rdb redis.UniversalClient) {
				do(t, rdb, "acl", "setuser", "locker", "+evalsha", "+eval")
			}, "locker", false, false},
		{"NOPERM half-way", "can't run this command",
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "acl", "setuser", "locker", "-pexpire") },
			func(t *testing.T, rdb redis.UniversalClient) { do(t, rdb, "acl", "setuser", "locker", "+pexpire") }, "locker", true, true},
		{"NOREPLICAS", "NOREPLICAS",
			func(t *testing.T, rdb redis.UniversalClient) {
				do(t, rdb, "config", "set", "min-replicas-to-write", "1")
			},
			func(t *testing.T, rdb redis.UniversalClient) {
				do(t, rdb, "config", "set", "min-replicas-to-write", "0")
			}, "", false, true},
	}
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			n := startMasters(t)
			var cs []*rlock.Client
			for i, s := range n.servers {
				do(t, n.plain[i], "acl", "setuser", "locker", "on", ">pw", "~*", "&*", "+@all")
				cs = append(cs, locktest.NewClient(t, locktest.Dialer(s.Addr())(t, func(o *redis.Options) {
					if c.user != "" {
						o.Username, o.Password = c.user, "pw"
					}
				})))
			}
			const timeout = 12 * time.Second
			l := locktest.NewRedLock(t, "stock", cs, rlock.WithNodeTimeout(timeout))
			held := locktest.MustLock(t, l, rlock.WithLease(time.Minute))
			n.allVoteFor(t, held)
			for _, i := range []int{1, 3} {
				c.begin(t, n.plain[i])
			}
			start := time.Now()
			if err := held.Extend(bg, 2*time.Minute); err != nil {
				t.Errorf("Extend: %v", err)
			}
			locktest.MustUnlock(t, held)
			for range 3 {
				lease := locktest.MustLock(t, l)
				if lease.Token() <= held.Token() {
					t.Errorf("token %d after %d", lease.Token(), held.Token())
				}
				if err := lease.Extend(bg, 2*time.Minute); err != nil {
					t.Errorf("Extend: %v", err)
				}
				locktest.MustUnlock(t, lease)
				held = lease
			}
			if took := time.Since(start); took > timeout {
				t.Errorf("took %v: a refusal is an answer", took)
			}

			// What they did not take back, they do now; or it runs out.
			for _, i := range []int{1, 3} {
				c.end(t, n.plain[i])
			}
			free := func() bool {
				for _, i := range []int{0, 1, 3} {
					n.plain[i].Del(bg, recordKey("stock"))
				}
				return strings.Join(n.votes(t, "stock"), "") == ""
			}
			locktest.Eventually(t, "all are free", free)
			for _, i := range []int{0, 1, 3} {
				c.begin(t, n.plain[i])
			}
			_, err := l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrNoQuorum)
			for _, i := range []int{0, 1, 3} {
				if !strings.Contains(err.Error(), fmt.Sprintf("node %d (%s)", i+1, n.servers[i].Addr())) || strings.Count(err.Error(), c.says) != 3 {
					t.Errorf("does not say why node %d has not voted: %v", i+1, err)
				}
			}
			n.nothing(t, "stock", 2, 4)
			for _, i := range []int{0, 1, 3} {
				c.end(t, n.plain[i])
			}
			locktest.Eventually(t, "all are free", free)

			// A release writes nothing that needs memory, or a TTL.
			// A node to which the TryLock comes late does not vote for the next hold.
			var last *rlock.Lease
			locktest.Eventually(t, "all vote for a hold: a refusal does not meet its acquire", func() bool {
				if last != nil {
					locktest.MustUnlock(t, last)
				}
				last = locktest.MustLock(t, l, rlock.WithLease(time.Minute))
				for range 100 {
					if !slices.Contains(n.votes(t, "stock"), "") {
						return true
					}
					time.Sleep(5 * time.Millisecond)
				}
				return false
			})
			for _, i := range []int{0, 1, 3} {
				c.begin(t, n.plain[i])
			}
			err = last.Unlock(bg)
			if c.releases {
				if err != nil {
					t.Errorf("Unlock: %v", err)
				}
				n.nothing(t, "stock")
			} else {
				locktest.WantErr(t, err, rlock.ErrNoQuorum)
				n.nothing(t, "stock", 2, 4)
			}
			for _, i := range []int{0, 1, 3} {
				c.end(t, n.plain[i])
			}
			if !c.repeats {
				return // it is for the operator, or the end of the lease
			}
			n.nothing(t, "stock")
			lease := locktest.MustLock(t, l)
			if lease.Token() <= last.Token() {
				t.Errorf("token %d after %d", lease.Token(), last.Token())
			}
			locktest.MustUnlock(t, lease)
		})
	}
}

// Processes that want a lock again and again get it equally often: who has just released it lets
// the others go first.
func TestClientsShareALockFairly(t *testing.T) {
	locktest.Nightly(t)
	n := startMasters(t)
	for _, kind := range []struct {
		name    string
		jain    float64 // 1: all have had it equally often; 1/n: only one has
		clients []int
		open    func() rlock.Locker
	}{
		{"RedLock", 0.9, []int{2, 4, 8}, func() rlock.Locker { return directLock(t, n, "stock") }},
		{"Lock", 0.95, []int{2, 4}, func() rlock.Locker { return n.straight(t)[0].NewLock("stock") }},
	} {
		for _, clients := range kind.clients {
			t.Run(fmt.Sprint(clients, " of a ", kind.name), func(t *testing.T) {
				holds := make([]int, clients)
				lasts, most := 15*time.Second, math.MaxInt
				if testing.Short() { // each gets the lock a few times
					lasts, most = time.Minute, 3
				}
				var locks []rlock.Locker
				for range clients {
					locks = append(locks, kind.open())
				}
				var wg sync.WaitGroup
				end := time.Now().Add(lasts)
				for i, l := range locks {
					wg.Go(func() {
						for holds[i] < most && time.Now().Before(end) {
							lease := locktest.MustLock(t, l)
							holds[i]++
							time.Sleep(50 * time.Millisecond)
							locktest.MustUnlock(t, lease)
						}
					})
				}
				wg.Wait()
				sum, squares := 0.0, 0.0
				for _, h := range holds {
					sum += float64(h)
					squares += float64(h) * float64(h)
				}
				jain := sum * sum / squares / float64(clients)
				t.Logf("Jain's index %.3f: %v", jain, holds)
				if jain < kind.jain {
					t.Errorf("Jain's index %.3f: %v", jain, holds)
				}
			})
		}
	}
}
