package protocol

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
)

// standByTypes are the types whose waiters can stand by.
var standByTypes = map[string]func(s *Site, n *Names) standByProtocol{
	"Lock":       func(s *Site, n *Names) standByProtocol { return NewLock(s, n) },
	"FencedLock": func(s *Site, n *Names) standByProtocol { return NewFenced(s, n) },
}

type standByProtocol interface {
	Protocol
	StandBy
}

// standByTest is a lock that some hold and others stand by for, and what its waiters are told.
type standByTest struct {
	standByProtocol
	t     *testing.T
	rdb   *redis.Client
	names *Names
	told  *redis.PubSub // of the waiters
	heard *redis.PubSub // of all others
	looks int           // before the next one
}

const (
	holder = "00000000-0000-8000-8000-000000000001:1"
	waiter = uuid + ":1"
)

func eachStandBy(t *testing.T, scenario func(t *testing.T, l *standByTest)) {
	for name, open := range standByTypes {
		on := func(t *testing.T, site *Site, rdb *redis.Client) {
			names := namesOf(t, "l")
			l := &standByTest{open(site, names), t, rdb, names, rdb.Subscribe(bg, names.grants(uuid)), rdb.Subscribe(bg, names.Channel()), 0}
			for _, ps := range []*redis.PubSub{l.told, l.heard} {
				t.Cleanup(func() { _ = ps.Close() })
				if _, err := ps.Receive(bg); err != nil {
					t.Fatal(err)
				}
			}
			scenario(t, l)
		}
		t.Run(name+"/miniredis", func(t *testing.T) {
			site, _, rdb := mini(t)
			on(t, site, rdb)
		})
		t.Run(name+"/redis", func(t *testing.T) {
			redistest.Need(t)
			t.Parallel()
			rdb := redistest.Start(t).Client()
			on(t, siteOn(t, rdb), rdb)
		})
	}
}

// take is a first look that is granted. It returns the token.
func (l *standByTest) take(id string) int64 {
	l.t.Helper()
	return verdict(l.t, l, entry(id), Granted).Token
}

// look is a look of a waiter that stands by.
func (l *standByTest) look(id string, v Verdict) Entered {
	l.t.Helper()
	e := entry(id)
	e.Wait, e.StandBy, e.Reserve, e.Lease, e.Tries = true, true, 3, time.Minute, l.looks+1
	return verdict(l.t, l, e, v)
}

// release ends a hold. It returns what the waiter is told, or nothing.
func (l *standByTest) release(id string, token int64, kept Kept) (told string) {
	l.t.Helper()
	r := l.ReleaseNext(id, token, 5).Do(bg, time.Second)
	if r.Err != nil || r.Outcome != kept {
		l.t.Fatalf("%+v, want %v", r, kept)
	}
	return l.message(l.told)
}

// message is one that has come, or nothing: what is published here comes behind it.
func (l *standByTest) message(ps *redis.PubSub) (text string) {
	l.t.Helper()
	const last = "last"
	channel := l.names.Channel()
	if ps == l.told {
		channel = l.names.grants(uuid)
	}
	switch listening, err := l.rdb.Publish(bg, channel, last).Result(); {
	case err != nil:
		l.t.Fatal(err)
	case listening == 0:
		return ""
	}
	for {
		m, err := ps.ReceiveMessage(bg)
		if err != nil {
			l.t.Fatal(err)
		}
		if m.Payload == last {
			return text
		}
		text = m.Payload
	}
}

// heldBy checks who holds the lock, and that nobody stands by any more.
func (l *standByTest) heldBy(id string) {
	l.t.Helper()
	s := must(l.t, l.Inspect())
	switch {
	case id == "" && len(s.Holders) == 0:
	case len(s.Holders) != 1 || s.Holders[0].HoldID != id || s.Holders[0].Count != 1:
		l.t.Fatalf("held by %+v, want %q", s.Holders, id)
	}
	if who := l.rdb.Get(bg, l.names.standBy()).Val(); who != "" {
		l.t.Errorf("%q stands by", who)
	}
}

func TestReleaseGrantsToOneThatStandsBy(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		first := l.take(holder)
		l.look(waiter, Busy)
		l.looks = 1
		l.look(waiter, Busy) // it stands by still
		if ttl := l.rdb.PTTL(bg, l.names.standBy()).Val(); ttl <= 0 || ttl > standByMost {
			t.Errorf("it stands by for %v", ttl)
		}
		text := l.release(holder, first, Done)
		got, ok := readGrant(text)
		if !ok {
			t.Fatalf("told %q", text)
		}
		if got.ID != waiter || got.Token <= first || got.InRow != 5 || got.Poll != 2 {
			t.Errorf("%q after the token %d", text, first)
		}
		l.heldBy(waiter)
		if ttl := l.rdb.PTTL(bg, l.names.Lock).Val(); ttl <= 50*time.Second || ttl > time.Minute {
			t.Errorf("its lease is %v", ttl)
		}
		if l.release(holder, first, TakenOver) != "" { // a late copy
			t.Error("told twice")
		}
		l.heldBy(waiter)
		if text := l.message(l.heard); text != "0" {
			t.Errorf("others are told %q", text)
		}
		next := l.look(waiter, Granted) // it looks all the same
		if next.Token < got.Token {
			t.Errorf("a look has the token %d, the message %d", next.Token, got.Token)
		}
		if must[Kept](t, l.Release(waiter, 0)) != Done || l.take(holder) <= next.Token+got.Reserved {
			t.Error("the tokens after that are not above")
		}
	})
}

// standsByInVain has the waiter stand by, lets something happen, and expects that a release
// of the holder then grants nothing to it, and wakes all.
func standsByInVain(t *testing.T, meanwhile func(t *testing.T, l *standByTest), token int64) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		first := l.take(holder)
		l.look(waiter, Busy)
		meanwhile(t, l)
		l.message(l.heard)
		if text := l.release(holder, first+token, Done); text != "" {
			t.Errorf("the waiter is told %q", text)
		}
		l.heldBy("")
		if text := l.message(l.heard); text != "0" {
			t.Errorf("others are told %q", text)
		}
	})
}

func TestReleaseGrantsNothingToOneThatHasLeft(t *testing.T) {
	standsByInVain(t, func(t *testing.T, l *standByTest) {
		must[Kept](t, l.Abandon(waiter, true))
		l.look(waiter, Withdrawn) // a late copy
	}, 0)
}

func TestReleaseGrantsNothingToOneThatDoesNotListen(t *testing.T) {
	standsByInVain(t, func(t *testing.T, l *standByTest) {
		_ = l.told.Close()
		locked := l.names.grants(uuid)
		for l.rdb.PubSubNumSub(bg, locked).Val()[locked] > 0 {
			time.Sleep(time.Millisecond)
		}
		l.told = l.rdb.Subscribe(bg, "none")
		t.Cleanup(func() { _ = l.told.Close() })
	}, 0)
}

func TestReleaseGrantsNothingToOneThatStoodByForTooLong(t *testing.T) {
	standsByInVain(t, func(t *testing.T, l *standByTest) {
		if err := l.rdb.Del(bg, l.names.standBy()).Err(); err != nil { // as if it had expired
			t.Fatal(err)
		}
	}, 0)
}

// A hold with a higher token than the waiter's came between: the order of tokens comes first.
func TestReleaseGrantsNothingBelowItsToken(t *testing.T) {
	site, _, rdb := mini(t)
	names := namesOf(t, "l")
	l := &standByTest{standByProtocol: NewLock(site, names), t: t, rdb: rdb, names: names, told: rdb.Subscribe(bg, names.grants(uuid))}
	defer l.told.Close()
	if _, err := l.told.Receive(bg); err != nil {
		t.Fatal(err)
	}
	l.take(holder)
	l.look(waiter, Busy)
	if text := l.release(holder, time.Now().Add(time.Hour).UnixMicro(), Done); text != "" {
		t.Errorf("the waiter is told %q", text)
	}
	l.heldBy("")
}

func TestWaiterThatHasTheLockDoesNotStandBy(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		l.take(holder)
		l.look(waiter, Busy)
		must[Kept](t, l.Release(holder, 0)) // which does not look who stands by
		l.look(waiter, Granted)
		l.heldBy(waiter)
	})
}

func TestNobodyStandsByForItsOwnClient(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		l.take(uuid + ":7")
		l.look(waiter, Busy)
		l.heldBy(uuid + ":7")
		must[Kept](t, l.Release(uuid+":7", 0))
		l.take(holder)
		l.look(waiter, Busy)
		must[Kept](t, l.Release(holder, 0))
		l.take(uuid + ":8")
		l.look(waiter, Busy) // no more
		l.heldBy(uuid + ":8")
	})
}

func TestFirstOfThoseWhoStandByIsNext(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		first := l.take(holder)
		l.look(waiter, Busy)
		l.look(strings.Replace(waiter, ":1", ":2", 1), Busy)
		l.release(holder, first, Done)
		l.heldBy(waiter)
	})
}

// At its memory limit a server refuses to note who stands by. The look is answered all the
// same, and a release still makes one that stood by before the holder.
func TestStandByAtTheMemoryLimit(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	rdb := redistest.Start(t).Client()
	site, names := siteOn(t, rdb), namesOf(t, "l")
	l := &standByTest{standByProtocol: NewLock(site, names), t: t, rdb: rdb, names: names, told: rdb.Subscribe(bg, names.grants(uuid))}
	defer l.told.Close()
	if _, err := l.told.Receive(bg); err != nil {
		t.Fatal(err)
	}
	full := func(limit string) {
		t.Helper()
		if err := rdb.ConfigSet(bg, "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	first := l.take(holder)
	full("1")
	l.look(waiter, Busy)
	if n := rdb.Exists(bg, names.standBy()).Val(); n != 0 {
		t.Fatal("it stands by: the server is not full")
	}
	full("0")
	l.look(waiter, Busy)
	full("1")
	if l.release(holder, first, Done) == "" {
		t.Error("the waiter is not told")
	}
	l.heldBy(waiter)
}

// A Lock and a FencedLock of one name exclude each other, and have tokens of two kinds: the
// release of one does not grant the other.
func TestReleaseGrantsNothingToTheOtherType(t *testing.T) {
	for name, open := range standByTypes {
		for other, openOther := range standByTypes {
			if name == other {
				continue
			}
			site, _, rdb := mini(t)
			names := namesOf(t, "l")
			l := &standByTest{standByProtocol: open(site, names), t: t, rdb: rdb, names: names, told: rdb.Subscribe(bg, names.grants(uuid))}
			if _, err := l.told.Receive(bg); err != nil {
				t.Fatal(err)
			}
			first := l.take(holder)
			waits := *l
			waits.standByProtocol = openOther(site, names)
			waits.look(waiter, Busy)
			if text := l.release(holder, first, Done); text != "" {
				t.Errorf("a waiter for a %s is told %q by a %s", other, text, name)
			}
			l.heldBy("")
			_ = l.told.Close()
		}
	}
}

func TestReleaseBesideAnotherHoldGrantsNothing(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		first := l.take(holder)
		l.look(waiter, Busy)
		// As Redisson's RReadWriteLock does: no mode is set yet, so a reader enters.
		if err := l.rdb.HSet(bg, l.names.Lock, "mode", "read", "11111111-1111-4111-8111-111111111111:1", 1).Err(); err != nil {
			t.Fatal(err)
		}
		l.release(holder, first, Done)
		if all := l.rdb.HGetAll(bg, l.names.Lock).Val(); all[waiter] != "" {
			t.Errorf("it was granted a lock that is not free: %v", all)
		}
	})
}

// A counter that is no number keeps the next one out. It must not fail a release that has ended
// its hold.
func TestReleaseBesideACounterThatIsNoneGrantsNothing(t *testing.T) {
	eachStandBy(t, func(t *testing.T, l *standByTest) {
		fenced, ok := l.standByProtocol.(*Fenced)
		if !ok {
			return
		}
		first := l.take(holder)
		l.look(waiter, Busy)
		if err := l.rdb.Set(bg, fenced.counter, "none", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if text := l.release(holder, first, Done); text != "" {
			t.Errorf("the waiter is told %q", text)
		}
		if text := l.message(l.heard); text != "0" {
			t.Errorf("all are told %q", text)
		}
		l.heldBy("")
	})
}

func TestMessagesThatAreNoTurns(t *testing.T) {
	for _, text := range []string{"", "0", "a:1 2 3", "a:1 2 3 4", "a:1 2 3 4 x", "a:1 2 3 4 5 6", "a:1 -- 3 4 5", " 2 3 4 5"} {
		if got, ok := readGrant(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
