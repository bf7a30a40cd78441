package protocol

import (
	"testing"
	"time"
)

// What all exclusive locks answer to a lone owner, and to one who comes second.
func TestExclusiveLocksVerbs(t *testing.T) {
	for name, open := range map[string]func(*Site, *Names) Reentrant{
		"Lock":   func(s *Site, n *Names) Reentrant { return NewLock(s, n) },
		"Spin":   func(s *Site, n *Names) Reentrant { return NewSpin(s, n, nil) },
		"Fenced": func(s *Site, n *Names) Reentrant { return NewFenced(s, n) },
		"Fair":   func(s *Site, n *Names) Reentrant { return NewFair(s, n) },
	} {
		t.Run(name, func(t *testing.T) {
			site, _, _ := mini(t)
			l := open(site, namesOf(t, "l"))
			a, b := l.NewID().ID, l.NewID().ID

			first := must(t, l.Enter(entry(a)))
			if first.Verdict != Granted || first.Token == 0 {
				t.Fatalf("%+v", first)
			}
			if again := must(t, l.Enter(entry(a))); again.Verdict != Granted || again.Token < first.Token {
				t.Fatalf("a copy: %+v after %+v", again, first)
			}
			busy := must(t, l.Enter(entry(b)))
			if busy.Verdict != Busy || !busy.Known || busy.Holder != a || busy.Others != 0 || busy.Rest <= 0 || busy.Rest > time.Minute {
				t.Fatalf("%+v", busy)
			}
			want(t, l.Probe(a), Probed{true, 1})
			want(t, l.Reenter(a, time.Minute, 2, false), Done)
			want(t, l.Reenter(b, time.Minute, 2, false), TakenOver)
			want(t, l.Probe(a), Probed{true, 2})
			want(t, l.Probe(b), Probed{true, 0})
			want(t, l.Release(a, 1), Done)
			want(t, l.Renew(a, time.Hour), Done)
			want(t, l.Renew(a, 0), Done)
			want(t, l.Renew(b, time.Hour), TakenOver)
			s := must(t, l.Inspect())
			if len(s.Holders) != 1 || s.Holders[0] != (Holder{a, 1, false}) || s.TTL <= time.Minute {
				t.Fatalf("%+v", s)
			}
			want(t, l.Release(b, 0), TakenOver)
			want(t, l.ForceUnlock(b), false)
			want(t, l.Release(a, 0), Done)
			want(t, l.Release(a, 0), Removed)
			want(t, l.Renew(a, time.Minute), Removed)
			want(t, l.Reenter(a, time.Minute, 2, true), Removed)
			want(t, l.Probe(a), Probed{})
			if s := must(t, l.Inspect()); len(s.Holders) != 0 {
				t.Fatalf("%+v", s)
			}

			// An acquire that was given up, and a late copy of it.
			want(t, l.Abandon(b, true), Removed)
			if late := must(t, l.Enter(entry(b))); late.Verdict != Withdrawn {
				t.Fatalf("%+v", late)
			}
			c := l.NewID().ID
			must(t, l.Enter(entry(c)))
			want(t, l.Abandon(a, true), TakenOver)
			want(t, l.Abandon(c, true), Done)
			must(t, l.Enter(entry(l.NewID().ID)))
			want(t, l.ForceUnlock(""), true)
			want(t, l.ForceUnlock(""), false)
		})
	}
}

// A release takes its own field out of the hash. What others may have put there remains, with
// the TTL that the hash has.
func TestReleaseLeavesWhatOthersHavePutIntoTheHash(t *testing.T) {
	const other = theirs + ":7"
	for how, end := range map[string]func(l Protocol, id string) Request[Kept]{
		"Release": func(l Protocol, id string) Request[Kept] { return l.Release(id, 0) },
		"Abandon": func(l Protocol, id string) Request[Kept] { return l.Abandon(id, true) },
	} {
		site, m, rdb := mini(t)
		n := namesOf(t, "l")
		for _, l := range []Protocol{NewLock(site, n), NewSpin(site, n, nil), NewFenced(site, n), NewFair(site, n)} {
			id := l.NewID().ID
			verdict(t, l, entry(id), Granted)
			if err := rdb.HSet(bg, n.Lock, other, 1).Err(); err != nil {
				t.Fatal(err)
			}
			want(t, end(l, id), Done)
			want(t, end(l, id), TakenOver)
			if rest, err := rdb.HGetAll(bg, n.Lock).Result(); err != nil || len(rest) != 1 || rest[other] != "1" || m.TTL(n.Lock) <= 0 {
				t.Errorf("%s of %T leaves %v (%v), for %v", how, l, rest, err, m.TTL(n.Lock))
			}
			rdb.Del(bg, n.Lock)
		}
	}
}
