package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// oldText is the text of a script of the flat folder.
func oldText(t testing.TB, name string) string {
	t.Helper()
	read := func(file string) string {
		text, err := os.ReadFile("../../scripts/" + file + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var include func(text string) string
	include = func(text string) string {
		before, after, found := strings.Cut(text, "-- include ")
		if !found {
			return text
		}
		name, rest, _ := strings.Cut(after, "\n")
		shared, rest := read("shared/"+name), include(rest)
		if head, tail, wraps := strings.Cut(shared, "-- include the rest\n"); wraps {
			return before + head + rest + tail
		}
		return before + shared + rest
	}
	if base, ok := strings.CutSuffix(name, WhenServed); ok {
		return read("shared/served") + include(read(base))
	}
	return include(read(name))
}

// pair is one operation, as it is asked now and as it was asked before.
type pair struct {
	now    *wire.Request
	before string
	keys   []string
	args   []any
	same   func(now, before any) error // compares replies; nil: they are equal
}

func of[T any](r Request[T]) *wire.Request {
	switch r := r.(type) {
	case *asked[T]:
		return r.r
	case any:
		return r.(*task).r
	}
	panic("unreachable")
}

func sameEntryAgain(now, before any) error {
	n, _ := now.(int64)
	list, _ := before.([]any)
	if len(list) == 2 && (n == 1 && list[0] == int64(1) || n <= 0 && list[0] == int64(-2) && list[1] == -n) {
		return nil
	}
	return errors.New("differ")
}

// sameState compares what was read of replies: as ReadState reads, and as given.
func sameState(old func(list []any) (State, error)) func(now, before any) error {
	return func(now, before any) error {
		a, errA := ReadState(&wire.Answer{Val: now})
		b, errB := old(before.([]any))
		byOwner := func(x, y Holder) int { return cmp.Compare(fmt.Sprint(x), fmt.Sprint(y)) }
		slices.SortFunc(a.Holders, byOwner)
		slices.SortFunc(b.Holders, byOwner)
		if a.Waiters < 0 {
			a.Waiters = 0
		}
		// What the TTL of a free lock reads is nobody's business.
		if len(a.Holders) == 0 {
			a.TTL, b.TTL = 0, 0
		}
		if (errA == nil) != (errB == nil) || errA == nil && fmt.Sprint(a) != fmt.Sprint(b) {
			return fmt.Errorf("%v %v, was %v %v", a, errA, b, errB)
		}
		return nil
	}
}

func oldHash(second func(s *State, n int64)) func(list []any) (State, error) {
	return func(list []any) (s State, err error) {
		s.TTL = max(time.Duration(list[0].(int64))*time.Millisecond, -1)
		second(&s, list[1].(int64))
		mode := ""
		for i := 2; i < len(list); i += 2 {
			if list[i] == "mode" {
				mode = list[i+1].(string)
			}
		}
		for i := 2; i < len(list); i += 2 {
			if list[i] == "mode" && second2rw(second) {
				continue
			}
			count, err := strconv.Atoi(list[i+1].(string))
			if err != nil {
				return s, err
			}
			h := Holder{Owner: list[i].(string), Count: count}
			if second2rw(second) {
				owner, rest, writes := strings.Cut(h.Owner, ":write")
				if writes = writes && mode == "write" && (rest == "" || rest[0] == ':'); writes {
					h.Owner = owner + rest
				}
				h.Shared = mode != "" && !writes
			}
			s.Holders = append(s.Holders, h)
		}
		return s, nil
	}
}

// second2rw: a read-write lock's reply has nothing at its second place.
func second2rw(second func(*State, int64)) bool {
	var s State
	second(&s, 7)
	return s.Token == 0 && s.Waiters == 0
}

func oldQueued(list []any) (s State, err error) {
	s.Waiters, s.TTL, s.Token = int(list[0].(int64)), time.Duration(list[1].(int64))*time.Millisecond, list[2].(int64)
	for rest := list[3:]; len(rest) > 0; rest = rest[3:] {
		s.Holders = append(s.Holders, Holder{rest[0].(string), int(rest[1].(int64)), rest[2] == "shared"})
	}
	return s, nil
}

// chance draws operations of one lock type.
type chance struct {
	*rand.Rand
	site *Site
	n    Names
	ids  []string
}

func (c *chance) id() string { return c.ids[c.IntN(len(c.ids))] }

func (c *chance) owner() string {
	if c.IntN(3) == 0 {
		return ""
	}
	return c.id()
}

func (c *chance) lease() time.Duration {
	return time.Duration(1+c.IntN(60_000)) * time.Millisecond
}

func (c *chance) entry() *Entry {
	e := &Entry{HoldID: HoldID{ID: c.id()}, Lease: c.lease(), Wait: c.IntN(3) > 0, Round: NoRound, Priority: c.IntN(10) + 1}
	e.Leads = e.Wait && c.IntN(3) > 0
	e.Placed = c.IntN(3) > 0
	if c.IntN(4) == 0 {
		e.Round = -int64(c.IntN(3))
	}
	return e
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

func late(yes bool) int64 {
	if yes {
		return 60_000
	}
	return 0
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

const how = "publish"

func (c *chance) plain(l *Lock, old string) pair {
	id, owner, lease, n := c.id(), c.owner(), c.lease(), c.IntN(3)
	lock, ch := l.names.Lock, l.names.Channel
	switch c.IntN(9) {
	default:
		e := c.entry()
		return pair{now: of(l.Enter(e)), before: "acquire", keys: []string{lock, l.tokens, l.names.Tombstone(e.ID)}, args: []any{e.ID, ms(e.Lease), 1, l.source}}
	case 0:
		return pair{of(l.Reenter(id, lease, n+2, false)), "acquire", []string{lock}, []any{id, ms(lease), n + 2}, sameEntryAgain}
	case 1:
		return pair{now: of(l.Release(id, n)), before: "release", keys: []string{lock}, args: []any{id, n, ch, how}}
	case 2:
		return pair{now: of(l.Abandon(id, true)), before: "abandon", keys: []string{lock, l.names.Tombstone(id)}, args: []any{id, 60_000, ch, how}}
	case 3:
		return pair{now: of(l.Renew(id, lease)), before: "renew", keys: []string{lock}, args: []any{id, ms(lease)}}
	case 4:
		return pair{now: of(l.ForceUnlock(owner)), before: "force_unlock", keys: []string{lock}, args: []any{owner, ch, how}}
	case 5:
		return pair{of(l.Inspect()), "inspect", of(l.Inspect()).Keys, nil, sameState(oldHash(func(s *State, n int64) { s.Token = n }))}
	case 6:
		return pair{now: of(l.Probe(owner)), before: "probe", keys: []string{lock}, args: []any{owner}}
	}
}

func (c *chance) lock() pair { return c.plain(NewLock(c.site, c.n), "") }

func (c *chance) fenced() pair {
	f := NewFenced(c.site, c.n)
	if c.IntN(9) == 0 {
		keys := []string{c.n.Lock, f.tokens}
		return pair{of(f.Inspect()), "inspect", keys, nil, sameState(oldHash(func(s *State, n int64) { s.Token = n }))}
	}
	return c.plain(&f.Lock, "")
}

func (c *chance) several() pair {
	a, b := NewLock(c.site, c.n), NewLock(c.site, Names{Lock: c.n.Lock + "2", Channel: "second", Clock: c.n.Clock, gone: "second:gone:"})
	id, lease := c.id(), c.lease()
	switch c.IntN(4) {
	case 0:
		return c.plain(a, "")
	case 1:
		return c.plain(b, "")
	case 2:
		keys := []string{a.names.Clock, a.names.Lock, a.names.Tombstone(id), b.names.Lock, b.names.Tombstone(id)}
		return pair{now: of(EnterAll([]*Lock{a, b}, id, lease)), before: "acquire_all", keys: keys, args: []any{id, ms(lease)}}
	}
	other, l1, l2 := c.id(), c.IntN(2) == 0, c.IntN(2) == 0
	if c.IntN(3) > 0 {
		other = id
	}
	return pair{
		now:    of(ReleaseAll([]Leaving{{a, id, l1}, {b, other, l2}})),
		before: "release_all",
		keys:   []string{a.names.Lock, a.names.Tombstone(id), b.names.Lock, b.names.Tombstone(other)},
		args:   []any{how, id, late(l1), a.names.Channel, other, late(l2), b.names.Channel},
	}
}

func (c *chance) fair() pair {
	l := NewFair(c.site, c.n)
	id, owner, n, l1 := c.id(), c.owner(), c.IntN(3), c.IntN(2) == 0
	compose := func(now *wire.Request, script string, keys []string, args ...any) pair {
		return pair{now: now, before: script, keys: append(slices.Clone(l.line), keys...), args: append([]any{l.term(), how, l.channels}, args...)}
	}
	switch c.IntN(12) {
	default:
		e := c.entry()
		return compose(of(l.Enter(e)), "fair_enter", []string{c.n.Clock, c.n.Tombstone(e.ID)}, e.ID, ms(e.Lease), one(e.Wait))
	case 0, 1:
		return compose(of(l.Release(id, n/2)), "fair_release", nil, id, n/2)
	case 2, 3:
		return compose(of(l.Abandon(id, l1)), "fair_abandon", []string{c.n.Tombstone(id)}, id, late(l1))
	case 4:
		return compose(of(l.ForceUnlock(owner)), "fair_force_unlock", nil, owner)
	case 5:
		return pair{of(l.Inspect()), "fair_inspect", []string{c.n.Lock, l.line[1]}, nil, sameState(oldHash(func(s *State, n int64) { s.Waiters = int(n) }))}
	}
}

func (c *chance) readWrite(preferred bool) pair {
	r, w := NewReadSide(c.site, c.n, preferred), NewWriteSide(c.site, c.n, preferred)
	id, owner, lease, n, l1 := c.id(), c.owner(), c.lease(), c.IntN(3), c.IntN(2) == 0
	lock, timers := c.n.Lock, r.timers
	turns := func(keys []string, more ...string) []string {
		if preferred {
			return keys
		}
		return append(keys, more...)
	}
	switch c.IntN(18) {
	default:
		e := c.entry()
		if c.IntN(4) == 0 {
			e.Outer = c.id()
			if c.IntN(2) == 0 {
				e.Outer = e.ID
			}
		}
		if preferred {
			e.Placed = false
		}
		place, had := r.place(e)
		round := ""
		if e.Round != NoRound {
			round = fmt.Sprint(e.Round)
		}
		keys := turns([]string{lock, c.n.Tombstone(e.ID), r.timer(e.ID, 1)}, timers+"rlock:writers", timers+"rlock:readers", timers+"rlock:admitted")
		return pair{now: of(r.Enter(e)), before: "rw_read_enter", keys: keys, args: []any{e.ID, timers, ms(e.Lease), e.Outer, place, round, had}}
	case 0, 1, 2:
		e := c.entry()
		if preferred {
			e.Placed = false
		}
		place, had := w.place(e)
		keys := turns([]string{lock, c.n.Clock, c.n.Tombstone(e.ID + ":write")}, timers+"rlock:writers", timers+"rlock:admitted")
		return pair{now: of(w.Enter(e)), before: "rw_write_enter", keys: keys, args: []any{e.ID, timers, ms(e.Lease), place, had}}
	case 3:
		return pair{of(r.Reenter(id, lease, n+2, false)), "rw_read_reenter", []string{lock, r.timer(id, 1), r.timer(id, n+2)}, []any{id, timers, ms(lease), n + 2}, sameEntryAgain}
	case 4:
		return pair{of(w.Reenter(id, lease, n+2, false)), "rw_write_reenter", []string{lock}, []any{id, timers, ms(lease), n + 2}, sameEntryAgain}
	case 5, 6:
		return pair{now: of(r.Release(id, n)), before: "rw_read_release", keys: []string{lock}, args: []any{id, timers, r.channel, how, n}}
	case 7, 8:
		return pair{now: of(w.Release(id, n)), before: "rw_write_release", keys: []string{lock}, args: []any{id, timers, r.channel, how, n}}
	case 9:
		return pair{now: of(r.Abandon(id, l1)), before: "rw_read_abandon", keys: turns([]string{lock, c.n.Tombstone(id)}, r.readers, r.admitted), args: []any{id, timers, r.channel, how, late(l1)}}
	case 10:
		return pair{now: of(w.Abandon(id, l1)), before: "rw_write_abandon", keys: turns([]string{lock, c.n.Tombstone(id + ":write")}, r.writers), args: []any{id, timers, r.channel, how, late(l1)}}
	case 11:
		if c.IntN(3) == 0 {
			lease = 0
		}
		return pair{now: of(r.Renew(id, lease)), before: "rw_read_renew", keys: []string{lock, r.timer(id, 1)}, args: []any{id, timers, ms(lease)}}
	case 12:
		return pair{now: of(w.Renew(id, lease)), before: "rw_write_renew", keys: []string{lock}, args: []any{id, timers, ms(lease)}}
	case 13:
		if l1 {
			return pair{now: of(r.ForceUnlock(owner)), before: "rw_force_unlock", keys: []string{lock}, args: []any{owner, timers, r.channel, how, "read"}}
		}
		return pair{now: of(w.ForceUnlock(owner)), before: "rw_force_unlock", keys: []string{lock}, args: []any{owner, timers, r.channel, how, "write"}}
	case 14:
		return pair{of(r.Inspect()), "rw_inspect", []string{lock}, []any{"", timers}, sameState(oldHash(func(*State, int64) {}))}
	case 15:
		if l1 {
			return pair{now: of(r.Probe(owner)), before: "rw_probe", keys: []string{lock}, args: []any{owner, timers, "read"}}
		}
		return pair{now: of(w.Probe(owner)), before: "rw_probe", keys: []string{lock}, args: []any{owner, timers, "write"}}
	}
}

func (c *chance) queue() pair {
	q := []*Queued{NewPriority(c.site, c.n, time.Second), NewFairReadSide(c.site, c.n), NewFairWriteSide(c.site, c.n)}[min(c.IntN(9), 2)]
	if q.worth == 0 && c.IntN(2) == 0 {
		q = NewFairReadSide(c.site, c.n)
	}
	id, owner, lease, n, l1 := c.id(), c.owner(), c.lease(), c.IntN(3), c.IntN(2) == 0
	tail := []any{q.term(), q.channels, how}
	switch c.IntN(16) {
	default:
		e := c.entry()
		if c.IntN(5) == 0 {
			e.Outer = c.id()
		}
		keys := q.keys(c.n.Clock, q.tombstone(e.ID), c.n.Lock, q.otherEnds)
		args := []any{e.ID, q.mode, ms(e.Lease), e.Outer, one(e.Wait), q.term(), int64(e.Priority) * q.worth, q.channels, how}
		return pair{now: of(q.Enter(e)), before: "queued_enter", keys: keys, args: args}
	case 0:
		return pair{of(q.Reenter(id, lease, n+2, false)), "queued_reenter", q.hold(), []any{id, q.mode, ms(lease), n + 2}, sameEntryAgain}
	case 1, 2, 3:
		return pair{now: of(q.Release(id, n/2)), before: "queued_release", keys: q.keys(), args: append([]any{id, q.mode, n / 2}, tail...)}
	case 4, 5:
		return pair{now: of(q.Abandon(id, l1)), before: "queued_abandon", keys: q.keys(q.tombstone(id)), args: append([]any{id, q.mode, late(l1)}, tail...)}
	case 6:
		return pair{now: of(q.Renew(id, lease)), before: "queued_renew", keys: q.hold(), args: []any{id, q.mode, ms(lease)}}
	case 7:
		return pair{now: of(q.ForceUnlock(owner)), before: "queued_force_unlock", keys: q.keys(), args: append([]any{owner, q.mode}, tail...)}
	case 8:
		return pair{of(q.Inspect()), "queued_inspect", q.keys(), nil, sameState(oldQueued)}
	case 9:
		return pair{now: of(q.Probe(owner)), before: "queued_probe", keys: q.hold(), args: []any{owner, q.mode}}
	}
}

// quorum are the scripts of a node; the caller is another package.
func (c *chance) quorum() pair {
	s := c.site.Scripts
	keys := []string{"q", "q:counter", "rlock:red:highest", "q:gone:" + c.id()}
	id := strings.TrimPrefix(keys[3], "q:gone:")
	stamp := []string{"", "1:1", "2:3"}[c.IntN(3)]
	if last, err := c.site.Wire.Redis().HGet(bg, "q", "stamp").Result(); err == nil && c.IntN(3) > 0 {
		stamp = last
	}
	token, lease := 1+c.IntN(300), ms(c.lease())
	switch c.IntN(8) {
	default:
		return pair{now: &wire.Request{Script: s["quorum/acquire"], Keys: keys, Args: []any{id, lease}}, before: "red_acquire", keys: keys, args: []any{id, lease}}
	case 0, 1:
		return pair{now: &wire.Request{Script: s["quorum/raise"], Keys: keys[:3], Args: []any{id, stamp, token}}, before: "red_raise", keys: keys[:3], args: []any{id, stamp, token}}
	case 2:
		return pair{now: &wire.Request{Script: s["quorum/renew"], Keys: keys, Args: []any{id, lease, stamp}}, before: "red_renew", keys: keys, args: []any{id, stamp, lease}}
	case 3:
		args := []any{id, late(token%2 == 0), token % 3, "channel", how}
		return pair{now: &wire.Request{Script: s["quorum/release"], Keys: keys, Args: args}, before: "red_release", keys: keys, args: args}
	case 4:
		owner := c.owner()
		return pair{now: &wire.Request{Script: s["quorum/force_unlock"], Keys: keys[:1], Args: []any{owner, 60_000, "q:gone:", "channel", how}}, before: "red_force_unlock", keys: keys[:1], args: []any{owner, "q:gone:", 60_000, "channel", how}}
	case 5:
		return pair{&wire.Request{Script: s["quorum/inspect"], Keys: keys[:1]}, "red_inspect", keys[:1], nil, func(now, before any) error {
			a, b := now.([]any), before.([]any)
			if b[1] == "" && len(a) == 3 || len(a) == 6 && a[0] == b[0] && a[1] == b[2] && a[3] == b[1] {
				return nil
			}
			return errors.New("differ")
		}}
	}
}

// passing is how the time between two operations is drawn.
var passing = []time.Duration{
	0, 0, 0, 0, 7 * time.Millisecond, 7 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond,
	time.Second, time.Second, time.Second, 4 * time.Second, 4 * time.Second, 11 * time.Second, 32 * time.Second, 70 * time.Second,
}

// Scripts of the flat folder and of the new ones are run side by side, in two databases
// of one server whose clock the test moves. They must reply, publish and leave behind
// the same, and the new ones must not send more commands.
func TestNewScriptsDoAsTheOldOnes(t *testing.T) {
	rounds, steps := 12, 250
	if testing.Short() {
		rounds, steps = 2, 120
	}
	kinds := map[string]func(c *chance) pair{
		"lock":    (*chance).lock,
		"fenced":  (*chance).fenced,
		"several": (*chance).several,
		"fair":    (*chance).fair,
		"rw":      func(c *chance) pair { return c.readWrite(false) },
		"readers": func(c *chance) pair { return c.readWrite(true) },
		"queue":   (*chance).queue,
		"quorum":  (*chance).quorum,
		"mixed": func(c *chance) pair {
			switch c.IntN(4) {
			case 0:
				return c.lock()
			case 1:
				return c.readWrite(false)
			case 2:
				return c.queue()
			}
			return c.fair()
		},
	}
	for kind, draw := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			m := miniredis.RunT(t)
			m.ClockTTL(true)
			commands := 0
			m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
				commands++
				return false
			})
			side := &sides{t: t, commands: func() int { return commands }}
			side.open(m.Addr(), draw)
			spent := map[string][2]int{}
			for round := range rounds {
				seed := uint64(round + 1)
				now := time.Unix(1_800_000_000, 0)
				m.FlushAll()
				c := side.chance(seed)
				var trace []string
				for range steps {
					now = now.Add(passing[c.IntN(len(passing))])
					m.SetTime(now)
					trace = append(trace, side.step(c, now, spent)...)
					if t.Failed() {
						t.Fatalf("seed %d:\n%s", seed, strings.Join(trace[max(0, len(trace)-12):], "\n"))
					}
				}
			}
			for _, name := range slices.Sorted(mapsKeys(spent)) {
				s := spent[name]
				t.Logf("%-20s %6d commands, were %6d", name, s[1], s[0])
				if s[1] > s[0] && name != "rw/probe" { // which asks readers at random
					t.Errorf("%s: %d commands, were %d", name, s[1], s[0])
				}
			}
		})
	}
}

func mapsKeys(m map[string][2]int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// sides are the two databases.
type sides struct {
	t        *testing.T
	rdb      [2]*redis.Client // before, now
	sub      *redis.PubSub
	site     *Site
	draw     func(c *chance) pair
	commands func() int
	old      map[string]string
}

func (s *sides) open(addr string, draw func(c *chance) pair) {
	for i := range s.rdb {
		s.rdb[i] = redis.NewClient(&redis.Options{Addr: addr, DB: i, PoolSize: 1})
		if err := s.rdb[i].Ping(bg).Err(); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = s.rdb[i].Close() })
	}
	s.sub = s.rdb[0].PSubscribe(bg, "*")
	s.t.Cleanup(func() { _ = s.sub.Close() })
	if _, err := s.sub.Receive(bg); err != nil {
		s.t.Fatal(err)
	}
	s.site, s.draw, s.old = siteOn(s.t, s.rdb[1]), draw, map[string]string{}
}

func (s *sides) chance(seed uint64) *chance {
	c := &chance{Rand: rand.New(rand.NewPCG(seed, 7)), site: s.site, n: namesOf(s.t, "l")}
	for i := range 5 {
		c.ids = append(c.ids, fmt.Sprint(uuid, ":", i+1))
	}
	c.ids = append(c.ids, theirs+":7", theirs+":8")
	return c
}

// heard is what was published since the last time.
func (s *sides) heard(i int) (all []string) {
	s.rdb[i].Publish(bg, "the end", "")
	for {
		msg, err := s.sub.ReceiveMessage(bg)
		if err != nil {
			s.t.Fatal(err)
		}
		if msg.Channel == "the end" {
			return all
		}
		all = append(all, msg.Channel+" "+msg.Payload)
	}
}

const theirs = "6b29fc40-ca47-4067-b31d-00dd010662da" // a client of Redisson's

// disturb does what others may do, on both sides.
func (s *sides) disturb(c *chance, now time.Time) (what string) {
	n, id := c.n.Lock, theirs+":"+strconv.Itoa(7+c.IntN(3))
	lease := 1 + c.IntN(60_000)
	var cmds [][]any
	switch c.IntN(8) {
	case 0: // a holder of Redisson's
		cmds = [][]any{{"hincrby", n, id, 1}, {"pexpire", n, lease}}
	case 1: // a reader
		cmds = [][]any{{"hset", n, "mode", "read", id, 1}, {"set", "{l}:" + id + ":rwlock_timeout:1", 1, "px", lease}, {"pexpire", n, lease}}
	case 2: // a writer that reads
		cmds = [][]any{{"hset", n, "mode", "write", id + ":write", 2, id, 1}, {"pexpire", n, lease}}
	case 3: // a waiter in the line
		cmds = [][]any{{"lrem", "redisson_lock_queue:{l}", 0, id}, {"rpush", "redisson_lock_queue:{l}", id}, {"zadd", "redisson_lock_timeout:{l}", now.UnixMilli() + int64(lease)*10, id}}
	case 4: // a group
		cmds = [][]any{{"del", n}, {"hset", n, "abcdefghijklmnopqrstuv", id, "abcdefghijklmnopqrstuv:" + id + ":expire_time", now.UnixMilli(), "abcdefghijklmnopqrstuv:" + id + ":lock_count", 1 + c.IntN(3)}, {"pexpire", n, lease}}
	case 5: // an eviction, and what is no lock
		keys := s.rdb[0].Keys(bg, "*").Val()
		if len(keys) == 0 {
			return ""
		}
		slices.Sort(keys)
		cmds = [][]any{{"del", keys[c.IntN(len(keys))]}}
	case 6:
		odd := [][]any{{"set", n, "text"}, {"hset", n, "user", "a"}, {"hset", n, "mode", "rw"}, {"hset", n, id, `{"count":1}`}}
		cmds = [][]any{odd[c.IntN(len(odd))], {"pexpire", n, 20_000}}
	case 7:
		cmds = [][]any{{"del", n}}
	}
	if strings.HasPrefix(fmt.Sprint(cmds), "[[h") { // of one type at a time
		cmds = slices.Insert(cmds, 0, []any{"hdel", n, "abcdefghijklmnopqrstuv"})
		for _, id := range []string{":7", ":8", ":9"} {
			for _, what := range []string{":expire_time", ":lock_count"} {
				cmds = slices.Insert(cmds, 0, []any{"hdel", n, "abcdefghijklmnopqrstuv:" + theirs + id + what})
			}
		}
	}
	for _, cmd := range cmds {
		for i := range s.rdb {
			_ = s.rdb[i].Do(bg, cmd...).Err() // perhaps of the wrong type: on both
		}
	}
	return fmt.Sprint(cmds)
}

// step does one operation on both sides and compares.
func (s *sides) step(c *chance, now time.Time, spent map[string][2]int) []string {
	t := s.t
	t.Helper()
	var trace []string
	if c.IntN(12) == 0 {
		trace = append(trace, s.disturb(c, now))
	}
	p := s.draw(c)
	if s.old[p.before] == "" {
		s.old[p.before] = oldText(t, p.before)
	}
	from := s.commands()
	before, errBefore := s.rdb[0].Eval(bg, s.old[p.before], p.keys, p.args...).Result()
	first := s.heard(0)
	between := s.commands()
	reply, err := s.rdb[1].Eval(bg, p.now.Script.Text, p.now.Keys, p.now.Args...).Result()
	second := s.heard(1)
	to := s.commands()
	trace = append(trace, fmt.Sprintf("%v %s %q %v: %v %v %v", now.UnixMilli(), p.now.Script.Name, p.now.Keys, p.now.Args, reply, err, second))

	sp := spent[p.now.Script.Name]
	spent[p.now.Script.Name] = [2]int{sp[0] + between - from, sp[1] + to - between}
	if kind(err) != kind(errBefore) {
		t.Errorf("%s: %v, was %v", p.now.Script.Name, err, errBefore)
		return trace
	}
	if err == nil {
		var differ error
		if p.same != nil {
			differ = p.same(reply, before)
		} else if !alike(reply, before) {
			differ = errors.New("differ")
		}
		if differ != nil {
			t.Errorf("%s: %v; %v, was %v", p.now.Script.Name, differ, reply, before)
		}
	}
	if !slices.Equal(first, second) {
		t.Errorf("%s published %q, was %q", p.now.Script.Name, second, first)
	}
	if was, is := dump(t, s.rdb[0]), dump(t, s.rdb[1]); was != is {
		t.Errorf("%s left\n%s\nwas\n%s", p.now.Script.Name, is, was)
	}
	return trace
}

func alike(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// kind is what sort of error it is; texts name lines.
func kind(err error) string {
	for _, code := range []string{"WRONGTYPE", "FOREIGN"} {
		if err != nil && strings.Contains(err.Error(), code) {
			return code
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return "other"
	}
	return ""
}

// dump is all that a database holds.
func dump(t testing.TB, rdb *redis.Client) string {
	t.Helper()
	keys := rdb.Keys(bg, "*").Val()
	slices.Sort(keys)
	var out strings.Builder
	for _, key := range keys {
		var v any
		switch rdb.Type(bg, key).Val() {
		case "string":
			v = rdb.Get(bg, key).Val()
		case "hash":
			v = rdb.HGetAll(bg, key).Val()
		case "list":
			v = rdb.LRange(bg, key, 0, -1).Val()
		case "zset":
			v = rdb.ZRangeWithScores(bg, key, 0, -1).Val()
		}
		fmt.Fprintf(&out, "%s = %v for %v\n", key, v, rdb.PTTL(bg, key).Val())
	}
	return out.String()
}
