package rlockui_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockui"
)

func TestShowsWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	holder := b.NewClient(t, rlock.WithLabel("billing"))
	plain := locktest.MustLock(t, holder.NewLock("invoices"))
	defer locktest.MustUnlock(t, plain)
	fair := locktest.MustLock(t, holder.NewPriorityLock("reports").At(1))
	defer locktest.MustUnlock(t, fair)
	readers := holder.NewReadWriteLock("cache").Reader
	shared := locktest.MustLock(t, readers)
	defer locktest.MustUnlock(t, shared)

	v := s.until("all have a holder with a name", "", func(v *view) bool {
		named := 0
		for _, l := range v.Locks {
			if len(l.Holders) == 1 && l.Holders[0].Who == "billing" {
				named++
			}
		}
		return named == 3
	})
	if l := v.lock("invoices"); l.Type != "Lock" || l.Mode != "exclusive" || l.Holders[0].Hold != plain.HoldID() || l.Ends == 0 {
		t.Errorf("%+v", l)
	}
	if l := v.lock("reports"); l.Type != "PriorityLock" || l.Token != fmt.Sprint(fair.Token()) || !l.SinceExact {
		t.Errorf("%+v", l)
	}
	if l := v.lock("cache"); l.Type != "ReadWriteLock" || l.Mode != "shared" {
		t.Errorf("%+v", l)
	}
	if v.Held != 3 || v.Matched != 3 || v.Writes || v.Truncated {
		t.Errorf("%+v", v)
	}
	if len(v.Clients) != 1 || v.Clients[0].Holds != 3 {
		t.Errorf("clients: %+v", v.Clients)
	}
	if v := s.snapshot("?q=INVOI"); v.Matched != 1 || v.Locks[0].Name != "invoices" || v.Held != 3 {
		t.Errorf("a search: %+v", v)
	}
	if v := s.snapshot("?q=%E2%80%AE"); v.Matched != 0 {
		t.Errorf("a search for what is invisible: %+v", v)
	}
	if v := s.snapshot("?only=waited"); v.Matched != 0 {
		t.Errorf("a filter: %+v", v)
	}
	if v := s.snapshot("?rows=1&sort=since"); v.Matched != 3 || len(v.Locks) != 1 {
		t.Errorf("one row: %+v", v)
	}
}

func TestTimelineShowsReleasesHandOversAndLosses(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	all := s.stream("")
	defer all.close() // keeps the poll going

	one, other := b.NewClient(t), b.NewClient(t)
	lease := locktest.MustLock(t, one.NewLock("job"))
	id := s.held("job").ID
	kinds := func(v *view) (all string) {
		if v.Lock == nil {
			return ""
		}
		for _, e := range v.Lock.Events {
			all = e.Kind + " " + all
		}
		return all
	}
	locktest.MustUnlock(t, lease)
	s.until("the release is shown", "?lock="+id, func(v *view) bool { return kinds(v) == "held released " })
	if v := s.snapshot("?only=free"); v.lock("job") == nil || v.lock("job").Mode != "free" {
		t.Errorf("released lately: %+v", v.Locks)
	}
	// A lease that nobody renews is seen with little left, and then not at all.
	lease, err := other.NewLock("job").TryLock(bg, rlock.WithLease(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s.until("the hold is shown", "?lock="+id, func(v *view) bool { return kinds(v) == "held released held " })
	s.rdb.PExpire(bg, "job", locktest.Ample(5*time.Second))
	v := s.until("the loss is shown", "?lock="+id, func(v *view) bool { return strings.HasSuffix(kinds(v), "held lost ") })
	if v.Lost != 1 || v.Lock.Lost != 1 {
		t.Errorf("losses: %+v", v)
	}
	_ = lease.Unlock(bg)
}

func TestFairLockIsOneLockWithAndWithoutWaiters(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	all := s.stream("")
	defer all.close()
	lease := locktest.MustLock(t, b.NewClient(t).NewFairLock("fair"))
	alone := s.held("fair")
	waiter := locktest.Begin(t, bg, b.NewClient(t).NewFairLock("fair"))
	v := s.until("its waiter is shown", "?lock="+alone.ID, func(v *view) bool { return v.lock("fair") != nil && v.lock("fair").Waiters == 1 })
	if alone.Type != "Lock" || v.lock("fair").Type != "FairLock" || v.lock("fair").ID != alone.ID || v.Held != 1 || len(v.Lock.Events) != 1 {
		t.Errorf("%+v, and then %+v", alone, v)
	}
	locktest.WantErr(t, waiter.GiveUp(), context.Canceled)
	v = s.until("the waiter has left", "", func(v *view) bool { return v.lock("fair").Waiters == 0 })
	if l := v.lock("fair"); l.Type != "FairLock" || l.ID != alone.ID {
		t.Errorf("without the waiter: %+v", l)
	}
	locktest.MustUnlock(t, lease)
}

func TestHandOverIsCounted(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	all := s.stream("")
	defer all.close()
	one, other := b.NewClient(t), b.NewClient(t)
	first := locktest.MustLock(t, one.NewPriorityLock("passed"))
	s.held("passed")
	next := locktest.Begin(t, bg, other.NewPriorityLock("passed"))
	s.until("it waits", "", func(v *view) bool { return v.lock("passed").Waiters == 1 })
	locktest.MustUnlock(t, first)
	lease := next.Held()
	s.until("the hand-over is counted", "", func(v *view) bool {
		l := v.lock("passed")
		return v.HandOvers == 1 && l != nil && l.Holders[0].Hold == lease.HoldID()
	})
	locktest.MustUnlock(t, lease)
}

func TestClientsThatWaitForEachOtherAreACycle(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"no prefix": "", "prefix": "app:", "prefix with a brace": "{app}:"} {
		locktest.Beside(t, name, func(t *testing.T) { showsCycle(t, locktest.OnMiniredis(t), rlock.WithPrefix(prefix)) })
	}
	locktest.Beside(t, "server", func(t *testing.T) { showsCycle(t, locktest.OnServer(t)) })
	locktest.Beside(t, "cluster", func(t *testing.T) { showsCycle(t, locktest.OnCluster(t)) })
}

// Waiters of these types have no queue in Redis. Their clients show themselves when a wait has lasted for a longest poll.
func TestClientsThatWaitForEachOthersPlainLocksAreACycle(t *testing.T) {
	t.Parallel()
	short := rlock.WithLongestPoll(time.Second)
	lock := func(c *rlock.Client, name string) locktest.AnyLock { return c.NewLock(name) }
	fenced := func(c *rlock.Client, name string) locktest.AnyLock { return c.NewFencedLock(name) }
	write := func(c *rlock.Client, name string) locktest.AnyLock { return c.NewReadWriteLock(name).Writer }
	for name, on := range map[string]func(testing.TB) *locktest.Backend{
		"miniredis": locktest.OnMiniredis, "cluster": locktest.OnCluster,
		"server": func(t testing.TB) *locktest.Backend { return locktest.OnServer(t) },
	} {
		locktest.Beside(t, name+" Lock", func(t *testing.T) { showsCycleOf(t, on(t), lock, lock, short, rlock.WithPrefix("app:")) })
		locktest.Beside(t, name+" write and FencedLock", func(t *testing.T) { showsCycleOf(t, on(t), write, fenced, short) })
	}
}

func showsCycle(t *testing.T, b *locktest.Backend, opts ...rlock.Option) {
	showsCycleOf(t, b,
		func(c *rlock.Client, name string) locktest.AnyLock { return c.NewFairLock(name) },
		func(c *rlock.Client, name string) locktest.AnyLock { return c.NewPriorityLock(name) }, opts...)
}

// showsCycleOf lets two clients wait for each other: for A, a lock of one type, and for B{x}, a lock of another.
func showsCycleOf(t *testing.T, b *locktest.Backend, newA, newB func(c *rlock.Client, name string) locktest.AnyLock, opts ...rlock.Option) {
	s := open(t, b, rlockui.Options{}, opts...)
	all := s.stream("")
	defer all.close()
	one, other := b.NewClient(t, append(opts, rlock.WithLabel("one"))...), b.NewClient(t, append(opts, rlock.WithLabel("other"))...)
	a := locktest.MustLock(t, newA(one, "A"))
	z := locktest.MustLock(t, newB(other, "B{x}"))
	forB := locktest.Begin(t, bg, newB(one, "B{x}"))
	s.until("one edge, no cycle", "", func(v *view) bool { return len(v.Waits) == 1 && len(v.Cycles) == 0 })
	forA := locktest.Begin(t, bg, newA(other, "A"))

	v := s.until("the cycle is shown with names", "", func(v *view) bool {
		return len(v.Cycles) == 1 && strings.HasPrefix(v.Cycles[0].Steps[0].Waiter, "o")
	})
	steps := v.Cycles[0].Steps
	if len(steps) != 2 || steps[0].Holder != steps[1].Waiter || steps[1].Holder != steps[0].Waiter || steps[0].Lock == steps[1].Lock {
		t.Errorf("cycle: %+v", steps)
	}
	locks := steps[0].Lock + steps[1].Lock
	if locks != "AB{x}" && locks != "B{x}A" {
		t.Errorf("its locks: %q", locks)
	}
	locktest.WantErr(t, forA.GiveUp(), context.Canceled)
	s.until("the cycle is over", "", func(v *view) bool { return len(v.Cycles) == 0 })
	locktest.MustUnlock(t, z)
	locktest.MustUnlock(t, forB.Held())
	locktest.MustUnlock(t, a)
}

func TestClientThatIsGoneIsMarked(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	lease, err := b.NewClient(t, rlock.WithLabel("late")).NewLock("old").TryLock(bg, rlock.WithLease(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer locktest.MustUnlock(t, lease)
	key := "rlock:client:" + lease.HoldID()[:21]
	locktest.Eventually(t, "its key is written", func() bool { return s.rdb.Exists(bg, key).Val() == 1 })
	s.rdb.PExpire(bg, key, 4*time.Minute) // as six minutes after the write
	v := s.until("it is marked", "?only=gone", func(v *view) bool { return v.Matched == 1 })
	if !v.Locks[0].Gone || len(v.Clients) != 1 || v.Clients[0].State != "gone" || v.Clients[0].Who != "late" {
		t.Errorf("%+v", v)
	}
}

// A key of the wrong type is as good as none: it hides neither the graph nor the clients whose keys are read next.
func TestKeyOfAClientThatIsNoText(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	put(t, s, 1)
	s.rdb.LPush(bg, "rlock:client:4b5a8f3e-3f8d-8a1c-9e", "garbage")
	if v := s.snapshot(""); v.GraphError != "" || v.Held != 1 || len(v.Clients) != 1 || v.Clients[0].State != "unknown" {
		t.Errorf("%+v", v)
	}
}

func TestRenewalThatIsOverdueIsMarked(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	all := s.stream("")
	defer all.close()
	lease, err := b.NewClient(t).NewLock("stopped").TryLock(bg, rlock.WithLease(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer locktest.MustUnlock(t, lease)
	l := s.held("stopped")
	rest := func(d time.Duration) {
		s.rdb.PExpire(bg, "stopped", d)
		ends := time.Now().Add(d).UnixMilli()
		s.until("the lease is shown", "", func(v *view) bool { return max(v.lock("stopped").Ends-ends, ends-v.lock("stopped").Ends) < 60_000 })
	}
	rest(20 * time.Minute) // a fixed lease that runs out is as its holder wants it
	if s.snapshot("?only=overdue").Matched != 0 {
		t.Error("a lease that was never renewed is marked")
	}
	rest(2 * time.Hour)
	rest(90 * time.Minute)
	if s.snapshot("?only=overdue").Matched != 0 {
		t.Error("a renewed lease is marked too early")
	}
	rest(30 * time.Minute)
	v := s.snapshot("?only=overdue&lock=" + l.ID)
	if v.Matched != 1 || !v.Locks[0].Overdue || v.Lock.Events[0].Kind != "overdue" {
		t.Errorf("%+v", v)
	}
	rest(2 * time.Hour)
	if s.snapshot("?only=overdue").Matched != 0 {
		t.Error("it is still marked after a renewal")
	}
}

// count counts the commands that a miniredis executes.
func count(b *locktest.Backend) *atomic.Int64 {
	var n atomic.Int64
	b.Mini.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		n.Add(1)
		return false
	})
	return &n
}

func TestWithoutViewersNothingIsSent(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	sent := count(b)
	s := open(t, b, rlockui.Options{})
	start := sent.Load() // rlock.New may have asked for the server's version
	s.ask("GET", prefix, "")
	s.ask("GET", prefix+"rlock.js", "")
	s.ask("HEAD", prefix+"events", "")
	if n := sent.Load() - start; n != 0 {
		t.Errorf("the pages alone: %d commands", n)
	}
	one := s.stream("")
	one.next(t)
	other := s.stream("?q=x")
	other.next(t)
	one.close()
	other.next(t)
	other.next(t)
	other.close()
	locktest.Eventually(t, "the poll ends", func() bool {
		before := sent.Load()
		time.Sleep(5 * interval)
		return sent.Load() == before
	})
	// A viewer who comes back begins it again.
	before := sent.Load()
	again := s.stream("")
	again.next(t)
	again.next(t)
	if sent.Load() == before {
		t.Error("no command for a viewer")
	}
}

func TestAllViewersShareOnePoll(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var sweeps atomic.Int64
	b.Mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if strings.EqualFold(command, "scan") {
			sweeps.Add(1)
		}
		return false
	})
	s := open(t, b, rlockui.Options{})
	var all []*stream
	for range 20 {
		all = append(all, s.stream(""))
	}
	began, before := time.Now(), sweeps.Load()
	for range 4 {
		for _, one := range all {
			one.next(t)
		}
	}
	// The database is empty: a sweep is one SCAN, and there is at most one per interval.
	if most := int64(time.Since(began)/interval) + 2; sweeps.Load()-before > most {
		t.Errorf("%d sweeps in %v for 20 viewers", sweeps.Load()-before, time.Since(began))
	}
}

func TestViewersWhoComeAndGoDoNotMakePollsMoreFrequent(t *testing.T) {
	t.Parallel()
	const long = 200 * time.Millisecond
	b := locktest.OnMiniredis(t)
	var sweeps atomic.Int64
	b.Mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if strings.EqualFold(command, "scan") {
			sweeps.Add(1)
			time.Sleep(long)
		}
		return false
	})
	s := open(t, b, rlockui.Options{})
	began := time.Now()
	for time.Since(began) < 20*long {
		st := s.stream("")
		time.Sleep(long / 4)
		st.close()
	}
	// A sweep is one SCAN, and a pause of nine times its duration follows.
	if n, most := sweeps.Load(), int64(time.Since(began)/(10*long))+2; n > most {
		t.Errorf("%d sweeps in %v, more than %d", n, time.Since(began), most)
	} else if n == 0 {
		t.Error("no sweep")
	}
}

func TestAnOutageIsShownAndEnds(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	holder := b.NewClient(t)
	lease := locktest.MustLock(t, holder.NewLock("kept"))
	s := open(t, b, rlockui.Options{}, rlock.WithCommandTimeout(500*time.Millisecond))
	st := s.stream("")
	for v := st.next(t); v.lock("kept") == nil; v = st.next(t) {
	}
	b.Mini.SetError("LOADING Redis is loading the dataset in memory")
	v := st.next(t)
	for ; v.Error == ""; v = st.next(t) {
	}
	if v.lock("kept") == nil {
		t.Errorf("what was known is not shown: %+v", v)
	}
	b.Mini.SetError("")
	for ; v.Error != ""; v = st.next(t) {
	}
	b.Mini.Close()
	for v = st.next(t); v.Error == ""; v = st.next(t) {
	}
	if err := b.Mini.Restart(); err != nil {
		t.Fatal(err)
	}
	for ; v.Error != ""; v = st.next(t) {
	}
	if v.lock("kept") == nil || v.lock("kept").Lost != 0 {
		t.Errorf("after the outage: %+v", v)
	}
	locktest.MustUnlock(t, lease)
}

// put writes n locks that one client holds, without a script for each.
func put(t testing.TB, s *site, n int) {
	t.Helper()
	for first := 0; first < n; first += 1000 {
		pipe := s.rdb.Pipeline()
		for i := first; i < min(n, first+1000); i++ {
			name := fmt.Sprintf("lock-%05d", i)
			pipe.HSet(bg, name, fmt.Sprintf("4b5a8f3e-3f8d-8a1c-9e07-0d1f5d7a4c11:%d", i+1), 1)
			pipe.PExpire(bg, name, time.Hour)
		}
		if _, err := pipe.Exec(bg); err != nil {
			t.Fatal(err)
		}
	}
}

// processed returns how many commands a server has executed, also inside scripts.
func processed(t testing.TB, s *site) int {
	t.Helper()
	info, err := s.rdb.Info(bg, "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "total_commands_processed:")
	text, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// quiet waits until no poll is under way, and returns how many commands there have been.
func quiet(t testing.TB, s *site) (n int) {
	t.Helper()
	locktest.Eventually(t, "the poll ends", func() bool {
		before := processed(t, s)
		time.Sleep(3 * interval)
		n = processed(t, s)
		return n <= before+2 // INFO itself
	})
	return n
}

const commandsOfLock = 12 // upper bound of the commands for a lock: its type, five for its hash, and its state with a script

func TestTenThousandLocksWithABound(t *testing.T) {
	t.Parallel()
	const locks, most = 10_000, 1_000
	s := open(t, locktest.OnServer(t), rlockui.Options{MaxLocks: most})
	put(t, s, locks)
	before := quiet(t, s)
	v := s.snapshot("") // one viewer, for one poll
	if !v.Truncated || v.Held != most || v.Matched != most || len(v.Locks) != 200 {
		t.Errorf("truncated %v, %d held, %d match, %d rows", v.Truncated, v.Held, v.Matched, len(v.Locks))
	}
	n := quiet(t, s) - before
	if n > commandsOfLock*(most+1000) { // a sweep reads batches of some hundred keys
		t.Errorf("%d commands for %d of %d locks", n, most, locks)
	}
	t.Logf("%d commands for %d of %d locks", n, most, locks)
}

func TestTenThousandLocksAreShown(t *testing.T) {
	t.Parallel()
	const locks = 10_000
	s := open(t, locktest.OnServer(t), rlockui.Options{})
	put(t, s, locks)
	before := quiet(t, s)
	began := time.Now()
	v := s.snapshot("?q=lock-09999")
	if v.Truncated || v.Held != locks || v.Matched != 1 || v.Locks[0].Name != "lock-09999" {
		t.Errorf("%+v", v)
	}
	polled := time.Since(began)
	n := quiet(t, s) - before
	if n > commandsOfLock*locks {
		t.Errorf("%d commands for %d locks", n, locks)
	}
	began = time.Now()
	if v = s.snapshot("?rows=5000"); len(v.Locks) != 1000 || v.Matched != locks {
		t.Errorf("%d rows of %d", len(v.Locks), v.Matched)
	}
	t.Logf("%d commands and %v for %d locks; a snapshot of 1000 rows took %v", n, polled, locks, time.Since(began))
}

func TestRedLockAndTheStateOfItsNodes(t *testing.T) {
	t.Parallel()
	var backends []*locktest.Backend
	var nodes, holders []*rlock.Client
	for range 3 {
		b := locktest.OnMiniredis(t)
		backends = append(backends, b)
		nodes, holders = append(nodes, b.NewClient(t, rlock.WithCommandTimeout(time.Second))), append(holders, b.NewClient(t, rlock.WithLabel("voter")))
	}
	l, err := rlock.NewRedLock("red", holders)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l)
	s := &site{t: t, pages: pagesOf(t, nodes[0], rlockui.Options{
		Interval: interval, Nodes: nodes[1:], Redis: backends[0].Client(t), Allow: func(*http.Request, rlockui.Write) bool { return true },
	})}
	s.serve(s.pages)
	s.URL = strings.TrimSuffix(s.URL, "/")
	red := s.held("red")
	if red.Type != "RedLock" || red.Votes < 2 || red.Holders[0].Hold != lease.HoldID() {
		t.Errorf("%+v", red)
	}
	s.until("its holder has a name", "", func(v *view) bool { return v.lock("red").Holders[0].Who == "voter" })
	backends[2].Mini.SetError("LOADING Redis is loading the dataset in memory")
	v := s.until("the node is marked", "", func(v *view) bool { return len(v.Nodes) == 3 && v.Nodes[2].Error != "" })
	if v.Error != "" || v.Nodes[0].Error != "" || v.lock("red") == nil {
		t.Errorf("with one node away: %+v", v)
	}
	backends[2].Mini.SetError("")
	s.until("the node is back", "", func(v *view) bool { return v.Nodes[2].Error == "" })
	answer, text := s.write(rlockui.ForceUnlock, red.ID, red.Holders[0].Ref)
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", answer.Status, text)
	}
	locktest.MustBeFree(t, l)
	_ = lease.Unlock(bg)
}

// A user who may inspect locks, and not acquire them, is enough. Without PUBSUB CHANNELS only the graph is missing.
func TestUserOfRedisWhoMayReadOnly(t *testing.T) {
	t.Parallel()
	for name, may := range map[string]bool{"may read channels": true, "may not": false} {
		locktest.Beside(t, name, func(t *testing.T) {
			b := locktest.OnServer(t)
			lease := locktest.MustLock(t, b.NewClient(t, rlock.WithPrefix("app:")).NewFairLock("kept"))
			defer locktest.MustUnlock(t, lease)
			rule := []any{"ACL", "SETUSER", "viewer", "on", ">secret", "~app:*", "~{app:*", "~redisson_lock_*:{app:*", "&redisson_lock__channel:{app:*"}
			for _, command := range strings.Fields("hello ping client|setname eval evalsha exists hget hgetall hmget hlen llen hrandfield pttl publish pubsub|numsub scan type getrange") {
				rule = append(rule, "+"+command)
			}
			if may {
				rule = append(rule, "+pubsub|channels")
			}
			if err := b.Client(t).Do(bg, rule...).Err(); err != nil {
				t.Fatal(err)
			}
			rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "viewer", Password: "secret"})
			t.Cleanup(func() { _ = rdb.Close() })
			s := &site{t: t, rdb: rdb}
			s.pages = pagesOf(t, locktest.NewClient(t, rdb, rlock.WithPrefix("app:")), rlockui.Options{Interval: interval, Redis: rdb})
			s.serve(s.pages)
			v := s.until("the lock is shown", "", func(v *view) bool { return v.lock("kept") != nil || v.Error != "" })
			if v.Error != "" || (v.GraphError == "") != may {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for name, opts := range map[string]rlockui.Options{
		"Interval":         {Interval: time.Millisecond},
		"MaxLocks":         {MaxLocks: -1},
		"MaxLocks 1000000": {MaxLocks: 1_000_000},
		"nil":              {Nodes: []*rlock.Client{nil}},
		"Redis":            {Redis: (*redis.Client)(nil)},
		"Pattern":          {Pattern: "orders:["},
		"Hosts":            {Hosts: []string{"admin.example:8080"}},
		`Hosts has ""`:     {Hosts: []string{""}},
	} {
		if _, err := rlockui.Handler(c, opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := rlockui.Handler(nil, rlockui.Options{}); err == nil {
		t.Error("no error for a nil client")
	}
}

func TestCloseEndsStreamsAndRefusesOthers(t *testing.T) {
	t.Parallel()
	s := open(t, locktest.OnMiniredis(t), rlockui.Options{})
	st := s.stream("")
	st.next(t)
	if err := s.pages.Close(); err != nil {
		t.Fatal(err)
	}
	locktest.Eventually(t, "the stream ends", func() bool {
		select {
		case _, open := <-st.events:
			return !open
		default:
			return false
		}
	})
	if answer, _ := s.ask("GET", prefix+"snapshot.json", ""); answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("after Close: %s", answer.Status)
	}
	if err := s.pages.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// A go-redis client without a ReadTimeout waits for ever, also if its context has ended.
func TestCloseDuringAPollThatGetsNoReply(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	hang, asked := make(chan struct{}), make(chan struct{}, 100)
	b.Mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if strings.EqualFold(command, "pubsub") {
			asked <- struct{}{}
			<-hang
		}
		return false
	})
	defer close(hang)
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, ReadTimeout: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	s := open(t, b, rlockui.Options{Redis: rdb})
	s.stream("")
	<-asked
	closed := make(chan struct{})
	go func() { defer close(closed); _ = s.pages.Close() }()
	select {
	case <-closed:
	case <-time.After(locktest.Patience):
		t.Fatal("Close waits for a reply that does not come")
	}
}

func TestScriptIsSmallAndWritesOnlyText(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("static/rlock.js")
	if err != nil {
		t.Fatal(err)
	}
	if len(text) >= 20_000 {
		t.Errorf("%d bytes of script", len(text))
	}
	for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", ".style"} {
		if strings.Contains(string(text), word) {
			t.Errorf("the script uses %s", word)
		}
	}
	page, err := os.ReadFile("static/index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"onclick", "style=", "<style", `="/`, "http:", "https:"} {
		if strings.Contains(string(page), word) {
			t.Errorf("the page has %s", word)
		}
	}
}
