package permits

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// model is what a semaphore should be: how many permits there are, who has them, and who
// waits, in order. Each operation of some owners is compared with Redis.
type model struct {
	rdb     redis.UniversalClient
	name    string
	fair    bool
	sems    []*rlock.PermitSemaphore // of several clients; replies to the first are lost
	set     bool
	total   int
	holds   []*modelHold
	waiting []*modelWaiter // in order
}

type modelHold struct {
	lease *rlock.Lease
	n     int
}

type modelWaiter struct {
	*waiting
	n int
}

func (m *model) free() int {
	free := m.total
	for _, h := range m.holds {
		free -= h.n
	}
	return free
}

func (m *model) any(t *rapid.T) *rlock.PermitSemaphore {
	return m.sems[rapid.IntRange(0, len(m.sems)-1).Draw(t, "client")]
}

// patient bounds what has to succeed at once.
var patient = rlock.WithWait(20 * time.Second)

func (m *model) trySet(t *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(t, "permits")
	ok, err := m.any(t).TrySetPermits(bg, n)
	if err != nil || ok == m.set {
		t.Fatalf("set: %v %v", ok, err)
	}
	if ok {
		m.set, m.total = true, n
	}
}

func (m *model) add(t *rapid.T) {
	n := rapid.IntRange(-3, 3).Draw(t, "more")
	if n == 0 || n < 0 && len(m.waiting) > 0 { // or some would wait for more than there are
		t.Skip("not now")
	}
	if err := m.any(t).AddPermits(bg, n); err != nil {
		t.Fatal(err)
	}
	m.set, m.total = true, m.total+n
	m.settle(t)
}

func (m *model) acquire(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "needs")
	s := m.any(t)
	if !m.set {
		_, err := s.Acquire(bg, n)
		wantErr(t, err, rlock.ErrNotSet)
		return
	}
	if n <= m.free() && len(m.waiting) == 0 {
		lease, err := s.Acquire(bg, n, patient)
		if err != nil {
			t.Fatal(err)
		}
		m.holds = append(m.holds, &modelHold{lease, n})
		return
	}
	if n > m.free() || m.fair {
		if lease, err := s.TryAcquire(bg, n); lease != nil {
			t.Fatalf("took %d of %d (%v)", n, m.free(), err)
		}
	}
	if n > m.total {
		return
	}
	if !m.fair {
		s = m.sems[0] // there is no order among clients
	}
	before := len(m.waiting)
	w := &modelWaiter{begin(s, n), n}
	stands := func() bool {
		if m.fair {
			return m.rdb.ZCard(bg, m.base()+":queue").Val() == int64(before+1)
		}
		state, err := s.State(bg)
		return err == nil && state.Waiters == before+1
	}
	for end := time.Now().Add(20 * time.Second); !stands(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not wait")
		}
	}
	m.waiting = append(m.waiting, w)
}

// settle waits for those that may enter.
func (m *model) settle(t *rapid.T) {
	for len(m.waiting) > 0 && m.waiting[0].n <= m.free() {
		w := m.waiting[0]
		select {
		case <-w.done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d are free, and one that needs %d waits", m.free(), w.n)
		}
		if w.err != nil {
			t.Fatal(w.err)
		}
		m.holds = append(m.holds, &modelHold{w.lease, w.n})
		m.waiting = m.waiting[1:]
	}
}

func (m *model) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.waiting)-1).Draw(t, "waiter")
	w := m.waiting[i]
	w.cancel()
	<-w.done
	if w.err == nil {
		t.Fatal("it was let in")
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.settle(t)
}

func (m *model) pick(t *rapid.T) int {
	if len(m.holds) == 0 {
		t.Skip("nobody holds any")
	}
	return rapid.IntRange(0, len(m.holds)-1).Draw(t, "hold")
}

func (m *model) unlock(t *rapid.T) {
	i := m.pick(t)
	if err := m.holds[i].lease.Unlock(bg); err != nil {
		t.Fatal(err)
	}
	m.holds = slices.Delete(m.holds, i, i+1)
	m.settle(t)
}

func (m *model) extend(t *rapid.T) {
	if err := m.holds[m.pick(t)].lease.Extend(bg, time.Hour); err != nil {
		t.Fatal(err)
	}
}

// expire takes permits for a moment.
func (m *model) expire(t *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(t, "needs")
	if !m.set || n > m.free() || len(m.waiting) > 0 {
		t.Skip("not now")
	}
	lease, err := m.sems[1].TryAcquire(bg, n, rlock.WithLease(50*time.Millisecond))
	if err != nil {
		return // this machine took longer than the lease
	}
	<-lease.Done()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if free, err := m.any(t).Available(bg); err != nil || free == m.free() {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d are free", free)
		}
	}
	wantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrExpired)
}

// lose takes a permit out of Redis: the lease is lost, and one permit is gone for good.
func (m *model) lose(t *rapid.T) {
	if m.fair || len(m.waiting) > 0 {
		t.Skip("not now")
	}
	i := m.pick(t)
	h := m.holds[i]
	held := "{" + m.name + "}:timeout"
	client, number, _ := strings.Cut(h.lease.Owner(), ":")
	var id string
	for _, member := range m.rdb.ZRange(bg, held, 0, -1).Val() {
		var k int
		_, _ = fmt.Sscan(number, &k)
		if strings.HasPrefix(fmt.Sprintf("%x", member), strings.ReplaceAll(client, "-", "")[:18]+fmt.Sprintf("%010x", k)) {
			id = member
		}
	}
	if m.rdb.ZRem(bg, held, id).Val() != 1 {
		t.Fatalf("%s has no permit", h.lease.Owner())
	}
	wantErr(t, h.lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrRemoved)
	m.holds = slices.Delete(m.holds, i, i+1)
	m.total--
}

func (m *model) base() string { return "{" + m.name + "}:rlock:permits" }

// check compares Redis with the model, and what both clients see. What a canceled caller
// leaves to the watchdog may take a moment.
func (m *model) check(t *rapid.T) {
	held := 0
	for _, h := range m.holds {
		held += h.n
	}
	want := fmt.Sprintf("set %v, %d free, %d held by %d, %d wait", m.set, m.free(), held, len(m.holds), len(m.waiting))
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		got := m.inRedis(t)
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in Redis: %s, want: %s", got, want)
		}
	}
}

func (m *model) inRedis(t *rapid.T) string {
	state, err := m.sems[1].State(bg)
	if err != nil {
		t.Fatal(err)
	}
	free, err := m.sems[0].Available(bg)
	if err != nil {
		t.Fatal(err)
	}
	var held, holds, waiters int
	if m.fair {
		hash := m.rdb.HGetAll(bg, m.base()).Val()
		for field, n := range hash {
			if field != "total" && field != "free" {
				var k int
				_, _ = fmt.Sscan(n, &k)
				held += k
				holds++
			}
		}
		waiters = int(m.rdb.ZCard(bg, m.base()+":queue").Val())
		if raw := hash["free"]; m.set && (raw != fmt.Sprint(free) || state.Waiters != waiters) {
			return fmt.Sprintf("%v, %+v", hash, state)
		}
	} else {
		held, holds, waiters = int(m.rdb.ZCard(bg, "{"+m.name+"}:timeout").Val()), len(state.Holders), len(m.waiting)
		if raw := m.rdb.Get(bg, m.name).Val(); m.set && raw != fmt.Sprint(free) {
			return fmt.Sprintf("%s, %d, %+v", raw, free, state)
		}
	}
	if state.Available != free || state.Permits != free+held || len(state.Holders) != holds {
		return fmt.Sprintf("%+v, %d free, %d held", state, free, held)
	}
	return fmt.Sprintf("set %v, %d free, %d held by %d, %d wait", state.Set, free, held, holds, waiters)
}

// end gives everything back.
func (m *model) end(t *rapid.T) {
	for _, w := range m.waiting {
		w.cancel()
		<-w.done
		if w.err == nil {
			m.holds = append(m.holds, &modelHold{w.lease, w.n})
		}
	}
	m.waiting = nil
	for _, h := range m.holds {
		_ = h.lease.Unlock(bg)
	}
	m.holds = nil
	m.check(t)
}

// wantErr checks that an error matches some others.
func wantErr(t *rapid.T, err error, sentinels ...error) {
	for _, s := range sentinels {
		if !errors.Is(err, s) {
			t.Fatalf("%v does not match %v", err, s)
		}
	}
}

const modelTime = 2 * time.Second

var modelRuns atomic.Int64

func followsModel(t *testing.T, fair bool) {
	t.Parallel()
	scripts := map[string]bool{}
	for _, verb := range []string{"set", "add", "enter", "renew", "release", "abandon", "inspect"} {
		for _, folder := range []string{"permits/", "fairpermits/"} {
			scripts[locktest.SHA(folder+verb)] = true
		}
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		opts := []rlock.Option{rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient)}
		c, proxy, rdb := b.Faulty(t, opts...)
		other := b.NewClient(t, opts...)
		var asked, lost atomic.Int64
		proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
			for sha := range scripts {
				if c.IsScript(sha) && asked.Add(1)%7 == 0 {
					lost.Add(1)
					return []faultproxy.Action{faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate}[lost.Load()%3]
				}
			}
			return faultproxy.Pass
		})
		start, runs := time.Now(), 0
		rapid.Check(t, func(rt *rapid.T) {
			if time.Since(start) > modelTime {
				return
			}
			runs++
			m := &model{rdb: rdb, fair: fair, name: fmt.Sprintf("m%d", modelRuns.Add(1))}
			for _, c := range []*rlock.Client{c, other} {
				var opts []rlock.PermitSemaphoreOption
				if fair {
					opts = append(opts, rlock.WithFairness())
				}
				m.sems = append(m.sems, c.NewPermitSemaphore(m.name, opts...))
			}
			defer m.end(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"set": m.trySet, "add": m.add, "acquire": m.acquire, "acquire again": m.acquire, "unlock": m.unlock, "unlock again": m.unlock,
				"cancel": m.cancel, "extend": m.extend, "expire": m.expire, "lose": m.lose, "": m.check,
			})
		})
		t.Logf("%d runs, %d replies lost", runs, lost.Load())
	})
}

func TestPermitSemaphoreFollowsItsModel(t *testing.T)     { followsModel(t, false) }
func TestFairPermitSemaphoreFollowsItsModel(t *testing.T) { followsModel(t, true) }
