package protocol

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// guard is a write that changes nothing: a server that is no master refuses it.
var guard = regexp.MustCompile(`redis\.call\('(hdel|zrem)', [\w\[\]]+, ''\)`)

// counting are all requests of what only counts.
func counting(site *Site, n *Names) []*wire.Request {
	op := Op{Page: &Page{ID: uuid + ":1"}, Number: 1}
	s, l, b := NewSemaphore(site, n, 3), NewLatch(site, n), NewBarrier(site, n)
	return []*wire.Request{
		of(s.Acquire(op, 1, true)), of(s.Release(op, 1)), of(s.Change(op, TrySetPermits, 1)), of(s.Change(op, AddPermits, 1)), of(s.Change(op, SetPermits, 1)), of(s.Drain(op)), of(s.Undo(op)), of(site.Seal(n, op)), of(s.Delete(op)),
		of(l.TrySet(op, 1)), of(l.CountDown(op)), of(l.Remaining()), of(l.Delete(op)), of(b.Set(op)), of(b.Lift(op)), of(b.Remaining()),
	}
}

// protocols are all that there are on one server, by the name that a lock is held under.
func protocols(site *Site, n *Names) []Protocol {
	return []Protocol{
		NewLock(site, n), NewSpin(site, n, nil), NewFenced(site, n), NewFair(site, n),
		NewReadSide(site, n, false), NewWriteSide(site, n, false), NewReadSide(site, n, true), NewWriteSide(site, n, true),
		NewPriority(site, n, 0), NewFairReadSide(site, n), NewFairWriteSide(site, n), NewElection(site, n), NewOnce(site, n, time.Minute), NewCron(site, n, time.Hour, 0, false, "").At(time.Now().UnixMilli()), NewCron(site, n, time.Hour, 0, true, "").At(time.Now().UnixMilli()), NewPlaces(site, n, 1),
		NewPermits(site, n, 3), NewPermits(site, n, 3).Of(3), NewFairPermits(site, n, 0), NewFairPermits(site, n, 0).Of(3),
	}
}

// about are all requests of a protocol about a hold.
func about(l Protocol, id string) []*wire.Request {
	e := entry(id)
	requests := []*wire.Request{
		of(l.Enter(e)), of(l.Release(id, 0)), of(l.Release(id, 1)),
		of(l.Abandon(id, true)), of(l.Abandon(id, false)), of(l.Renew(id, time.Second)), of(l.Renew(id, 0)),
		of(l.ForceUnlock(id)), of(l.ForceUnlock("")),
	}
	if l, ok := l.(Reentrant); ok {
		requests = append(requests, of(l.Reenter(id, time.Second, 2, false)))
	}
	if c, ok := l.(PermitCounter); ok {
		op := Op{&Page{ID: "client:1"}, 1}
		requests = append(requests, of(c.Change(op, TrySetPermits, 1)), of(c.Change(op, AddPermits, 1)), of(c.Change(op, AddPermits, math.MaxInt32)), of(c.Change(op, SetPermits, 1)), of(c.Undo(op)), of(c.Delete(op)))
	}
	if a, ok := l.(Adoptable); ok {
		requests = append(requests, of(Adopt(a, "nobody:1", id, Secret{1}, time.Second)), of(GiveBack(a, "nobody:1", id, time.Second)), of(Detach(a, id, Secret{1}, 1, time.Minute)), of(FindDetached(a, id, Secret{1}, time.Second)))
	}
	waits := *e
	waits.Wait, waits.Leads = true, true
	requests = append(requests, of(l.Enter(&waits)))
	if _, ok := l.(*ReadSide); ok {
		under := *e
		under.Outer = "nobody:1"
		requests = append(requests, of(l.Enter(&under)))
	}
	if s := StandByOf(l); s != nil {
		stands := waits
		stands.StandBy = true
		requests = append(requests, of(l.Enter(&stands)), of(s.ReleaseNext(id, 1, 1)))
	}
	if q, ok := l.(*Queued); ok && q.mode == shared {
		under := *e
		under.Outer = "nobody:1"
		requests = append(requests, of(l.Enter(&under)))
	}
	if p, ok := l.(*Places); ok {
		requests = append(requests, of(p.Generation(1).Remaining()))
	}
	if o, ok := l.(*Once); ok {
		requests = append(requests, of(o.Finish(id, 1, "result", false)), of(o.Finish(id, 1, "", true)), of(o.Fail(id, "why", false)), of(o.Forget()))
	}
	if c, ok := l.(*Tick); ok {
		requests = append(requests, of(c.Finish(id, Succeeded, "", false)), of(c.Finish(id, Errored, "why", true)))
		requests = append(requests, of(c.Cron().At(1).Enter(e))) // too old
		c.Begin()
		c.Runs()
		requests = append(requests, of(c.Renew(id, time.Second)), of(c.Renew(id, 0)), of(c.Abandon(id, true)))
	}
	if e, ok := l.(*Election); ok {
		requests = append(requests, of(e.Proclaim(id, "value", 1)))
	}
	return requests
}

// What a demoted master does not know, or still knows, may be old. So it refuses
// every script about a hold, whatever the reply would be. Only "not now" to somebody
// who wants to enter may be old: that one looks again. Not so where votes are counted: a
// replica that is listed as a node of a RedLock would repeat the vote of its master.
func TestDemotedMasterSaysReadonlyAboutEachHold(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	// Without go-redis's own retries, which READONLY brings about.
	master, replica := r.Master.Client(), r.Replicas[0].Client(func(o *redis.Options) { o.MaxRetries = -1 })
	site := siteOn(t, master)
	scripts := site.Scripts

	// Nobody holds "free", others hold "held". What is "mine" the replica knows: where a
	// reply says so without any write, that too must come from a master.
	other := redistest.HoldID("another:1")
	request := func(script string, keys []string, args ...any) *wire.Request {
		return &wire.Request{Script: scripts[script], Keys: keys, Args: args}
	}
	vote := func(name string) []string {
		return []string{name, name + ":counter", "rlock:red:highest", name + ":gone"}
	}
	free, held := NewLock(site, namesOf(t, "free")), NewLock(site, namesOf(t, "held 0"))
	reads := NewReadSide(site, namesOf(t, "reads"), true)
	all := []*wire.Request{
		of(EnterAll([]*Lock{free}, other, time.Second)),
		of(ReleaseAll([]Leaving{{free, other, false}})),
		of(ReleaseAll([]Leaving{{held, other, false}, {held, other, true}})),
		of(site.Serve()),
		request("clock/split", []string{"clocks"}), request("clock/raise", []string{"clock"}, 1), request("clock/merge", []string{"clocks", "clock"}),
		request("clock/split", []string{"one clock"}), request("clock/merge", []string{"one clock"}, "whole"),
		of(free.Revocation().RequestRelease([]string{other})),
		of(reads.Enter(entry(redistest.HoldID("me:1")))),
		request("quorum/acquire", vote("free"), other, 1000),
		request("quorum/acquire", vote("vote"), redistest.HoldID("me:1"), 1000),
		request("quorum/acquire", vote("vote"), other, 1000),
		request("quorum/acquire", vote("abandoned"), other, 1000),
		request("quorum/admit", []string{"rlock:red:highest", "rlock:red:admitted", "rlock:red:since"}, "epoch", 1, 1000),
		request("quorum/force_unlock", []string{"free"}, "", 1000, "channel", "publish"),
		request("quorum/force_unlock", []string{"vote"}, "", 1000, "channel", "publish"),
		request("quorum/force_unlock", []string{"vote", "vote:gone"}, other, 1000, "channel", "publish"),
		request("quorum/highest", []string{"rlock:red:highest", "rlock:red:admitted", "rlock:red:since"}, 0),
		request("quorum/inspect", vote("free")[:1]),
		request("quorum/inspect", vote("vote")[:1]),
		request("quorum/raise", vote("free")[:3], other, "1", "1"),
		request("quorum/raise", vote("vote")[:3], other, "1", "1"),
		request("quorum/release", vote("free"), other, "channel", 0, "publish", 1000),
		request("quorum/release", vote("free")[:3], other, "channel", 0, "publish"),
		request("quorum/release", vote("free")[:1], other, "channel"),
		request("quorum/renew", vote("free"), other, 1000, "1"),
		request("lock/renew_many", []string{"free", "held 0"}, other, 1000, other, 1000),
		request("lock/enter_many", []string{"free", "gone:1", "clock", "free 2", "gone:2", "clock"}, other, 1000, "0", other, 1000, "0"),
		request("lock/release_many", []string{"free", "held 0"}, other, "0", "channel", "publish", other, "0", "channel", "publish"),
		request("quorum/renew", vote("vote"), other, 1000, "1"),
		request("lock/ping", []string{"ping"}, "0"),
		request("lock/ping", []string{"ping"}, "1"),
		request("lock/ping", []string{"ping", "ping:lock"}, "0", "1"),
	}
	for i := range protocols(site, namesOf(t, "free")) {
		l := protocols(site, namesOf(t, "free"))[i]
		all = append(all, about(l, other)...)
		// Held by somebody: a writer for readers, and readers for a writer.
		l = protocols(site, namesOf(t, "held "+string(rune('0'+i))))[i]
		blocker := l
		if s, ok := l.(*ReadSide); ok {
			blocker = NewWriteSide(site, s.names, !s.turns())
		} else if q, ok := l.(*Queued); ok && q.mode == shared {
			blocker = NewFairWriteSide(site, q.names)
		}
		if c, ok := l.(PermitCounter); ok {
			must(t, c.Change(Op{&Page{ID: "client:1"}, int64(i) + 1}, TrySetPermits, Takes(l)))
		}
		e := entry(redistest.HoldID("owner:1"))
		e.Lease = time.Hour
		if got := must(t, blocker.Enter(e)); got.Verdict != Granted {
			t.Fatal(got)
		}
		all = append(all, about(l, other)...)
	}
	for _, name := range []string{"free", "permits", "recorded"} {
		all = append(all, counting(site, namesOf(t, name))...)
	}
	seed := func(cmd ...any) {
		t.Helper()
		if err := master.Do(bg, cmd...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	seed("hset", "reads", "mode", "read", redistest.HoldID("me:1"), 1)
	seed("set", timer(reads.timers, redistest.HoldID("me:1"), 1), 1, "px", 3600_000)
	seed("hset", "clocks", "floor", 5)
	seed("set", "one clock", 5)
	seed("set", "permits", 2)
	seed("set", "recorded", 2)
	seed("set", namesOf(t, "recorded").record(uuid+":1"), "1 -1 -")
	seed("set", vote("abandoned")[3], 1)
	seed("hset", "vote", "attempt", redistest.HoldID("me:1"), "stamp", 1, "until", time.Now().Add(time.Hour).UnixMicro())
	if n, err := master.Do(bg, "wait", 1, 20_000).Int(); n != 1 {
		t.Fatal(n, err)
	}

	// believed is what the replica replies, if it does.
	believed := func(text string, q *wire.Request) (reply any, ok bool) {
		keys, args := q.Words()
		reply, err := replica.Eval(bg, text, keys, args...).Result()
		if err != nil && strings.Contains(err.Error(), "READONLY") {
			return nil, false
		}
		if err != nil && err != redis.Nil {
			t.Fatalf("%s of %q %v: %v", q.Name(), keys, args, err)
		}
		list, _ := reply.([]any)
		if strings.HasSuffix(q.Name(), "_many") {
			return reply, slices.ContainsFunc(list, func(one any) bool { return one != nil }) // refused one by one
		}
		notNow := len(list) > 1 && list[0] == int64(0) && (strings.Contains(q.Name(), "enter") || q.Name() == "lock/stand_by" || q.Name() == "semaphore/acquire")
		return reply, !notNow
	}
	byScript := map[string][]*wire.Request{}
	for _, q := range all {
		byScript[q.Name()] = append(byScript[q.Name()], q)
		if reply, ok := believed(q.Script.Text(), q); ok {
			keys, args := q.Words()
			t.Errorf("%s of %q %v: %v, want READONLY", q.Name(), keys, args, reply)
		}
	}

	// Each guard is planted out. A request that is answered then shows that the table
	// would notice. (Before a write that comes anyway a guard decides nothing; it is
	// there for a server at its memory limit.)
	decisive := 0
	for name, s := range scripts {
		if name == "lock/glance" || name == "lock/asked" || name == "lock/permitted" || name == "once/peek" || name == "cron/peek" || name == "cron/last" || name == "cron/known" || name == "election/candidates" || name == "quorum/quarantined" || name == "semaphore/available" || strings.HasSuffix(name, "inspect") && name != "quorum/inspect" || strings.HasSuffix(name, "probe") || strings.HasSuffix(name, WhenServed) {
			continue // a look changes nothing, and may be answered by a replica
		}
		if len(byScript[name]) == 0 {
			t.Errorf("%s has no case", name)
		}
		for _, at := range guard.FindAllStringIndex(s.Text(), -1) {
			without := s.Text()[:at[0]] + "local _ = 0" + s.Text()[at[1]:]
			if slices.ContainsFunc(byScript[name], func(q *wire.Request) bool {
				_, ok := believed(without, q)
				return ok
			}) {
				decisive++
			}
		}
	}
	if decisive < 20 {
		t.Errorf("the table notices only %d guards that are missing", decisive)
	}
	t.Logf("%d requests of %d scripts, %d guards that decide", len(all), len(byScript), decisive)
}
