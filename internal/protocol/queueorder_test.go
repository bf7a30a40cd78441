package protocol

import (
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// ordered are the types whose exclusive waiters Redis keeps in order.
var ordered = map[string]func(s *Site, n *Names) Reentrant{
	"FairLock":       func(s *Site, n *Names) Reentrant { return NewFair(s, n) },
	"PriorityLock":   func(s *Site, n *Names) Reentrant { return NewPriority(s, n, 0) },
	"fair WriteLock": func(s *Site, n *Names) Reentrant { return NewFairWriteSide(s, n) },
}

func eachOrdered(t *testing.T, scenario func(t *testing.T, site *Site, n *Names, l Reentrant)) {
	for name, open := range ordered {
		t.Run(name, func(t *testing.T) {
			site, _, _ := mini(t)
			names := namesOf(t, "l")
			scenario(t, site, names, open(site, names))
		})
	}
}

// waits lets waiters join the queue, one after the other, or give a sign of life there.
func waits(t *testing.T, l Protocol, ids ...string) {
	t.Helper()
	for _, id := range ids {
		verdict(t, l, waiting(id), Busy)
	}
}

func waiting(id string) *Acquire {
	e := entry(id)
	e.Wait = true
	return e
}

// holds checks who holds a lock, or that nobody does, and how many wait.
func holds(t *testing.T, l Protocol, id string, waiters int) {
	t.Helper()
	s := must(t, l.Inspect())
	switch {
	case s.Waiters != waiters, len(s.Holders) > 1, (id == "") != (len(s.Holders) == 0):
	case id == "" || s.Holders[0] == Holder{HoldID: id, Count: 1}:
		return
	}
	t.Fatalf("%+v; want %q, and %d waiters", s, id, waiters)
}

// A release makes nobody the holder. The next waiter takes the lock by its own request, for its own lease, and no other
// waiter can.
func TestReleaseLeavesTheLockToTheNextWaiter(t *testing.T) {
	eachOrdered(t, func(t *testing.T, site *Site, _ *Names, l Reentrant) {
		a := entry(redistest.HoldID("a:1"))
		a.Lease = time.Hour
		first := verdict(t, l, a, Granted)
		waits(t, l, redistest.HoldID("a:2"), redistest.HoldID("b:1"), redistest.HoldID("a:3"))
		want(t, l.Release(redistest.HoldID("a:1"), 0), Done)
		holds(t, l, "", 3)
		waits(t, l, redistest.HoldID("a:3"), redistest.HoldID("b:1"))
		verdict(t, l, entry(redistest.HoldID("c:1")), Busy) // a TryLock of somebody else
		next := verdict(t, l, waiting(redistest.HoldID("a:2")), Granted)
		if next.Token <= first.Token {
			t.Errorf("token %d after %d", next.Token, first.Token)
		}
		holds(t, l, redistest.HoldID("a:2"), 2)
		if s := must(t, l.Inspect()); s.TTL <= 0 || s.TTL > time.Minute {
			t.Errorf("TTL %v: the lease is that of the hold before", s.TTL)
		}
		// A copy of the release, and one of the request.
		want(t, l.Release(redistest.HoldID("a:1"), 0), TakenOver)
		if again := verdict(t, l, waiting(redistest.HoldID("a:2")), Granted); again.Token < next.Token {
			t.Errorf("token %d, and then %d", next.Token, again.Token)
		}
		holds(t, l, redistest.HoldID("a:2"), 2)
		want(t, l.Reenter(redistest.HoldID("a:2"), time.Minute, 2, false), Done)
		want(t, l.Release(redistest.HoldID("a:2"), 1), Done)
		want(t, l.Renew(redistest.HoldID("a:2"), time.Minute), Done)
		want(t, l.Release(redistest.HoldID("a:2"), 0), Done)
		waits(t, l, redistest.HoldID("a:3"))
		verdict(t, l, waiting(redistest.HoldID("b:1")), Granted)
		want(t, l.Release(redistest.HoldID("b:1"), 0), Done)
		verdict(t, l, waiting(redistest.HoldID("a:3")), Granted)
		// Late copies.
		want(t, l.Release(redistest.HoldID("a:1"), 0), TakenOver)
		want(t, l.Release(redistest.HoldID("a:2"), 0), TakenOver)
		holds(t, l, redistest.HoldID("a:3"), 0)
		want(t, l.Release(redistest.HoldID("a:3"), 0), Done)
		want(t, l.Release(redistest.HoldID("a:1"), 0), Removed)
		holds(t, l, "", 0)
	})
}

// Who has left is passed over, and gets nothing by a late copy of its request.
func TestReleasePassesOverAWaiterThatHasLeft(t *testing.T) {
	eachOrdered(t, func(t *testing.T, site *Site, names *Names, l Reentrant) {
		verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
		waits(t, l, redistest.HoldID("a:2"), redistest.HoldID("b:1"))
		want(t, l.Abandon(redistest.HoldID("a:2"), true), TakenOver)
		want(t, l.Release(redistest.HoldID("a:1"), 0), Done)
		verdict(t, l, waiting(redistest.HoldID("a:2")), Withdrawn)
		holds(t, l, "", 1)
		verdict(t, l, waiting(redistest.HoldID("b:1")), Granted)
		// One that leaves when it has the lock.
		waits(t, l, redistest.HoldID("b:2"))
		want(t, l.Abandon(redistest.HoldID("b:1"), false), Done)
		verdict(t, l, waiting(redistest.HoldID("b:2")), Granted)
		want(t, l.Release(redistest.HoldID("b:2"), 0), Done)
		holds(t, l, "", 0)

		// Not for one who has left for good, though the data say that it waits.
		verdict(t, l, entry(redistest.HoldID("a:4")), Granted)
		waits(t, l, redistest.HoldID("a:5"))
		if err := site.Wire.IO().Set(bg, names.Tombstone(redistest.HoldID("a:5")), 1, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		want(t, l.Release(redistest.HoldID("a:4"), 0), Done)
		verdict(t, l, waiting(redistest.HoldID("a:5")), Withdrawn)
		holds(t, l, "", 1)
	})
}

// A release of a hold that is not there leaves the lock as it is.
func TestOnlyTheReleaseOfTheHolderFreesTheLock(t *testing.T) {
	eachOrdered(t, func(t *testing.T, site *Site, names *Names, l Reentrant) {
		verdict(t, l, entry(redistest.HoldID("b:1")), Granted)
		waits(t, l, redistest.HoldID("a:2"))
		want(t, l.Release(redistest.HoldID("a:1"), 0), TakenOver)
		holds(t, l, redistest.HoldID("b:1"), 1)
		want(t, l.ForceUnlock(""), true)
		want(t, l.Release(redistest.HoldID("a:1"), 0), Removed)
		holds(t, l, "", 1)
		verdict(t, l, waiting(redistest.HoldID("a:2")), Granted)
	})
}

// Where an order among clients is promised, Redis says who comes next: a Lock promises none.
func TestOnlyALockIsHandedOver(t *testing.T) {
	site, _, _ := mini(t)
	for _, l := range protocols(site, namesOf(t, "l")) {
		if _, is := l.(*Lock); Is[HandedOver](l) != is {
			t.Errorf("%T: handed over: %v", l, Is[HandedOver](l))
		}
	}
}

func TestReadersAndWritersTakeTheLockInTheirOrder(t *testing.T) {
	site, _, _ := mini(t)
	names := namesOf(t, "l")
	r, w := NewFairReadSide(site, names), NewFairWriteSide(site, names)
	verdict(t, w, entry(redistest.HoldID("a:1")), Granted)
	waits(t, r, redistest.HoldID("a:2"))
	waits(t, w, redistest.HoldID("a:3"))
	waits(t, r, redistest.HoldID("a:4"))
	want(t, w.Release(redistest.HoldID("a:1"), 0), Done)
	waits(t, w, redistest.HoldID("a:3")) // a reader goes first
	waits(t, r, redistest.HoldID("a:4")) // and another is behind the writer
	verdict(t, r, waiting(redistest.HoldID("a:2")), Granted)
	waits(t, w, redistest.HoldID("a:3"))
	want(t, r.Release(redistest.HoldID("a:2"), 0), Done)
	verdict(t, w, waiting(redistest.HoldID("a:3")), Granted)
	waits(t, w, redistest.HoldID("a:5"))
	want(t, w.Release(redistest.HoldID("a:3"), 0), Done)
	waits(t, w, redistest.HoldID("a:5"))
	verdict(t, r, waiting(redistest.HoldID("a:4")), Granted)
	want(t, r.Release(redistest.HoldID("a:4"), 0), Done)

	// The writer reads on; the writer behind it waits.
	verdict(t, w, waiting(redistest.HoldID("a:5")), Granted)
	verdict(t, r, under(redistest.HoldID("a:5"), redistest.HoldID("a:5")), Granted)
	waits(t, w, redistest.HoldID("a:6"))
	want(t, w.Release(redistest.HoldID("a:5"), 0), Done)
	waits(t, w, redistest.HoldID("a:6"))
	want(t, r.Release(redistest.HoldID("a:5"), 0), Done)
	verdict(t, w, waiting(redistest.HoldID("a:6")), Granted)
	waits(t, w, redistest.HoldID("a:7"))
	waits(t, r, redistest.HoldID("a:8"))
	want(t, w.Release(redistest.HoldID("a:6"), 0), Done)
	waits(t, r, redistest.HoldID("a:8"))
	verdict(t, w, waiting(redistest.HoldID("a:7")), Granted)
}

func TestWaiterDoesNotTakeTheLockWhileAnotherTypeHoldsTheName(t *testing.T) {
	for name, open := range ordered {
		for other := range ordered {
			switch {
			case name == "FairLock": // has the hash of the others, and does not look at their keys
				continue
			case other == name:
				continue
			case other == "FairLock":
				other = "Lock"
			}
			t.Run(name+" beside "+other, func(t *testing.T) {
				site, _, _ := mini(t)
				names := namesOf(t, "l")
				l, rival := open(site, names), Protocol(NewLock(site, names))
				verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
				waits(t, l, redistest.HoldID("a:2"))
				if other == "Lock" {
					verdict(t, rival, entry(redistest.HoldID("b:1")), Granted) // does not look here
				} else {
					rival = ordered[other](site, namesOf(t, "l"))
					end := float64(time.Now().Add(time.Minute).UnixMilli())
					if err := site.Wire.IO().Do(bg, "zadd", rival.(*Queued).stateKeys[1], end, "exclusive").Err(); err != nil {
						t.Fatal(err)
					}
				}
				want(t, l.Release(redistest.HoldID("a:1"), 0), Done)
				verdict(t, l, waiting(redistest.HoldID("a:2")), OtherType)
			})
		}
	}
}

func TestMoreUrgentWaiterTakesTheLockFirst(t *testing.T) {
	site, _, _ := mini(t)
	l := NewPriority(site, namesOf(t, "l"), 0)
	verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
	waits(t, l, redistest.HoldID("a:2"))
	urgent := waiting(redistest.HoldID("a:3"))
	urgent.Priority = 10
	verdict(t, l, urgent, Busy)
	want(t, l.Release(redistest.HoldID("a:1"), 0), Done)
	waits(t, l, redistest.HoldID("a:2"))
	verdict(t, l, urgent, Granted)
}

// Nobody takes the lock over data that somebody has put into the hash of the name.
func TestNobodyTakesALockOverData(t *testing.T) {
	eachOrdered(t, func(t *testing.T, site *Site, n *Names, l Reentrant) {
		a, b := redistest.HoldID("a:1"), redistest.HoldID("b:1")
		verdict(t, l, entry(a), Granted)
		waits(t, l, b)
		put := newRequest(site, "data", []string{n.Lock}, nil, readBool)
		put.r.Script = wire.NewScript("data", func() (string, bool) { return "return redis.call('hset', KEYS[1], 'product:12', '3')", false })
		want(t, Request[bool](put), true)
		want(t, l.Release(a, 0), Done)
		r := l.Enter(waiting(b)).Do(bg, 5*time.Second)
		if _, hash := l.(*Fair); hash && !errors.Is(r.Err, wire.ErrForeignKey) || !hash && r.Outcome.Verdict != OtherType {
			t.Errorf("%+v", r)
		}
		if fields := site.Wire.IO().HGetAll(bg, n.Lock).Val(); len(fields) != 1 || fields["product:12"] != "3" {
			t.Errorf("%v", fields)
		}
	})
}

// A copy of the request that has taken the lock gets the same answer, also of a server at its memory limit.
func TestCopyOfAGrantAtTheMemoryLimit(t *testing.T) {
	redistest.Need(t)
	for name, open := range ordered {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client()
			l := open(siteOn(t, rdb), namesOf(t, "l"))
			verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
			waits(t, l, redistest.HoldID("a:2"))
			want(t, l.Release(redistest.HoldID("a:1"), 0), Done)
			verdict(t, l, waiting(redistest.HoldID("a:2")), Granted)
			if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			verdict(t, l, waiting(redistest.HoldID("a:2")), Granted)
			want(t, l.Release(redistest.HoldID("a:2"), 0), Done)
		})
	}
}
