package rlockui

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

const someClient = "4b5a8f3e-3f8d-8a1c-9e07-0d1f5d7a4c11"

func TestChannelsOfWaiters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel, prefix string
		family, name    string // empty if it shows no waiter
	}{
		{"redisson_lock__channel:{A}:" + someClient + ":12", "", "lock", "A"},
		{"redisson_lock__channel:{A}:" + someClient, "", "lock", "A"},
		{"redisson_lock__channel:{app:A}:" + someClient, "app:", "lock", "A"},
		{"redisson_lock__channel:{app:A}:" + someClient, "other:", "", ""},
		{"redisson_lock__channel:{app:}:" + someClient, "app:", "", ""},
		{"redisson_lock__channel:{app}:A:" + someClient, "{app}:", "lock", "A"},
		{"redisson_lock__channel:a{b}c:" + someClient, "", "lock", "a{b}c"},
		{"redisson_lock__channel:{a\nb}:" + someClient, "", "lock", "a\nb"},
		{"redisson_lock__channel:{A}", "", "", ""},
		{"redisson_lock__channel:{A}:" + someClient + ":x", "", "", ""},
		{"redisson_rwlock:{A}:" + someClient, "", "rwlock", "A"},
		{"redisson_rwlock:{A}", "", "", ""},
		{"{A}:rlock:priority:turn:" + someClient, "", "priority", "A"},
		{"{A}:rlock:fairrw:turn:" + someClient, "", "fairrw", "A"},
		{"{A}:rlock:unknown:turn:" + someClient, "", "", ""},
		{"a{b}:rlock:election:turn:" + someClient, "", "election", "a{b}"},
		{"news", "", "", ""},
	} {
		w, ok := parseChannel(c.channel, c.prefix)
		want := waiting{c.family, c.name, someClient[:clientPart]}
		if c.family == "" {
			if ok {
				t.Errorf("%q shows %+v", c.channel, w)
			}
		} else if !ok || w != want {
			t.Errorf("%q shows %+v, %v, want %+v", c.channel, w, ok, want)
		}
	}
}

// In each random graph a cycle is found if there is one, and each that is found is one.
func TestCyclesOfRandomGraphs(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	for round := range 2000 {
		n := 2 + random.IntN(7)
		client := func(i int) string { return fmt.Sprintf("4b5a8f3e-3f8d-8a1c-9e07-%012d", i) }
		id := func(i int) string { // of clients that differ in the part that keys have
			return fmt.Sprintf("%08d", i) + client(i)[8:]
		}
		p := newPeople()
		reaches := make([][]bool, n)
		for i := range reaches {
			reaches[i] = make([]bool, n)
		}
		for range random.IntN(2 * n) {
			from, to := random.IntN(n), random.IntN(n)
			p.edges[edge{id(from)[:clientPart], fmt.Sprint("lock", to), id(to) + ":1"}] = now.Add(-time.Hour)
			if from != to {
				reaches[from][to] = true
			}
		}
		for k := range n {
			for i := range n {
				for j := range n {
					reaches[i][j] = reaches[i][j] || reaches[i][k] && reaches[k][j]
				}
			}
		}
		exists := false
		for i := range n {
			exists = exists || reaches[i][i]
		}
		found := p.findCycles(now)
		if exists != (len(found) > 0) {
			t.Fatalf("round %d: a cycle exists: %v, found %v in %v", round, exists, found, p.edges)
		}
		for _, c := range found {
			for i, step := range c.steps {
				next := c.steps[(i+1)%len(c.steps)]
				if _, is := p.edges[step]; !is || clientOf(step.holdID) != next.waiter {
					t.Fatalf("round %d: no cycle: %v", round, c.steps)
				}
			}
		}
	}
}

func TestWaitsOfAPollAreBounded(t *testing.T) {
	t.Parallel()
	var channels []string
	for i := range mostWaits + 1 {
		channels = append(channels, fmt.Sprintf("redisson_lock__channel:{a}:%08x%s", i, someClient[8:]))
	}
	if all, cut := waitsIn(channels, ""); len(all) != mostWaits || !cut {
		t.Errorf("%d waits, cut %v", len(all), cut)
	}
	if all, cut := waitsIn(channels[1:], ""); len(all) != mostWaits || cut {
		t.Errorf("%d waits, cut %v", len(all), cut)
	}
}

// crowded returns pages whose latest poll has found locks, each with many waiters.
func crowded(t testing.TB, locks, waiters int) *UI {
	t.Helper()
	u, err := Handler(locktest.OnMiniredis(t).NewClient(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	r := &reading{began: time.Now(), ended: time.Now()}
	for i := range locks {
		name := fmt.Sprintf("lock-%05d", i)
		state := rlock.State{Mode: rlock.ModeExclusive, TTL: time.Minute, Holders: []rlock.Holder{{HoldID: someClient + ":1"}}}
		r.locks = append(r.locks, found{FoundLock: rlock.FoundLock{Name: name, Type: "FairLock", State: state}, at: r.ended})
		for j := range waiters {
			r.waiting = append(r.waiting, waiting{"lock", name, fmt.Sprintf("%08x", i*waiters+j) + someClient[8:clientPart]})
		}
	}
	u.book.enter(r)
	return u
}

func TestViewSaysIfWaitsAreLeftOut(t *testing.T) {
	t.Parallel()
	if v := crowded(t, 2, mostWaiters).view(query{}); v.EdgesN != 2*mostWaiters || v.EdgesCut {
		t.Errorf("%d waits, cut %v", v.EdgesN, v.EdgesCut)
	}
	if v := crowded(t, 2, mostWaiters+1).view(query{}); v.EdgesN != 2*mostWaiters || !v.EdgesCut {
		t.Errorf("%d waits, cut %v", v.EdgesN, v.EdgesCut)
	}
}

func BenchmarkView(b *testing.B) {
	u := crowded(b, 100, 50)
	for b.Loop() {
		u.view(query{rows: rowsShown})
	}
}

func TestViewersAreBounded(t *testing.T) {
	t.Parallel()
	u, err := Handler(locktest.OnMiniredis(t).NewClient(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*viewer
	for range mostViewers {
		v, err := u.join()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if _, err := u.join(); !errors.Is(err, errCrowded) {
		t.Errorf("one more: %v", err)
	}
	for _, v := range all {
		u.leave(v)
	}
	u.running.Wait() // the poller ends with the last viewer, without Close
	if _, err := u.join(); err != nil {
		t.Error(err)
	}
	_ = u.Close()
	if _, err := u.join(); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestYoungCycleIsNotShown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPeople()
	one, other := someClient, "00000000"+someClient[8:]
	p.edges[edge{one[:clientPart], "a", other + ":1"}] = now.Add(-time.Hour)
	p.edges[edge{other[:clientPart], "b", one + ":1"}] = now.Add(-standsFor + time.Millisecond)
	if all := p.findCycles(now); len(all) != 0 {
		t.Errorf("%v", all)
	}
	if all := p.findCycles(now.Add(time.Second)); len(all) != 1 || len(all[0].steps) != 2 {
		t.Errorf("a second later: %v", all)
	}
}
