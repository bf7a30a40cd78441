package protocol

import (
	"slices"
	"strings"
	"time"
)

// Kind has the constants of a type; of a read-write lock, of one of its sides.
type Kind struct {
	ID     string // part of the handle of an Adoptable hold, so it must never change
	Type   string // as in an Event
	Family string // see LockID; empty for a RedLock, where each set of servers is a family
	Side   Side
	Sides  bool // the Kind is one of two sides
	// Beside is the suffix of the lock's name in the key that has its holds; empty if the name is the key.
	Beside string
	// Excludes: the lock is not granted while a lock of another type with the name is held, and the other types
	// check its keys.
	Excludes bool
	// Adoptable: the protocol implements Adoptable.
	Adoptable bool
	Heading   string // heading of its user in docs/acl.md; empty if it is Type
	// Open returns a protocol to inspect a lock or adopt a hold, with default settings: they make no difference to that.
	Open func(site *Site, names *Names) Protocol
}

// Kinds has each type that has holds.
var Kinds = []*Kind{
	{ID: "lock", Adoptable: true, Type: "Lock", Family: HashFamily, Open: func(s *Site, n *Names) Protocol { return NewLock(s, n) }},
	{ID: "fair", Adoptable: true, Type: "FairLock", Family: HashFamily, Open: func(s *Site, n *Names) Protocol { return NewFair(s, n) }},
	{ID: "fenced", Adoptable: true, Type: "FencedLock", Family: HashFamily, Open: func(s *Site, n *Names) Protocol { return NewFenced(s, n) }},
	{ID: "spin", Adoptable: true, Type: "SpinLock", Family: HashFamily, Open: func(s *Site, n *Names) Protocol { return NewSpin(s, n, nil) }},
	{ID: "write", Adoptable: true, Type: "ReadWriteLock", Family: RWFamily, Sides: true, Excludes: true,
		Open: func(s *Site, n *Names) Protocol { return NewWriteSide(s, n, false) }},
	{ID: "read", Adoptable: true, Type: "ReadWriteLock", Family: RWFamily, Side: Shared, Sides: true, Excludes: true,
		Open: func(s *Site, n *Names) Protocol { return NewReadSide(s, n, false) }},
	{ID: "fairwrite", Adoptable: true, Type: "FairReadWriteLock", Family: FairRWFamily, Sides: true, Excludes: true, Beside: fairReadWriteLock,
		Open: func(s *Site, n *Names) Protocol { return NewFairWriteSide(s, n) }},
	{ID: "fairread", Adoptable: true, Type: "FairReadWriteLock", Family: FairRWFamily, Side: Shared, Sides: true, Excludes: true, Beside: fairReadWriteLock,
		Open: func(s *Site, n *Names) Protocol { return NewFairReadSide(s, n) }},
	{ID: "priority", Adoptable: true, Type: "PriorityLock", Family: PriorityFamily, Excludes: true, Beside: priorityLock,
		Open: func(s *Site, n *Names) Protocol { return NewPriority(s, n, 0) }},
	{ID: "election", Type: "Election", Family: ElectionFamily, Beside: "rlock:election",
		Open: func(s *Site, n *Names) Protocol { return NewElection(s, n) }},
	{ID: "once", Type: "Once", Family: OnceFamily, Beside: "rlock:once",
		Open: func(s *Site, n *Names) Protocol { return NewOnce(s, n, time.Second) }},
	{ID: "tick", Type: "CronJob", Family: CronFamily, Beside: "rlock:cron", // and the tick
		Open: func(s *Site, n *Names) Protocol { return NewCron(s, n, 0, 0, false, "").At(0) }},
	{ID: "places", Type: "DoubleBarrier", Family: DoubleFamily, Beside: "rlock:double",
		Open: func(s *Site, n *Names) Protocol { return NewPlaces(s, n, 1) }},
	{ID: "permits", Type: "PermitSemaphore", Family: PermitsFamily, Beside: "timeout",
		Open: func(s *Site, n *Names) Protocol { return NewPermits(s, n, 0) }},
	{ID: "fairpermits", Type: "PermitSemaphore", Family: FairPermitsFamily, Beside: "rlock:permits", Heading: "PermitSemaphore with WithFairness",
		Open: func(s *Site, n *Names) Protocol { return NewFairPermits(s, n, 0) }},
	{ID: "red", Type: "RedLock", Beside: "rlock:red"},
}

// HasTokens reports whether each hold has a fencing token: a shared one and permits have none.
func (k *Kind) HasTokens() bool {
	return k.Side != Shared && k.Family != PermitsFamily && k.Family != FairPermitsFamily
}

// KindNamed returns the Kind with an ID, or nil.
func KindNamed(id string) *Kind { return kindsByID[id] }

var kindsByID = func() map[string]*Kind {
	all := map[string]*Kind{}
	for _, k := range Kinds {
		all[k.ID] = k
	}
	return all
}()

// counters has the types without holds, by family.
var counters = map[string]string{SemaphoreFamily: "Semaphore", LatchFamily: "CountDownLatch", BarrierFamily: "Barrier"}

// CounterType returns the type of a family without holds.
func CounterType(family string) string { return counters[family] }

// Excludes reports whether types of a family are not granted while another type has the name.
func Excludes(family string) bool {
	return slices.ContainsFunc(Kinds, func(k *Kind) bool { return k.Family == family && k.Excludes })
}

// kindOfKey returns the kind whose holds are in a key with the suffix what after the name of the lock, or nil. For a
// CronJob it also returns the tick in the suffix.
func kindOfKey(what string) (k *Kind, tick string) {
	if rest, is := strings.CutPrefix(what, "rlock:cron:"); is {
		return kindsByID["tick"], rest
	}
	for _, k := range Kinds {
		if k.Beside == what && k.Beside != "" && k.ID != "tick" {
			return k, ""
		}
	}
	return nil, ""
}

// Kind implements Protocol.
func (l *Lock) Kind() *Kind        { return kindsByID["lock"] }
func (l *Fair) Kind() *Kind        { return kindsByID["fair"] }
func (l *Fenced) Kind() *Kind      { return kindsByID["fenced"] }
func (l *Spin) Kind() *Kind        { return kindsByID["spin"] }
func (l *WriteSide) Kind() *Kind   { return kindsByID["write"] }
func (l *ReadSide) Kind() *Kind    { return kindsByID["read"] }
func (q *Queued) Kind() *Kind      { return kindsByID[q.kind] }
func (o *Once) Kind() *Kind        { return kindsByID["once"] }
func (t *Tick) Kind() *Kind        { return kindsByID["tick"] }
func (p *Places) Kind() *Kind      { return kindsByID["places"] }
func (p *Permits) Kind() *Kind     { return kindsByID["permits"] }
func (p *FairPermits) Kind() *Kind { return kindsByID["fairpermits"] }
