//go:build unix

package interop

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// apart is what does not work together, and what comes of it: docs/redisson.md lists
// each of these tests.
func (a *arena) apart(t *testing.T) {
	t.Run("ownKeys", a.ownKeys)
	t.Run("names", a.refusedNames)
	t.Run("readWriteBesideOthers", a.readWriteBesideOthers)
	t.Run("group", a.group)
	t.Run("upgrade", a.upgrade)
	t.Run("writersFirst", a.writersFirst)
	t.Run("messages", a.messages)
	t.Run("prefix", a.prefix)
	t.Run("entries", a.entries)
	t.Run("silent", a.silent)
	t.Run("tokens", a.ownTokens)
	t.Run("pubSubMode", a.pubSubMode)
	t.Run("interrupted", a.interrupted)
}

// Types that Redisson does not have, and RedLock, stand under keys of their own: they
// do not exclude a lock of Redisson with the same name, and do it no harm.
func (a *arena) ownKeys(t *testing.T) {
	first, second := a.peers(golang)
	for _, kind := range []string{"fairread", "fairwrite", "priority", "red"} {
		if kind == "red" && a.kind == "cluster" {
			continue // it wants independent masters
		}
		for _, other := range []string{"lock", "fair", "write", "red"} {
			name := a.name("apart")
			first.do(t, "1", "lock", kind, name, long)
			second.do(t, "1", "try", other, name, 0, long)
			first.send(t, "1", "unlock", kind, name).must(t, "ok")
			if locked, count, _ := second.state(t, "1", strings.Replace(other, "red", "lock", 1), name); !locked || count != 1 {
				t.Errorf("%s has ended Redisson's %s", kind, other)
			}
			second.do(t, "1", "unlock", other, name)
		}
	}
}

// Names with a brace but without a hash tag work with Redisson on one server, and fail in
// a cluster. They are refused here everywhere.
func (a *arena) refusedNames(t *testing.T) {
	first, second := a.peers(golang)
	for _, name := range []string{"a{b", "{}z"} {
		for _, kind := range []string{"lock", "fair", "write", "read"} {
			r := first.send(t, "1", "try", kind, name, 0, long).must(t, "failed")
			if !strings.Contains(r.values[0], "invalid argument") {
				t.Errorf("%s %q: %s", kind, name, r)
			}
		}
		second.do(t, "1", "try", "lock", name, 0, long)
		unlocked := second.send(t, "1", "unlock", "lock", name).wait(t)
		if works := unlocked.outcome == "ok"; works != (a.kind == "single") {
			t.Errorf("Redisson unlocks %q: %s", name, unlocked)
		}
		a.rdb.Del(bg, name)
	}
}

// A read-write lock of ours is refused where another type stands, whoever holds it. So
// are the other types where one of Redisson stands. A read-write lock or a group of
// Redisson, though, comes in beside a lock of another type, its own or ours: that is
// what a name must never be used for.
func (a *arena) readWriteBesideOthers(t *testing.T) {
	first, second := a.peers(golang)
	for _, kind := range []string{"lock", "fair", "spin", "fenced"} {
		name := a.name("beside")
		second.do(t, "1", "lock", kind, name, long)
		first.refuses(t, "1", "try", "read", name, 0, long)
		first.refuses(t, "1", "try", "write", name, 0, long)
		a.holds(t, name, 1)
		second.do(t, "1", "unlock", kind, name)
	}
	for _, kind := range []string{"read", "write"} {
		name := a.name("beside")
		second.do(t, "1", "lock", kind, name, long)
		for _, other := range []string{"lock", "fair", "spin", "fenced"} {
			first.refuses(t, "1", "try", other, name, 0, long)
		}
		a.holds(t, name, 1)
		second.do(t, "1", "unlock", kind, name)
	}
	for _, holder := range []*peer{first, a.javas[1]} {
		for _, kind := range []string{"write", "read", "group"} {
			name := a.name("beside")
			holder.do(t, "1", "lock", "lock", name, long)
			second.do(t, "1", "try", kind, name, 0, long)
			// Redisson's release of the lock ends the hold of the read-write lock too; ours
			// does not. A group has fields of its own.
			if kind == "group" {
				second.do(t, "1", "unlock", kind, name)
				holder.send(t, "1", "unlock", "lock", name).must(t, "ok")
				a.nothingLeft(t, name)
				continue
			}
			holder.do(t, "1", "unlock", "lock", name)
			if holder == first {
				second.do(t, "1", "unlock", kind, name)
			} else {
				second.send(t, "1", "unlock", kind, name).must(t, "failed")
			}
			a.nothingLeft(t, name)
		}
	}
}

// A group of values that Redisson locks under one name keeps all locks of ours out, which
// see it as held, and are told when it is free.
func (a *arena) group(t *testing.T) {
	first, second := a.peers(golang)
	name := a.name("group")
	second.do(t, "1", "lock", "group", name, long)
	for _, kind := range []string{"lock", "fair", "spin", "fenced", "read", "write"} {
		first.refuses(t, "1", "try", kind, name, 0, long)
		if locked, count, ttl := first.state(t, "1", kind, name); locked != (kind != "read") || count != 0 || ttl < long/2 {
			t.Errorf("%s: locked %v, %d times by itself, for another %v", kind, locked, count, ttl)
		}
	}
	waiter := a.waiting(t, first, "1", "lock", name, long)
	released := second.do(t, "1", "unlock", "group", name)
	if took := waiter.must(t, "ok").time().Sub(released.time()); took > soon {
		t.Errorf("woken after %v", took)
	}
	first.do(t, "1", "unlock", "lock", name)
	a.nothingLeft(t, name)
}

// A reader that wants to write waits for itself in Redisson, and is refused here.
func (a *arena) upgrade(t *testing.T) {
	first, second := a.peers(golang)
	name := a.name("upgrade")
	second.do(t, "1", "lock", "read", name, long)
	second.refuses(t, "1", "try", "write", name, 200*time.Millisecond, long)
	first.do(t, "1", "lock", "read", name, long)
	if r := first.send(t, "1", "try", "write", name, 200*time.Millisecond, long).must(t, "failed"); !strings.Contains(r.values[0], "upgraded") {
		t.Error(r)
	}
	first.do(t, "1", "unlock", "read", name)
	second.do(t, "1", "unlock", "read", name)
	a.nothingLeft(t, name)
}

// Redisson's readers pass a writer by that waits, although ours do not; it is
// excluded by them, and comes in when they are out.
func (a *arena) writersFirst(t *testing.T) {
	first, second := a.peers(golang)
	name := a.name("writersFirst")
	second.do(t, "1", "lock", "read", name, long)
	writer := a.blocked(t, "1", "write", name, func() *call { return first.send(t, "1", "lock", "write", name, long) })
	second.do(t, "2", "try", "read", name, 0, long)
	second.do(t, "1", "unlock", "read", name)
	if !writer.pending() {
		t.Error("the writer is in beside a reader")
	}
	second.do(t, "2", "unlock", "read", name)
	writer.must(t, "ok")
	first.do(t, "1", "unlock", "write", name)
	a.nothingLeft(t, name)
}

// What ours publish is what Redisson's subscribers take: the numbers of its own
// releases.
func (a *arena) messages(t *testing.T) {
	first, second := a.peers(golang)
	kind := "plain"
	if a.kind == "cluster" {
		kind = "sharded"
	}
	name := a.name("messages")
	for _, step := range []struct {
		what    string
		do      func()
		channel string
		heard   string
	}{
		{"a release", func() {
			first.do(t, "1", "lock", "lock", name, long)
			first.do(t, "1", "unlock", "lock", name)
		}, channelOf("lock", name), "0"},
		{"a forced one", func() {
			first.do(t, "1", "lock", "fenced", name+"f", long)
			first.do(t, "1", "force", "fenced", name+"f")
		}, channelOf("fenced", name+"f"), "0"},
		{"a reader's", func() {
			first.do(t, "1", "lock", "read", name+"r", long)
			first.do(t, "1", "unlock", "read", name+"r")
		}, channelOf("read", name+"r"), "0"},
		{"a writer's", func() {
			first.do(t, "1", "lock", "write", name+"w", long)
			first.do(t, "1", "unlock", "write", name+"w")
		}, channelOf("write", name+"w"), "1"},
		{"a downgrade and the end of it", func() {
			first.do(t, "1", "lock", "write", name+"d", long)
			first.do(t, "1", "lock", "read", name+"d", long)
			first.do(t, "1", "unlock", "write", name+"d")
			first.do(t, "1", "unlock", "read", name+"d")
		}, channelOf("write", name+"d"), "1 0"},
	} {
		second.do(t, "1", "subscribe", kind, step.channel)
		step.do()
		var heard []string
		eventually(t, step.what+" is heard", func() bool {
			heard = append(heard, second.do(t, "1", "heard", step.channel).values...)
			return len(strings.Join(heard, " ")) >= len(step.heard)
		})
		if got := strings.Join(heard, " "); got != step.heard {
			t.Errorf("%s: heard %q, want %q", step.what, got, step.heard)
		}
	}
}

// client is one of this library in this process.
func (a *arena) client(t *testing.T, opts ...rlock.Option) *rlock.Client {
	t.Helper()
	var rdb redis.UniversalClient = redis.NewClient(&redis.Options{Addr: a.addrs[0], MaintNotificationsConfig: noNotices})
	if a.kind == "cluster" {
		rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: a.addrs, MaintNotificationsConfig: noNotices})
	}
	c, err := rlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = rdb.Close() })
	return c
}

// The tokens of a type that is not fenced are not Redisson's: they leave its counter alone. That
// of a lockAndGetToken counts as any other, but its lease is not the one that was asked for.
func (a *arena) ownTokens(t *testing.T) {
	first, second := a.peers(golang)
	name := a.name("tokens")
	first.do(t, "1", "lock", "lock", name, long)
	if counter := second.do(t, "1", "token", "fenced", name).values[0]; counter != "null" && counter != "0" {
		t.Errorf("a Lock has raised the counter to %s", counter)
	}
	first.do(t, "1", "unlock", "lock", name)
	second.do(t, "1", "lockAndGetToken", "fenced", name, long)
	if ttl := a.ttl(t, name); ttl > watchdog {
		t.Errorf("it is held for %v: this Redisson does as it is told, and docs/redisson.md says that it does not", ttl)
	}
	first.refuses(t, "1", "try", "fenced", name, 0, long)
	second.do(t, "1", "unlock", "fenced", name)
	if token := first.do(t, "1", "lock", "fenced", name, long).values[1]; token != "2" {
		t.Errorf("token %s", token)
	}
	first.do(t, "1", "unlock", "fenced", name)
}

// A prefix is a part of the name that Redisson sees.
func (a *arena) prefix(t *testing.T) {
	name := a.name("prefix")
	lease, err := a.client(t, rlock.WithPrefix("app:")).NewLock(name).Lock(bg)
	if err != nil {
		t.Fatal(err)
	}
	a.javas[0].do(t, "1", "try", "lock", name, 0, long)
	a.javas[0].refuses(t, "1", "try", "lock", "app:"+name, 0, long)
	a.javas[0].do(t, "1", "unlock", "lock", name)
	if err := lease.Unlock(bg); err != nil {
		t.Fatal(err)
	}
}

// The lock of a map's entry has a name made of a hash of the key, which this library
// does not compute. Under that name it is a lock like others.
func (a *arena) entries(t *testing.T) {
	first, second := a.peers(java)
	in := a.name("map")
	first.do(t, "1", "lock", "entry", in, long)
	name := first.do(t, "1", "name", "entry", in).values[0]
	second.refuses(t, "1", "try", "lock", name, 0, long)
	first.do(t, "1", "unlock", "entry", in)
	second.do(t, "1", "try", "lock", name, 0, long)
	first.refuses(t, "1", "try", "entry", in, 0, long)
	second.do(t, "1", "unlock", "lock", name)
}

// late: the waiter that is not told comes in when the lease of the holder would have been
// over, though it was released at once.
const lateLease = 3 * time.Second

// Types that share a name exclude each other but do not wake each other.
func (a *arena) silent(t *testing.T) {
	t.Parallel()
	for _, l := range []language{java, golang} {
		t.Run(string(l)+" first", func(t *testing.T) {
			t.Parallel()
			first, second := a.peers(l)
			for _, p := range []pair{{"", "spin", "lock"}, {"", "fair", "lock"}} {
				name, thread := a.name("silent"), t.Name()+p.held
				first.do(t, thread, "lock", p.held, name, lateLease)
				waiter := a.waiting(t, second, thread, p.wanted, name, long)
				released := first.do(t, thread, "unlock", p.held, name)
				took := waiter.must(t, "ok").time().Sub(released.time())
				t.Logf("%s released, %s in after %v", p.held, p.wanted, took)
				if took > lateLease+soon {
					t.Errorf("%s released, %s in after %v", p.held, p.wanted, took)
				}
				second.do(t, thread, "unlock", p.wanted, name)
			}
		})
	}
}

// In a cluster a client that publishes plainly does not wake those that listen
// sharded, as Redisson does; with PubSubBoth it does.
func (a *arena) pubSubMode(t *testing.T) {
	t.Parallel()
	if a.kind != "cluster" {
		return
	}
	for _, mode := range []rlock.PubSubMode{rlock.PubSubPlain, rlock.PubSubBoth} {
		c := a.client(t, rlock.WithPubSub(mode))
		name := a.name("pubSubMode")
		lease, err := c.NewLock(name).Lock(bg, rlock.WithLease(lateLease))
		if err != nil {
			t.Fatal(err)
		}
		waiter := a.waiting(t, a.javas[0], t.Name(), "lock", name, long)
		released := time.Now()
		if err := lease.Unlock(bg); err != nil {
			t.Fatal(err)
		}
		took := waiter.must(t, "ok").time().Sub(released)
		t.Logf("%s: in after %v", mode, took)
		if took > lateLease+soon {
			t.Errorf("%s: in after %v", mode, took)
		}
		a.javas[0].do(t, t.Name(), "unlock", "lock", name)
	}
}

// An interrupted waiter of Redisson stays in the line of a fair lock, and holds it up until its
// deadline, as one that has died.
func (a *arena) interrupted(t *testing.T) {
	t.Parallel()
	const wait = 10 * time.Second
	first, second := a.peers(java)
	name, thread := a.name("interrupted"), t.Name()
	second.do(t, thread, "lock", "fair", name, 0)
	waiter := a.waiting(t, first, thread, "fair", name, wait, long)
	first.do(t, thread, "interrupt")
	waiter.must(t, "failed")
	if line := a.queue(t, name); len(line) != 1 {
		t.Errorf("the line is %q", line)
	}
	next := a.waiting(t, second, thread+" next", "fair", name, long)
	released := second.do(t, thread, "unlock", "fair", name)
	took := next.must(t, "ok").time().Sub(released.time())
	t.Logf("the next was served after %v", took)
	if took > watchdog+wait+soon {
		t.Errorf("the next was served after %v", took)
	}
	second.do(t, thread+" next", "unlock", "fair", name)
	a.nothingLeft(t, name)
}
