package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	threads = 8 // goroutines of each process
	fleet   = 4 // processes, in the table
)

// several are the peers that want one key in several processes.
var several = []string{ours, rueidisN, redisson, bsmName}

func (b *bench) processes() {
	s := b.server()
	points := b.choose([]int{1, 2, 4, 8, 16}, []int{fleet}, []int{fleet})
	fleets := map[string][]*child{}
	for _, p := range b.wanted(several...) {
		for range slices.Max(points) {
			fleets[p] = append(fleets[p], b.child(p, s.Addr(), lease))
		}
	}
	for _, n := range points {
		var jobs []job
		for _, p := range b.wanted(several...) {
			jobs = append(jobs, b.raceJob(s, "processes", peerNamed(p), fleets[p][:n]))
		}
		rounds := b.rounds
		if n != fleet {
			rounds = min(rounds, 3) // no row depends on it
		}
		b.interleave(rounds, jobs)
		b.say("%d processes: %s", n, b.results.line("processes", float64(n), "hand-overs/s"))
	}
	for _, children := range fleets {
		for _, c := range children {
			c.stop()
		}
	}
}

// raceJob is one key that the goroutines of some children want.
func (b *bench) raceJob(s *server, measure string, p peer, children []*child) job {
	path, c := b.newCell()
	turn := func(d time.Duration) sample {
		got := b.race(s, p, children, path, fmt.Sprintf("%s:%s:%d", measure, p.name, len(children)), d)
		if c.sections.Load() != c.entered.Load() {
			got["violations"]++
		}
		return got
	}
	turn(b.slice / 5)
	return job{measure, p.name, float64(len(children)), func() sample { return turn(2 * b.slice) }}
}

// race lets all goroutines of all children want one key.
func (b *bench) race(s *server, p peer, children []*child, path, name string, d time.Duration) sample {
	before := s.counts()
	end := time.Now().Add(d)
	for i, c := range children {
		b.host.must(c.send(order{Op: "crowd", Name: name, Cell: path, N: threads, First: int64(1 + i*threads), Until: end}))
	}
	var all []crowdResult
	for _, c := range children {
		var a answer
		b.host.must(c.receive(&a))
		all = append(all, *a.Crowd)
	}
	return contended(all, d, before.until(s.counts(), p.direct))
}

// settle is how long a waiter needs at the most until all that is left is to wait.
const settle = 6 * time.Millisecond

// handOver measures from the call of an unlock until the lock of a waiter in another
// process has returned. The clock is the machine's. Each peer has a separate server:
// connections that wait for their turn send PINGs, which are not to count for others.
func (b *bench) handOver() {
	ctx := context.Background()
	turns := 100
	if b.quick {
		turns = 20
	}
	var jobs []job
	for _, name := range b.wanted(ours, rueidisN, redisson) {
		s := b.server()
		e := b.enter(s.Addr(), lease, name)[0]
		waiter := b.child(e.name, s.Addr(), lease)
		key := "handover:" + e.name
		h := e.handle(key)
		round := func(t *times) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer time.AfterFunc(2*hang, cancel).Stop()
			if h.lock(ctx) != nil {
				return
			}
			b.host.must(waiter.send(order{Op: "take", Name: key}))
			time.Sleep(settle)
			start := time.Now()
			err := h.unlock(ctx)
			var a answer
			if err = errors.Join(err, waiter.receive(&a)); err == nil {
				t.add(time.Duration(a.At - start.UnixNano()))
			}
			time.Sleep(settle / 6) // the waiter's own release is announced to it too
		}
		turn := func() sample {
			round(newTimes()) // others had their turns: subscriptions may have ended
			before := s.counts()
			t := newTimes()
			for range turns {
				round(t)
			}
			w := before.until(s.counts(), e.direct)
			n := float64(turns)
			return sample{"failed": n - float64(t.N), "p50": t.percentile(50), "p99": t.percentile(99), "longest": t.Most.Seconds(), "commands": w.commands / n, "inside": w.inside / n, "server µs": w.micro / n}
		}
		turn()
		jobs = append(jobs, job{"handover", e.name, 0, turn})
	}
	s := b.server()
	listener := b.child(rawName, s.Addr(), lease)
	b.host.must(listener.do(order{Op: "listen", Name: "floor"}, nil))
	jobs = append(jobs, job{"handover", publishName, 0, func() sample {
		t := newTimes()
		for range turns {
			b.host.must(listener.send(order{Op: "hear"}))
			time.Sleep(settle)
			start := time.Now()
			b.host.must(s.ask.Publish(ctx, "floor", "0").Err())
			var a answer
			b.host.must(listener.receive(&a))
			t.add(time.Duration(a.At - start.UnixNano()))
		}
		return sample{"p50": t.percentile(50), "p99": t.percentile(99), "longest": t.Most.Seconds()}
	}})
	b.interleave(b.rounds, jobs)
	b.say("%s", b.results.line("handover", 0, "p50"))
}

// publishName is the floor of a hand-over: from the call of PUBLISH to the message in
// another process.
const publishName = "PUBLISH to message"
