//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/check"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A lock that is broken on purpose breaks promises of its topology, without any fault.
func TestABrokenLockBreaksItsPromises(t *testing.T) {
	for broken, want := range map[string][]string{
		unshared: {"double holds", "double holds without an error"},
		unfenced: {"double holds", "updates lost through the fence"},
	} {
		t.Run(broken, func(t *testing.T) {
			a := newArena(t, topologies[0], 1, broken)
			time.Sleep(a.top.lease)
			v := a.finish()
			got := v.broken(a.top.promises)
			for _, promise := range want {
				if !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, " "+promise) }) {
					t.Errorf("no %s: %q", promise, got)
				}
			}
		})
	}
}

// A lease that ends without a fault is found, also if until then a fault was near each loss.
func TestALeaseThatEndsWithoutAFaultIsFound(t *testing.T) {
	t.Parallel()
	a, began := newArena(t, topologies[0], 1, removed), time.Now()
	for rnd := rand.New(rand.NewPCG(1, 1)); time.Since(began) < 5*a.top.lease; {
		a.strikeServer(rnd, "server stops")
	}
	v := a.finish()
	// Others hold the lock before its client notices the loss: exclusion and tokens are not the subject.
	if broken := v.broken(promises{}); len(broken) != 1 || !strings.HasSuffix(broken[0], " false losses") {
		t.Errorf("%q instead of false losses alone", broken)
	}
	if v.falseLosses >= v.losses {
		t.Errorf("none of %d losses has a fault near it", v.losses)
	}
}

// Where no option prevents it, faults let two hold a lock, and the judge finds them.
func TestTwoHoldWithoutTheOption(t *testing.T) {
	for name, fault := range map[string]string{
		"standalone, no persistence": "flush",
		"five masters":               "flush",
		unconfirmed.name:             unconfirmed.faults[0],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(1, 1))
			var v verdict
			for round := 0; round < 5 && v.doubles == 0; round++ {
				t.Run(fmt.Sprint("round ", round+1), func(t *testing.T) {
					a := newArena(t, find(name), uint64(round), "")
					for range 3 {
						time.Sleep(a.top.lease)
						a.strikeServer(rnd, fault)
					}
					v.plus(a.finish())
				})
			}
			if broken := v.broken(promises{excludes: true}); len(broken) != 1 || !strings.HasSuffix(broken[0], "double holds") {
				t.Errorf("%q instead of double holds", broken)
			}
			if broken := v.broken(find(name).promises); broken != nil {
				t.Errorf("more than that: %q", broken)
			}
		})
	}
}

// A run without faults is not taken for one that has found nothing.
func TestARunWithoutFaultsIsTooLittle(t *testing.T) {
	a := newArena(t, topologies[0], 1, "")
	time.Sleep(a.top.lease)
	faults := slices.Concat(a.clientFaults(), a.top.faults)
	v := a.finish()
	if broken := v.broken(a.top.promises); broken != nil {
		t.Errorf("without a fault: %q", broken)
	}
	lacks := strings.Join(v.lacking(faults), ", ")
	for _, fault := range faults {
		if !strings.Contains(lacks, fault) {
			t.Errorf("a run without %s is enough: %s", fault, lacks)
		}
	}
}

// The judge finds each wrong that is put into a history.
func TestTheJudgeFindsWhatIsPlanted(t *testing.T) {
	const ms = int64(time.Millisecond)
	hold := func(process, hold string, token, from, valid, to int64, out check.Outcome) []check.Operation {
		return []check.Operation{
			{Do: check.Acquire, Key: "a", Hold: hold, Process: process, Out: check.OK, Token: token, Call: from - 1, Return: from},
			{Do: check.Look, Key: "a", Hold: hold, Process: process, Out: check.OK, Call: valid, Return: valid + 1},
			{Do: check.Release, Key: "a", Hold: hold, Process: process, Out: out, Value: "lease lost", Call: to, Return: to + 1},
		}
	}
	fault := check.Operation{Do: check.Fault, Key: "p1", Value: "cut", Out: check.OK, Call: 20, Return: 25}
	missed := fault
	missed.Out = check.Refused
	top := &topology{lease: 10 * time.Nanosecond}
	everything := promises{excludes: true, ordered: true, fenced: true, reported: true}
	for name, run := range map[string]struct {
		history []check.Operation
		want    []string
	}{
		"in turn":        {slices.Concat(hold("p1", "1", 1, 10, 20, 22, check.OK), hold("p2", "2", 2, 21, 30, 32, check.OK)), nil},
		"two hold":       {slices.Concat(hold("p1", "1", 1, 10, 22, 23, check.OK), hold("p2", "2", 2, 21, 30, 32, check.Unknown)), []string{"1 double holds"}},
		"no error":       {slices.Concat(hold("p1", "1", 1, 10, 22, 23, check.OK), hold("p2", "2", 2, 21, 30, 32, check.OK)), []string{"1 double holds", "1 double holds without an error"}},
		"a lower token":  {slices.Concat(hold("p1", "1", 2, 10, 11, 12, check.OK), hold("p2", "2", 1, 21, 30, 32, check.OK)), []string{"1 tokens out of order"}},
		"the same token": {slices.Concat(hold("p1", "1", 2, 10, 11, 12, check.OK), hold("p2", "2", 2, 21, 30, 32, check.OK)), []string{"1 tokens out of order"}},
		"false loss":     {append(hold("p2", "1", 1, 10, 20, 22, check.Lost), fault), []string{"1 false losses"}},
		"old fault":      {append(hold("p1", "1", 1, 40, 50, 52, check.Lost), fault), []string{"1 false losses"}},
		"missed":         {append(hold("p1", "1", 1, 10, 20, 22, check.Lost), missed), []string{"1 false losses"}},
		"loss by fault":  {append(hold("p1", "1", 1, 10, 20, 22, check.Lost), fault), nil},
		"a mixed reply":  {[]check.Operation{{Do: check.Acquire, Key: "a", Value: "rlock: unexpected reply from Redis: 1", Call: 1, Return: 2}}, []string{"1 errors that no fault explains"}},
		"no turn":        {[]check.Operation{{Do: check.Turn, Key: "a", Call: 1, Return: check.Never}}, []string{"1 turns that came late"}},
		"a late turn":    {[]check.Operation{{Do: check.Turn, Key: "a", Out: check.OK, Call: 1, Return: int64(top.bound()) + ms}}, []string{"1 turns that came late"}},
	} {
		v := judge(check.NewHistory(run.history...), top, 0)
		if got := v.broken(everything); !slices.Equal(got, run.want) {
			t.Errorf("%s: %q, want %q", name, got, run.want)
		}
	}
}

// A hold that Redis has lost, and that its client passes on, has tokens below those of a rival. Only that is excused, and
// only where two may hold a lock.
func TestTokensOfAHoldThatIsPassedOn(t *testing.T) {
	hold := func(key, process string, token, asked int64) check.Operation {
		return check.Operation{Do: check.Acquire, Key: key, Hold: fmt.Sprint(process, token), Process: process, Out: check.OK, Token: token, Call: asked, Return: asked + 2}
	}
	history := func(key, next string, first int64) []check.Operation {
		return []check.Operation{hold(key, "p1", 100, first), hold(key, "p2", 900, 15), hold(key, next, 102, 20)}
	}
	unordered := []string{"1 tokens out of order"}
	for name, run := range map[string]struct {
		history []check.Operation
		made    promises
		want    []string
	}{
		"passed on":                {history("Lock-0", "p1", 10), promises{ordered: true}, nil},
		"nobody may hold it then":  {history("Lock-0", "p1", 10), promises{ordered: true, excludes: true}, unordered},
		"by another client":        {history("Lock-0", "p3", 10), promises{ordered: true}, unordered},
		"begun after the rival":    {history("Lock-0", "p1", 16), promises{ordered: true}, unordered},
		"not a type that passes":   {history("FairLock-0", "p1", 10), promises{ordered: true}, unordered},
		"drawn at different times": {append(history("Lock-0", "p2", 10)[:2], hold("Lock-0", "p1", 300, 20)), promises{ordered: true}, unordered},
	} {
		v := judge(check.NewHistory(run.history...), topologies[0], 0)
		if got := v.broken(run.made); !slices.Equal(got, run.want) {
			t.Errorf("%s: %q, want %q", name, got, run.want)
		}
	}
}

// What a server has refused to a user is found, also if the server was restarted since.
func TestDenialsOutliveARestart(t *testing.T) {
	server := redistest.Start(t, "--user", "app", "on", ">password", "resetchannels", "~*", "+get")
	a := &arena{t: t, top: topologies[0], d: &deployment{nodes: []*redistest.Server{server}}}
	user := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "app", Password: "password", DisableIdentity: true})
	defer user.Close()
	deny := func(key string) {
		if err := user.Set(bg, key, 1, 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Fatalf("the user may write: %v", err)
		}
	}
	deny("before")
	a.restart(rand.New(rand.NewPCG(1, 1)), a.d.nodes, func(*redistest.Server) {})
	deny("after")
	var v verdict
	a.countKeys(&v)
	if broken := v.broken(promises{}); !slices.Equal(broken, []string{"2 commands denied"}) {
		t.Errorf("%q: %q", broken, v.wrong)
	}
}

// What is left in Redis is found, unless docs/keys.md has it.
func TestKeysThatAreLeftAreFound(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for key, ttl := range map[string]time.Duration{
		"Lock-0": time.Minute, "{Lock-0}:rlock:gone:old": time.Hour, "{Lock-0}:rlock:gone:1": 30 * time.Second, "rlock:clock": 0,
		"rlock:client:forever": 0,
	} {
		if err := rdb.Set(bg, key, 1, ttl).Err(); err != nil {
			t.Fatal(err)
		}
	}
	left := unexpected(t, rdb, 0)
	slices.Sort(left)
	if len(left) != 3 || !strings.HasPrefix(left[0], "Lock-0 ") || !strings.HasPrefix(left[1], "rlock:client:forever ") || !strings.HasPrefix(left[2], "{Lock-0}:rlock:gone:old ") {
		t.Errorf("left: %q", left)
	}
}

// A link counts what it does to requests, and a cut lets none pass.
func TestLinksHurtWhatTheySay(t *testing.T) {
	server := redistest.Start(t)
	l := newLink(t, server.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: l.Addr(), MaxRetries: -1, ReadTimeout: locktest.Ample(300 * time.Millisecond)})
	defer rdb.Close()
	l.rule.Store(copied)
	for range 6 {
		if err := rdb.Eval(bg, "return redis.call('incr', 'n')", nil).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if l.hurt.Load() != 2 || len(l.copies) != 2 || l.sent.Load() < 6 {
		t.Errorf("%d copies, %d counted, of %d requests", len(l.copies), l.hurt.Load(), l.sent.Load())
	}
	for _, c := range l.copies {
		if err := l.Replay(c); err != nil {
			t.Fatal(err)
		}
	}
	l.isCut.Store(true)
	l.Blackhole(true)
	if err := rdb.Eval(bg, "return redis.call('incr', 'n')", nil).Err(); err == nil {
		t.Error("a reply through a cut")
	}
	if l.lost.Load() == 0 {
		t.Error("the cut has swallowed nothing")
	}
	if n, err := server.Client().Get(bg, "n").Int(); n != 8 {
		t.Errorf("%d runs of 6 and 2 copies (%v)", n, err)
	}
}
