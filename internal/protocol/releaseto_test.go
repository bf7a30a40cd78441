package protocol

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// passing are the types whose holds can be released to a waiter.
var passing = map[string]func(s *Site, n *Names) passer{
	"FairLock":       func(s *Site, n *Names) passer { return NewFair(s, n) },
	"PriorityLock":   func(s *Site, n *Names) passer { return NewPriority(s, n, 0) },
	"fair WriteLock": func(s *Site, n *Names) passer { return NewFairWriteSide(s, n) },
}

// passer is a protocol whose release can make a waiter of its client the holder.
type passer interface {
	Protocol
	Succession
}

func eachPassing(t *testing.T, scenario func(t *testing.T, site *Site, n *Names, l passer)) {
	for name, open := range passing {
		t.Run(name, func(t *testing.T) {
			site, _, _ := mini(t)
			names := namesOf(t, "l")
			scenario(t, site, names, open(site, names))
		})
	}
}

// waits lets waiters join the queue, one after the other, and returns the last one's reply.
func waits(t *testing.T, l Protocol, ids ...string) (last Entered) {
	t.Helper()
	for _, id := range ids {
		e := entry(id)
		e.Wait = true
		last = verdict(t, l, e, Busy)
	}
	return last
}

func to(id string) Successor { return Successor{id, time.Minute} }

// released checks the outcome of a request, and whether it has made its waiter the holder.
func released(t *testing.T, r Request[Released], kept Kept, granted bool) Released {
	t.Helper()
	got := must(t, r)
	if got.Kept != kept || got.Token != 0 != granted {
		t.Fatalf("%+v, want %v, granted: %v", got, kept, granted)
	}
	return got
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

func TestReleaseMakesTheNextWaiterTheHolder(t *testing.T) {
	eachPassing(t, func(t *testing.T, site *Site, _ *Names, l passer) {
		a := entry(redistest.HoldID("a:1"))
		a.Lease = time.Hour
		first := verdict(t, l, a, Granted)
		waits(t, l, redistest.HoldID("a:2"), redistest.HoldID("a:3"))
		next := released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Done, true)
		if next.Token <= first.Token {
			t.Errorf("token %d after %d", next.Token, first.Token)
		}
		holds(t, l, redistest.HoldID("a:2"), 1)
		if s := must(t, l.Inspect()); s.TTL <= 0 || s.TTL > time.Minute {
			t.Errorf("TTL %v: the lease is that of the hold before", s.TTL)
		}
		// A copy. Then the waiter's own look.
		if again := released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), TakenOver, true); again.Token < next.Token {
			t.Errorf("token %d, and then %d", next.Token, again.Token)
		}
		if own := verdict(t, l, entry(redistest.HoldID("a:2")), Granted); own.Token < next.Token {
			t.Errorf("token %d, and then %d", next.Token, own.Token)
		}
		holds(t, l, redistest.HoldID("a:2"), 1)
		want(t, l.(Reentrant).Reenter(redistest.HoldID("a:2"), time.Minute, 2, false), Done)
		want(t, l.Release(redistest.HoldID("a:2"), 1), Done)
		want(t, l.Renew(redistest.HoldID("a:2"), time.Minute), Done)
		released(t, l.ReleaseTo(redistest.HoldID("a:2"), to(redistest.HoldID("a:3"))), Done, true)
		// Late copies.
		released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), TakenOver, false)
		holds(t, l, redistest.HoldID("a:3"), 0)
		want(t, l.Release(redistest.HoldID("a:3"), 0), Done)
		released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Removed, false)
		released(t, l.ReleaseTo(redistest.HoldID("a:2"), to(redistest.HoldID("a:3"))), Removed, false)
		holds(t, l, "", 0)
	})
}

func TestReleaseToAWaiterThatIsNotNext(t *testing.T) {
	eachPassing(t, func(t *testing.T, site *Site, _ *Names, l passer) {
		verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
		waits(t, l, redistest.HoldID("b:1"), redistest.HoldID("a:2"))
		released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Done, false)
		holds(t, l, "", 2)
		waits(t, l, redistest.HoldID("a:2"))
		verdict(t, l, entry(redistest.HoldID("b:1")), Granted)

		// It has left, before or after.
		want(t, l.Abandon(redistest.HoldID("a:2"), false), TakenOver)
		released(t, l.ReleaseTo(redistest.HoldID("b:1"), to(redistest.HoldID("a:2"))), Done, false)
		holds(t, l, "", 0)
		verdict(t, l, entry(redistest.HoldID("b:2")), Granted)
		waits(t, l, redistest.HoldID("b:3"))
		released(t, l.ReleaseTo(redistest.HoldID("b:2"), to(redistest.HoldID("b:3"))), Done, true)
		want(t, l.Abandon(redistest.HoldID("b:3"), false), Done)
		holds(t, l, "", 0)
	})
}

func TestOnlyTheReleaseOfTheHolderMakesTheNextTheHolder(t *testing.T) {
	eachPassing(t, func(t *testing.T, site *Site, names *Names, l passer) {
		verdict(t, l, entry(redistest.HoldID("b:1")), Granted)
		waits(t, l, redistest.HoldID("a:2"))
		released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), TakenOver, false)
		holds(t, l, redistest.HoldID("b:1"), 1)
		want(t, l.ForceUnlock(""), true)
		released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Removed, false)
		holds(t, l, "", 1)

		// Not for one who has left for good, though the data say that it waits.
		verdict(t, l, entry(redistest.HoldID("a:2")), Granted)
		waits(t, l, redistest.HoldID("a:3"))
		if err := site.Wire.IO().Set(bg, names.Tombstone(redistest.HoldID("a:3")), 1, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		released(t, l.ReleaseTo(redistest.HoldID("a:2"), to(redistest.HoldID("a:3"))), Done, false)
		holds(t, l, "", 1)
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

func TestReleaseToAWriterAmongReaders(t *testing.T) {
	site, _, _ := mini(t)
	names := namesOf(t, "l")
	r, w := NewFairReadSide(site, names), NewFairWriteSide(site, names)
	if r.Passes() {
		t.Error("a reader's hold passes to a writer")
	}
	verdict(t, w, entry(redistest.HoldID("a:1")), Granted)
	waits(t, r, redistest.HoldID("a:2"))
	waits(t, w, redistest.HoldID("a:3"))
	waits(t, r, redistest.HoldID("a:4"))
	released(t, w.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:3"))), Done, false) // a reader goes first
	verdict(t, r, entry(redistest.HoldID("a:2")), Granted)
	waits(t, w, redistest.HoldID("a:3"))
	want(t, r.Release(redistest.HoldID("a:2"), 0), Done)
	verdict(t, w, entry(redistest.HoldID("a:3")), Granted)
	waits(t, w, redistest.HoldID("a:5"))
	released(t, w.ReleaseTo(redistest.HoldID("a:3"), to(redistest.HoldID("a:5"))), Done, false)
	verdict(t, r, entry(redistest.HoldID("a:4")), Granted)
	want(t, r.Release(redistest.HoldID("a:4"), 0), Done)

	// The writer reads on; the readers behind it wait.
	verdict(t, w, entry(redistest.HoldID("a:5")), Granted)
	verdict(t, r, under(redistest.HoldID("a:5"), redistest.HoldID("a:5")), Granted)
	waits(t, w, redistest.HoldID("a:6"))
	released(t, w.ReleaseTo(redistest.HoldID("a:5"), to(redistest.HoldID("a:6"))), Done, false)
	want(t, r.Release(redistest.HoldID("a:5"), 0), Done)
	verdict(t, w, entry(redistest.HoldID("a:6")), Granted)
	waits(t, w, redistest.HoldID("a:7"))
	waits(t, r, redistest.HoldID("a:8"))
	released(t, w.ReleaseTo(redistest.HoldID("a:6"), to(redistest.HoldID("a:7"))), Done, true)
	waits(t, r, redistest.HoldID("a:8"))
}

func TestReleaseToAWaiterWhileAnotherTypeHoldsTheName(t *testing.T) {
	for name, open := range passing {
		for other := range passing {
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
					rival = passing[other](site, namesOf(t, "l"))
					end := float64(time.Now().Add(time.Minute).UnixMilli())
					if err := site.Wire.IO().Do(bg, "zadd", rival.(*Queued).state[1], end, "exclusive").Err(); err != nil {
						t.Fatal(err)
					}
				}
				released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Done, false)
				verdict(t, l, entry(redistest.HoldID("a:2")), OtherType)
			})
		}
	}
}

func TestWaiterLearnsItsRank(t *testing.T) {
	eachPassing(t, func(t *testing.T, site *Site, _ *Names, l passer) {
		verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
		first, second := waits(t, l, redistest.HoldID("a:2")).Rank, waits(t, l, redistest.HoldID("a:3")).Rank
		if first == 0 || second <= first {
			t.Errorf("ranks %d and %d", first, second)
		}
		if again := waits(t, l, redistest.HoldID("a:2")).Rank; again != first && again != 0 {
			t.Errorf("rank %d, and then %d", first, again)
		}
	})
}

func TestMoreUrgentWaiterHasALowerRank(t *testing.T) {
	site, _, _ := mini(t)
	l := NewPriority(site, namesOf(t, "l"), 0)
	verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
	usual := waits(t, l, redistest.HoldID("a:2")).Rank
	e := entry(redistest.HoldID("a:3"))
	e.Wait, e.Priority = true, 10
	if urgent := verdict(t, l, e, Busy).Rank; urgent >= usual {
		t.Errorf("ranks %d and %d", usual, urgent)
	}
	released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:3"))), Done, true)
}

func TestNobodyIsGrantedAHoldThatHasToBeConfirmed(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody is asked
	defer rdb.Close()
	acked, quarantined := siteOn(t, rdb, func(cfg *wire.Config) { cfg.Acks = 1 }), siteOn(t, rdb)
	quarantined.Quarantine = time.Minute
	for _, s := range []*Site{acked, quarantined} {
		for name, open := range passing {
			if open(s, namesOf(t, "l")).Passes() {
				t.Errorf("%s with replicas %v, quarantine %v", name, s.acks(), s.Quarantine)
			}
		}
	}
}

// A waiter that looks after a release has made it the holder gets its lock, also of a server at its
// memory limit.
func TestLookOfAGrantedWaiterAtTheMemoryLimit(t *testing.T) {
	redistest.Need(t)
	for name, open := range passing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client()
			l := open(siteOn(t, rdb), namesOf(t, "l"))
			verdict(t, l, entry(redistest.HoldID("a:1")), Granted)
			waits(t, l, redistest.HoldID("a:2"))
			if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			released(t, l.ReleaseTo(redistest.HoldID("a:1"), to(redistest.HoldID("a:2"))), Done, true)
			look := entry(redistest.HoldID("a:2"))
			look.Wait = true
			verdict(t, l, look, Granted)
		})
	}
}
