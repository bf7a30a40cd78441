package protocol

import (
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Each request with OneEffect says in its reply whether it did its work, in a form that package wire reads: a
// number above 0, or a list that begins with one; of several effects, a number above 0 for all of them. A copy
// that finds the work done does not, unless it replies the very same.
func TestRepliesOfRequestsWithOneEffect(t *testing.T) {
	t.Parallel()
	const id = uuid + ":1"
	seen := map[string]bool{}
	play := func(t *testing.T, site *Site, q *wire.Request) {
		if !q.OneEffect {
			return
		}
		seen[q.Script.Name] = true
		reply := func() any {
			a := site.Wire.Do(bg, 5*time.Second, q)
			if a.Err != nil {
				t.Fatalf("%s: %v", q.Script.Name, a.Err)
			}
			return a.Val
		}
		first, second := reply(), reply()
		if !didIt(q, first) {
			t.Errorf("%s has replied %v when it did its work", q.Script.Name, first)
		}
		if didIt(q, second) && second != first {
			t.Errorf("%s has replied %v, and the second time %v", q.Script.Name, first, second)
		}
	}
	for i := range protocols(&Site{Clock: NewFencingClock("")}, namesOf(t, "l")) {
		for ends, end := range map[string]func(l Protocol) *wire.Request{
			"release": func(l Protocol) *wire.Request { return of(l.Release(id, 0)) },
			"abandon": func(l Protocol) *wire.Request { return of(l.Abandon(id, true)) },
			"release next": func(l Protocol) *wire.Request {
				if s := StandByOf(l); s != nil {
					return of(s.ReleaseNext(id, 1, 1))
				}
				return &wire.Request{}
			},
			"finish": func(l Protocol) *wire.Request {
				switch l := l.(type) {
				case *Once:
					return of(l.Finish(id, 1, "result", false))
				case *Tick:
					return of(l.Finish(id, Succeeded, "", false))
				}
				return &wire.Request{}
			},
			"fail": func(l Protocol) *wire.Request {
				switch l := l.(type) {
				case *Once:
					return of(l.Fail(id, "why", false))
				case *Tick:
					return of(l.Finish(id, Errored, "why", true))
				}
				return &wire.Request{}
			},
		} {
			site, _, _ := mini(t)
			l := protocols(site, namesOf(t, "l"))[i]
			t.Run(l.Kind().Type+" "+ends, func(t *testing.T) {
				if c, ok := l.(PermitCounter); ok {
					must(t, c.Change(Op{&Page{ID: "client:1"}, 1}, TrySetPermits, 9))
				}
				verdict(t, l, entry(id), Granted)
				waiter := entry(uuid + ":2")
				waiter.Wait, waiter.Leads = true, true
				if r := l.Enter(waiter).Do(bg, 5*time.Second); r.Err != nil && !errors.As(r.Err, new(*NotClaimed)) {
					t.Fatal(r.Err)
				}
				play(t, site, end(l))
			})
		}
	}
	site, _, _ := mini(t)
	a, b := NewLock(site, namesOf(t, "a")), NewLock(site, namesOf(t, "b"))
	must(t, EnterAll([]*Lock{a, b}, id, time.Minute))
	play(t, site, of(ReleaseAll([]Leaving{{a, id, false}, {b, id, true}})))
	if len(seen) < 20 {
		t.Errorf("only %d scripts: %v", len(seen), seen)
	}
}

// didIt reads a reply as package wire does.
func didIt(q *wire.Request, reply any) bool {
	if list, ok := reply.([]any); ok && !q.Each {
		reply = list[0]
	}
	n, ok := reply.(int64)
	return ok && n > 0
}
