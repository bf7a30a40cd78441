package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// costs is what a Lock and an Unlock of a free lock cost: exactly, on any machine. Who
// lowers a figure lowers it here; the test prints the line that is then right.
var costs = []cost{
	{"Lock", 2, 7, 23},
	{"Lock, for an Observer", 2, 7, 26},
	{"FairLock", 2, 13, 43},
	{"SpinLock", 2, 6, 23},
	{"FencedLock", 2, 6, 25},
	{"ReadLock", 2, 17, 39},
	{"WriteLock", 2, 16, 38},
	{"plain WriteLock", 2, 14, 33},
	{"fair ReadLock", 2, 24, 49},
	{"fair WriteLock", 2, 28, 49},
	{"PriorityLock", 2, 28, 50},
	{"Election", 2, 30, 49},
	{"DoubleBarrier of one, Enter and Unlock", 2, 30, 35},
	{"DoubleBarrier of one, Enter and Leave", 3, 35, 50},
	{"Once that runs, with its NewOnce", 4, 12, 86},
	{"Once with a result", 1, 1, 17},
	{"CronJob that runs", 2, 22, 82},
	{"CronJob of which another has run", 1, 5, 39},
	{"MultiLock of three in a slot", 2, 18, 117},
	{permitCost, 2, 13, 30},
	{permitsCost, 2, 14, 32},
	{fairPermitCost, 2, 25, 42},
	{redLockCost, 10, 41, 125},
}

type cost struct {
	name     string
	commands float64 // that the client sends
	inside   float64 // that the scripts call
	allocs   float64 // at the most, with a context that can be canceled
}

// redLockCost is the most that a RedLock costs: a node that is still to answer when a
// quorum has may be spared a request.
const redLockCost = "RedLock on five nodes"

const (
	permitCost     = "a permit of a PermitSemaphore"
	permitsCost    = "five permits of a PermitSemaphore"
	fairPermitCost = "a permit of a fair PermitSemaphore"
)

func (c cost) String() string {
	return fmt.Sprintf("{%q, %.4g, %.4g, %.4g}", c.name, c.commands, c.inside, c.allocs)
}

// counting is what operations of types that are no locks cost.
var counting = []struct {
	cost
	do func(ctx context.Context, c *rlock.Client) error
}{
	{cost{"Semaphore: Acquire and Release", 2, 9, 28}, func(ctx context.Context, c *rlock.Client) error {
		s := c.NewSemaphore("permits")
		return errors.Join(s.Acquire(ctx, 1), s.Release(ctx, 1))
	}},
	{cost{"Semaphore: TryAcquire, refused", 1, 2, 28}, func(ctx context.Context, c *rlock.Client) error {
		if err := c.NewSemaphore("permits").TryAcquire(ctx, 11); !errors.Is(err, rlock.ErrNotAcquired) {
			return err
		}
		return nil
	}},
	{cost{"Semaphore: Available", 1, 1, 16}, func(ctx context.Context, c *rlock.Client) error {
		_, err := c.NewSemaphore("permits").Available(ctx)
		return err
	}},
	{cost{"Semaphore: TrySetPermits", 1, 3, 20}, func(ctx context.Context, c *rlock.Client) error {
		_, err := c.NewSemaphore("permits").TrySetPermits(ctx, 10)
		return err
	}},
	{cost{"Semaphore: AddPermits", 1, 5, 20}, func(ctx context.Context, c *rlock.Client) error {
		return c.NewSemaphore("added").AddPermits(ctx, 1)
	}},
	{cost{"Semaphore: SetPermits", 1, 4, 20}, func(ctx context.Context, c *rlock.Client) error {
		return c.NewSemaphore("permits").SetPermits(ctx, 10)
	}},
	{cost{"Semaphore: State", 1, 1, 20}, func(ctx context.Context, c *rlock.Client) error {
		_, err := c.NewSemaphore("permits").State(ctx)
		return err
	}},
	{cost{"Semaphore: TrySetPermits and Delete", 2, 12, 27}, func(ctx context.Context, c *rlock.Client) error {
		s := c.NewSemaphore("deleted")
		_, err1 := s.TrySetPermits(ctx, 10)
		_, err2 := s.Delete(ctx)
		return errors.Join(err1, err2)
	}},
	{cost{"PermitSemaphore: TrySetPermits and Delete", 2, 15, 52}, func(ctx context.Context, c *rlock.Client) error {
		s := c.NewPermitSemaphore("deleted")
		_, err1 := s.TrySetPermits(ctx, 10)
		_, err2 := s.Delete(ctx)
		return errors.Join(err1, err2)
	}},
	{cost{"Semaphore: Drain", 1, 3, 21}, func(ctx context.Context, c *rlock.Client) error {
		_, err := c.NewSemaphore("added").Drain(ctx)
		return err
	}},
	{cost{"CountDownLatch: TrySetCount and CountDown", 2, 12, 29}, func(ctx context.Context, c *rlock.Client) error {
		l := c.NewCountDownLatch("latch")
		_, err := l.TrySetCount(ctx, 1)
		return errors.Join(err, l.CountDown(ctx))
	}},
	{cost{"CountDownLatch: TrySetCount and Delete", 2, 13, 28}, func(ctx context.Context, c *rlock.Client) error {
		l := c.NewCountDownLatch("latch")
		_, err1 := l.TrySetCount(ctx, 1)
		_, err2 := l.Delete(ctx)
		return errors.Join(err1, err2)
	}},
	{cost{"CountDownLatch: Wait, open", 1, 2, 16}, func(ctx context.Context, c *rlock.Client) error {
		return c.NewCountDownLatch("open").Wait(ctx)
	}},
	{cost{"Barrier: Set and Lift", 2, 7, 26}, func(ctx context.Context, c *rlock.Client) error {
		b := c.NewBarrier("barrier")
		return errors.Join(b.Set(ctx), b.Lift(ctx))
	}},
	{cost{"Barrier: Wait, lifted", 1, 1, 16}, func(ctx context.Context, c *rlock.Client) error {
		return c.NewBarrier("open").Wait(ctx)
	}},
}

// The commands and allocations of the operations of counting. Not in parallel: see
// TestCostInAllocations.
func TestCostOfCounting(t *testing.T) {
	servers := []*locktest.Backend{locktest.OnServer(t)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	inside := func() (n int) {
		for _, calls := range locktest.ScriptCommands(t, servers[0].Client(t)) {
			n += calls
		}
		return n
	}
	for _, want := range counting {
		t.Run(want.name, func(t *testing.T) {
			sent := &locktest.SentCommands{}
			rdb := servers[0].Client(t)
			rdb.AddHook(sent)
			c := locktest.NewClient(t, rdb)
			if _, err := c.NewSemaphore("permits").TrySetPermits(ctx, 10); err != nil {
				t.Fatal(err)
			}
			do := func() {
				if err := want.do(ctx, c); err != nil {
					t.Fatal(err)
				}
			}
			do()
			const times = 100
			got := want.cost
			commands, before := sent.N.Load(), inside()
			for range times {
				do()
			}
			got.commands, got.inside = float64(sent.N.Load()-commands)/times, float64(inside()-before)/times
			// A reply that is a second late is asked for again: rare, but possible.
			if got.commands < want.commands || got.commands > want.commands+0.02 || got.inside < want.inside || got.inside > want.inside+0.2 {
				t.Errorf("it costs %v, not %v", got, want.cost)
			}
			if testing.Short() || locktest.UnderRace() {
				return
			}
			c = servers[0].NewClient(t)
			got.allocs = fewestAllocs(want.allocs, do)
			switch {
			case got.allocs > want.allocs:
				t.Errorf("it costs %v, not %v", got, want.cost)
			case got.allocs < want.allocs:
				t.Logf("it costs %v: the table, with %v, can be lowered", got, want.allocs)
			}
		})
	}
}

// contention is what a section costs when a lock is contended: its commands stay few,
// within one client and between two.
var contention = []struct {
	name               string
	clients, goroutine int
	most               float64 // scripts for each section
}{
	// 2 would be perfect. Each release also wakes the head of every other
	// client, which may look in vain.
	{"one client", 1, 8, 4},
	{"two clients", 2, 4, 6},
	{"two clients, one goroutine each", 2, 1, 6},
}

// costly returns the operation of a row of costs: a Lock and an Unlock of most.
func costly(t *testing.T, name string, servers []*locktest.Backend, hook redis.Hook) func(ctx context.Context) error {
	l, operation := costlyType(t, name, servers, hook)
	if operation != nil {
		return operation
	}
	return func(ctx context.Context) error {
		lease, err := l.Lock(ctx)
		if err == nil {
			err = lease.Unlock(ctx)
		}
		return err
	}
}

func costlyType(t *testing.T, name string, servers []*locktest.Backend, hook redis.Hook) (l rlock.Locker, operation func(ctx context.Context) error) {
	client := func(b *locktest.Backend, opts ...rlock.Option) *rlock.Client {
		rdb := b.Client(t)
		if hook != nil {
			rdb.AddHook(hook)
		}
		return locktest.NewClient(t, rdb, opts...)
	}
	for _, k := range locktest.Types {
		if k.Name == name {
			return k.Open(client(servers[0]), "cost:"+name), nil
		}
	}
	switch name {
	case "Lock, for an Observer":
		return client(servers[0], rlock.WithObserver(locktest.NoObserver{})).NewLock("cost:observed"), nil
	case "Election":
		return locktest.Electing{Election: client(servers[0]).NewElection("cost:" + name)}, nil
	case "DoubleBarrier of one, Enter and Unlock", "DoubleBarrier of one, Enter and Leave":
		b := client(servers[0]).NewDoubleBarrier("cost:double", 1)
		waits := strings.HasSuffix(name, "Leave")
		return nil, func(ctx context.Context) error {
			lease, err := b.Enter(ctx)
			switch {
			case err != nil:
				return err
			case waits:
				return b.Leave(ctx, lease)
			}
			return lease.Unlock(ctx)
		}
	case "Once that runs, with its NewOnce":
		c, n := client(servers[0]), 0
		return nil, func(ctx context.Context) error {
			n++
			_, _, err := c.NewOnce("cost:once:"+strconv.Itoa(n), time.Minute).Do(ctx, nothing)
			return err
		}
	case "Once with a result":
		o := client(servers[0]).NewOnce("cost:once", time.Minute)
		return nil, func(ctx context.Context) error {
			_, _, err := o.Do(ctx, nothing)
			return err
		}
	case "CronJob that runs":
		// Each claim drops an old run.
		j, tick := client(servers[0]).NewCronJob("cost:cron"), time.Now().Truncate(time.Second).Add(-24*time.Hour)
		run := func(ctx context.Context) error {
			tick = tick.Add(time.Second)
			_, err := j.Do(ctx, tick, func(context.Context) error { return nil })
			return err
		}
		for range rlock.MaxRuns + 1 {
			if err := run(bg); err != nil {
				t.Fatal(err)
			}
		}
		return nil, run
	case "CronJob of which another has run":
		j, tick := client(servers[0]).NewCronJob("cost:cron:told"), time.Now().Truncate(time.Second)
		return nil, func(ctx context.Context) error {
			_, err := j.Do(ctx, tick, func(context.Context) error { return nil })
			return err
		}
	case redLockCost:
		var clients []*rlock.Client
		for _, s := range servers {
			clients = append(clients, client(s))
		}
		return locktest.NewRedLock(t, "cost:"+name, clients, rlock.WithNodeTimeout(5*time.Second)), nil
	}
	if n := map[string]int{permitCost: 1, permitsCost: 5, fairPermitCost: 1}[name]; n > 0 {
		var opts []rlock.PermitSemaphoreOption
		if name == fairPermitCost {
			opts = append(opts, rlock.WithFairness())
		}
		s := client(servers[0]).NewPermitSemaphore("cost:"+name, opts...)
		return locktest.PermitLocker{PermitSemaphore: locktest.MustSetPermits(t, s, 10), N: n}, nil
	}
	return locktest.MultiLockOf(t, client(servers[0]), "{cost}:1", "{cost}:2", "{cost}:3"), nil
}

func nothing(context.Context) ([]byte, error) { return nil, nil }

func costServers(t *testing.T) (servers []*locktest.Backend) {
	for range 5 {
		servers = append(servers, locktest.OnServer(t))
	}
	return servers
}

func TestCostOfPair(t *testing.T) {
	t.Parallel()
	servers := costServers(t)
	inside := func() (n int) {
		for _, s := range servers {
			for _, calls := range locktest.ScriptCommands(t, s.Client(t)) {
				n += calls
			}
		}
		return n
	}
	for _, want := range costs {
		t.Run(want.name, func(t *testing.T) {
			sent := &locktest.SentCommands{}
			operation := costly(t, want.name, servers, sent)
			pair := func() {
				t.Helper()
				if err := operation(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				pair() // loads the scripts
			}
			settled(sent)
			const pairs = 200
			commands, before := sent.N.Load(), inside()
			for range pairs {
				pair()
			}
			settled(sent)
			got := want
			got.commands, got.inside = float64(sent.N.Load()-commands)/pairs, float64(inside()-before)/pairs
			// A reply that is a second late is asked for again: rare, but possible.
			more, fewer := 0.02, 0.2
			if want.name == redLockCost {
				fewer = math.Inf(1)
			}
			if d := got.commands - want.commands; d > more || -d > fewer {
				t.Errorf("a pair costs %v, not %v", got, want)
			} else if d := got.inside - want.inside; d > 10*more || -d > fewer {
				t.Errorf("a pair costs %v, not %v", got, want)
			}
		})
	}
}

// settled waits until no more commands are sent: a RedLock does not wait for the slowest
// of its nodes.
func settled(sent *locktest.SentCommands) {
	for last := int64(-1); last != sent.N.Load(); time.Sleep(20 * time.Millisecond) {
		last = sent.N.Load()
	}
}

// fewestAllocs returns how often an operation allocates: the least of some rounds, since whatever else
// goes on in the process can only add, such as what earlier tests have left to end. Rounds are short
// in the end, as on a busy machine few operations in a row are undisturbed, and as the nodes of a
// RedLock answer all pairs in time only if those are few. It stops when it has reached the limit.
func fewestAllocs(limit float64, operation func()) float64 {
	// Go allocates nothing for an integer below 256 in an interface, and operations are numbered.
	for range 256 {
		operation()
	}
	least := math.Inf(1)
	for round := 0; round < 600 && least > limit; round++ {
		n := 300
		if round >= 5 {
			n = 3
		}
		least = min(least, testing.AllocsPerRun(n, operation))
	}
	return least
}

// Not in parallel: AllocsPerRun counts what all goroutines allocate.
func TestCostInAllocations(t *testing.T) {
	if testing.Short() || locktest.UnderRace() {
		t.Skip("counts allocations, of which the race detector makes more")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	servers := costServers(t)
	f := newFloor(t, servers[0])
	t.Logf("two scripts by go-redis alone allocate %.0f times", testing.AllocsPerRun(500, func() { f.evalPair(t, "floor") }))
	for _, want := range costs {
		t.Run(want.name, func(t *testing.T) {
			operation := costly(t, want.name, servers, nil)
			got := want
			got.allocs = fewestAllocs(want.allocs, func() {
				if err := operation(ctx); err != nil {
					t.Error(err)
				}
			})
			switch {
			case got.allocs > want.allocs:
				t.Errorf("a pair costs %v, not %v", got, want)
			case got.allocs < want.allocs && want.name != redLockCost:
				t.Logf("a pair costs %v: the table, with %v, can be lowered", got, want)
			}
		})
	}
}

// allDone is a server of scripts for many, in pipelines, that do all that is asked.
type allDone []any // a positive number for each request

func (allDone) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (allDone) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s allDone) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			keys := cmd.Args()[2].(int) // one of each request
			cmd.(interface{ SetVal(any) }).SetVal([]any(s[:keys]))
		}
		return nil
	}
}

// What the renewal of one of many Locks allocates, without the work of go-redis: the request, with
// its words, its hold id and the function that gets the answer, and a part of what is sent
// together. Not in parallel: see TestCostInAllocations.
func TestCostOfARenewal(t *testing.T) {
	if testing.Short() || locktest.UnderRace() {
		t.Skip("counts allocations, of which the race detector makes more")
	}
	const holds, turns, mostBytes, mostTimes = 1000, 20, 460, 5.4
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // it is never reached
	defer rdb.Close()
	rdb.AddHook(allDone(slices.Repeat([]any{int64(1)}, holds)))
	c := locktest.NewClient(t, rdb)
	renew := rlock.Renewing(c, holds)
	renew() // makes room
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	bytes, times := math.Inf(1), math.Inf(1)
	for try := 0; try < 5 && (bytes > mostBytes || times > mostTimes); try++ {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range turns {
			if !renew() {
				t.Fatal("a renewal was not confirmed")
			}
		}
		runtime.ReadMemStats(&after)
		bytes = min(bytes, float64(after.TotalAlloc-before.TotalAlloc)/(holds*turns))
		times = min(times, float64(after.Mallocs-before.Mallocs)/(holds*turns))
	}
	t.Logf("a renewal allocates %.1f bytes in %.2f objects", bytes, times)
	if bytes > mostBytes || times > mostTimes {
		t.Errorf("a renewal allocates %.1f bytes in %.2f objects, want at most %d and %v", bytes, times, mostBytes, mostTimes)
	}
}

func TestCostOfContention(t *testing.T) {
	t.Parallel()
	for _, test := range contention {
		t.Run(test.name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			clients := make([]*rlock.Client, test.clients)
			for i := range clients {
				clients[i] = b.NewClient(t)
				locktest.Pair(t, clients[i].NewLock("cost"))
			}
			scripts, subs := locktest.CommandCount(t, rdb, "evalsha"), locktest.CommandCount(t, rdb, "subscribe", "unsubscribe")
			const sections = 1000 // of each client
			start := time.Now()
			var wg sync.WaitGroup
			for _, c := range clients {
				l := c.NewLock("cost")
				for range test.goroutine {
					wg.Go(func() {
						for range sections / test.goroutine {
							locktest.Pair(t, l)
						}
					})
				}
			}
			wg.Wait()
			total := float64(sections * test.clients)
			took := time.Since(start)
			perSection := float64(locktest.CommandCount(t, rdb, "evalsha")-scripts) / total
			subs = locktest.CommandCount(t, rdb, "subscribe", "unsubscribe") - subs
			t.Logf("a section: %.2f scripts, %.2f (un)subscribes, %v", perSection, float64(subs)/total, (took / time.Duration(total)).Round(time.Microsecond))
			if perSection > test.most {
				t.Errorf("a section took %.2f scripts, more than %v", perSection, test.most)
			}
		})
	}
}
