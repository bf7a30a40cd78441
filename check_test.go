package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func mustCheck(t *testing.T, c *rlock.Client, of ...interface{ Name() string }) rlock.CheckReport {
	t.Helper()
	r, err := c.Check(bg, of...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(slices.Clone(r.Findings), r.Unseen...) {
		if f.Code == "" || f.Problem == "" || f.Remedy == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return r
}

func codes(all []rlock.Finding) (out []string) {
	for _, f := range all {
		out = append(out, f.Code)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// wantFinding wants findings of one kind only, one of which says something.
func wantFinding(t *testing.T, r rlock.CheckReport, code, says string) {
	t.Helper()
	if got := codes(r.Findings); !slices.Equal(got, []string{code}) {
		t.Fatalf("findings %q, not %q:\n%v", got, code, r.Findings)
	}
	if !slices.ContainsFunc(r.Findings, func(f rlock.Finding) bool { return strings.Contains(f.String(), says) }) {
		t.Errorf("%v does not say %q", r.Findings, says)
	}
}

func wantNothing(t *testing.T, r rlock.CheckReport, unseen ...string) {
	t.Helper()
	got := codes(r.Unseen)
	if redistest.IsOld() && !slices.Contains(unseen, "acl") { // it cannot tell what a user may do
		if !slices.Contains(got, "acl") {
			t.Errorf("an old server has told: not seen %v", r.Unseen)
		}
		got = slices.DeleteFunc(got, func(code string) bool { return code == "acl" })
	}
	if len(r.Findings) > 0 || !slices.Equal(got, unseen) {
		t.Errorf("findings %v, not seen %v", r.Findings, r.Unseen)
	}
}

// everything is one of each type.
func everything(c *rlock.Client) []interface{ Name() string } {
	return []interface{ Name() string }{
		c.NewLock("a"), c.NewLock("{a}b"), c.NewFairLock("a"), c.NewSpinLock("a"), c.NewFencedLock("a"), c.NewReadWriteLock("a"), c.NewReadWriteLock("a").Reader,
		c.NewFairReadWriteLock("a"), c.NewPriorityLock("a"), c.NewElection("a"), c.NewPermitSemaphore("a"), c.NewPermitSemaphore("a", rlock.WithFairness()),
		c.NewOnce("a", time.Hour), c.NewDoubleBarrier("a", 2), c.NewSemaphore("a"), c.NewCountDownLatch("a"), c.NewBarrier("a"),
	}
}

func TestCheckFindsNothingOnAGoodServer(t *testing.T) {
	t.Parallel()
	locktest.Beside(t, "standalone", func(t *testing.T) {
		c := locktest.OnServer(t).NewClient(t)
		wantNothing(t, mustCheck(t, c))
		wantNothing(t, mustCheck(t, c, everything(c)...))
		if err := c.Ping(bg); err != nil {
			t.Error(err)
		}
	})
	locktest.Beside(t, "cluster", func(t *testing.T) {
		b := locktest.OnCluster(t)
		for _, prefix := range []string{"", "app:", "{app}:"} {
			c := b.NewClient(t, rlock.WithPrefix(prefix))
			wantNothing(t, mustCheck(t, c, everything(c)...))
			if err := c.Ping(bg); err != nil {
				t.Error(err)
			}
		}
	})
	locktest.Beside(t, "miniredis", func(t *testing.T) { // it has neither INFO memory nor users, nor a HELLO without arguments
		c := locktest.OnMiniredis(t).NewClient(t)
		wantNothing(t, mustCheck(t, c, everything(c)...), "acl", "eviction", "version")
		if err := c.Ping(bg); err != nil {
			t.Error(err)
		}
	})
	locktest.Beside(t, "sentinel", func(t *testing.T) {
		c := locktest.NewClient(t, redistest.StartSentinel(t).Client(), rlock.WithReplicaAck(1, time.Second))
		wantNothing(t, mustCheck(t, c))
		if err := c.Ping(bg); err != nil {
			t.Error(err)
		}
	})
}

// aclSection is the user of a section of docs/acl.md.
func aclSection(t *testing.T, section string) []any {
	t.Helper()
	page, err := os.ReadFile("docs/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\n## "+section+"\n")
	_, rest, ok2 := strings.Cut(rest, "```\n")
	line, _, _ := strings.Cut(rest, "\n")
	if !ok || !ok2 {
		t.Fatalf("no section %q", section)
	}
	var words []any
	for _, w := range strings.Fields(line) {
		words = append(words, w)
	}
	return words
}

// The users of docs/acl.md may do all that Check asks for. Without any one of their permissions, Check
// finds that one.
func TestCheckFindsEachMissingPermission(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "app", "password", true }), rlock.WithPrefix("app:"))
	for section, l := range map[string]interface{ Name() string }{
		"Lock": c.NewLock("stock"), "FairLock": c.NewFairLock("stock"), "SpinLock": c.NewSpinLock("stock"), "FencedLock": c.NewFencedLock("stock"),
		"ReadWriteLock": c.NewReadWriteLock("stock"), "FairReadWriteLock": c.NewFairReadWriteLock("stock"), "PriorityLock": c.NewPriorityLock("stock"),
		"Election": c.NewElection("stock"), "PermitSemaphore": c.NewPermitSemaphore("stock"), "PermitSemaphore with WithFairness": c.NewPermitSemaphore("stock", rlock.WithFairness()),
		"Once": c.NewOnce("stock", time.Hour), "DoubleBarrier": c.NewDoubleBarrier("stock", 2), "Semaphore": c.NewSemaphore("stock"),
		"CountDownLatch": c.NewCountDownLatch("stock"), "Barrier": c.NewBarrier("stock"), "CronJob": c.NewCronJob("stock"),
	} {
		words := aclSection(t, section)
		set := func(words []any) {
			t.Helper()
			if err := admin.Do(bg, append([]any{"acl", "setuser", "app", "reset", "resetchannels"}, words[3:]...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		set(words)
		r := mustCheck(t, c, l)
		if len(r.Findings) > 0 {
			t.Errorf("%s: %v", section, r.Findings)
		}
		if got := codes(r.Unseen); !slices.Contains(got, "eviction") {
			t.Errorf("%s: it may not ask for the memory, and not seen are %q", section, got)
		}
		if redistest.IsOld() {
			if !slices.Contains(codes(r.Unseen), "acl") {
				t.Errorf("%s: it cannot tell what a user may do, and not seen are %v", section, r.Unseen)
			}
			continue
		}
		for i, w := range words {
			if w := w.(string); strings.Contains("+~&", w[:1]) && w != "+ping" && w != "+unsubscribe" {
				set(slices.Delete(slices.Clone(words), i, i+1))
				r := mustCheck(t, c, l)
				if !slices.ContainsFunc(r.Findings, func(f rlock.Finding) bool { return f.Code == "acl" && strings.Contains(f.Remedy, w) }) {
					t.Errorf("%s without %s: %v", section, w, r.Findings)
				}
			}
		}
		// The remedy of all that is missing is one line, which can be pasted, even if the user may not ask its name.
		admin.Do(bg, "acl", "setuser", "app", "reset", "on", ">password", "+eval", "+evalsha", "+hello", "+ping")
		r = mustCheck(t, c, l)
		if len(r.Findings) == 0 {
			t.Fatalf("%s: a user without permissions misses none", section)
		}
		for _, f := range r.Findings {
			if f.Code == "acl" && f.Remedy != r.Findings[0].Remedy {
				t.Errorf("%s: not one line: %v", section, r.Findings)
			}
		}
		var line []any
		for _, word := range strings.Fields(r.Findings[0].Remedy) {
			line = append(line, word)
		}
		if err := admin.Do(bg, line...).Err(); err != nil {
			t.Fatal(line, err)
		}
		if r := mustCheck(t, c, l); len(r.Findings) > 0 {
			t.Errorf("%s: after %v: %v", section, line, r.Findings)
		}
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	locktest.Beside(t, "eviction", func(t *testing.T) {
		s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
		wantFinding(t, mustCheck(t, locktest.NewClient(t, s.Client())), "eviction", "allkeys-lru")
		// Who may not use INFO, but CONFIG.
		s.Client().Do(bg, "acl", "setuser", "default", "-info")
		wantFinding(t, mustCheck(t, locktest.NewClient(t, s.Client())), "eviction", "allkeys-lru")
	})
	locktest.Beside(t, "memory", func(t *testing.T) {
		s := redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
		c := locktest.NewClient(t, s.Client())
		wantFinding(t, mustCheck(t, c), "refused", "raise maxmemory, or make room")
		locktest.WantErr(t, c.Ping(bg), rlock.ErrRefused)
	})
	locktest.Beside(t, "password", func(t *testing.T) {
		s := redistest.Start(t)
		c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "nobody", "wrong" }))
		r := mustCheck(t, c)
		wantFinding(t, r, "refused", "set Username and Password")
		for _, f := range r.Findings {
			if strings.Count(f.String(), s.Addr()) > 1 {
				t.Error(f)
			}
		}
	})
	locktest.Beside(t, "replica", func(t *testing.T) {
		r := redistest.StartReplicated(t, 1)
		c := locktest.NewClient(t, r.Replicas[0].Client(), rlock.WithCommandTimeout(2*time.Second))
		wantFinding(t, mustCheck(t, c), "replica", r.Replicas[0].Addr())
		locktest.WantErr(t, c.Ping(bg), rlock.ErrRefused)
	})
	locktest.Beside(t, "replicas", func(t *testing.T) {
		s := redistest.Start(t)
		c := locktest.NewClient(t, s.Client(), rlock.WithReplicaAck(1, time.Second))
		wantFinding(t, mustCheck(t, c), "replicas", "WithReplicaAck(1)")
		locktest.WantErr(t, c.Ping(bg), rlock.ErrNotAcquired)
	})
	locktest.Beside(t, "replica that hangs", func(t *testing.T) {
		r := redistest.StartReplicated(t, 1)
		slow := func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }
		c := locktest.NewClient(t, r.Master.Client(slow), rlock.WithReplicaAck(1, 2*time.Second))
		wantNothing(t, mustCheck(t, c))
		if err := c.Ping(bg); err != nil {
			t.Error(err)
		}
		r.Replicas[0].Pause()
		defer r.Replicas[0].Resume()
		wantFinding(t, mustCheck(t, c), "replicas", "0 replicas")
		locktest.WantErr(t, c.Ping(bg), rlock.ErrNotAcquired)
	})
	locktest.Beside(t, "clock", func(t *testing.T) {
		s := redistest.StartClocked(t, 1)[0]
		c := locktest.NewClient(t, s.Client(), rlock.WithWatchdogLease(time.Minute))
		wantNothing(t, mustCheck(t, c))
		s.SetClock(time.Hour)
		wantFinding(t, mustCheck(t, c), "clock", "ahead of")
	})
	locktest.Beside(t, "pool", func(t *testing.T) {
		s := redistest.Start(t)
		c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.PoolSize = 2 }))
		wantFinding(t, mustCheck(t, c), "pool", "2 connections")
	})
	locktest.Beside(t, "server that hangs", func(t *testing.T) {
		s := redistest.Start(t)
		c := locktest.NewClient(t, s.Client(), rlock.WithCommandTimeout(time.Second))
		s.Pause()
		defer s.Resume()
		began := time.Now()
		wantFinding(t, mustCheck(t, c), "unreachable", "no answer")
		locktest.WantErr(t, c.Ping(bg), rlock.ErrUnreachable)
		if d := time.Since(began); d > locktest.Patience {
			t.Errorf("took %v", d)
		}
	})
	locktest.Beside(t, "quarantine", func(t *testing.T) {
		s := redistest.Start(t)
		c := locktest.NewClient(t, s.Client(), rlock.WithWatchdogLease(time.Hour), rlock.WithFailoverQuarantine(time.Hour))
		wantFinding(t, mustCheck(t, c), "refused", "quarantine")
		locktest.WantErr(t, c.Ping(bg), rlock.ErrNotAcquired)
	})
	locktest.Beside(t, "nodes of a RedLock in quarantine", func(t *testing.T) {
		servers := redistest.StartMasters(t, 3)
		var clients []*rlock.Client
		for _, s := range servers {
			clients = append(clients, locktest.NewClient(t, s.Client()))
		}
		l := locktest.NewRedLock(t, "red", clients, rlock.WithRestartQuarantine())
		are := func(nodes ...int) {
			t.Helper()
			r := mustCheck(t, clients[0], l)
			if len(nodes) == 0 {
				wantNothing(t, r)
				return
			}
			wantFinding(t, r, "refused", "in quarantine for")
			for i, f := range r.Findings {
				if len(r.Findings) != len(nodes) || !strings.HasPrefix(f.Node, fmt.Sprintf("node %d ", nodes[i])) {
					t.Errorf("%v are not nodes %v", r.Findings, nodes)
				}
			}
		}
		are(1, 2, 3)
		for _, s := range servers {
			if keys := locktest.Keys(t, s.Client()); len(keys) > 0 {
				t.Errorf("Check has left %q", keys)
			}
		}
		locktest.Eventually(t, "all nodes vote", func() bool { return l.BootstrapNodes(bg) == nil })
		are()
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		servers[1].Kill()
		servers[1].Wipe()
		servers[1].Restart()
		are(2)
		locktest.MustUnlock(t, locktest.MustLock(t, l))
		are(2)
	})
	locktest.Beside(t, "one node of a cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t, 3, 0)
		node := cluster.Nodes[1]
		if err := node.Client().ConfigSet(bg, "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
		c := locktest.NewClient(t, cluster.Client())
		r := mustCheck(t, c)
		wantFinding(t, r, "refused", "OOM")
		if len(r.Findings) != 1 || r.Findings[0].Node != node.Addr() || strings.Count(r.Findings[0].String(), node.Addr()) != 1 {
			t.Errorf("%+v", r.Findings)
		}
		locktest.WantErr(t, c.Ping(bg), rlock.ErrRefused)
	})
	locktest.Beside(t, "one node of a RedLock", func(t *testing.T) {
		servers := redistest.StartMasters(t, 3)
		var clients []*rlock.Client
		for _, s := range servers {
			clients = append(clients, locktest.NewClient(t, s.Client(), rlock.WithCommandTimeout(3*time.Second)))
		}
		l := locktest.NewRedLock(t, "red", clients)
		wantNothing(t, mustCheck(t, clients[0], l))
		servers[1].Kill()
		r := mustCheck(t, clients[0], l)
		wantFinding(t, r, "unreachable", "node 2")
	})
}

// A probe sees that renewals do not get through, before the first lease is lost.
func TestPingReportsLateRenewals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var clock locktest.Clock
	c := locktest.NewClient(t, s.Client(), clock.Option(), rlock.WithWatchdogLease(time.Hour))
	lease := locktest.MustLock(t, c.NewLock("a"))
	if err := c.Ping(bg); err != nil {
		t.Fatal(err)
	}
	// Whoever may not read the rest of a lease cannot renew, but could acquire.
	if err := s.Client().Do(bg, "acl", "setuser", "default", "-pttl").Err(); err != nil {
		t.Fatal(err)
	}
	clock.Forward(45 * time.Minute)
	locktest.Eventually(t, "Ping tells", func() bool {
		err := c.Ping(bg)
		return err != nil && strings.Contains(err.Error(), "renewals of 1 holds are late") && lease.Err() == nil
	})
}

func TestPingAndCheckRefuse(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c, other := b.NewClient(t), b.NewClient(t)
	var noContext context.Context
	over, cancel := context.WithCancel(bg)
	cancel()
	check := func(c *rlock.Client, ctx context.Context, of ...interface{ Name() string }) error {
		_, err := c.Check(ctx, of...)
		return err
	}
	for _, err := range []error{
		(*rlock.Client)(nil).Ping(bg), c.Ping(noContext), check(nil, bg), check(c, noContext),
		check(c, bg, nil), check(c, bg, (*rlock.Lock)(nil)), check(c, bg, &rlock.Lock{}), check(c, bg, &rlock.RedLock{}),
		check(c, bg, other.NewLock("a")), check(c, bg, c.NewLock("")), check(c, bg, new(rlock.Semaphore)),
	} {
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	locktest.WantErr(t, c.Ping(over), context.Canceled)
	if err := check(c, over); err != context.Canceled {
		t.Error(err)
	}
	locktest.Stop(c)
	locktest.WantErr(t, c.Ping(bg), rlock.ErrClosed)
	locktest.WantErr(t, check(c, bg), rlock.ErrClosed)
}

// A user who may not send one of the commands with which a free lock is acquired hears it from Ping,
// and nothing is left in Redis.
func TestPingIsRefusedWhereALockIs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	for _, command := range []string{"", "exists", "time", "set", "hset", "pexpire"} {
		rules := []any{"acl", "setuser", "user", "reset", "on", ">secret", "~*", "&*", "+@all"}
		if command != "" {
			rules = append(rules, "-"+command)
		}
		if err := admin.Do(bg, rules...).Err(); err != nil {
			t.Fatal(err)
		}
		c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "user", "secret" }))
		lease, locked := c.NewLock("l").TryLock(bg)
		pinged := c.Ping(bg)
		if command == "" {
			if pinged != nil || locked != nil {
				t.Fatal(pinged, locked)
			}
			locktest.MustUnlock(t, lease)
			continue
		}
		locktest.WantErr(t, locked, rlock.ErrRefused)
		if !errors.Is(pinged, rlock.ErrRefused) || !strings.Contains(pinged.Error(), "docs/acl.md") {
			t.Errorf("without %s: %v", command, pinged)
		}
		for _, key := range locktest.Keys(t, admin) {
			if strings.Contains(key, "ping") {
				t.Errorf("without %s: %s is left", command, key)
			}
		}
	}
}
