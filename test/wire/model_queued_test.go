package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
)

// queuedModel is what both types should be: who is inside, and who waits, in
// order. Operations of a few owners, each compared with Redis.
type queuedModel struct {
	rdb     redis.UniversalClient
	base    string
	name    string
	owners  []*queuedMember
	waiting []*queuedMember // in order
}

type queuedMember struct {
	ctx     context.Context
	entry   *locktest.Attempt
	lock    locktest.AnyLock
	shared  bool
	rank    int // the lower the earlier, beside the order of arrival
	id      string
	leases  []*rlock.Lease
	waits   bool
	removed bool // its hold was ended by force
}

func (m *queuedModel) holders() (list []*queuedMember, exclusive bool) {
	for _, o := range m.owners {
		if len(o.leases) > 0 && !o.removed {
			list = append(list, o)
			exclusive = exclusive || !o.shared
		}
	}
	return list, exclusive
}

// place is where a newcomer would stand.
func (m *queuedModel) place(rank int) int {
	for i, w := range m.waiting {
		if w.rank > rank {
			return i
		}
	}
	return len(m.waiting)
}

// mayEnter is the rule of both types.
func (m *queuedModel) mayEnter(isShared bool, before []*queuedMember) bool {
	holders, exclusive := m.holders()
	if !isShared {
		return len(holders) == 0 && len(before) == 0
	}
	return !exclusive && !slices.ContainsFunc(before, func(w *queuedMember) bool { return !w.shared })
}

func (m *queuedModel) lock(t *rapid.T, o *queuedMember, l locktest.AnyLock, isShared bool, rank int) {
	o.lock, o.shared, o.rank = l, isShared, rank
	at := m.place(rank)
	if m.mayEnter(isShared, m.waiting[:at]) {
		lease, err := l.Lock(o.ctx, rlock.WithWait(20*time.Second))
		if err != nil {
			t.Fatalf("may enter: %v", err)
		}
		o.leases, o.id = []*rlock.Lease{lease}, lease.HoldID()
		return
	}
	_, err := l.TryLock(o.ctx)
	if !errors.Is(err, rlock.ErrNotAcquired) {
		t.Fatalf("TryLock of one that may not enter: %v", err)
	}
	before := m.rdb.ZRange(bg, m.base+":alive", 0, -1).Val()
	ctx, cancel := context.WithCancel(o.ctx)
	e := &locktest.Attempt{Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(e.Done)
		e.Lease, e.Err = l.Lock(ctx)
	}()
	o.entry, o.waits = e, true
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		after := m.rdb.ZRange(bg, m.base+":alive", 0, -1).Val()
		if i := slices.IndexFunc(after, func(s string) bool { return !slices.Contains(before, s) }); i >= 0 {
			o.id = after[i]
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not stand in the queue")
		}
	}
	m.waiting = slices.Insert(m.waiting, at, o)
}

// settle lets in who may enter, as Redis must have done.
func (m *queuedModel) settle(t *rapid.T) {
	for i := 0; i < len(m.waiting); {
		o := m.waiting[i]
		if !m.mayEnter(o.shared, m.waiting[:i]) {
			i++
			continue
		}
		select {
		case <-o.entry.Done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was not let in", o.id)
		}
		if o.entry.Err != nil {
			t.Fatal(o.entry.Err)
		}
		o.entry.Cancel()
		if o.entry.Lease.HoldID() != o.id {
			t.Fatalf("%s came in as %s", o.id, o.entry.Lease.HoldID())
		}
		o.leases, o.waits, o.entry = []*rlock.Lease{o.entry.Lease}, false, nil
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

func (m *queuedModel) pick(t *rapid.T, what string, ok func(*queuedMember) bool) *queuedMember {
	var list []*queuedMember
	for _, o := range m.owners {
		if ok(o) {
			list = append(list, o)
		}
	}
	if len(list) == 0 {
		t.Skip("nobody to " + what)
	}
	return rapid.SampledFrom(list).Draw(t, what)
}

func (m *queuedModel) unlock(t *rapid.T) {
	o := m.pick(t, "unlock", func(o *queuedMember) bool { return len(o.leases) > 0 })
	last := o.leases[len(o.leases)-1]
	o.leases = o.leases[:len(o.leases)-1]
	err := last.Unlock(bg)
	if o.removed != errors.Is(err, rlock.ErrLeaseLost) || !o.removed && err != nil {
		t.Fatalf("unlock of a hold that was removed (%v): %v", o.removed, err)
	}
	o.removed = o.removed && len(o.leases) > 0
	m.settle(t)
}

func (m *queuedModel) reenter(t *rapid.T) {
	o := m.pick(t, "reenter", func(o *queuedMember) bool { return len(o.leases) > 0 })
	lease, err := o.lock.Lock(o.ctx)
	if o.removed {
		if !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatalf("re-entry into a hold that was removed: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	o.leases = append(o.leases, lease)
}

func (m *queuedModel) cancel(t *rapid.T) {
	o := m.pick(t, "cancel", func(o *queuedMember) bool { return o.waits })
	o.entry.Cancel()
	<-o.entry.Done
	if !errors.Is(o.entry.Err, context.Canceled) {
		t.Fatal(o.entry.Err)
	}
	o.waits, o.entry = false, nil
	m.waiting = slices.DeleteFunc(m.waiting, func(w *queuedMember) bool { return w == o })
	m.settle(t)
}

func (m *queuedModel) force(t *rapid.T) {
	o := m.pick(t, "force", func(o *queuedMember) bool { return len(o.leases) > 0 && !o.removed })
	was, err := o.lock.ForceUnlock(bg)
	if !was || err != nil {
		t.Fatal(was, err)
	}
	for _, other := range m.owners {
		if len(other.leases) > 0 && other.shared == o.shared {
			other.removed = true
		}
	}
	m.settle(t)
}

// check compares Redis with the model. What a cancelled caller leaves to the
// watchdog may take a moment.
func (m *queuedModel) check(t *rapid.T) {
	want := ""
	holders, _ := m.holders()
	for _, o := range holders {
		want += fmt.Sprintf("%s×%d(%v) ", o.id, len(o.leases), o.shared)
	}
	want += "|"
	for _, o := range m.waiting {
		want += " " + o.id
	}
	var got string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		got = m.inRedis()
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in Redis\n%s\nwant\n%s", got, want)
		}
	}
}

func (m *queuedModel) inRedis() (got string) {
	hash := m.rdb.HGetAll(bg, m.base).Val()
	known := 0
	for _, o := range m.owners {
		if hash["exclusive"] == o.id && o.id != "" && !o.shared {
			got += fmt.Sprintf("%s×%s(false) ", o.id, hash["count"])
			known += 3
		} else if n := hash[o.id]; n != "" {
			got += fmt.Sprintf("%s×%s(true) ", o.id, n)
			known++
		}
	}
	if known != len(hash) {
		return fmt.Sprintf("strangers in %v", hash)
	}
	if n := m.rdb.ZCard(bg, m.base+":ends").Val(); hash["exclusive"] != "" && n != int64(known-2) || hash["exclusive"] == "" && n != int64(known) {
		return fmt.Sprintf("%d ends of %v", n, hash)
	}
	queue := m.rdb.ZRangeWithScores(bg, m.base+":queue", 0, -1).Val()
	queue = append(queue, m.rdb.ZRangeWithScores(bg, m.base+":queue:shared", 0, -1).Val()...)
	slices.SortFunc(queue, func(a, b redis.Z) int { return int(a.Score - b.Score) })
	if n := m.rdb.ZCard(bg, m.base+":alive").Val(); n != int64(len(queue)) {
		return fmt.Sprintf("%d of %d are alive", n, len(queue))
	}
	got += "|"
	for _, z := range queue {
		got += " " + z.Member.(string)
	}
	return got
}

// end unlocks and cancels everything.
func (m *queuedModel) end(t *rapid.T) {
	for _, o := range m.owners {
		if o.entry != nil {
			o.entry.Cancel()
			<-o.entry.Done
			if o.entry.Err == nil {
				o.leases = append(o.leases, o.entry.Lease)
			}
		}
		for _, l := range o.leases {
			_ = l.Unlock(bg)
		}
	}
	m.waiting = nil
	m.owners = nil
	m.check(t)
}

var queuedModelRuns atomic.Int64

func followsQueuedModel(t *testing.T, what string, actions func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T)) {
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
		end, runs := time.Now().Add(modeltest.Time()), 0
		rapid.Check(t, func(rt *rapid.T) {
			if runs > 0 && time.Now().After(end) {
				return
			}
			runs++
			name := fmt.Sprintf("m%d", queuedModelRuns.Add(1))
			m := &queuedModel{rdb: rdb, name: name, base: "{" + name + "}:rlock:" + what}
			for range 4 {
				m.owners = append(m.owners, &queuedMember{ctx: rlock.WithOwner(bg)})
			}
			defer m.end(rt)
			all := actions(m, c)
			all["unlock"], all["unlock again"] = m.unlock, m.unlock
			all["reenter"], all["cancel"], all["force"], all[""] = m.reenter, m.cancel, m.force, m.check
			rt.Repeat(all)
		})
		t.Logf("%d runs", runs)
		locktest.OnlyTombstones(t, rdb)
	})
}

func TestFairReadWriteLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "fairrw", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewFairReadWriteLock(m.name)
		enter := func(side locktest.AnyLock, isShared bool) func(*rapid.T) {
			return func(rt *rapid.T) {
				o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
				m.lock(rt, o, side, isShared, 0)
			}
		}
		return map[string]func(*rapid.T){"read": enter(l.Reader, true), "read again": enter(l.Reader, true), "write": enter(l.Writer, false)}
	})
}

func TestPriorityLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "priority", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewPriorityLock(m.name)
		enter := func(rt *rapid.T) {
			o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
			p := rapid.IntRange(rlock.MinPriority, rlock.MaxPriority).Draw(rt, "priority")
			m.lock(rt, o, l.At(p).(locktest.AnyLock), false, -p)
		}
		return map[string]func(*rapid.T){"enter": enter, "enter again": enter}
	})
}
