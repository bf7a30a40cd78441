//go:build unix

package interop

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

// underSentinel is an arena on a master with two replicas, and one process of each language that finds the master by
// Sentinel. The lease is for a slow machine: a renewal may be lost with the old master, and the next one is in time.
func underSentinel(t *testing.T) (*arena, *redistest.Sentinel) {
	t.Helper()
	s := redistest.StartSentinel(t)
	a := &arena{kind: "sentinel", lease: 24 * time.Second}
	for _, o := range s.Sentinels {
		a.addrs = append(a.addrs, o.Addr())
	}
	a.follow(s.CurrentMaster())
	a.javas = []*peer{startPeer(t, java, a)}
	a.gos = []*peer{startPeer(t, golang, a)}
	return a, s
}

// follow connects the test's own client to the master.
func (a *arena) follow(master *redistest.Server) {
	rdb := master.Client(quietly)
	a.rdb, a.nodes = rdb, []*redis.Client{rdb}
}

// replicated waits until n replicas have all that the master has.
func (a *arena) replicated(t *testing.T, n int) {
	t.Helper()
	conn := a.nodes[0].Conn()
	defer func() { _ = conn.Close() }()
	// WAIT is about the writes of its own connection, which come after all earlier ones.
	if err := conn.Set(bg, "the last write", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replicas have all", func() bool {
		have, err := conn.Wait(bg, n, time.Second).Result()
		return err == nil && int(have) >= n
	})
}

// contest is a lock that a process of one language holds, and for which one of the other waits.
type contest struct {
	pair
	name           string
	holder, wanter *peer
	held           reply
	waiter         *call
}

// contests lets each language hold a lock of each type, and the other wait for it.
func (a *arena) contests(t *testing.T) (all []*contest) {
	t.Helper()
	for _, l := range []language{java, golang} {
		for _, p := range exclusive() {
			c := &contest{pair: p, name: a.name(p.held)}
			c.holder, c.wanter = a.javas[0], a.gos[0]
			if l == golang {
				c.holder, c.wanter = c.wanter, c.holder
			}
			c.held = c.holder.do(t, c.name, "lock", p.held, c.name, 0)
			c.waiter = a.waiting(t, c.wanter, c.name, p.wanted, c.name, 0)
			all = append(all, c)
		}
	}
	return all
}

// renewed waits until a renewal of each lock has reached the test's server.
func (a *arena) renewed(t *testing.T, names ...string) {
	t.Helper()
	last := map[string]time.Duration{}
	for _, name := range names {
		last[name] = a.ttl(t, name)
	}
	eventually(t, "each lock is renewed", func() bool {
		for name, before := range last {
			now := a.ttl(t, name)
			if now < 0 {
				t.Fatalf("%s is gone; it had a TTL of %v", name, before)
			}
			if last[name] = now; now > before {
				delete(last, name)
			}
		}
		return len(last) == 0
	})
}

// An orderly failover to a replica that has all data changes nothing but the server: who holds goes on to hold and keeps
// the other language out, who waits gets the lock after its release, and the counters of tokens go on.
func TestSentinelFailoverBesideRedisson(t *testing.T) {
	t.Parallel()
	a, s := underSentinel(t)
	contests := a.contests(t)
	a.replicated(t, len(s.Replicas))

	s.Failover()
	s.Settle() // until then the old master serves whom the sentinels have not notified
	a.follow(s.CurrentMaster())
	var names []string
	for _, c := range contests {
		names = append(names, c.name)
	}
	rounds := 1
	if nightly {
		rounds = 4 // more than a lease
	}
	for range rounds {
		a.renewed(t, names...)
	}
	for _, c := range contests {
		t.Run(fmt.Sprintf("%s first/%s", c.holder.language, c.pair), func(t *testing.T) {
			shown.by(t, a, caseFailover, direction(c.holder.language), c.column)
			a.afterFailover(t, c)
		})
	}
	a.leave(t)
}

func (a *arena) afterFailover(t *testing.T, c *contest) {
	a.holds(t, c.name, 1)
	if _, count, _ := c.holder.state(t, c.name, c.pair.held, c.name); count != 1 {
		t.Errorf("the holder holds it %d times", count)
	}
	c.wanter.refuses(t, "another", "try", c.wanted, c.name, 0, long)
	if !c.waiter.pending() {
		// A request of Redisson fails if the master loses its replicas then, also if the lock is refused. The caller waits
		// anew. In Go nothing fails.
		r := c.waiter.must(t, "failed")
		t.Logf("%s waited until %q", c.wanter.language, r)
		if c.wanter.language == golang || !strings.HasPrefix(r.values[0], "org.redisson.client.") {
			t.Errorf("the waiter is answered %q", r)
		}
		c.waiter = c.wanter.send(t, c.name, "lock", c.wanted, c.name, 0)
	}

	released := c.holder.do(t, c.name, "unlock", c.pair.held, c.name)
	got := c.waiter.must(t, "ok")
	took := got.time().Sub(released.time())
	t.Logf("had %v after the release", took)
	if took > a.lease+soon {
		t.Errorf("had %v after the release", took)
	}
	switch before, now := token(t, c.held), token(t, got); {
	case c.column == "FencedLock" && now != before+1, c.wanter.language == golang && now <= 0:
		t.Errorf("token %d after %d", now, before)
	}
	c.wanter.do(t, c.name, "unlock", c.wanted, c.name)
	a.nothingLeft(t, c.name)
}

// token is that of a lock that was acquired, 0 for one of Redisson that has none.
func token(t *testing.T, r reply) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.values[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A hold that no replica has is lost when the master dies. Its holder in Go is notified by its deadline, and Java, which may have
// the lock before, keeps it. Java notices a loss when it unlocks. Holds that replicas have go on, in both languages.
func TestFailoverThatLosesAHoldBesideRedisson(t *testing.T) {
	if !nightly {
		t.Skip("a part of make nightly")
	}
	t.Parallel()
	a, s := underSentinel(t)
	old := s.CurrentMaster()
	kept := a.contests(t)
	kinds := []pair{{"Lock", "lock", "lock"}, {"FencedLock", "fenced", "fenced"}}
	var replicated []reply // an earlier hold of each
	for _, p := range kinds {
		replicated = append(replicated, a.gos[0].do(t, "1", "lock", p.held, "lost "+p.held, long))
		a.gos[0].do(t, "1", "unlock", p.held, "lost "+p.held)
	}
	a.replicated(t, len(s.Replicas))

	mend := cut(t, s, old)
	var lost []reply
	for _, p := range kinds {
		lost = append(lost, a.gos[0].do(t, p.held, "lock", p.held, "lost "+p.held, 0))
		// Redisson waits for the replicas that are connected, of which there is none.
		again := func() *call { return a.javas[0].send(t, p.held, "lock", p.held, "lost in Java "+p.held, 0) }
		persist(t, again(), again)
	}
	old.Kill()
	mend()
	var deadlines []time.Time // which no renewal moves any more
	var outage []*call        // Java wants the locks while there is no master
	for _, p := range kinds {
		outage = append(outage, a.javas[0].send(t, "outage", "lock", p.held, "lost "+p.held, 0))
		deadlines = append(deadlines, a.gos[0].do(t, p.held, "deadline", p.held, "lost "+p.held).time())
	}
	eventually(t, "the sentinels name another master", func() bool { return s.CurrentMaster() != old })
	s.Settle()
	a.follow(s.CurrentMaster())
	for i, p := range kinds {
		t.Run("lost/"+p.held, func(t *testing.T) {
			shown.by(t, a, caseLossy, direction(golang), p.column)
			a.lostByFailover(t, p.held, outage[i], replicated[i], lost[i], deadlines[i])
		})
		t.Run("lost in Java/"+p.held, func(t *testing.T) {
			shown.by(t, a, caseLossy, direction(java), p.column)
			a.lostInJava(t, p.held)
		})
	}
	var names []string
	for _, c := range kept {
		names = append(names, c.name)
	}
	a.renewed(t, names...)
	for _, c := range kept {
		t.Run(fmt.Sprintf("kept/%s first/%s", c.holder.language, c.pair), func(t *testing.T) { a.afterFailover(t, c) })
	}
	a.leave(t)
}

// lostByFailover: Java takes the lock that Go has lost, and Go gets it back from there.
func (a *arena) lostByFailover(t *testing.T, kind string, wanted *call, replicated, lost reply, deadline time.Time) {
	first, second, name := a.gos[0], a.javas[0], "lost "+kind
	taken := persist(t, wanted, func() *call { return second.send(t, "outage", "lock", kind, name, 0) })
	notified := first.do(t, kind, "lost", kind, name)
	t.Logf("Java had it %v before the deadline, the holder in Go was notified %v before: %s",
		deadline.Sub(taken.time()), deadline.Sub(notified.time()), notified.values[1])
	if late := notified.time().Sub(deadline); late > soon {
		t.Errorf("notified %v after its deadline", late)
	}
	if why := notified.values[1]; !strings.Contains(why, "taken over by another owner") && !strings.Contains(why, "removed from Redis") {
		t.Errorf("lost with %q", why)
	}
	if r := first.send(t, kind, "unlock", kind, name).must(t, "failed"); !strings.Contains(r.values[0], "lease lost") {
		t.Errorf("unlock: %s", r)
	}
	a.renewed(t, name)
	first.refuses(t, "another", "try", kind, name, 0, long)
	waiter := a.waiting(t, first, kind, kind, name, long)
	// A call of Redisson that failed may have had the lock all the same.
	_, count, _ := second.state(t, "outage", kind, name)
	for range count {
		second.do(t, "outage", "unlock", kind, name)
	}
	again := waiter.must(t, "ok")
	// The counter goes on as far as it was replicated, other tokens by the clock.
	if kind == "fenced" {
		if token(t, taken) <= token(t, replicated) || token(t, again) <= token(t, taken) {
			t.Errorf("tokens %v, %v, %v", replicated, taken, again)
		}
	} else if token(t, again) <= token(t, lost) {
		t.Errorf("token %v after %v", again, lost)
	}
	first.do(t, kind, "unlock", kind, name)
	a.nothingLeft(t, name)
}

// lostInJava: Go takes the lock that Java has lost, which Java does not notice before its unlock.
func (a *arena) lostInJava(t *testing.T, kind string) {
	first, second, name := a.javas[0], a.gos[0], "lost in Java "+kind
	second.do(t, kind, "lock", kind, name, long)
	if locked, count, _ := first.state(t, kind, kind, name); !locked || count != 0 {
		t.Errorf("locked %v, by Java %d times", locked, count)
	}
	first.refuses(t, "another", "try", kind, name, 0, long)
	if r := first.send(t, kind, "unlock", kind, name).must(t, "failed"); !strings.Contains(r.values[0], "IllegalMonitorStateException") {
		t.Errorf("unlock: %s", r)
	}
	a.holds(t, name, 1)
	second.do(t, kind, "unlock", kind, name)
	a.nothingLeft(t, name)
}

// persist repeats a request to Java that fails while there is no master, as its caller would. It must be answered ok in the end.
func persist(t *testing.T, c *call, again func() *call) reply {
	t.Helper()
	var r reply
	eventually(t, "Java finds the master", func() bool {
		if r = c.wait(t); r.outcome != "failed" || !strings.HasPrefix(r.values[0], "org.redisson.client.") {
			return true
		}
		t.Logf("%s: %s", c.what, r)
		c = again()
		return false
	})
	if r.outcome != "ok" {
		t.Fatalf("%s is answered %q", c.what, r)
	}
	return r
}

// cut ends the replication, and returns what lets replicas follow the next master.
func cut(t *testing.T, s *redistest.Sentinel, master *redistest.Server) (mend func()) {
	t.Helper()
	password := func(text string) {
		t.Helper()
		for _, r := range s.Replicas {
			if err := r.Client(quietly).ConfigSet(bg, "masterauth", text).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	password("refused by a master without one")
	rdb := master.Client(quietly)
	if err := rdb.ClientKillByFilter(bg, "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the master has no replica", func() bool {
		return strings.Contains(rdb.Info(bg, "replication").Val(), "connected_slaves:0")
	})
	return func() { password("") }
}

// A hold of a client with WithReplicaAck counts only if the replica has confirmed it, and excludes Java like any other: for
// Java, which waits for no replica here, the lock is held while Go waits for the confirmation.
func TestReplicaAckBesideRedisson(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	a := &arena{kind: "replica", addrs: []string{r.Master.Addr()}}
	a.follow(r.Master)
	a.javas = []*peer{startPeer(t, java, a)}
	for _, p := range exclusive() {
		t.Run(p.column, func(t *testing.T) {
			shown.by(t, a, caseConfirmed, direction(java), p.column)
			shown.by(t, a, caseConfirmed, direction(golang), p.column)
			a.confirmed(t, p, r)
		})
	}
	t.Run("renewals", func(t *testing.T) { a.renewalsUnconfirmed(t, r) })
	a.leave(t)
}

// locker is a lock of a client in this process that asks for confirmation by one replica.
func (a *arena) locker(t *testing.T, kind, name string, timeout time.Duration, opts ...rlock.Option) rlock.Locker {
	t.Helper()
	d := &driver{client: a.client(t, append(opts, rlock.WithReplicaAck(1, timeout), rlock.WithLongestPoll(longestPoll))...)}
	l, err := d.open(kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// granted is what an acquire has returned.
type granted struct {
	lease *rlock.Lease
	err   error
}

// acquire calls lock in a goroutine that ends with it.
func acquire(lock func() (*rlock.Lease, error)) <-chan granted {
	got := make(chan granted, 1)
	go func() {
		lease, err := lock()
		got <- granted{lease, err}
	}()
	return got
}

func (a *arena) confirmed(t *testing.T, p pair, r *redistest.Replicated) {
	name, thread, second := a.name("confirmed"), t.Name(), a.javas[0]
	atReplica := r.Replicas[0].Client(quietly)
	l := a.locker(t, p.wanted, name, 4*time.Second)

	// Java keeps Go out, and Go has its release and the confirmation.
	second.do(t, thread, "lock", p.held, name, long)
	if _, err := l.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("TryLock beside Java: %v", err)
	}
	looks := a.scripts(t)
	got := acquire(func() (*rlock.Lease, error) { return l.Lock(bg, rlock.WithWait(patience)) })
	eventually(t, "Go has looked", func() bool { return a.scripts(t) > looks })
	second.do(t, thread, "unlock", p.held, name)
	g := <-got
	if g.err != nil {
		t.Fatal(g.err)
	}
	if n := atReplica.HLen(bg, name).Val(); n == 0 {
		t.Error("acquired, and the replica has nothing")
	}

	// Go keeps Java out, which has its release.
	second.refuses(t, thread, "try", p.held, name, 0, long)
	waiter := a.waiting(t, second, thread, p.held, name, long)
	if err := g.lease.Unlock(bg); err != nil {
		t.Fatal(err)
	}
	waiter.must(t, "ok")
	second.do(t, thread, "unlock", p.held, name)

	// Without a confirmation Go has no hold, but Java has to wait until that is found.
	defer pause(r)()
	const unconfirmed = 2 * time.Second
	began := time.Now()
	hasty := a.locker(t, p.wanted, name, unconfirmed)
	got = acquire(func() (*rlock.Lease, error) { return hasty.TryLock(bg) })
	eventually(t, "Go has asked", func() bool { return len(got) > 0 || len(a.fields(t, name)) > 0 })
	entered := second.do(t, thread, "lock", p.held, name, long)
	if waited := entered.time().Sub(began); waited < unconfirmed-clocks {
		t.Errorf("Java is in after %v", waited)
	}
	g = <-got
	if !errors.Is(g.err, rlock.ErrNotAcquired) || !strings.Contains(g.err.Error(), "0 of 1 replicas") {
		t.Errorf("without the replica: %v", g.err)
	}
	second.do(t, thread, "unlock", p.held, name)
	a.nothingLeft(t, name)
}

// clocks is how much two clocks of this machine may differ, of which one is monotonic.
const clocks = 50 * time.Millisecond

// pause stops the replica. The result ends that.
func pause(r *redistest.Replicated) (end func()) {
	r.Replicas[0].Pause()
	return func() {
		r.Replicas[0].Resume()
		r.Settle()
	}
}

// renewalsUnconfirmed: a hold whose renewals the replica does not confirm ends at its deadline, and Java does not have the lock
// before.
func (a *arena) renewalsUnconfirmed(t *testing.T, r *redistest.Replicated) {
	if !nightly {
		t.Skip("a part of make nightly")
	}
	name, second := a.name("unconfirmed"), a.javas[0]
	lease, err := a.locker(t, "lock", name, time.Second, rlock.WithWatchdogLease(9*time.Second)).Lock(bg)
	if err != nil {
		t.Fatal(err)
	}
	waiter := a.waiting(t, second, name, "lock", name, long)
	defer pause(r)()
	select {
	case <-lease.Done():
	case <-time.After(patience):
		t.Fatal("the hold goes on without confirmations")
	}
	if err := lease.Err(); !errors.Is(err, rlock.ErrUnreachable) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("lost with %v", err)
	}
	entered := waiter.must(t, "ok").time()
	t.Logf("Java is in %v after the deadline", entered.Sub(lease.Deadline()))
	if entered.Before(lease.Deadline().Add(-clocks)) {
		t.Error("Java is in before the deadline of the holder")
	}
	if err := lease.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock: %v", err)
	}
	a.holds(t, name, 1)
	second.do(t, name, "unlock", "lock", name)
	a.nothingLeft(t, name)
}
