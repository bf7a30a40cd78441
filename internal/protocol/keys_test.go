package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// isTimer reports whether a key of a script is the timer of an entry of a reader, as Redisson has it: whose
// there are, and how many, only the hash of the lock tells. No other key is used without being declared.
func isTimer(script, key string) bool {
	return strings.HasPrefix(script, "rw/") && strings.Contains(key, ":rwlock_timeout:")
}

// All scripts declare the keys that they use, as some servers require: docs/operations.md.
func TestScriptsDeclareTheirKeys(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	site := siteOn(t, srv.Client())
	site.Quarantine = time.Millisecond
	guarded := siteOn(t, srv.Client())
	guarded.Quarantine = time.Millisecond
	must(t, guarded.Serve())
	site.Quarantine = 0

	rdb := srv.Client()
	scripts := map[string]string{}
	for name, s := range site.Scripts {
		scripts[s.SHA()] = name
		rdb.ScriptLoad(bg, s.Text())
	}
	runs := srv.Scripts(t)
	do := func(q *wire.Request) {
		keys, args := q.Words()
		_ = rdb.EvalSha(bg, q.Script.SHA(), keys, args...).Err() // most are refused in some states
	}
	me, holder := redistest.HoldID("me:1"), redistest.HoldID("holder:1")
	waiters := func(l Protocol, names *Names) {
		all := []Protocol{l}
		switch l.(type) {
		case *ReadSide, *WriteSide:
			all = []Protocol{NewReadSide(site, names, false), NewWriteSide(site, names, false)}
		case *Queued:
			if l.Kind().Sides {
				all = []Protocol{NewFairReadSide(site, names), NewFairWriteSide(site, names)}
			}
		}
		for i, one := range all {
			for _, id := range []string{fmt.Sprint("w:", i), fmt.Sprint("x:", i)} {
				e := entry(redistest.HoldID(id))
				e.Wait, e.Leads = true, true
				do(of(one.Enter(e)))
			}
		}
	}
	blocker := func(l Protocol, names *Names) Protocol {
		switch l := l.(type) {
		case *ReadSide:
			return NewWriteSide(site, names, !l.turns())
		case *Queued:
			if l.Kind().Sides && l.mode == shared {
				return NewFairWriteSide(site, names)
			}
		}
		return l
	}
	states := map[string]func(l Protocol, names *Names){
		"free":              func(Protocol, *Names) {},
		"mine":              func(l Protocol, _ *Names) { do(of(l.Enter(entry(me)))) },
		"mine, others wait": func(l Protocol, n *Names) { do(of(l.Enter(entry(me)))); waiters(l, n) },
		"mine twice": func(l Protocol, _ *Names) {
			do(of(l.Enter(entry(me))))
			if r, ok := l.(Reentrant); ok {
				do(of(r.Reenter(me, time.Minute, 2, false)))
			}
		},
		"another's":              func(l Protocol, n *Names) { do(of(blocker(l, n).Enter(entry(holder)))) },
		"another's, others wait": func(l Protocol, n *Names) { do(of(blocker(l, n).Enter(entry(holder)))); waiters(l, n) },
		"another's, who has died": func(l Protocol, n *Names) {
			short := entry(holder)
			short.Lease = time.Millisecond
			do(of(l.Enter(short)))
			waiters(l, n)
		},
	}
	// requests are all that there are about a lock, of which each is made in each state.
	requests := func(l Protocol, n *Names) (all []func()) {
		about := about(l, me)
		for _, q := range about {
			all = append(all, func() { do(q) })
			if many := q.Script.Many; many != nil {
				keys, args := q.Words()
				all = append(all, func() { do(&wire.Request{Script: many, Keys: keys, Args: args}) })
			}
		}
		all = append(all, func() { l.Inspect().Do(bg, time.Second) }, func() { l.Probe(me).Do(bg, time.Second) })
		if r := RevocationOf(l); r != nil {
			all = append(all, func() { r.RequestRelease([]string{me}).Do(bg, time.Second) }, func() { r.Asked(me).Do(bg, time.Second) })
		}
		switch l := l.(type) {
		case *Lock:
			all = append(all,
				func() { EnterAll([]*Lock{l}, me, time.Minute).Do(bg, time.Second) },
				func() { ReleaseAll([]Leaving{{l, me, true}}).Do(bg, time.Second) },
				func() { do(&wire.Request{Script: site.Scripts["lock/glance"], Keys: []string{n.Lock}}) })
		case *Election:
			all = append(all, func() { l.Candidates().Do(bg, time.Second) })
		case *Once:
			all = append(all, func() { l.Peek().Do(bg, time.Second) })
		case *Tick:
			all = append(all, func() { l.Cron().Peek(1).Do(bg, time.Second) }, func() { l.Cron().Last().Do(bg, time.Second) }, func() { l.Cron().Between(1, 2).Do(bg, time.Second) })
		}
		return all
	}
	number := 0
	for i := range protocols(site, namesOf(t, "l")) {
		for state, prepare := range states {
			for _, on := range []*Site{site, guarded} {
				if on == guarded && state != "free" {
					continue
				}
				for j := 0; ; j++ {
					number++
					names := namesOf(t, fmt.Sprint(number))
					l := protocols(on, names)[i]
					all := requests(l, names)
					if j == len(all) {
						break
					}
					if c, ok := l.(PermitCounter); ok {
						do(of(c.Change(Op{&Page{ID: "client:2"}, int64(number)}, TrySetPermits, 3)))
					}
					prepare(protocols(site, names)[i], names)
					all[j]()
				}
			}
		}
	}
	for j := range counting(site, namesOf(t, "l")) {
		for _, permits := range []any{nil, "0", "2", "text"} {
			number++
			names := namesOf(t, fmt.Sprint(number))
			if permits != nil {
				rdb.Set(bg, names.Lock, permits, 0)
			}
			do(counting(site, names)[j])
		}
	}
	for _, q := range []*wire.Request{
		of(site.Serve()),
		{Script: site.Scripts["clock/split"], Keys: []string{"clocks"}}, {Script: site.Scripts["clock/raise"], Keys: []string{"clock"}, Args: []any{1}},
		{Script: site.Scripts["clock/merge"], Keys: []string{"clocks", "clock"}}, {Script: site.Scripts["clock/merge"], Keys: []string{"clocks"}, Args: []any{"whole"}},
		{Script: site.Scripts["lock/ping"], Keys: []string{"ping", "ping:lock"}, Args: []any{"1", "1"}},
		{Script: site.Scripts["lock/ping"+WhenServed], Keys: []string{"ping", "ping:lock", servedKey}, Args: []any{"1", "1", 1}},
		{Script: site.Scripts["lock/permitted"], Args: []any{"1", "ping"}},
		of(NewSemaphore(site, namesOf(t, "s"), 3).Available()), of(NewSemaphore(site, namesOf(t, "s"), 3).Inspect()),
	} {
		do(q)
	}

	ran := redistest.Declared(t, rdb, runs(), scripts, isTimer)
	for name := range site.Scripts {
		if !ran[name] && !strings.HasPrefix(name, "quorum/") {
			t.Errorf("%s has not run", name)
		}
	}
	t.Logf("%d locks", number)
}
