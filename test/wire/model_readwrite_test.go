package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

// Random operations of a few owners on both sides of a lock, beside Java
// readers that die, compared after each step with a model.

// readWriteLease is a fixed lease. Time moves in steps that stay minutes away
// from any end of a lease, so what the machine takes for a step does not count.
const readWriteLease = 10 * time.Minute

// readWriteHold is what one owner has on one side.
type readWriteHold struct {
	leases  []*rlock.Lease
	renewed bool      // all of its leases are
	until   time.Time // if they are not
}

func (h *readWriteHold) held() bool { return h != nil && len(h.leases) > 0 }

func (h *readWriteHold) owner() string { return h.leases[0].HoldID() }

type readWriteModel struct {
	t       *testing.T
	name    string
	lock    *rlock.ReadWriteLock
	rdb     redis.UniversalClient
	now     func() time.Time
	advance func(time.Duration) // nil: time cannot be moved
	owners  []context.Context
	reads   []readWriteHold // by owner
	writes  []readWriteHold
	java    map[string]time.Time // readers, and when they are over
	ghosts  int
}

func (m *readWriteModel) writer() int {
	return slices.IndexFunc(m.writes, func(h readWriteHold) bool { return h.held() })
}

// readBy reports whether anybody reads.
func (m *readWriteModel) readBy() bool {
	return len(m.java) > 0 || slices.ContainsFunc(m.reads, func(h readWriteHold) bool { return h.held() })
}

func (m *readWriteModel) acquire(t *rapid.T) {
	who := rapid.IntRange(0, len(m.owners)-1).Draw(t, "owner")
	side, mine, other := rlock.Locker(m.lock.Reader), &m.reads[who], &m.writes[who]
	writes := rapid.Bool().Draw(t, "writes")
	if writes {
		side, mine, other = m.lock.Writer, other, mine
	}
	var want error
	writer := m.writer()
	switch {
	case mine.held():
	case writes && other.held():
		want = rlock.ErrUpgrade
	case writer >= 0 && writer != who, writes && m.readBy():
		want = rlock.ErrNotAcquired
	}
	renewed := rapid.Bool().Draw(t, "renewed")
	if mine.held() {
		renewed = mine.renewed
	}
	var opts []rlock.TryOption
	if !renewed {
		opts = append(opts, rlock.WithLease(readWriteLease))
	}
	lease, err := side.TryLock(m.owners[who], opts...)
	if !errors.Is(err, want) {
		t.Fatalf("owner %d, writes %v: %v, want %v", who, writes, err, want)
	}
	if err != nil {
		return
	}
	if (lease.Token() > 0) != writes || mine.held() && (lease.HoldID() != mine.owner() || lease.Token() != mine.leases[0].Token()) {
		t.Fatalf("owner %s, token %d", lease.HoldID(), lease.Token())
	}
	if until := m.now().Add(readWriteLease); !mine.held() || until.After(mine.until) {
		mine.until = until
	}
	mine.leases, mine.renewed = append(mine.leases, lease), renewed
}

// javaReads is TryLock of a Java reader that does not renew.
func (m *readWriteModel) javaReads(t *rapid.T) {
	m.ghosts++
	who := redistest.HoldID(fmt.Sprintf("java:%d", m.ghosts))
	if m.writer() >= 0 {
		t.Skip("written")
	}
	locktest.JavaReadLock{RDB: m.rdb, Name: m.name}.Read(who, readWriteLease/2)
	m.java[who] = m.now().Add(readWriteLease / 2)
}

func (m *readWriteModel) javaLeaves(t *rapid.T) {
	if len(m.java) == 0 {
		t.Skip("none")
	}
	who := rapid.SampledFrom(sortedKeys(m.java)).Draw(t, "reader")
	delete(m.java, who)
	if gone := (locktest.JavaReadLock{RDB: m.rdb, Name: m.name}).Release(who) == 1; gone == m.readBy() {
		t.Fatalf("Java's release freed the lock: %v, with readers: %v", gone, m.readBy())
	}
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (m *readWriteModel) pick(t *rapid.T) *readWriteHold {
	var all []*readWriteHold
	for i := range m.owners {
		for _, h := range []*readWriteHold{&m.reads[i], &m.writes[i]} {
			if h.held() {
				all = append(all, h)
			}
		}
	}
	if len(all) == 0 {
		t.Skip("nobody")
	}
	return rapid.SampledFrom(all).Draw(t, "hold")
}

func (m *readWriteModel) unlock(t *rapid.T) {
	h := m.pick(t)
	i := rapid.IntRange(0, len(h.leases)-1).Draw(t, "lease")
	if err := h.leases[i].Unlock(bg); err != nil {
		t.Fatal(err)
	}
	h.leases = append(h.leases[:i:i], h.leases[i+1:]...)
}

func (m *readWriteModel) extend(t *rapid.T) {
	h := m.pick(t)
	if h.renewed {
		t.Skip("renewed")
	}
	if err := h.leases[0].Extend(bg, 2*readWriteLease); err != nil {
		t.Fatal(err)
	}
	if until := m.now().Add(2 * readWriteLease); until.After(h.until) {
		h.until = until
	}
}

// drop closes the leases of a hold that is lost.
func (m *readWriteModel) drop(t *rapid.T, h *readWriteHold) {
	for _, l := range h.leases {
		if err := l.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatalf("unlock of a lost lease: %v", err)
		}
	}
	h.leases = nil
}

func (m *readWriteModel) force(t *rapid.T) {
	writes := rapid.Bool().Draw(t, "writes")
	force, was := m.lock.Reader.ForceUnlock, m.writer() < 0 && m.readBy()
	if writes {
		force, was = m.lock.Writer.ForceUnlock, m.writer() >= 0
	}
	forced, err := force(bg)
	if err != nil || forced != was {
		// A hash of the dead may be left, and be freed.
		if err != nil || writes || was || m.writer() >= 0 {
			t.Fatalf("force unlock, writes %v: %v, %v; want %v", writes, forced, err, was)
		}
	}
	if !forced {
		return
	}
	for i := range m.owners {
		for _, h := range []*readWriteHold{&m.reads[i], &m.writes[i]} {
			if h.held() {
				m.drop(t, h)
			}
		}
	}
	clear(m.java)
}

func (m *readWriteModel) forceOne(t *rapid.T) {
	h := m.pick(t)
	force := m.lock.Reader.ForceUnlockIf
	if h.leases[0].Token() > 0 {
		force = m.lock.Writer.ForceUnlockIf
	}
	if was, err := force(bg, h.owner()); !was || err != nil {
		t.Fatal(was, err)
	}
	m.drop(t, h)
}

func (m *readWriteModel) pass(t *rapid.T) {
	if m.advance == nil {
		t.Skip("time cannot be moved")
	}
	m.advance(7 * time.Minute)
	now := m.now()
	for who, until := range m.java {
		if now.After(until) {
			delete(m.java, who)
		}
	}
	for i := range m.owners {
		for _, h := range []*readWriteHold{&m.reads[i], &m.writes[i]} {
			if !h.held() || h.renewed || now.Before(h.until) {
				continue
			}
			field := h.owner()
			if h.leases[0].Token() > 0 {
				field += ":write"
			}
			for _, l := range h.leases {
				if err := l.Err(); !errors.Is(err, rlock.ErrExpired) {
					t.Fatalf("after the end of its lease: %v", err)
				}
			}
			m.drop(t, h)
			locktest.Eventually(m.t, "the lost hold is cleaned up", func() bool { return !m.rdb.HExists(bg, m.name, field).Val() })
		}
	}
}

// check compares the model with Redis.
func (m *readWriteModel) check(t *rapid.T) {
	fields := m.rdb.HGetAll(bg, m.name).Val()
	mode := fields["mode"]
	delete(fields, "mode")
	ttl := m.rdb.PTTL(bg, m.name).Val()
	now := m.now()
	take := func(h readWriteHold, field string) {
		if fields[field] != strconv.Itoa(len(h.leases)) {
			t.Fatalf("field %s is %q, want %d", field, fields[field], len(h.leases))
		}
		delete(fields, field)
		for _, l := range h.leases {
			if l.Err() != nil {
				t.Fatalf("a lease that should last: %v", l.Err())
			}
		}
		if left := h.until.Sub(now); !h.renewed && ttl < left-5*time.Second {
			t.Fatalf("the lock lasts for %v, %s for %v", ttl, field, left)
		}
	}
	for i := range m.owners {
		if h := m.writes[i]; h.held() {
			if mode != "write" {
				t.Fatalf("mode %q with a writer", mode)
			}
			take(h, h.owner()+":write")
		}
		if h := m.reads[i]; h.held() {
			take(h, h.owner())
			first := m.rdb.PTTL(bg, locktest.ReaderTimer(m.name, h.owner(), 1)).Val()
			if left := h.until.Sub(now); first <= 0 || !h.renewed && first < left-5*time.Second || ttl < first-5*time.Second {
				t.Fatalf("first timer %v, hold %v, lock %v", first, left, ttl)
			}
			for n := 2; n <= len(h.leases); n++ {
				// Its own lease may be over: the first timer stands for all. On
				// miniredis a script sets them one after the other.
				if later := m.rdb.PTTL(bg, locktest.ReaderTimer(m.name, h.owner(), n)).Val(); later > first+5*time.Second {
					t.Fatalf("timer %d has %v, the first %v", n, later, first)
				}
			}
			if n := m.rdb.Exists(bg, locktest.ReaderTimer(m.name, h.owner(), len(h.leases)+1)).Val(); n != 0 {
				t.Fatal("a timer too many")
			}
		}
	}
	for who := range m.java {
		if fields[who] != "1" {
			t.Fatalf("the Java reader's hold was ended: %q", fields[who])
		}
		delete(fields, who)
	}
	if m.writer() < 0 && mode != "" && mode != "read" {
		t.Fatalf("mode %q without a writer", mode)
	}
	// What is left is dead: its timer is over.
	for field := range fields {
		if m.rdb.Exists(bg, locktest.ReaderTimer(m.name, field, 1)).Val() != 0 {
			t.Fatalf("%s is alive", field)
		}
	}
}

// look compares the model with what State shows.
func (m *readWriteModel) look(t *rapid.T) {
	s, err := m.lock.Reader.State(bg)
	n := len(m.java)
	for i := range m.owners {
		for _, h := range []readWriteHold{m.reads[i], m.writes[i]} {
			if h.held() {
				n++
			}
		}
	}
	if err != nil || len(s.Holders) != n || s.Locked() != (n > 0) {
		t.Fatalf("the state shows %+v, %v; want %d holders", s, err, n)
	}
}

func followsReadWriteModel(outer *testing.T, rdb redis.UniversalClient, c *rlock.Client, now func() time.Time, advance func(time.Duration), opts ...rlock.ReadWriteLockOption) {
	outer.Helper()
	modeltest.Check(outer, 100, func(t *rapid.T) {
		name := fmt.Sprintf("rwmodel:%d", modelRuns.Add(1))
		m := &readWriteModel{t: outer, name: name, lock: c.NewReadWriteLock(name, opts...), rdb: rdb, now: now, advance: advance, java: map[string]time.Time{}}
		for range 3 {
			m.owners = append(m.owners, rlock.WithOwner(bg))
		}
		m.reads, m.writes = make([]readWriteHold, 3), make([]readWriteHold, 3)
		t.Repeat(map[string]func(*rapid.T){
			"acquire":    m.acquire,
			"acquire ":   m.acquire, // more often than the rest
			"unlock":     m.unlock,
			"extend":     m.extend,
			"force":      m.force,
			"forceOne":   m.forceOne,
			"javaReads":  m.javaReads,
			"javaLeaves": m.javaLeaves,
			"pass":       m.pass,
			"look":       m.look,
			"":           m.check,
		})
		for _, holds := range [][]readWriteHold{m.reads, m.writes} {
			for _, h := range holds {
				for _, l := range h.leases {
					if err := l.Unlock(bg); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for who := range m.java {
			locktest.JavaReadLock{RDB: rdb, Name: name}.Release(who)
		}
		// Only the dead may be left of the lock; a writer sweeps them out.
		lease, err := m.lock.Writer.TryLock(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(bg); err != nil {
			t.Fatal(err)
		}
		if n := rdb.Exists(bg, name).Val(); n != 0 {
			t.Fatal("the lock is left")
		}
	})
}

func TestReadWriteLockFollowsItsModelAsTimePasses(t *testing.T) {
	t.Parallel()
	// The leases that are renewed are renewed each 20 minutes: few renewals for
	// the time that passes.
	s := rlocktest.New(t, rlock.WithWatchdogLease(time.Hour))
	followsReadWriteModel(t, s.Redis(), s.Client(), s.Now, s.Advance)
}

func TestReadWriteLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	followsReadWriteModel(t, rdb, locktest.NewClient(t, rdb), time.Now, nil)
	locktest.OnlyTombstones(t, rdb)
}
