package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	lua "github.com/yuin/gopher-lua"
)

var (
	seedFlag = flag.Uint64("sim.seed", 0, "play this seed only, and print its trace")
	seeds    = flag.Int("sim.seeds", 20, "number of seeds, from 1")
	all      = flag.Bool("sim.all", false, "play all of the fixed seeds and mutations, not a part of them")
	third    = flag.Int("sim.third", 0, "of what -sim.all plays, the cases of the first, second or last third (1, 2, 3)")
	fresh    = flag.Int("sim.fresh", 0, "number of seeds that no run had before, beside those, in each scenario")
	first    = flag.Uint64("sim.first", 0, "the first of these; drawn from the clock if there is none")
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // broken connections are what we are here for
	debug.SetGCPercent(400)   // each script that runs makes a Lua state ...
	lua.RegistrySize = 1024   // ... of 80 kB, of which our scripts use little
	lua.CallStackSize = 64
	flag.Parse()
	if *third < 0 || *third > 3 {
		fmt.Println("-sim.third is 1, 2 or 3")
		os.Exit(2)
	}
	if *fresh > 0 && *first == 0 {
		*first = uint64(time.Now().UnixNano())
		fmt.Printf("fresh seeds: -sim.fresh=%d -sim.first=%d\n", *fresh, *first)
	}
	m.Run()
}

// bubble plays one world in a bubble of its own.
func bubble(t *testing.T, seed uint64, cfg Config, f func(w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := New(seed, cfg)
		f(w)
		w.Close()
	})
}

type report struct {
	digest         uint64
	trace          []string
	stats          Stats
	acked, counted int
	received       int
	pubsubDials    int
	elapsed        time.Duration
}

// play is a workload without locks: three hosts that write, read, count and
// publish, and listen to each other.
func play(t *testing.T, seed uint64, servers, faults int, rates Rates) (r report) {
	bubble(t, seed, Config{Servers: servers, Rates: rates}, func(w *World) {
		var (
			mu      sync.Mutex
			work    sync.WaitGroup
			clients []*redis.Client
		)
		span := 8 * time.Second
		for _, name := range []string{"a", "b", "c"} {
			h := w.Host(name)
			for i := range max(1, servers) {
				rdb := redis.NewClient(h.Options(i))
				clients = append(clients, rdb)
				who := fmt.Sprint(name, i)
				ps := rdb.Subscribe(context.Background())
				listener := make(chan struct{})
				go func() {
					defer close(listener)
					n := listen(w, h, "listen "+who, ps)
					mu.Lock()
					r.received += n
					mu.Unlock()
				}()
				work.Go(func() {
					n := workload(w, h, "work "+who, rdb, span)
					ps.Close()
					<-listener
					mu.Lock()
					r.acked += n
					mu.Unlock()
				})
			}
		}
		w.Play(w.Schedule(append(slices.Clone(Everything), Jump), faults, span))
		work.Wait()
		w.Heal()
		for i := range max(1, servers) {
			// One INCR more, which nothing disturbs, tells the count.
			n, err := clients[i].Incr(context.Background(), "n").Result()
			if err != nil {
				n, err = clients[i].Incr(context.Background(), "n").Result() // a broken pooled connection
			}
			if err != nil {
				t.Errorf("seed %d: INCR after Heal: %v", seed, err)
			}
			r.counted += int(n) - 1
		}
		for _, rdb := range clients {
			rdb.Close()
		}
		defer func() {
			r.digest, r.trace, r.stats, r.elapsed = w.Digest(), w.Trace(), w.Stats(), w.Elapsed()
			for _, h := range w.hosts {
				r.pubsubDials += h.pubsubDials
			}
		}()
	})
	return r
}

func workload(w *World, h *Host, who string, rdb *redis.Client, span time.Duration) (acked int) {
	r := w.Rand(who)
	ctx := context.Background()
	for i := 0; w.Elapsed() < span; i++ {
		h.Sleep(who, time.Duration(r.Int64N(int64(80*time.Millisecond))))
		switch r.IntN(4) {
		case 0:
			rdb.Set(ctx, "k", fmt.Sprint(who, i), time.Second)
		case 1:
			rdb.Get(ctx, "k")
		case 2:
			if rdb.Incr(ctx, "n").Err() == nil {
				acked++
			}
		case 3:
			rdb.Publish(ctx, "ch", i)
		}
		h.Gate(who)
	}
	return acked
}

func listen(w *World, h *Host, who string, ps *redis.PubSub) (received int) {
	r := w.Rand(who)
	h.Sleep(who, time.Duration(r.Int64N(int64(time.Millisecond))))
	ps.Subscribe(context.Background(), "ch")
	for {
		m, err := ps.Receive(context.Background())
		h.Gate(who)
		switch {
		case errors.Is(err, redis.ErrClosed):
			return received
		case err != nil:
			h.Sleep(who, 20*time.Millisecond+time.Duration(r.Int64N(int64(time.Millisecond))))
		}
		if _, ok := m.(*redis.Message); ok {
			received++
		}
	}
}

func eachSeed(t *testing.T, f func(t *testing.T, seed uint64)) {
	if *seedFlag != 0 {
		f(t, *seedFlag)
		return
	}
	for s := range *seeds {
		f(t, uint64(s)+1)
	}
}

func TestSameSeedSameRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	runs := 2
	if thorough() {
		runs = 3
	}
	most := uint64(*seeds)
	if brief() {
		most = (most + 3) / 4
	}
	for _, servers := range []int{1, 3} {
		digests := map[uint64]bool{}
		eachSeed(t, func(t *testing.T, seed uint64) {
			if seed > most && *seedFlag == 0 {
				return
			}
			var first report
			for run := range runs {
				runtime.GOMAXPROCS(1 + run%2)
				r := play(t, seed, servers, 12, Harsh)
				if run == 0 {
					first = r
					digests[r.digest] = true
					continue
				}
				if r.digest != first.digest || r.stats != first.stats {
					t.Errorf("%d servers, seed %d: run %d differs: %s", servers, seed, run, firstDifference(first.trace, r.trace))
				}
			}
			if *seedFlag != 0 {
				for _, l := range first.trace {
					t.Log(l)
				}
			}
		})
		if len(digests) < int(most) && *seedFlag == 0 {
			t.Errorf("%d servers: only %d different runs of %d seeds", servers, len(digests), most)
		}
	}
}

func firstDifference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("event %d\n%s\n%s", i, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d and %d events", len(a), len(b))
}

// A fault that never fires proves nothing about the code that survives it.
func TestEveryFaultHappens(t *testing.T) {
	var sum Stats
	total := reflect.ValueOf(&sum).Elem()
	received, pubsubDials := 0, 0
	eachSeed(t, func(t *testing.T, seed uint64) {
		r := play(t, seed, 1, 12, Harsh)
		sum.add(r.stats)
		received += r.received
		pubsubDials += r.pubsubDials
	})
	for i := range total.NumField() {
		if total.Field(i).Int() == 0 {
			t.Errorf("no %s", total.Type().Field(i).Name)
		}
	}
	if received == 0 {
		t.Error("no message was received")
	}
	if pubsubDials == 0 {
		t.Error("no dial was seen as one of PubSub: rule 1 is broken")
	}
	t.Logf("%+v, %d messages received, %d pub/sub dials", sum, received, pubsubDials)
}

func TestNoFaultsNoErrors(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		r := play(t, seed, 1, 0, Rates{})
		if r.acked == 0 || r.acked != r.counted || r.received == 0 {
			t.Errorf("seed %d: %d INCR acknowledged, %d counted, %d messages", seed, r.acked, r.counted, r.received)
		}
		if r.stats != (Stats{Requests: r.stats.Requests}) {
			t.Errorf("seed %d: faults: %+v", seed, r.stats)
		}
	})
}

func TestLostReplyAndLateCopyCountMoreThanAcknowledged(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		r := play(t, seed, 1, 0, Rates{Swallow: 0.1, Late: 1})
		if r.stats.Swallowed == 0 || r.stats.LateCopies == 0 || r.counted <= r.acked {
			t.Errorf("seed %d: %d INCR acknowledged, %d counted, %+v", seed, r.acked, r.counted, r.stats)
		}
	})
}

// one sends a single request, a script as the library's are, with a rate of 1,
// and returns the count just afterwards, the count when late copies have run,
// and what the client saw.
func one(t *testing.T, rates Rates) (soon, finally string, took time.Duration, err error) {
	bubble(t, 1, Config{Rates: rates}, func(w *World) {
		rdb := redis.NewClient(w.Host("a").Options(0))
		start := time.Now()
		err = rdb.Eval(context.Background(), `return redis.call("INCR", KEYS[1])`, []string{"n"}).Err()
		took = time.Since(start)
		soon, _ = w.Redis(0).Get("n")
		time.Sleep(time.Minute)
		finally, _ = w.Redis(0).Get("n")
		rdb.Close()
	})
	return soon, finally, took, err
}

func TestFateOfOneRequest(t *testing.T) {
	for _, c := range []struct {
		name          string
		rates         Rates
		fails         bool
		soon, finally string
	}{
		{"none", Rates{}, false, "1", "1"},
		{"swallow", Rates{Swallow: 1}, true, "1", "1"},
		{"swallow, late copy", Rates{Swallow: 1, Late: 1, LateWithin: time.Minute}, true, "1", "2"},
		{"reset before", Rates{ResetBefore: 1}, true, "", ""},
		{"reset before, late", Rates{ResetBefore: 1, Late: 1, LateWithin: time.Minute}, true, "", "1"},
		{"reset after", Rates{ResetAfter: 1}, true, "1", "1"},
		{"reset after, late copy", Rates{ResetAfter: 1, Late: 1, LateWithin: time.Minute}, true, "1", "2"},
		{"again", Rates{Again: 1}, false, "2", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			soon, finally, took, err := one(t, c.rates)
			if (err != nil) != c.fails || soon != c.soon || finally != c.finally {
				t.Errorf("got error %v, %q then %q; want failure %v, %q then %q", err, soon, finally, c.fails, c.soon, c.finally)
			}
			if timedOut := took >= 400*time.Millisecond; timedOut != (c.rates.Swallow > 0) {
				t.Errorf("took %v", took)
			}
		})
	}
}

// A pipeline is one packet with several requests, each with a fate of its own.
func TestPipelineRequestsHaveTheirOwnFate(t *testing.T) {
	partly := 0
	eachSeed(t, func(t *testing.T, seed uint64) {
		bubble(t, seed, Config{Rates: Rates{ResetAfter: 0.2}}, func(w *World) {
			rdb := redis.NewClient(w.Host("a").Options(0))
			cmds, err := rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
				for range 5 {
					p.Incr(context.Background(), "n")
				}
				return nil
			})
			ran, _ := w.Redis(0).Get("n")
			if err == nil && ran != "5" {
				t.Errorf("seed %d: no error, but %s of 5 ran", seed, ran)
			}
			if err != nil && cmds[4].Err() == nil {
				t.Errorf("seed %d: the last reply came on a connection that was reset", seed)
			}
			if err != nil && ran != "" {
				partly++
			}
			rdb.Close()
		})
	})
	if partly == 0 && *seedFlag == 0 {
		t.Error("no pipeline ran in part")
	}
}

// Host faults hold requests back and lose none of them.
func TestHostFaultsDelay(t *testing.T) {
	for name, fault := range map[string]func(*World, *Host){
		"pause":     func(_ *World, h *Host) { h.Pause(2 * time.Second) },
		"partition": func(_ *World, h *Host) { h.Partition(2 * time.Second) },
		"one link":  func(_ *World, h *Host) { h.PartitionFrom(0, 2*time.Second) },
		"freeze":    func(w *World, _ *Host) { w.Freeze(0, 2*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, Config{}, func(w *World) {
				h := w.Host("a")
				rdb := redis.NewClient(h.Options(0))
				rdb.Ping(context.Background())
				fault(w, h)
				start := time.Now()
				err := rdb.Incr(context.Background(), "n").Err()
				if _, e := w.Redis(0).Get("n"); e == nil && time.Since(start) < 2*time.Second {
					t.Error("the request ran during the fault")
				}
				h.Gate("test")
				if name == "pause" && time.Since(start) < 2*time.Second {
					t.Error("passed a gate during the pause")
				}
				if name != "pause" && err == nil {
					t.Error("no error")
				}
				time.Sleep(3 * time.Second)
				if n, _ := w.Redis(0).Get("n"); n != "1" {
					t.Errorf("count afterwards %q", n)
				}
				rdb.Close()
			})
		})
	}
}

func TestRestart(t *testing.T) {
	bubble(t, 1, Config{}, func(w *World) {
		ctx := context.Background()
		h := w.Host("a")
		rdb := redis.NewClient(h.Options(0))
		rdb.Set(ctx, "k", "v", 10*time.Second)
		sha := rdb.ScriptLoad(ctx, "return 1").Val()
		w.Restart(0, time.Second, false)
		for range 2 { // the pooled connection, and a dial
			if err := rdb.Get(ctx, "k").Err(); err == nil || errors.Is(err, redis.Nil) {
				t.Errorf("GET while the server is down: %v", err)
			}
		}
		time.Sleep(time.Second)
		if v, err := rdb.Get(ctx, "k").Result(); v != "v" {
			t.Errorf("GET after a restart: %q, %v", v, err)
		}
		if err := rdb.EvalSha(ctx, sha, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("EVALSHA after a restart: %v", err)
		}
		w.Restart(0, 0, true)
		rdb.Get(ctx, "k")
		if err := rdb.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("GET after a loss: %v", err)
		}
		rdb.Close()
	})
}

func TestEnvDependsOnSeedAndHost(t *testing.T) {
	ids := map[string]bool{}
	for seed := range uint64(3) {
		bubble(t, seed, Config{}, func(w *World) {
			for _, name := range []string{"a", "b"} {
				h := w.Host(name)
				first, second := h.Env(), h.Env()
				if first.ClientID != second.ClientID || first.Seed != second.Seed {
					t.Error("Env is not stable")
				}
				ids[first.ClientID] = true
			}
		})
	}
	for id := range ids {
		if len(id) != 36 || id[14] != '4' || (id[19] != '8' && id[19] != '9' && id[19] != 'a' && id[19] != 'b') {
			t.Errorf("%q is not a version 4 UUID", id)
		}
	}
	if len(ids) != 6 {
		t.Errorf("%d different ids of 6", len(ids))
	}
}

func TestMessagesAreDroppedInBothProtocols(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		for rate, want := range map[float64]int{0: 10, 1: 0} {
			bubble(t, 1, Config{Rates: Rates{DropMessage: rate}}, func(w *World) {
				ctx := context.Background()
				opt := w.Host("a").Options(0)
				opt.Protocol = protocol
				rdb := redis.NewClient(opt)
				ps := rdb.Subscribe(ctx, "ch")
				if _, err := ps.Receive(ctx); err != nil {
					t.Errorf("subscribe: %v", err)
				}
				for i := range 10 {
					rdb.Publish(ctx, "ch", i)
				}
				got := 0
				for {
					if _, err := ps.ReceiveTimeout(ctx, time.Second); err != nil {
						break
					}
					got++
				}
				if got != want || w.Stats().DroppedMessages != 10-want {
					t.Errorf("RESP%d, rate %v: %d messages, %d dropped", protocol, rate, got, w.Stats().DroppedMessages)
				}
				ps.Close()
				rdb.Close()
			})
		}
	}
}

// Requests and replies that take several reads and writes are still one each.
func TestLargeRequestsAndRepliesStayWhole(t *testing.T) {
	bubble(t, 1, Config{Rates: Rates{Again: 1}}, func(w *World) {
		ctx := context.Background()
		rdb := redis.NewClient(w.Host("a").Options(0))
		big := strings.Repeat("x\r\n", 50_000)
		if err := rdb.HSet(ctx, "h", "f", big).Err(); err != nil {
			t.Error(err)
		}
		for range 3 {
			if m, err := rdb.HGetAll(ctx, "h").Result(); err != nil || m["f"] != big {
				t.Errorf("%d bytes, %v", len(m["f"]), err)
			}
		}
		rdb.Close()
	})
}

func TestElementLen(t *testing.T) {
	for _, s := range []string{
		"+OK\r\n", ":1\r\n", "_\r\n", "$-1\r\n", "*-1\r\n", "$0\r\n\r\n", "$3\r\na\r\n\r\n", "*0\r\n",
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "%1\r\n+a\r\n*1\r\n_\r\n", ">2\r\n+message\r\n$1\r\nx\r\n",
	} {
		for n := range len(s) {
			if got := elementLen([]byte(s[:n])); got != 0 {
				t.Errorf("%q: %d, but it is not complete", s[:n], got)
			}
		}
		if got := elementLen([]byte(s + "+more\r\n")); got != len(s) {
			t.Errorf("%q: %d of %d", s, got, len(s))
		}
	}
}
