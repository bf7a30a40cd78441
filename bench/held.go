package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// short is the lease of row 8.
const short = 6 * time.Second

// away is the round trip to the server of renewedAway.
const (
	away        = 10 * time.Millisecond
	renewedAway = "renewed, 10 ms away"
)

// far are locks held over a network, where nothing else of held is measured.
type far struct {
	n           int
	lease, away time.Duration
}

func parseFar(text string) (f *far, err error) {
	words := strings.Split(text, ",")
	if len(words) != 3 {
		return nil, fmt.Errorf("%q is not a number, a lease and a round trip", text)
	}
	f = &far{}
	var errs [3]error
	f.n, errs[0] = strconv.Atoi(words[0])
	f.lease, errs[1] = time.ParseDuration(words[1])
	f.away, errs[2] = time.ParseDuration(words[2])
	return f, errors.Join(errs[:]...)
}

func (b *bench) held() {
	if f := b.far; f != nil {
		b.hold(fmt.Sprintf("renewed, %v away", f.away), b.wanted(ours), f.n, f.lease, f.lease, f.away, false)
		return
	}
	many, lease8 := 100_000, short
	if b.quick {
		many, lease8 = 2_000, short/4
	}
	for _, p := range b.wanted(ours, rueidisN) {
		b.hold("renewed", []string{p}, many, lease8, 3*lease8, 0, true)
	}
	if !b.rows {
		b.hold(renewedAway, b.wanted(ours, rueidisN), many, lease8, lease8, away, false)
	}
	window := lease
	if b.quick {
		window = 2 * time.Second
	}
	for _, n := range b.choose([]int{1_000, 10_000, 100_000, 1_000_000}, []int{10_000}, []int{10_000}) {
		// A goroutine, or a timer and its goroutine, for each: what comes next
		// takes gigabytes, or more time than a lease.
		names := []string{ours, rueidisN, redisson}
		switch {
		case n > 100_000:
			names = names[:1]
		case n > 10_000:
			names = names[:2]
		}
		b.hold("held", b.wanted(names...), n, lease, window, 0, false)
	}
}

// holding is a process that holds locks on a server of its own.
type holding struct {
	s      *server
	c      *child
	p      peer
	out    sample
	idle   answer // of one caller, before the first was held
	before counts
}

// hold lets a process of each peer hold some locks, one after the other, and then watches
// all peers at the same time, as they do little; optionally over a network with a delay, and with one caller in addition.
func (b *bench) hold(measure string, names []string, n int, lease, window, delay time.Duration, beside bool) {
	var all []*holding
	side := order{Op: "watch", Name: "side", For: lease}
	for _, name := range names {
		s := b.server()
		addr := s.Addr()
		if delay > 0 {
			addr = b.network(s, delay)
		}
		h := &holding{s: s, c: b.child(name, addr, lease), p: peerNamed(name), out: sample{}}
		defer s.Kill()
		defer h.c.stop()
		all = append(all, h)
		if beside {
			b.host.must(h.c.do(side, &h.idle))
		}
		var got answer
		b.host.must(h.c.do(order{Op: "hold", Name: "held", N: n, For: 90 * time.Second}, &got))
		for _, k := range []string{"acquired", "failed", "hung", "seconds"} {
			h.out[k] = got.Some[k]
		}
		h.out["acquires/s"] = got.Some["acquired"] / got.Some["seconds"]
	}
	b.watchAll(all, lease/2) // until all have been renewed once, and will be as they are then
	for _, h := range all {
		h.before = h.s.counts()
	}
	for i, a := range b.watchAll(all, window) {
		h, took := all[i], a.Some["seconds"]
		after := h.s.counts()
		w := h.before.until(after, h.p.direct)
		h.out["cores"], h.out["commands/s"], h.out["server core"] = a.Some["cores"], w.commands/took, w.cpu.Seconds()/took
		for _, name := range []string{"pexpire", "pexpireat"} {
			h.out["renewals/s"] += (after.calls[name] - h.before.calls[name]) / took
		}
		h.out["lost"] = a.Some["lost"]
		// By now the goroutines that acquired have left nothing behind.
		var m answer
		b.host.must(h.c.do(order{Op: "memory"}, &m))
		for _, k := range []string{"heap", "stacks", "goroutines"} {
			h.out[k] = m.Some[k] / h.out["acquired"]
		}
		h.out["each"] = h.out["heap"] + h.out["stacks"]
	}
	for _, h := range all {
		if beside {
			var a answer
			b.host.must(h.c.do(side, &a))
			h.out["lost"] = a.Some["lost"]
			for _, k := range []string{"p50", "p99"} {
				h.out[k+" idle"], h.out[k+" beside"] = h.idle.Some[k], a.Some[k]
			}
		}
		b.results.add(measure, h.p.name, float64(n), h.out)
		b.say("%s, %d by %s: %v", measure, n, h.p.name, h.out)
	}
}

// watchAll lets all only hold for a while.
func (b *bench) watchAll(all []*holding, d time.Duration) []answer {
	got := make([]answer, len(all))
	for _, h := range all {
		b.host.must(h.c.send(order{Op: "watch", For: d}))
	}
	for i, h := range all {
		b.host.must(h.c.receive(&got[i]))
	}
	return got
}

// keysOf is over how many keys waiters spread.
const keysOf = 1_000

func (b *bench) waiters() {
	window := lease // within it, each polls that does so when the holder's lease would end
	if b.quick {
		window = 3 * time.Second
	}
	for _, n := range b.choose([]int{10, 100, 1_000, 10_000, 100_000}, []int{10_000}, []int{1_000}) {
		var all []*waiting
		for _, p := range b.wanted(ours, rueidisN, redisson) {
			if w := b.wait(p, n); w != nil {
				all = append(all, w)
			}
		}
		for _, w := range all {
			w.sent, w.begin = w.l.commands.Load(), time.Now()
		}
		time.Sleep(window) // of all, as they are idle
		for _, w := range all {
			w.out["commands/s"] = float64(w.l.commands.Load()-w.sent) / time.Since(w.begin).Seconds()
			var a answer
			b.host.must(w.c.do(order{Op: "memory"}, &a))
			for _, k := range []string{"heap", "stacks", "goroutines"} {
				w.out[k] = a.Some[k] / float64(n)
			}
			w.out["each"] = w.out["heap"] + w.out["stacks"]
			b.results.add("waiters", w.p, float64(n), w.out)
			b.say("%d waiters of %s: %v", n, w.p, w.out)
			w.end()
		}
	}
}

// waiting is a process whose goroutines wait.
type waiting struct {
	p     string
	c     *child
	l     *link // counts what they send
	out   sample
	sent  int64
	begin time.Time
	end   func()
}

// wait lets waiters of a peer become idle, on a server of their own. Another process
// holds their locks and renews them.
func (b *bench) wait(p string, n int) *waiting {
	s := b.server()
	keys := min(keysOf, n)
	holder := b.enterOne(p, s.Addr())
	var wg sync.WaitGroup
	var got atomic.Int64
	wg.Go(func() {
		for i := range keys {
			if _, err := holder.session.(keeper).hold(b.ctx(), fmt.Sprintf("wait:%d", i)); err == nil {
				got.Add(1)
			}
		}
	})
	if progress(&wg, &got, time.Now()); int(got.Load()) < keys {
		b.say("%d waiters of %s: not measured, as the holder hung after %d of %d keys", n, p, got.Load(), keys)
		holder.close()
		s.Kill()
		return nil
	}
	l := b.link(s)
	w := &waiting{p: p, c: b.child(p, l.addr, lease), l: l, out: sample{}}
	w.end = func() {
		w.c.stop()
		holder.close()
		s.Kill()
	}
	start := time.Now()
	b.host.must(w.c.do(order{Op: "block", Name: "wait", N: n, Keys: keys}, nil))
	// They are idle when the commands get few: less than one for two keys in a second.
	quiet := start
	for calm := 0; calm < 3 && time.Since(start) < time.Minute; { // or never
		sent := l.commands.Load()
		time.Sleep(time.Second / 3)
		if rate := 3 * float64(l.commands.Load()-sent); rate < max(float64(keys)/2, 10) {
			calm++
		} else {
			calm, quiet = 0, time.Now()
		}
	}
	w.out["settled after"] = quiet.Sub(start).Seconds()
	return w
}
