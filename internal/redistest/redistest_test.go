package redistest_test

import (
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-rlock/rlock/internal/redistest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "20") // they wait most of the time
	goleak.VerifyTestMain(m)
}

var ctx = context.Background()

func TestStartTakesExtraArguments(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "2mb")
	got, err := s.Client().ConfigGet(ctx, "maxmemory").Result()
	if err != nil || got["maxmemory"] != "2097152" {
		t.Fatalf("maxmemory is %v, error %v", got, err)
	}
	if err := s.Client().Do(ctx, "debug", "jmap").Err(); err == nil || strings.Contains(err.Error(), "not allowed") {
		t.Fatalf("DEBUG is not enabled: %v", err)
	}
}

func TestProcessesAreGoneAfterTheTest(t *testing.T) {
	redistest.Need(t)
	pids := map[int]bool{}
	t.Run("sub", func(t *testing.T) {
		servers := redistest.StartMasters(t, 3)
		for _, s := range servers {
			pids[s.Pid()] = true
		}
		servers[0].Pause()
		servers[1].Kill()
		if pid := servers[1].Pid(); pid != 0 {
			t.Errorf("pid of a killed server is %d", pid)
		}
		servers[1].Restart()
		pids[servers[1].Pid()] = true
	})
	if len(pids) != 4 {
		t.Errorf("pids %v, want four", pids)
	}
	for pid := range pids {
		p, err := os.FindProcess(pid)
		if err == nil {
			err = p.Signal(syscall.Signal(0))
		}
		if err == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
}

func TestSpawnerFuncNamesTheOnlyGoroutinesLeftRunning(t *testing.T) {
	redistest.StartMasters(t, 2)
	if err := goleak.Find(goleak.IgnoreAnyFunction(redistest.SpawnerFunc)); err != nil {
		t.Error(err)
	}
	if goleak.Find() == nil {
		t.Error("no goroutine at all; SpawnerFunc is not needed")
	}
}

func TestPauseMakesPingTimeOut(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(func(o *redis.Options) {
		o.MaxRetries = -1
		o.ReadTimeout = 50 * time.Millisecond
	})
	eventually(t, "PING", func() error { return c.Ping(ctx).Err() })
	s.Pause()
	err := c.Ping(ctx).Err()
	if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("PING of a paused server: %v, want a timeout", err)
	}
	s.Resume()
	eventually(t, "PING after Resume", func() error { return c.Ping(ctx).Err() })
}

func TestRestartLosesData(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want error
	}{
		{"by default", nil, redis.Nil},
		{"not with an append-only file", []string{"--appendonly", "yes", "--appendfsync", "always"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := redistest.Start(t, tc.args...)
			c := s.Client()
			must(t, c.Set(ctx, "k", "v", 0).Err())
			addr, pid := s.Addr(), s.Pid()
			s.Kill()
			s.Kill() // once is enough, twice does no harm
			if err := s.Client(func(o *redis.Options) { o.MaxRetries = -1; o.DialerRetries = 1 }).Ping(ctx).Err(); err == nil {
				t.Error("a killed server answers")
			}
			s.Restart()
			if s.Addr() != addr || s.Pid() == pid {
				t.Errorf("restarted at %s with pid %d, was %s with %d", s.Addr(), s.Pid(), addr, pid)
			}
			if err := c.Get(ctx, "k").Err(); !errors.Is(err, tc.want) {
				t.Errorf("GET after the restart: %v, want %v", err, tc.want)
			}
		})
	}
}

func TestReplicasAcknowledgeWrites(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 2)
	conn := r.Master.Client().Conn()
	defer conn.Close()
	must(t, conn.Set(ctx, "k", "v", 0).Err())
	if n, err := conn.Wait(ctx, 2, 20*time.Second).Result(); n != 2 || err != nil {
		t.Fatalf("WAIT: %d, %v", n, err)
	}
	for _, s := range r.Replicas {
		if v, err := s.Client().Get(ctx, "k").Result(); v != "v" || err != nil {
			t.Errorf("replica has %q, %v", v, err)
		}
		if err := s.Client(func(o *redis.Options) { o.MaxRetries = -1 }).Set(ctx, "k", "w", 0).Err(); !redis.IsReadOnlyError(err) {
			t.Errorf("write to a replica: %v, want READONLY", err)
		}
	}
	r.Replicas[0].Kill()
	r.Settle()
	r.Replicas[0].Restart()
	r.Settle()
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	s := redistest.StartSentinel(t)
	t.Logf("start: %v", time.Since(begin))
	c := s.Client()
	first := s.CurrentMaster()
	if first != s.Master {
		t.Fatalf("master is %s, want %s", first.Addr(), s.Master.Addr())
	}
	must(t, c.Set(ctx, "k", "v", 0).Err())

	begin = time.Now()
	s.Failover()
	t.Logf("failover on demand: %v", time.Since(begin))
	second := s.CurrentMaster()
	if second == first {
		t.Fatal("the master is the same after Failover")
	}
	eventually(t, "the client to follow", func() error {
		if err := c.Set(ctx, "k", "w", 0).Err(); err != nil {
			return err
		}
		return second.Client().Get(ctx, "k").Err()
	})

	begin = time.Now()
	s.Settle()
	t.Logf("old master demoted: %v", time.Since(begin))
	if role, err := first.Client().Do(ctx, "role").Slice(); err != nil || role[0] != "slave" {
		t.Errorf("role of the old master: %v, %v", role, err)
	}

}

func TestSentinelFailsOverAfterACrash(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	begin := time.Now()
	s.Master.Kill()
	eventually(t, "the sentinels to notice a dead master", func() error {
		if s.CurrentMaster() == s.Master {
			return errors.New("still the dead one")
		}
		return nil
	})
	t.Logf("failover after a crash: %v", time.Since(begin))
}

func TestClusterMigratesSlots(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := redistest.StartCluster(t, 3, 0)
	t.Logf("start: %v", time.Since(begin))
	client := c.Client()
	const key = "{tag}key"
	slot := c.Slot(key)
	if slot != c.Slot("tag") {
		t.Fatal("the hash tag does not decide the slot")
	}
	// More keys than one batch.
	for i := range 250 {
		must(t, client.Set(ctx, key+string(rune('a'+i)), "v", 0).Err())
	}
	must(t, client.Set(ctx, key, "v", time.Minute).Err())

	from := c.MasterOf(slot)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	once := func(o *redis.Options) { o.MaxRetries = -1 }
	atOld, atNew := from.Client(once), to.Client(once)
	looked := false
	c.MigrateSlotWith(slot, to, func() {
		looked = true
		wantPrefix(t, "the old master", atOld.Get(ctx, key).Err(), "ASK ")
		wantPrefix(t, "the new master", atNew.Get(ctx, key).Err(), "MOVED ")
		if v, err := client.Get(ctx, key).Result(); v != "v" || err != nil {
			t.Errorf("client during the migration: %q, %v", v, err)
		}
	})
	if !looked {
		t.Error("between did not run")
	}
	if c.MasterOf(slot) != to {
		t.Error("the owner did not change")
	}
	wantPrefix(t, "the old master", atOld.Get(ctx, key).Err(), "MOVED ")
	must(t, atNew.Get(ctx, key).Err())
	if n, err := atNew.DBSize(ctx).Result(); n != 251 || err != nil {
		t.Errorf("the new master has %d keys, %v", n, err)
	}
	if ttl, err := client.TTL(ctx, key).Result(); ttl <= 0 || err != nil {
		t.Errorf("TTL after the migration: %v, %v", ttl, err)
	}
}

func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := redistest.StartCluster(t, 3, 1)
	t.Logf("start: %v", time.Since(begin))
	client := c.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Second })
	slot := c.Slot("k")
	old := c.MasterOf(slot)
	replica := c.ReplicaOf(old)
	must(t, client.Set(ctx, "k", "v", 0).Err())
	eventually(t, "the write to reach the replica", func() error {
		if n, err := replica.Client().DBSize(ctx).Result(); n == 0 {
			return errors.Join(errors.New("empty"), err)
		}
		return nil
	})

	begin = time.Now()
	master := c.Failover(old)
	t.Logf("failover: %v", time.Since(begin))
	if master != replica || c.MasterOf(slot) != replica {
		t.Fatalf("new master is %s, want %s", master.Addr(), replica.Addr())
	}
	eventually(t, "the client to follow", func() error { return client.Get(ctx, "k").Err() })

	begin = time.Now()
	old.Restart()
	c.Settle()
	t.Logf("old master back: %v", time.Since(begin))
	if c.ReplicaOf(master) != old {
		t.Error("the old master did not become a replica")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantPrefix(t *testing.T, who string, err error, prefix string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), prefix) {
		t.Errorf("%s answers %v, want %s", who, err, prefix)
	}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
