package counting

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
)

// permitModel is what a semaphore should be: how many permits there are, who has them, and who
// waits, in order. Each operation of some owners is compared with Redis.
type permitModel struct {
	rdb     redis.UniversalClient
	name    string
	fair    bool
	sems    []*rlock.PermitSemaphore // of several clients; replies to the first are lost
	set     bool
	total   int
	holds   []*permitHold
	waiting []*permitWaiter // in order
}

type permitHold struct {
	lease *rlock.Lease
	n     int
}

type permitWaiter struct {
	*locktest.Attempt
	n int
}

func (m *permitModel) free() int {
	free := m.total
	for _, h := range m.holds {
		free -= h.n
	}
	return free
}

func (m *permitModel) any(t *rapid.T) *rlock.PermitSemaphore {
	return m.sems[rapid.IntRange(0, len(m.sems)-1).Draw(t, "client")]
}

// patient bounds what has to succeed at once.
var patient = rlock.WithWait(20 * time.Second)

func (m *permitModel) trySet(t *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(t, "permits")
	ok, err := m.any(t).TrySetPermits(bg, n)
	if err != nil || ok == m.set {
		t.Fatalf("set: %v %v", ok, err)
	}
	if ok {
		m.set, m.total = true, n
	}
}

func (m *permitModel) add(t *rapid.T) {
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

func (m *permitModel) acquire(t *rapid.T) {
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
		m.holds = append(m.holds, &permitHold{lease, n})
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
	w := &permitWaiter{acquires(t, s, n), n}
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
func (m *permitModel) settle(t *rapid.T) {
	for len(m.waiting) > 0 && m.waiting[0].n <= m.free() {
		w := m.waiting[0]
		m.holds = append(m.holds, &permitHold{w.Held(), w.n})
		m.waiting = m.waiting[1:]
	}
}

func (m *permitModel) cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.waiting)-1).Draw(t, "waiter")
	w := m.waiting[i]
	if w.GiveUp() == nil {
		t.Fatal("it was let in")
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.settle(t)
}

func (m *permitModel) pick(t *rapid.T) int {
	if len(m.holds) == 0 {
		t.Skip("nobody holds any")
	}
	return rapid.IntRange(0, len(m.holds)-1).Draw(t, "hold")
}

func (m *permitModel) unlock(t *rapid.T) {
	i := m.pick(t)
	if err := locktest.Ended(m.holds[i].lease.Unlock(bg)); err != nil {
		t.Fatal(err)
	}
	m.holds = slices.Delete(m.holds, i, i+1)
	m.settle(t)
}

func (m *permitModel) extend(t *rapid.T) {
	if err := m.holds[m.pick(t)].lease.Extend(bg, time.Hour); err != nil {
		t.Fatal(err)
	}
}

// expire takes permits for a moment.
func (m *permitModel) expire(t *rapid.T) {
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
func (m *permitModel) lose(t *rapid.T) {
	if m.fair || len(m.waiting) > 0 {
		t.Skip("not now")
	}
	i := m.pick(t)
	h := m.holds[i]
	held := "{" + m.name + "}:timeout"
	client, number, _ := strings.Cut(h.lease.HoldID(), ":")
	var id string
	for _, member := range m.rdb.ZRange(bg, held, 0, -1).Val() {
		var k int
		_, _ = fmt.Sscan(number, &k)
		if strings.HasPrefix(fmt.Sprintf("%x", member), strings.ReplaceAll(client, "-", "")[:18]+fmt.Sprintf("%010x", k)) {
			id = member
		}
	}
	if m.rdb.ZRem(bg, held, id).Val() != 1 {
		t.Fatalf("%s has no permit", h.lease.HoldID())
	}
	wantErr(t, h.lease.Extend(bg, time.Minute), rlock.ErrLeaseLost, rlock.ErrRemoved)
	m.holds = slices.Delete(m.holds, i, i+1)
	m.total--
}

func (m *permitModel) base() string { return "{" + m.name + "}:rlock:permits" }

// check compares Redis with the model, and what both clients see. What a canceled caller
// leaves to the watchdog may take a moment.
func (m *permitModel) check(t *rapid.T) {
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

func (m *permitModel) inRedis(t *rapid.T) string {
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
func (m *permitModel) end(t *rapid.T) {
	for _, w := range m.waiting {
		if w.GiveUp() == nil {
			m.holds = append(m.holds, &permitHold{w.Lease, w.n})
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

func followsModel(t *testing.T, opts ...rlock.PermitSemaphoreOption) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		modeltest.Follow(t, b, func(name string, clients []*rlock.Client) modeltest.Run {
			m := &permitModel{rdb: rdb, fair: len(opts) > 0, name: name}
			for _, c := range clients {
				m.sems = append(m.sems, c.NewPermitSemaphore(name, opts...))
			}
			slices.Reverse(m.sems)
			return modeltest.Run{End: m.end, Actions: map[string]func(*rapid.T){
				"set": m.trySet, "add": m.add, "acquire": m.acquire, "acquire again": m.acquire, "unlock": m.unlock, "unlock again": m.unlock,
				"cancel": m.cancel, "extend": m.extend, "expire": m.expire, "lose": m.lose, "": m.check,
			}}
		}, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
	})
}

func TestPermitSemaphoreFollowsItsModel(t *testing.T)     { followsModel(t) }
func TestFairPermitSemaphoreFollowsItsModel(t *testing.T) { followsModel(t, rlock.WithFairness()) }
