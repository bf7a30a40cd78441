package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

// process is a process that only uses one lock, with the defaults of the library.
type process struct {
	h    *Host
	rdbs []*redis.Client
	cs   []*rlock.Client // one for each server
	lock rlock.Locker
}

// newProcess makes one whose lock is on all servers: a RedLock if there are several. Each way
// to a server takes as much longer as away says.
func newProcess(w *World, name string, away func(server int) time.Duration, opts ...rlock.Option) *process {
	p := &process{h: w.Host(name)}
	for i := range w.servers {
		p.h.Far(i, away(i))
		o := p.h.Options(i)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 5*time.Second, 5*time.Second, 5*time.Second
		rdb := redis.NewClient(o)
		env := p.h.Env()
		if len(w.servers) > 1 {
			env = p.h.EnvOf(i)
		}
		c, err := rlock.New(rdb, append([]rlock.Option{seam.Option(env).(rlock.Option)}, opts...)...)
		if err != nil {
			panic(err)
		}
		p.rdbs, p.cs = append(p.rdbs, rdb), append(p.cs, c)
	}
	if len(w.servers) == 1 {
		p.lock = p.cs[0].NewLock("stock")
		return p
	}
	l, err := rlock.NewRedLock("stock", p.cs)
	if err != nil {
		panic(err)
	}
	p.lock = l
	return p
}

// near is the distance of servers in one site.
func near(int) time.Duration { return 0 }

// warm has the process take and release its lock, so that its connections are there and the
// servers know the scripts. It ends when its client does not listen any more.
func (p *process) warm() {
	for range 3 {
		lease, err := p.lock.Lock(context.Background())
		if err != nil {
			panic(err)
		}
		if err := lease.Unlock(context.Background()); err != nil {
			panic(err)
		}
	}
	p.h.Sleep("warm "+p.h.Name, 5*time.Second)
}

func (p *process) close() {
	for i, c := range p.cs {
		if err := c.Close(); err != nil {
			panic(err)
		}
		p.rdbs[i].Close()
	}
}

// Ten processes try for a free lock at once, from zones that are 0.5 to 2 ms apart. They split
// the votes, but none of them holds the lock then: one gets it.
func TestTryLockTogetherGivesAFreeLockToOne(t *testing.T) { tryAtOnce(t, 8, 10, 5) }

// The same, more often.
func TestTryLockTogetherGivesAFreeLockToOneNightly(t *testing.T) {
	locktest.Nightly(t)
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	for _, hosts := range []int{2, 5, 10} {
		for seed := range uint64(3) {
			tryAtOnce(t, seed, hosts, rounds)
		}
	}
}

func tryAtOnce(t *testing.T, seed uint64, hosts, rounds int) {
	bubble(t, seed, Config{Servers: 5}, func(w *World) {
		var all []*process
		zones := w.Rand("zones")
		for i := range hosts {
			all = append(all, newProcess(w, fmt.Sprint("h", i), func(int) time.Duration {
				return 250*time.Microsecond + time.Duration(zones.Int64N(int64(750*time.Microsecond)))
			}))
		}
		for _, p := range all {
			p.warm()
		}
		nobody := 0
		for range rounds {
			leases := make([]*rlock.Lease, hosts)
			var wg sync.WaitGroup
			for i, p := range all {
				wg.Go(func() {
					p.h.Sleep("cron "+p.h.Name, time.Second)
					lease, err := p.lock.TryLock(context.Background())
					if err != nil && !errors.Is(err, rlock.ErrNotAcquired) {
						t.Error(err)
					}
					leases[i] = lease
				})
			}
			wg.Wait()
			holders := 0
			for _, l := range leases {
				if l == nil {
					continue
				}
				holders++
				if err := l.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if holders == 0 {
				nobody++
			}
			if holders > 1 {
				t.Errorf("%d hold it", holders)
			}
			time.Sleep(time.Second)
		}
		if nobody > 0 {
			t.Errorf("%d at once: nobody got the free lock in %d of %d rounds", hosts, nobody, rounds)
		}
		for _, p := range all {
			p.close()
		}
	})
}

// plant has the servers vote as told, for a minute: whoever voted so is gone.
func plant(w *World, votes ...string) {
	for i, id := range votes {
		m, record := w.Redis(i), derived("stock", "rlock:red")
		m.Del(record)
		if id != "" {
			m.HSet(record, "attempt", id, "stamp", "1:1", "until", fmt.Sprint(w.Now(i).Add(time.Minute).UnixMicro()))
		}
	}
}

// looks counts the looks of the acquires that have ended.
type looks struct {
	locktest.Ignoring
	n int
}

func (l *looks) AcquireEnd(_ context.Context, e rlock.AcquireEvent) { l.n += e.Attempts }

// A TryLock ends with the first look if that shows a holder. If it shows split votes only, it looks
// again, until its time is over, and does not say that somebody holds the lock.
func TestTryLockRepeatsASplitVote(t *testing.T) {
	seen := &looks{}
	bubble(t, 9, Config{Servers: 5}, func(w *World) {
		p := newProcess(w, "a", near, rlock.WithObserver(seen))
		defer p.close()
		p.warm()
		try := func() (took time.Duration, err error) {
			seen.n = 0
			began := w.Elapsed()
			_, err = p.lock.TryLock(context.Background())
			return w.Elapsed() - began, err
		}
		plant(w, "b:1", "b:1", "b:1")
		if _, err := try(); !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "held by b:1") || seen.n != 1 {
			t.Errorf("held: %v after %d looks", err, seen.n)
		}
		plant(w, "b:1", "b:1", "c:1", "c:1", "d:1")
		took, err := try()
		if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "no holder was seen") || strings.Contains(err.Error(), "held by") {
			t.Errorf("split: %v", err)
		}
		if took > rlock.DefaultCommandTimeout+time.Second || seen.n < 5 || seen.n > 15 {
			t.Errorf("split: %d looks in %v", seen.n, took)
		}
		time.AfterFunc(time.Second, func() { plant(w, "b:1", "b:1", "", "", "") }) // one takes its votes back
		lease, err := p.lock.TryLock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		plant(w, "b:1", "b:1", "c:1", "c:1", "d:1")
		if _, err := p.lock.TryLock(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no holder was seen") {
			t.Errorf("ended: %v", err)
		}
		plant(w, "", "", "", "", "")
	})
}

// At a node that is far away, but answers as it always does, Lock and Unlock take one round trip
// each: no answer is late that takes as long as usual.
func TestFarNodesCostOneRoundTrip(t *testing.T) {
	for _, trip := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
		bubble(t, 10, Config{Servers: 5}, func(w *World) {
			p := newProcess(w, "a", func(int) time.Duration { return trip / 2 })
			defer p.close()
			p.warm()
			most := trip + min(trip/2, 50*time.Millisecond)
			// At the best: a request for which a connection has to be made takes longer, and whether one
			// is there depends on the order in which goroutines of this process run.
			lock, unlock := time.Hour, time.Hour
			for range 5 {
				began := w.Elapsed()
				lease, err := p.lock.Lock(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				held := w.Elapsed()
				if err := lease.Unlock(context.Background()); err != nil {
					t.Fatal(err)
				}
				lock, unlock = min(lock, held-began), min(unlock, w.Elapsed()-held)
			}
			if lock > most || unlock > most {
				t.Errorf("%v away: Lock took %v, Unlock %v", trip, lock, unlock)
			}
		})
	}
}

// loop has a process take and release its lock until a given time, and returns how often it held it.
func (p *process) loop(t *testing.T, w *World, until, section time.Duration) (holds int) {
	for w.Elapsed() < until {
		ctx, cancel := context.WithTimeout(context.Background(), until-w.Elapsed())
		lease, err := p.lock.Lock(ctx)
		cancel()
		if err != nil {
			if w.Elapsed() < until {
				t.Error(err)
			}
			break
		}
		holds++
		if section > 0 {
			p.h.Sleep("section "+p.h.Name, section)
		}
		if err := lease.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	}
	return holds
}

// contend has processes loop for a while, and returns how often each held the lock.
func contend(t *testing.T, w *World, all []*process, span, section time.Duration) []int {
	holds := make([]int, len(all))
	until := w.Elapsed() + span
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() { holds[i] = p.loop(t, w, until, section) })
	}
	wg.Wait()
	return holds
}

// Sixteen processes that are some 200 ms away from the nodes begin at once, and get on: they back
// off for longer than a round trip takes, and whoever has the vote of the first node is left alone.
func TestFarContendersGetOn(t *testing.T) {
	for seed := range uint64(2) {
		bubble(t, seed, Config{Servers: 5}, func(w *World) {
			var all []*process
			zones := w.Rand("zones")
			for i := range 16 {
				all = append(all, newProcess(w, fmt.Sprint("h", i), func(int) time.Duration {
					return 80*time.Millisecond + time.Duration(zones.Int64N(int64(40*time.Millisecond)))
				}))
			}
			for _, p := range all {
				p.warm()
			}
			holds := contend(t, w, all, 6*time.Second, 0)
			sum := 0
			for _, n := range holds {
				sum += n
			}
			if sum < 5 { // a hold takes four round trips
				t.Errorf("seed %d: %d holds in 6 s: %v", seed, sum, holds)
			}
			for _, p := range all {
				p.close()
			}
		})
	}
}

// A waiter that a partition keeps from the nodes of the holder, except one, gets the votes of the
// others and gives them back. It does so less and less often, up to its longest poll.
func TestWaiterBehindAPartitionPollsRarely(t *testing.T) {
	bubble(t, 12, Config{Servers: 5}, func(w *World) {
		a := newProcess(w, "a", near)
		b := newProcess(w, "b", near, rlock.WithLongestPoll(10*time.Second))
		a.warm()
		b.warm()
		for _, server := range []int{3, 4} {
			a.h.PartitionFrom(server, time.Hour)
			b.h.PartitionFrom(server-3, time.Hour)
		}
		lease, err := a.lock.Lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		before := w.Stats().Requests
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if _, err := b.lock.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// 10 looks while it backs off, and 24 to 30 then, of up to five requests; renewals.
		if n := w.Stats().Requests - before; n > 300 {
			t.Errorf("%d requests in two minutes", n)
		}
		got := make(chan error)
		go func() {
			lease, err := b.lock.Lock(context.Background())
			if err == nil {
				err = lease.Unlock(context.Background())
			}
			got <- err
		}()
		b.h.Sleep("b waits", time.Minute)
		released := w.Elapsed()
		if err := lease.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		if took := w.Elapsed() - released; took > 2*time.Second {
			t.Errorf("it got the lock %v after the release", took)
		}
		w.Heal()
		a.close()
		b.close()
	})
}

// jain is Jain's index: 1 if all have had it equally often, 1/n if only one has.
func jain(holds []int) float64 {
	sum, squares := 0.0, 0.0
	for _, n := range holds {
		sum += float64(n)
		squares += float64(n * n)
	}
	return sum * sum / squares / float64(len(holds))
}

// Processes that want a lock again and again have it equally often: who has just released it lets
// the others go first.
func TestProcessesShareALockFairly(t *testing.T) {
	for _, servers := range []int{1, 5} {
		for _, hosts := range []int{2, 4} {
			bubble(t, 13, Config{Servers: servers}, func(w *World) {
				var all []*process
				for i := range hosts {
					all = append(all, newProcess(w, fmt.Sprint("h", i), near))
				}
				for _, p := range all {
					p.warm()
				}
				holds := contend(t, w, all, 5*time.Second, 50*time.Millisecond)
				sum := 0
				for _, n := range holds {
					sum += n
				}
				if j := jain(holds); j < 0.97 || sum < 80 {
					t.Errorf("%d servers, %d processes: Jain's index %.2f of %v", servers, hosts, j, holds)
				}
				for _, p := range all {
					p.close()
				}
			})
		}
	}
}

// Unlock waits for the nodes that answer a little later than the quorum, so that a process that ends
// then leaves no votes; but for as long again as the quorum took at the most, and not for nodes that
// are known not to answer.
func TestUnlockWaitsForTheOtherNodes(t *testing.T) {
	const ms = time.Millisecond
	bubble(t, 14, Config{Servers: 5}, func(w *World) {
		p := newProcess(w, "a", func(server int) time.Duration { return []time.Duration{10, 10, 10, 15, 15}[server] * ms })
		p.warm()
		unlock := func() (took time.Duration) {
			lease, err := p.lock.Lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			p.h.Sleep("section", time.Second)
			began := w.Elapsed()
			if err := lease.Unlock(context.Background()); err != nil {
				t.Error(err)
			}
			return w.Elapsed() - began
		}
		if took := unlock(); took < 30*ms || took > 35*ms {
			t.Errorf("all answer: %v", took)
		}
		lease, err := p.lock.Lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		p.h.Sleep("section", time.Second)
		p.h.PartitionFrom(3, time.Minute)
		p.h.PartitionFrom(4, time.Minute)
		began := w.Elapsed()
		if err := lease.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
		if took := w.Elapsed() - began; took < 40*ms || took > 45*ms {
			t.Errorf("two have just been cut off: %v", took)
		}
		p.h.Sleep("they are known to be lost", 5*time.Second)
		if took := unlock(); took < 20*ms || took > 25*ms {
			t.Errorf("two are lost: %v", took)
		}
		w.Heal()
		p.close()
	})
}
