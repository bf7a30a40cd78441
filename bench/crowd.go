package main

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// Own keys: nobody waits.

// hang is how long a caller may still take when its time is over; who takes longer
// counts as hung.
const hang = 2 * time.Second

// entrant is a peer with a session of its own.
type entrant struct {
	peer
	session
}

// enter opens a session of each peer, until the run ends.
func (b *bench) enter(addr string, lease time.Duration, names ...string) (all []entrant) {
	for _, n := range b.wanted(names...) {
		p := peerNamed(n)
		s, err := p.open(addr, lease)
		b.host.must(err)
		b.host.Cleanup(s.close)
		all = append(all, entrant{p, s})
	}
	return all
}

// enterOne opens a session that the caller closes.
func (b *bench) enterOne(name, addr string) entrant {
	p := peerNamed(name)
	s, err := p.open(addr, lease)
	b.host.must(err)
	return entrant{p, s}
}

func (b *bench) ownKeys() {
	s := b.server()
	everybody := []string{ours, rawName, autoName, batchName, bsmName, syncName, rueidisN, redisson}
	points := b.choose([]int{1, 2, 4, 8, 16, 64, 256, 512, 1000, 2000}, []int{1, 2, 4, 8, 512}, []int{1, 8, 512})
	for _, n := range points {
		b.ownKeysOf(s, s.Addr(), "own", float64(n), n, everybody)
	}
}

// ownKeysOf measures callers through an address, which may be a link's.
func (b *bench) ownKeysOf(s *server, addr, measure string, x float64, callers int, names []string) {
	var jobs []job
	for _, e := range b.enter(addr, lease, names...) {
		if callers < e.batch {
			continue
		}
		handles := make([]handle, callers/max(e.batch, 1))
		for i := range handles {
			handles[i] = e.handle(fmt.Sprintf("%s:%s:%d:%d", measure, e.name, callers, i))
		}
		turn := func(d time.Duration) sample { return pairs([]*server{s}, e.peer, handles, d) }
		slice := b.slice
		if measure != "own" && x > 1 {
			slice *= 2 // of few round trips
		}
		turn(slice / 5) // connects, loads scripts
		jobs = append(jobs, job{measure, e.name, x, func() sample { return turn(slice) }})
	}
	rounds := b.rounds
	if measure != "own" || x != 1 && x != 512 {
		rounds = min(rounds, 3) // no row depends on it
	}
	b.interleave(rounds, jobs)
	b.say("%s, %v: %s", measure, x, b.results.line(measure, x, "pairs/s"))
}

// pairs lets each handle acquire and release for a while.
func pairs(servers []*server, p peer, handles []handle, d time.Duration) sample {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	latencies := make([]*times, len(handles))
	for i := range latencies {
		latencies[i] = newTimes()
	}
	var hung, failed, after atomic.Int64
	var wg sync.WaitGroup
	before, mine := countsOf(servers), used()
	begin := time.Now()
	end := begin.Add(d)
	defer time.AfterFunc(d+hang, cancel).Stop()
	for i, h := range handles {
		wg.Go(func() {
			t := latencies[i]
			start := time.Now()
			for start.Before(end) {
				err := h.lock(ctx)
				if err == nil {
					err = h.unlock(ctx)
				}
				now := time.Now()
				switch {
				case ctx.Err() != nil:
					hung.Add(1)
					return
				case err != nil:
					failed.Add(1)
				default:
					t.add(now.Sub(start)) // late ones too, or the slow would not count
					if now.After(end) {
						after.Add(1)
					}
				}
				start = now
			}
		})
	}
	wg.Wait()
	then, since := used(), countsOf(servers)
	w := before.until(since, p.direct)
	all := plus(latencies...)
	batch := float64(max(p.batch, 1))
	n := float64(all.N) * batch // all that was worked for
	return sample{
		"pairs/s": float64(int64(all.N)-after.Load()) * batch / d.Seconds(), "p50": all.percentile(50), "p99": all.percentile(99), "longest": all.Most.Seconds(),
		"done": n, "hung": float64(hung.Load()), "failed": float64(failed.Load()),
		"allocs": float64(then.mallocs-mine.mallocs) / n, "bytes": float64(then.bytes-mine.bytes) / n,
		"client µs": float64((then.cpu - mine.cpu).Microseconds()) / n, "client cores": (then.cpu - mine.cpu).Seconds() / time.Since(begin).Seconds(),
		"commands": w.commands / n, "inside": w.inside / n, "server µs": w.micro / n, "server core": w.cpu.Seconds() / time.Since(begin).Seconds(),
	}
}

// One key: exclusion is checked.

// cell is where the owner of a lock writes that it is inside, outside of Redis. The
// processes of one measurement share it.
type cell struct {
	owner    atomic.Int64
	sections atomic.Int64 // written only by the owner, as a load and a store
	entered  atomic.Int64
}

// inside is one critical section. It reports whether nobody else was there.
func (c *cell) inside(me int64) bool {
	alone := c.owner.CompareAndSwap(0, me)
	c.sections.Store(c.sections.Load() + 1) // loses some if two are inside
	c.entered.Add(1)
	return c.owner.CompareAndSwap(me, 0) && alone
}

// crowdResult is what the goroutines of one process did at one key.
type crowdResult struct {
	Waits      *times
	Shares     []float64 // sections of each goroutine before the end
	Violations float64
	Hung       float64
	Failed     float64
	CPU        float64 // seconds
}

// contend lets each handle enter again and again until the end, and once more those
// that still wait then.
func contend(handles []handle, c *cell, first int64, end time.Time) crowdResult {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(time.Until(end)+2*hang, cancel).Stop()
	r := crowdResult{Shares: make([]float64, len(handles))}
	waits := make([]*times, len(handles))
	for i := range waits {
		waits[i] = newTimes()
	}
	var violations, hung, failed atomic.Int64
	var wg sync.WaitGroup
	cpu := cpuTime()
	for i, h := range handles {
		wg.Go(func() {
			for {
				start := time.Now()
				if !start.Before(end) {
					return
				}
				err := h.lock(ctx)
				if err == nil {
					got := time.Now()
					if !c.inside(first + int64(i)) {
						violations.Add(1)
					}
					if err = h.unlock(ctx); err == nil {
						waits[i].add(got.Sub(start)) // late ones too, or the slow would not count
						if got.Before(end) {
							r.Shares[i]++
						}
					}
				}
				if ctx.Err() != nil {
					hung.Add(1)
					return
				}
				if err != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	r.CPU = (cpuTime() - cpu).Seconds()
	r.Waits = plus(waits...)
	r.Violations, r.Hung, r.Failed = float64(violations.Load()), float64(hung.Load()), float64(failed.Load())
	return r
}

// contended makes a sample of what several processes did.
func contended(all []crowdResult, d time.Duration, w work) sample {
	var waits []*times
	var shares, processes []float64
	s := sample{"hung": 0, "failed": 0, "violations": 0}
	sections, inTime, cpu := 0.0, 0.0, 0.0
	for _, r := range all {
		waits = append(waits, r.Waits)
		shares = append(shares, r.Shares...)
		own := 0.0
		for _, n := range r.Shares {
			own += n
		}
		processes = append(processes, own)
		inTime += own
		sections += float64(r.Waits.N)
		cpu += r.CPU
		s["hung"] += r.Hung
		s["failed"] += r.Failed
		s["violations"] += r.Violations
	}
	t := plus(waits...)
	s["done"] = sections
	s["hand-overs/s"] = inTime / d.Seconds()
	s["p50"], s["p99"], s["mean"], s["longest"] = t.percentile(50), t.percentile(99), t.mean(), t.Most.Seconds()
	s["longest/mean"] = t.Most.Seconds() / t.mean()
	s["jain"], s["jain of processes"] = jain(shares), jain(processes)
	s["commands"], s["inside"], s["server µs"] = w.commands/sections, w.inside/sections, w.micro/sections
	s["server core"] = w.cpu.Seconds() / d.Seconds()
	s["client cores"] = cpu / d.Seconds()
	if sections == 0 {
		s["commands"] = math.NaN()
	}
	return s
}

// crowdSize is how many goroutines want one lock.
const crowdSize = 64

func (b *bench) crowd() {
	s := b.server()
	var jobs []job
	for _, e := range b.enter(s.Addr(), lease, ours, rueidisN, redisson, bsmName, syncName) {
		jobs = append(jobs, b.crowdJob(s, "crowd", crowdSize, crowdSize, e))
	}
	b.interleave(b.rounds, jobs)
	b.say("%s", b.results.line("crowd", crowdSize, "hand-overs/s"))
}

// crowdJob is one key of so many goroutines.
func (b *bench) crowdJob(s *server, measure string, x float64, size int, e entrant) job {
	c := &cell{}
	handles := make([]handle, size)
	for i := range handles {
		handles[i] = e.handle(fmt.Sprint(measure, ":", x, ":", e.name))
	}
	turn := func(d time.Duration) sample {
		before := s.counts()
		r := contend(handles, c, 1, time.Now().Add(d))
		got := contended([]crowdResult{r}, d, before.until(s.counts(), e.direct))
		if c.sections.Load() != c.entered.Load() {
			got["violations"]++
		}
		return got
	}
	turn(b.slice / 5)
	return job{measure, e.name, x, func() sample { return turn(2 * b.slice) }}
}

// types are measured by their writers, where they have readers too: all exclude all.
var queued = []struct {
	name string
	most float64 // commands of a hand-over
	make func(c *rlock.Client, name string) rlock.Locker
}{
	{"FairLock", 5.5, func(c *rlock.Client, name string) rlock.Locker { return c.NewFairLock(name) }},
	{"FairReadWriteLock", 3.5, func(c *rlock.Client, name string) rlock.Locker { return c.NewFairReadWriteLock(name).Writer }},
	{"PriorityLock", 3.5, func(c *rlock.Client, name string) rlock.Locker { return c.NewPriorityLock(name) }},
}

// openNamed opens a session of a peer, or of one of these types.
func openNamed(name, addr string, lease time.Duration) (session, error) {
	for _, q := range queued {
		if q.name == name {
			return openType(addr, lease, q.make)
		}
	}
	return peerNamed(name).open(addr, lease)
}

// enterType is enter for one of the types of rlock.
func (b *bench) enterType(addr, name string, of func(*rlock.Client, string) rlock.Locker) entrant {
	session, err := openType(addr, lease, of)
	b.host.must(err)
	b.host.Cleanup(session.close)
	return entrant{peer{name: name}, session}
}

func (b *bench) types() {
	s := b.server()
	var jobs []job
	for _, q := range queued {
		jobs = append(jobs, b.crowdJob(s, "types", crowdSize, crowdSize, b.enterType(s.Addr(), q.name, q.make)))
	}
	b.interleave(b.rounds, jobs)
	b.say("%s", b.results.line("types", crowdSize, "hand-overs/s"))
	jobs = nil
	var all []*child
	for _, q := range queued {
		for range fleet {
			all = append(all, b.child(q.name, s.Addr(), lease))
		}
		jobs = append(jobs, b.raceJob(s, typesApart, peer{name: q.name}, all[len(all)-fleet:]))
	}
	b.interleave(b.rounds, jobs)
	for _, c := range all {
		c.stop()
	}
	b.say("%d processes: %s", fleet, b.results.line(typesApart, fleet, "hand-overs/s"))
}

// typesApart is one key of such a type that several processes want. Its first word says what is shown of it.
const typesApart = "types, in processes"

// A slow network.

func (b *bench) delays() {
	s := b.server()
	names := []string{ours, rawName, autoName, bsmName, syncName, rueidisN, redisson}
	for _, ms := range []int{0, 1, 5, 10} {
		addr := b.network(s, time.Duration(ms)*time.Millisecond)
		b.results.add(delayMeasure(1), pingName, float64(ms), b.ping(addr))
		for _, callers := range b.choose([]int{1, 64, 512}, nil, []int{1, 64, 512}) {
			b.ownKeysOf(s, addr, delayMeasure(callers), float64(ms), callers, names)
		}
		if b.rows {
			continue
		}
		jobs := []job{b.crowdJob(s, delayedCrowd, float64(ms), crowdSize, b.enterType(addr, queued[0].name, queued[0].make))}
		for _, e := range b.enter(addr, lease, ours, rueidisN, redisson) {
			jobs = append(jobs, b.crowdJob(s, delayedCrowd, float64(ms), crowdSize, e))
		}
		b.interleave(min(b.rounds, 3), jobs)
		b.say("%s", b.results.line(delayedCrowd, float64(ms), "hand-overs/s"))
	}
	servers := b.servers(nodes)
	for _, ms := range b.choose([]int{1, 10, 50, 200}, nil, []int{1, 10}) {
		var addrs []string
		for _, s := range servers {
			addrs = append(addrs, b.network(s, time.Duration(ms)*time.Millisecond))
		}
		all := b.contenders(servers, addrs)
		for _, callers := range []int{1, 64} {
			b.contend(servers, all, delayMeasure(callers)+" of RedLock", float64(ms), callers)
		}
	}
}

func delayMeasure(callers int) string {
	if callers == 1 {
		return "delay, 1 caller"
	}
	return fmt.Sprintf("delay, %d callers", callers)
}

// delayedCrowd is one key that many want. Its first word says what is shown of it.
const delayedCrowd = "crowd, with a delay"

// pingName is the floor of one round trip.
const pingName = "PING"

func (b *bench) ping(addr string) sample {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	t := newTimes()
	for range 50 {
		start := time.Now()
		b.host.must(rdb.Ping(b.ctx()).Err())
		t.add(time.Since(start))
	}
	return sample{"p50": t.percentile(50)}
}
