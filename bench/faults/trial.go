package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/redistest"
)

// record is what one try has shown. Durations are milliseconds; a nil is a figure that the try does not have.
type record struct {
	Library, Scenario string
	Invalid           string   `json:",omitempty"` // why the try does not count: the fault did not hit
	Shared            *float64 `json:",omitempty"` // for how long two held the lock, without a notice to the first
	Open              bool     `json:",omitempty"` // Shared was ended by the harness, not by a notice
	Told              *float64 `json:",omitempty"` // when the first was notified, after the next grant; negative: before
	Notice            *float64 `json:",omitempty"` // when the first was notified, after the fault
	Wrote             bool     `json:",omitempty"` // the first wrote while the next held the lock, and had no notice yet
	Lock              string   `json:",omitempty"` // what the disturbed Lock returned
	Unlock            string   `json:",omitempty"` // what Unlock of the first returned
	Took              *float64 `json:",omitempty"` // how long the disturbed call took
	Next              *float64 `json:",omitempty"` // from the fault's end, or the release, to the next grant
	Failed            int      `json:",omitempty"` // calls that returned an error, and were repeated
	Hung              int      `json:",omitempty"` // calls without a result in time
	Keys              int      `json:",omitempty"` // keys of the lock that are left when all have released
	KeyTTL            *float64 `json:",omitempty"` // the longest of their TTLs; nil: none, or one of them has no TTL
}

// trial is one try: fresh servers, and a process for each party.
type trial struct {
	*host
	lib     library
	lease   time.Duration
	servers []*redistest.Server
	direct  *redis.Client // to the first server
	rec     *record
}

// key is the name of the lock.
const key = "faults-lock"

// bound is how long a call may take, and how long a caller repeats one that fails.
func (t *trial) bound() time.Duration { return 5 * t.lease }

// settle is how long a loss may take to be notified after the next grant, before the harness gives up.
func (t *trial) settle() time.Duration { return 2 * t.lease }

func ms(d time.Duration) *float64 {
	f := float64(d.Microseconds()) / 1000
	return &f
}

func (t *trial) addrs() (all []string) {
	for _, s := range t.servers {
		all = append(all, s.Addr())
	}
	return all
}

// party starts a process whose scripts and connections are there: it has held another lock.
func (t *trial) party(addrs ...string) *party {
	p := t.start(t.lib, t.lease, addrs...)
	t.granted(p, "warm-up")
	t.release(p, "warm-up")
	return p
}

// through is a party behind a proxy.
func (t *trial) through() (*party, *faultproxy.Proxy) {
	proxy := faultproxy.New(t.host, t.servers[0].Addr())
	return t.party(proxy.Addr()), proxy
}

// granted locks without a fault.
func (t *trial) granted(p *party, name string) {
	if r, ok := p.send("main", "lock", name).wait(t.bound()); !ok || r.outcome != "ok" {
		t.Fatalf("without a fault, Lock did this: %+v", r)
	}
}

// release unlocks without a fault.
func (t *trial) release(p *party, name string) {
	if r, ok := p.send("main", "unlock", name).wait(t.bound()); !ok || r.outcome != "ok" {
		t.Fatalf("without a fault, Unlock did this: %+v", r)
	}
}

// entry is a caller that wants the lock and calls again if a call fails.
type entry struct {
	done   chan struct{} // closed at its end
	at     time.Time     // of the grant; zero: none
	failed int
	hung   bool
}

func (t *trial) enter(p *party, thread string) *entry {
	e := &entry{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for begin := time.Now(); time.Since(begin) < t.bound(); time.Sleep(20 * time.Millisecond) {
			r, ok := p.send(thread, "lock", key).wait(t.bound())
			if !ok {
				e.hung = true
				return
			}
			if r.outcome == "ok" {
				e.at = r.at
				return
			}
			if r.outcome == "dead" {
				return
			}
			e.failed++
		}
	}()
	return e
}

// waiting reports whether the caller has not got the lock yet.
func (e *entry) waiting() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

// count adds what happened to the caller to the record, and reports whether it has got the lock.
func (t *trial) count(e *entry) bool {
	<-e.done
	t.rec.Failed += e.failed
	if e.hung {
		t.rec.Hung++
	}
	return !e.at.IsZero()
}

// next waits for the caller, and records the time since the given one.
func (t *trial) next(e *entry, since time.Time) bool {
	got := t.count(e)
	if got {
		t.rec.Next = ms(e.at.Sub(since))
	}
	return got
}

// queue starts a process that waits for the lock.
func (t *trial) queue(addrs ...string) (*party, *entry) {
	p := t.party(addrs...)
	e := t.enter(p, "main")
	time.Sleep(t.lease / 10) // until it waits
	if !e.waiting() {
		t.Fatal("the lock was granted to two before the fault")
	}
	return p, e
}

// outlived records for how long the first holder was not notified that another has the lock.
func (t *trial) outlived(lost *call, e *entry, fault time.Time) {
	r, told := lost.wait(max(0, time.Until(e.at.Add(t.settle()))))
	switch {
	case told && r.outcome == "ok":
		t.rec.Told = ms(r.at.Sub(e.at))
		t.rec.Shared = ms(max(0, r.at.Sub(e.at)))
		t.rec.Notice = ms(r.at.Sub(fault))
	case told:
		t.Fatalf("a holder that was not to unlock or die: %+v", r)
	default:
		t.rec.Shared, t.rec.Open = ms(time.Since(e.at)), true
	}
}

// unlock releases the disturbed hold, and records what that returned.
func (t *trial) unlock(p *party) {
	begin := time.Now()
	r, ok := p.send("main", "unlock", key).wait(t.bound())
	if !ok {
		t.rec.Hung++
		t.rec.Unlock = "no return"
		return
	}
	t.rec.Took = ms(r.at.Sub(begin))
	t.rec.Unlock = said(r)
}

var varying = regexp.MustCompile(`[0-9a-f]{32}|\b127\.0\.0\.1:\d+(->127\.0\.0\.1:\d+)?|\d[\d.]*m?s\b|node id: \S+|thread-id: \d+|(…:|hold )\d+\b|\[\d( \d)+\]`)

// id is of a client. It may begin with a number: it goes first.
var id = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// masked is a text without what varies.
func masked(text string) string {
	return varying.ReplaceAllString(id.ReplaceAllString(text, "…"), "…")
}

// longestError is how much of an error is kept.
const longestError = 160

// said is the text of a reply, without what differs from run to run.
func said(r reply) string {
	if r.outcome == "ok" {
		if r.text == errNoResult.Error() {
			return r.text
		}
		return "success"
	}
	text := masked(r.text)
	if runes := []rune(text); len(runes) > longestError {
		text = string(runes[:longestError]) + "…"
	}
	return "error: " + text
}

// leave releases the next holder's lock, and counts the keys that are left.
func (t *trial) leave(p *party, thread string) {
	if _, ok := p.send(thread, "unlock", key).wait(t.bound()); !ok {
		t.rec.Hung++
	}
	t.leftOver()
}

// leftOver counts the keys of the lock when a moment has passed for what is done in the background.
func (t *trial) leftOver() {
	time.Sleep(t.lease / 5)
	ctx := context.Background()
	var longest time.Duration
	for _, k := range t.keys() {
		t.rec.Keys++
		ttl, err := t.direct.PTTL(ctx, k).Result()
		t.must(err)
		if ttl == -1 {
			longest = endless
		}
		longest = max(longest, ttl)
	}
	if longest > 0 && longest < endless {
		t.rec.KeyTTL = ms(longest)
	}
}

// endless is above each TTL.
const endless = time.Duration(math.MaxInt64)

// keys returns the lock's keys on the first server.
func (t *trial) keys() []string {
	all, err := t.direct.Keys(context.Background(), "*"+key+"*").Result()
	t.must(err)
	return all
}

// silenced loses all replies on a connection, from the reply to the first command on that has the name of the lock. The command
// runs. (A reply is never lost between others: a client that pipelines would take the next one for it.)
func (t *trial) silenced(proxy *faultproxy.Proxy) (hit func() bool) {
	conns := make(chan int, 1)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		aboutLock := slices.ContainsFunc(c.Args, func(arg string) bool { return strings.Contains(arg, key) })
		if aboutLock && !strings.Contains(c.Name, "subscribe") && c.Name != "publish" {
			select {
			case conns <- c.Conn:
			default:
			}
		}
		select {
		case conn := <-conns:
			conns <- conn
			if conn == c.Conn {
				return faultproxy.SwallowReply
			}
		default:
		}
		return faultproxy.Pass
	})
	return func() bool { return len(conns) == 1 }
}

// try runs a scenario once.
func try(l library, s scenario, lease time.Duration) (rec record) {
	rec = record{Library: l.Name, Scenario: s.id}
	t := &trial{host: &host{}, lib: l, lease: lease, rec: &rec}
	defer func() {
		if r := recover(); r != nil {
			why, ok := r.(invalid)
			if !ok {
				panic(r)
			}
			rec = record{Library: l.Name, Scenario: s.id, Invalid: fmt.Sprint(why.error)}
		}
		t.cleanUp()
	}()
	for range l.nodes {
		// An argument keeps it from being a server that another try had.
		t.servers = append(t.servers, redistest.Start(t.host, "--maxclients", "1000"))
	}
	t.direct = t.servers[0].Client()
	s.run(t)
	return rec
}
