package protocol

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

func verdict(t *testing.T, l Protocol, e *Acquire, v Verdict) Entered {
	t.Helper()
	got := must(t, l.Enter(e))
	if got.Verdict != v {
		t.Fatalf("%+v, want verdict %d", got, v)
	}
	return got
}

func under(id, outer string) *Acquire {
	e := entry(id)
	e.Outer = outer
	return e
}

// sidesOf are the two sides of each read-write lock.
func sidesOf(s *Site, n *Names) map[string][2]Reentrant {
	return map[string][2]Reentrant{
		"ReadWriteLock":     {NewReadSide(s, n, false), NewWriteSide(s, n, false)},
		"readers preferred": {NewReadSide(s, n, true), NewWriteSide(s, n, true)},
		"FairReadWriteLock": {NewFairReadSide(s, n), NewFairWriteSide(s, n)},
	}
}

func TestReadersAndWriters(t *testing.T) {
	for name := range sidesOf(nil, &Names{}) {
		t.Run(name, func(t *testing.T) {
			site, _, _ := mini(t)
			both := sidesOf(site, namesOf(t, "l"))[name]
			r, w := both[0], both[1]
			if r.View() != w.View() || r.View() == NewLock(site, namesOf(t, "l")).View() {
				t.Error("the two sides show the same, and no other type does")
			}
			if got := verdict(t, r, entry(redistest.HoldID("a:1")), Granted); got.Token != 0 {
				t.Errorf("%+v", got)
			}
			verdict(t, r, entry(redistest.HoldID("b:1")), Granted)
			if got := verdict(t, w, entry(redistest.HoldID("c:1")), Busy); got.Rest <= 0 || !got.Known || got.Others != 1 {
				t.Errorf("%+v", got)
			}
			want(t, r.Reenter(redistest.HoldID("a:1"), time.Minute, 2, false), Done)
			want(t, r.Probe(redistest.HoldID("a:1")), Probed{true, 2})
			want(t, w.Probe(redistest.HoldID("a:1")), Probed{})
			want(t, r.Release(redistest.HoldID("a:1"), 1), Done)
			want(t, r.Release(redistest.HoldID("a:1"), 0), Done)
			want(t, r.Release(redistest.HoldID("a:1"), 0), whileOthersRead(r))
			want(t, r.ForceUnlock(""), true)
			want(t, r.Renew(redistest.HoldID("b:1"), time.Minute), Removed)

			first := verdict(t, w, entry(redistest.HoldID("w:1")), Granted)
			if first.Token == 0 {
				t.Error("a writer without a token")
			}
			verdict(t, r, under(redistest.HoldID("w:1"), redistest.HoldID("w:1")), Granted)
			s := must(t, r.Inspect())
			if len(s.Holders) != 2 || s.Holders[0].HoldID != redistest.HoldID("w:1") || s.Holders[1].HoldID != redistest.HoldID("w:1") || s.Holders[0].Shared == s.Holders[1].Shared {
				t.Errorf("%+v", s)
			}
			want(t, w.Release(redistest.HoldID("w:1"), 0), Done)
			want(t, r.Probe(redistest.HoldID("w:1")), Probed{true, 1})
			want(t, r.Release(redistest.HoldID("w:1"), 0), Done)

			// The outer hold is lost: nobody has the lock, and then others have it.
			if got := verdict(t, r, under(redistest.HoldID("x:1"), redistest.HoldID("w:1")), OuterHoldLost); got.TakenOver {
				t.Errorf("%+v", got)
			}
			verdict(t, w, entry(redistest.HoldID("y:1")), Granted)
			if got := verdict(t, r, under(redistest.HoldID("x:1"), redistest.HoldID("w:1")), OuterHoldLost); !got.TakenOver {
				t.Errorf("%+v", got)
			}
			want(t, w.Reenter(redistest.HoldID("w:1"), time.Minute, 2, false), TakenOver)
			want(t, w.Abandon(redistest.HoldID("y:1"), true), Done)
			verdict(t, w, entry(redistest.HoldID("y:1")), Withdrawn)
			want(t, r.Abandon(redistest.HoldID("x:1"), true), Removed)
			verdict(t, r, entry(redistest.HoldID("x:1")), Withdrawn)
		})
	}
}

// whileOthersRead is the outcome for one who does not read while another does: readers of
// a lock with a queue of its own do not keep each other out.
func whileOthersRead(r Protocol) Kept {
	if _, ok := r.(*Queued); ok {
		return Removed
	}
	return TakenOver
}

func TestReaderLearnsOfTheRound(t *testing.T) {
	site, _, _ := mini(t)
	both := sidesOf(site, namesOf(t, "l"))["ReadWriteLock"]
	r, w := both[0], both[1]
	verdict(t, w, entry(redistest.HoldID("w:1")), Granted)
	e := entry(redistest.HoldID("r:1"))
	e.Wait, e.Leads = true, true
	if got := verdict(t, r, e, Busy); !got.HasRound || got.Round != 0 || got.Holder == "" {
		t.Errorf("%+v", got)
	}
	want(t, w.Release(redistest.HoldID("w:1"), 0), Done)
	writer := entry(redistest.HoldID("w:2"))
	if got := verdict(t, w, writer, Busy); got.Holder != "" || !got.Known || got.Rest <= 0 {
		t.Errorf("%+v: the lock is for the readers that waited", got)
	}
	e.Placed, e.Round = true, 0
	verdict(t, r, e, Granted)
}

func TestKeysInOtherUseAreLeftAlone(t *testing.T) {
	for what, seed := range map[string][]any{
		"text": {"set", "l", "text"}, "list": {"rpush", "l", "a"}, "hash": {"hset", "l", "user", "a"}, "JSON": {"hset", "l", theirs + ":7", `{"count":1}`},
	} {
		t.Run(what, func(t *testing.T) {
			site, _, rdb := mini(t)
			if err := rdb.Do(bg, seed...).Err(); err != nil {
				t.Fatal(err)
			}
			was := dump(t, rdb)
			for _, l := range protocols(site, namesOf(t, "l"))[:8] {
				for name, err := range map[string]error{
					"Enter": l.Enter(entry(redistest.HoldID("a:1"))).Do(bg, time.Second).Err, "Inspect": l.Inspect().Do(bg, time.Second).Err,
					"Probe": l.Probe("").Do(bg, time.Second).Err, "ForceUnlock": l.ForceUnlock("").Do(bg, time.Second).Err,
				} {
					if !errors.Is(err, wire.ErrForeignKey) {
						t.Errorf("%T.%s: %v", l, name, err)
					}
				}
			}
			if is := dump(t, rdb); is != was {
				t.Errorf("%s\nwas\n%s", is, was)
			}
		})
	}
}

func TestOtherTypesOfTheNameAreSeen(t *testing.T) {
	site, _, _ := mini(t)
	n := namesOf(t, "l")
	lock, priority, fair := NewLock(site, n), NewPriority(site, n, 0), NewFairWriteSide(site, n)
	verdict(t, lock, entry(redistest.HoldID("a:1")), Granted)
	verdict(t, priority, entry(redistest.HoldID("b:1")), OtherType)
	want(t, lock.Release(redistest.HoldID("a:1"), 0), Done)
	verdict(t, priority, entry(redistest.HoldID("b:1")), Granted)
	verdict(t, fair, entry(redistest.HoldID("c:1")), OtherType)
}

func TestFencedInspectShowsTheCounterOnlyForHoldsThatRaisedIt(t *testing.T) {
	site, _, _ := mini(t)
	n := namesOf(t, "l")
	lock, fenced := NewLock(site, n), NewFenced(site, n)
	id := fenced.NewID()
	if !strings.Contains(id.ID, ":-") || !strings.HasSuffix(id.ID, fmt.Sprint(":", id.Number)) {
		t.Errorf("%+v", id)
	}
	if got := verdict(t, fenced, entry(id.ID), Granted); got.Token != 1 {
		t.Errorf("%+v", got)
	}
	if s := must(t, fenced.Inspect()); s.Token != 1 {
		t.Errorf("%+v", s)
	}
	want(t, fenced.Release(id.ID, 0), Done)
	verdict(t, lock, entry(lock.NewID().ID), Granted)
	if s := must(t, fenced.Inspect()); s.Token != 0 || len(s.Holders) != 1 {
		t.Errorf("%+v: the holder has not raised the counter", s)
	}
	want(t, fenced.Counter(), int64(1))
}

func TestSeveralLocksByOneScript(t *testing.T) {
	site, _, _ := mini(t)
	a, b := NewLock(site, namesOf(t, "{x}a")), NewLock(site, namesOf(t, "{x}b"))
	y, other := NewLock(site, namesOf(t, "y")), func() *Site { site, _, _ := mini(t); return site }()
	if a.Slot() != b.Slot() || a.Slot() != y.Slot() || a.Slot() == NewLock(other, a.names).Slot() {
		t.Error("one script may use all keys of a server")
	}
	other.Wire.FoundSlots()
	if of := func(l *Lock) Slot { return NewLock(other, l.names).Slot() }; of(a) != of(b) || of(a) == of(y) {
		t.Error("in a cluster one script may use the keys of a slot")
	}
	both := []*Lock{a, b}
	if got := must(t, EnterAll(both, redistest.HoldID("i:1"), time.Minute)); got.Verdict != Granted || got.Token == 0 {
		t.Fatalf("%+v", got)
	}
	if got := must(t, EnterAll(both, redistest.HoldID("j:1"), time.Minute)); got.Verdict != Busy || got.Holder != redistest.HoldID("i:1") {
		t.Fatalf("%+v", got)
	}
	want(t, b.Release(redistest.HoldID("i:1"), 0), Done)
	if got := must(t, EnterAll(both, redistest.HoldID("i:1"), time.Minute)); got.Verdict != Withdrawn {
		t.Fatalf("a late copy: %+v", got)
	}
	verdict(t, b, entry(redistest.HoldID("k:1")), Granted)
	kept := must(t, ReleaseAll([]Leaving{{a, redistest.HoldID("i:1"), true}, {b, redistest.HoldID("i:1"), true}, {NewLock(site, namesOf(t, "{x}c")), redistest.HoldID("i:1"), false}}))
	if !reflect.DeepEqual(kept, []Kept{Done, TakenOver, Removed}) {
		t.Error(kept)
	}
	verdict(t, a, entry(redistest.HoldID("i:1")), Withdrawn)
	if kept := must(t, ReleaseAll([]Leaving{{b, redistest.HoldID("k:1"), false}})); !reflect.DeepEqual(kept, []Kept{Done}) {
		t.Error(kept)
	}
}

func TestNewServerIsInQuarantine(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	rdb := redistest.Start(t).Client()
	site := siteOn(t, rdb)
	site.Quarantine = time.Hour
	n := namesOf(t, "l")
	entering := []Request[Entered]{EnterAll([]*Lock{NewLock(site, n)}, redistest.HoldID("a:1"), time.Minute)}
	for _, l := range protocols(site, n) {
		entering = append(entering, l.Enter(entry(redistest.HoldID("a:1"))))
	}
	for _, r := range entering {
		if got := must(t, r); got.Verdict != Quarantined || got.Rest <= 59*time.Minute || got.Rest > time.Hour {
			t.Errorf("%s: %+v", of(r).Name(), got)
		}
	}
	want(t, site.Serve(), true)
	for i, l := range protocols(site, n) {
		id := l.NewID().ID
		if c, ok := l.(PermitCounter); ok {
			rdb.Del(bg, n.Lock, n.Derived("rlock:permits"))
			want(t, c.Change(Op{&Page{ID: "client:1"}, int64(i) + 1}, TrySetPermits, Takes(l)), true)
		}
		verdict(t, l, entry(id), Granted)
		want(t, l.Release(id, 0), Done)
		if i == 0 {
			want(t, site.Serve(), true)
		}
	}
	rdb.HSet(bg, servedKey, "run_id", "another")
	verdict(t, NewLock(site, n), entry(redistest.HoldID("b:1")), Quarantined)
	want(t, site.Serve(), false)
}

func TestTooFewReplicas(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	site := siteOn(t, redistest.Start(t).Client(), func(cfg *wire.Config) { cfg.Acks, cfg.AckTimeout = 1, 10*time.Millisecond })
	for _, l := range protocols(site, namesOf(t, "l"))[:4] {
		id := l.NewID().ID
		for name, few := range map[string]bool{
			"Enter":   l.Enter(entry(id)).Do(bg, time.Second).TooFew != nil,
			"Renew":   l.Renew(id, time.Minute).Do(bg, time.Second).TooFew != nil,
			"confirm": l.(Reentrant).Reenter(id, time.Minute, 2, true).Do(bg, time.Second).TooFew != nil,
		} {
			if !few {
				t.Errorf("%T: %s was confirmed by nobody", l, name)
			}
		}
		if r := l.Renew(id, 0).Do(bg, time.Second); r.TooFew != nil || r.Err != nil {
			t.Errorf("a look: %+v", r)
		}
		if r := l.Release(id, 0).Do(bg, time.Second); r.TooFew != nil || r.Err != nil {
			t.Errorf("a release: %+v", r)
		}
	}
}

func TestNamesOfOneSlot(t *testing.T) {
	for _, name := range []string{"", "a{b", "{}z", strings.Repeat("x", MaxNameLength+1)} {
		if err := new(Names).Derive(name); err == nil {
			t.Errorf("%.20q was accepted", name)
		}
	}
	for _, name := range []string{"order:7", "{t}x", "x{t}"} {
		n := namesOf(t, name)
		for _, key := range []string{n.Channel(), NewFencingClock("").ofSlot(n.slot()), NewFencingClock("app:").ofSlot(n.slot()), n.Tombstone("a"), n.Derived("x")} {
			if wire.Slot(key) != wire.Slot(name) {
				t.Errorf("%q of %q is in another slot", key, name)
			}
		}
	}
}

func TestGlance(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	rdb := redistest.Start(t).Client()
	site := siteOn(t, rdb)
	var locks []*HashLock
	for i := range wire.BatchSize + 5 {
		name := fmt.Sprint("lock ", i)
		l := NewLock(site, namesOf(t, name))
		locks = append(locks, l.Glanced())
		if i > 0 {
			verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
		}
	}
	rdb.Persist(bg, "lock 1")
	rdb.Del(bg, "lock 2")
	rdb.HSet(bg, "lock 2", "not a", "lock")
	glance := func() (outcomes []Entered, failed int) {
		outcomes = make([]Entered, len(locks))
		round := site.Wire.NewRound(1)
		Glance(locks, round, func(which []int, some []Entered, err error) {
			for j, i := range which {
				if err != nil {
					failed++
				} else {
					outcomes[i] = some[j]
				}
			}
		})
		round.Send(func(redis.UniversalClient, []wire.Answer) {})
		return outcomes, failed
	}
	outcomes, failed := glance()
	if failed > 0 {
		t.Fatalf("%d failed", failed)
	}
	for i, e := range outcomes {
		switch free := i == 0 || i == 2; {
		case free && e.Verdict != 0:
			t.Errorf("%d: %+v", i, e)
		case !free && (e.Verdict != Busy || e.Holder != redistest.HoldID("a:1") || (e.Rest < 0) != (i == 1)):
			t.Errorf("%d: %+v", i, e)
		}
	}
	rdb.Set(bg, "lock 104", "another type", 0)
	if _, failed := glance(); failed != 5 {
		t.Errorf("%d failed, want those of the second request", failed)
	}
}

// Renewals that are due together are one command for a hundred holds. Each has its own
// answer, and one that the server refuses costs the others nothing.
func TestRenewalsAreSentTogether(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *redis.Client{
		"standalone": func(t *testing.T) *redis.Client { return redistest.Start(t).Client() },
		"miniredis": func(t *testing.T) *redis.Client {
			_, _, rdb := mini(t)
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := open(t)
			site := siteOn(t, rdb)
			const n = wire.RoundSize + 5
			var locks []*Lock
			for i := range n {
				locks = append(locks, NewLock(site, namesOf(t, fmt.Sprint("lock ", i))))
				verdict(t, locks[i], entry(redistest.HoldID("a:1")), Granted)
			}
			rdb.Del(bg, "lock 1")
			rdb.HDel(bg, "lock 2", redistest.HoldID("a:1"))
			rdb.HSet(bg, "lock 2", redistest.HoldID("b:1"), 1)
			rdb.Del(bg, "lock 3")
			rdb.Set(bg, "lock 3", "another type", 0)
			commands := &names{}
			rdb.AddHook(commands)
			renew := func() (all [n]Result[Kept]) {
				round := site.Wire.NewRound(n)
				for i, l := range locks {
					l.Renew(redistest.HoldID("a:1"), 2*time.Minute).Send(Dispatch{Round: round, Recipient: recipient(func(r Result[Kept]) { all[i] = r })})
				}
				round.Send(func(redis.UniversalClient, []wire.Answer) {})
				return all
			}
			for turn := range 2 {
				commands.all = nil
				for i, r := range renew() {
					want := map[int]Kept{1: Removed, 2: TakenOver, 3: Overwritten}[i]
					if r.Err != nil || r.Outcome != want {
						t.Errorf("%d: %+v", i, r)
					}
					if left := rdb.PTTL(bg, locks[i].names.Lock).Val(); want == Done && left <= time.Minute {
						t.Errorf("%d: %v left", i, left)
					}
				}
				// Two batches, and by itself the one that was refused. The first time each
				// script is unknown; miniredis never learns one that fails.
				scripts := slices.DeleteFunc(commands.all, func(name string) bool { return !strings.HasPrefix(name, "eval") })
				if turn > 0 && len(scripts) != 3 && !(name == "miniredis" && len(scripts) == 4) {
					t.Errorf("%d commands: %q", len(scripts), scripts)
				}
			}
		})
	}
}

// recipient is called with the outcome of a task.
type recipient func(r Result[Kept])

func (recipient) GoesOn() bool                        { return true }
func (fn recipient) Done(_ time.Time, r Result[Kept]) { fn(r) }

// together sends requests in one round, and returns their results.
func together[T any](site *Site, all []Request[T]) []Result[T] {
	results := make([]Result[T], len(all))
	round := site.Wire.NewRound(len(all))
	for i, r := range all {
		read := r.(interface{ result(wire.Answer) Result[T] })
		round.Add(of(r), func(_ time.Time, a wire.Answer) { results[i] = read.result(a) })
	}
	round.Send(func(redis.UniversalClient, []wire.Answer) {})
	return results
}

// Acquires and releases that are sent together: each has its own answer, which is the same as
// by itself.
func TestLocksAreTakenAndReleasedTogether(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *redis.Client{
		"standalone": func(t *testing.T) *redis.Client { return redistest.Start(t).Client() },
		"miniredis": func(t *testing.T) *redis.Client {
			_, _, rdb := mini(t)
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := open(t)
			site := siteOn(t, rdb)
			lock := func(name string) *Lock { return NewLock(site, namesOf(t, name)) }
			free, held, mine, over, foreign, strange := lock("free"), lock("held"), lock("mine"), lock("over"), lock("foreign"), lock("strange")
			counted := NewFenced(site, namesOf(t, "counted"))
			verdict(t, held, entry(redistest.HoldID("b:1")), Granted)
			first := verdict(t, mine, entry(redistest.HoldID("a:3")), Granted)
			must(t, over.Abandon(redistest.HoldID("a:4"), true))
			rdb.Set(bg, "foreign", "another type", 0)
			rdb.HSet(bg, "strange", "not a", "lock")
			more := entry(redistest.HoldID("a:8"))
			more.Reserve = 64
			batch := lock("batch")
			enters := []Request[Entered]{
				free.Enter(entry(redistest.HoldID("a:1"))), held.Enter(entry(redistest.HoldID("a:2"))), mine.Enter(entry(redistest.HoldID("a:3"))), over.Enter(entry(redistest.HoldID("a:4"))),
				foreign.Enter(entry(redistest.HoldID("a:5"))), strange.Enter(entry(redistest.HoldID("a:6"))), counted.Enter(entry(redistest.HoldID("a:-7"))), batch.Enter(more),
			}
			for turn := range 2 { // the second time with scripts that the server knows
				got := together(site, enters)
				for i, want := range []Verdict{Granted, Busy, Granted, Withdrawn, 0, 0, Granted, Granted} {
					switch r := got[i]; {
					case want == 0 && r.Err == nil, want != 0 && (r.Err != nil || r.Outcome.Verdict != want):
						t.Errorf("%d: %+v, want verdict %d", i, r, want)
					case want == Granted && r.Outcome.Token <= 0, i == 2 && r.Outcome.Token <= first.Token:
						t.Errorf("%d: token %d", i, r.Outcome.Token)
					case i == 1 && (r.Outcome.Holder != redistest.HoldID("b:1") || r.Outcome.Rest <= 0):
						t.Errorf("%d: %+v", i, r.Outcome)
					case i == 7 && turn == 0 && (r.Outcome.Reserved > 64 || r.Outcome.Token+r.Outcome.Reserved <= 0):
						t.Errorf("%d: %+v", i, r.Outcome)
					}
				}
			}
			if n := rdb.HGet(bg, "free", redistest.HoldID("a:1")).Val(); n != "1" || rdb.PTTL(bg, "free").Val() <= 0 {
				t.Errorf("free: %q entries, %v left", n, rdb.PTTL(bg, "free").Val())
			}

			heard := rdb.Subscribe(bg, mine.names.Channel())
			defer heard.Close()
			if _, err := heard.Receive(bg); err != nil {
				t.Fatal(err)
			}
			must(t, batch.Reenter(redistest.HoldID("a:8"), time.Minute, 3, true))
			releases := []Request[Kept]{
				free.Release(redistest.HoldID("a:1"), 0), held.Release(redistest.HoldID("a:2"), 0), mine.Release(redistest.HoldID("a:3"), 0), over.Release(redistest.HoldID("a:4"), 0),
				foreign.Release(redistest.HoldID("a:5"), 0), counted.Release(redistest.HoldID("a:-7"), 0), batch.Release(redistest.HoldID("a:8"), 1),
			}
			for turn := range 2 {
				got := together(site, releases)
				for i, want := range []Kept{Done, TakenOver, Done, Removed, Overwritten, Done, Done} {
					if turn > 0 && (i == 0 || i == 2 || i == 5) {
						want = Removed
					}
					if r := got[i]; r.Err != nil || r.Outcome != want {
						t.Errorf("%d: %+v, want %v", i, r, want)
					}
					if listen := got[i].Receivers; listen > 0 != (i == 2 && turn == 0) {
						t.Errorf("%d: %d listened", i, listen)
					}
				}
			}
			if n := rdb.HGet(bg, "batch", redistest.HoldID("a:8")).Val(); n != "1" {
				t.Errorf("batch: %q entries", n)
			}
			if m, err := heard.ReceiveTimeout(bg, 5*time.Second); err != nil {
				t.Errorf("%v, %v", m, err)
			}
			// By itself too.
			verdict(t, mine, entry(redistest.HoldID("a:9")), Granted)
			if r := mine.Release(redistest.HoldID("a:9"), 0).Do(bg, 5*time.Second); r.Err != nil || r.Receivers != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A node of a cluster runs no script for keys of several slots, if it is a client's only
// one: each hold is renewed by itself then.
func TestRenewalsThatCannotBeSentTogetherAreSentOneByOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := s.Client()
	if err := rdb.ClusterAddSlotsRange(bg, 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	site := siteOn(t, rdb)
	var locks []*Lock
	for i := range 5 {
		locks = append(locks, NewLock(site, namesOf(t, fmt.Sprint("lock ", i))))
		e := entry(redistest.HoldID("a:1"))
		for r := locks[i].Enter(e).Do(bg, 5*time.Second); r.Err != nil; r = locks[i].Enter(e).Do(bg, 5*time.Second) {
			time.Sleep(10 * time.Millisecond) // the cluster is not up yet
		}
	}
	round := site.Wire.NewRound(len(locks))
	for i, l := range locks {
		l.Renew(redistest.HoldID("a:1"), 2*time.Minute).Send(Dispatch{Round: round, Recipient: recipient(func(r Result[Kept]) {
			if r.Err != nil || r.Outcome != Done {
				t.Errorf("%d: %+v", i, r)
			}
		})})
	}
	round.Send(func(redis.UniversalClient, []wire.Answer) {})
	for _, l := range locks {
		if left := rdb.PTTL(bg, l.names.Lock).Val(); left <= time.Minute {
			t.Errorf("%s: %v left", l.names.Lock, left)
		}
	}
}

// names notes the names of commands.
type names struct {
	mu  sync.Mutex // guards all: pipelines of a round to a slow server go side by side
	all []string
}

func (*names) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *names) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(cmd)
		return next(ctx, cmd)
	}
}

func (h *names) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(cmds...)
		return next(ctx, cmds)
	}
}

func (h *names) note(cmds ...redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range cmds {
		h.all = append(h.all, cmd.Name())
	}
}
