package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
)

// A hold that ends while the lock has another holder makes no waiter the holder.
func TestReleaseGrantsNothingBesideAnotherHolder(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		token := l.take(holder)
		l.look(waiter, Busy)
		another := theirs + ":7"
		if err := l.rdb.HSet(bg, l.names.Lock, another, 1).Err(); err != nil {
			t.Fatal(err)
		}
		if told := l.release(holder, token, Done); told != "" {
			t.Errorf("the waiter is told %q", told)
		}
		l.heldBy(another)
	})
}

// The quarantine of a process begins once, and the process before it is known.
func TestQuarantineBeginsOncePerProcess(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	rdb := redistest.Start(t).Client()
	site := siteOn(t, rdb)
	site.Quarantine = time.Hour
	l := NewLock(site, namesOf(t, "l"))
	begun := func(before string) (from string) {
		t.Helper()
		verdict(t, l, entry(redistest.HoldID("a:1")), Quarantined)
		served := rdb.HGetAll(bg, servedKey).Val()
		if served["before"] != before {
			t.Errorf("%q, and before it %q instead of %q", served["run_id"], served["before"], before)
		}
		return served["from"]
	}
	first := begun("")
	for now := rdb.Time(bg).Val(); rdb.Time(bg).Val().Sub(now) < 2*time.Millisecond; {
	}
	if again := begun(""); again != first {
		t.Errorf("the quarantine of one process ends at %s, and then at %s", first, again)
	}
	rdb.HSet(bg, servedKey, "run_id", "another", "from", 1)
	if next := begun("another"); next < first {
		t.Errorf("the quarantine of a new process ends at %s, before %s", next, first)
	}
}

// Observers of an election get a message for each value, and none for a late copy.
func TestProclaimNotifiesObservers(t *testing.T) {
	site, _, rdb := mini(t)
	e := NewElection(site, namesOf(t, "l"))
	id := redistest.HoldID("a:1")
	verdict(t, e, entry(id), Granted)
	observer := rdb.Subscribe(bg, e.changes)
	defer observer.Close()
	if _, err := observer.Receive(bg); err != nil {
		t.Fatal(err)
	}
	want(t, e.Proclaim(id, "new", 2), Done)
	want(t, e.Proclaim(id, "old", 1), Done)
	rdb.Publish(bg, e.changes, "last")
	var got []string
	for !slices.Contains(got, "last") {
		m, err := observer.ReceiveMessage(bg)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.Payload)
	}
	if !slices.Equal(got, []string{"0", "last"}) {
		t.Errorf("messages %q", got)
	}
}

// A renewal of fair permits lengthens their lease, and never shortens it.
func TestRenewalLengthensFairPermits(t *testing.T) {
	q := newQueueOfPermits(t, 1)
	q.looks("h:1", 1, Granted) // for a minute
	q.after(40 * time.Second)
	want(t, q.p.Renew("h:1", time.Minute), Done)
	want(t, q.p.Renew("h:1", time.Second), Done)
	q.after(40 * time.Second)
	q.looks("a:1", 1, Busy)
	want(t, q.p.Renew("h:1", 0), Done)
	q.after(21 * time.Second)
	want(t, q.p.Renew("h:1", time.Minute), Removed)
}

// A reader that gives up leaves its tombstone also at a server at its memory limit, where a script can only begin with a
// command that needs no memory.
func TestReaderGivesUpAtTheMemoryLimit(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	rdb := redistest.Start(t).Client()
	n := namesOf(t, "l")
	for name, sides := range sidesOf(siteOn(t, rdb), n) {
		t.Run(name, func(t *testing.T) {
			rdb.FlushAll(bg) // the tombstone of another type
			id := redistest.HoldID("r:1")
			verdict(t, sides[0], entry(id), Granted)
			if err := rdb.ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			kept := must[Kept](t, sides[0].Abandon(id, true))
			if err := rdb.ConfigSet(bg, "maxmemory", "0").Err(); err != nil {
				t.Fatal(err)
			}
			if kept != Done {
				t.Errorf("%v", kept)
			}
			verdict(t, sides[0], entry(id), Withdrawn)
		})
	}
}
