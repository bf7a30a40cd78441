package topologies

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A lease is as good as what replicas have confirmed of it: without them a renewal
// does not move the deadline, and the hold ends there.
func TestReplicaAckHoldsForRenewalsToo(t *testing.T) {
	locktest.Thorough(t)
	t.Parallel()
	ctx := context.Background()
	r := redistest.StartReplicated(t, 1)
	p := &mirrored{Replicated: r, replica: r.Replicas[0], atMaster: r.Master.Client(), atReplica: r.Replicas[0].Client()}
	const lease = 9 * time.Second
	a := locktest.Join(t, r.Master.Client(), rlock.WithReplicaAck(1, 2*time.Second), rlock.WithWatchdogLease(lease))
	l := a.NewLock("renewed")
	hold := locktest.MustLock(t, l)
	first := hold.Deadline()
	locktest.Eventually(t, "a renewal was confirmed", func() bool { return hold.Deadline().After(first.Add(lease / 2)) })

	p.pause(t)
	was := hold.Deadline()
	if err := hold.Extend(ctx, 10*time.Second); !errors.Is(err, rlock.ErrUnreachable) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("Extend: %v", err)
	}
	inner := locktest.MustLockCtx(t, hold.Context(ctx), l)
	locktest.MustUnlock(t, inner)
	if _, err := l.Lock(hold.Context(ctx), rlock.WithLease(10*time.Second)); !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("re-entry with a lease: %v", err)
	}
	select {
	case <-hold.Done():
	case <-time.After(4 * lease):
		t.Fatal("the hold goes on without confirmations")
	}
	if late := time.Since(was); late > lease/2 { // one confirmed renewal may have been under way
		t.Errorf("lost %v after the last confirmed deadline", late)
	}
	if err := hold.Err(); !errors.Is(err, rlock.ErrUnreachable) || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("lost with %v", err)
	}
}

// switched is a server address that clients dial, as they would through Sentinel.
type switched struct {
	to atomic.Pointer[redistest.Server]
}

func (s *switched) client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: "master", ReadTimeout: 2 * time.Second,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.to.Load().Addr())
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// staleFailover is a master with a hold that a replica, which is promoted then, does not
// know.
func staleFailover(t *testing.T, lease time.Duration, opts ...rlock.Option) (first *rlock.Lease, second *rlock.Client) {
	t.Helper()
	r := redistest.StartReplicated(t, 1)
	master, replica := r.Master, r.Replicas[0]
	s := &switched{}
	s.to.Store(master)
	opts = append(opts, rlock.WithWatchdogLease(lease))
	a, b := locktest.NewClient(t, s.client(t), opts...), locktest.NewClient(t, s.client(t), opts...)
	if err := a.BootstrapServer(context.Background()); err != nil && !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, a.NewLock("warm"))) // the clock of the fencing tokens is there
	atReplica := replica.Client()
	locktest.Eventually(t, "the replica has all", func() bool {
		return atReplica.DBSize(context.Background()).Val() == master.Client().DBSize(context.Background()).Val()
	})
	if err := replica.Client().ReplicaOf(context.Background(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	first = locktest.MustLock(t, a.NewLock("stock"))
	s.to.Store(replica)
	master.Kill()
	return first, b
}

func TestFailoverQuarantineKeepsTheLockOfAHolderThatWasForgotten(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	t.Run("without it", func(t *testing.T) {
		t.Parallel()
		first, b := staleFailover(t, lease)
		second := locktest.MustLock(t, b.NewLock("stock"))
		// Its deadline is far, so only a renewal can have told the holder, of which
		// there is none in the first second.
		if err := first.Err(); err != nil {
			t.Errorf("the test does not bite: %v", err)
		}
		locktest.MustUnlock(t, second)
	})
	t.Run("with it", func(t *testing.T) {
		t.Parallel()
		first, b := staleFailover(t, lease, rlock.WithFailoverQuarantine(lease))
		_, err := b.NewLock("stock").TryLock(context.Background())
		if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "quarantine") {
			t.Errorf("TryLock: %v", err)
		}
		if err := b.BootstrapServer(context.Background()); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("Bootstrap after a failover: %v", err)
		}
		second := locktest.MustLock(t, b.NewLock("stock"))
		if err := first.Err(); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("two holders; the first: %v", err)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		locktest.MustUnlock(t, second)
	})
}

// A hold that the new master knows goes on through the quarantine, in which nobody
// new gets in.
func TestFailoverQuarantineLetsKnownHoldsGoOn(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	r := redistest.StartReplicated(t, 1)
	s := &switched{}
	s.to.Store(r.Master)
	a := locktest.Join(t, s.client(t), rlock.WithWatchdogLease(lease), rlock.WithFailoverQuarantine(lease))
	if err := a.BootstrapServer(context.Background()); err != nil {
		t.Fatal(err)
	}
	l := a.NewLock("stock")
	hold := locktest.MustLock(t, l)
	atReplica := r.Replicas[0].Client()
	locktest.Eventually(t, "the replica has the hold", func() bool { return holds(t, atReplica, "stock") })
	if err := r.Replicas[0].Client().ReplicaOf(context.Background(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	s.to.Store(r.Replicas[0])
	r.Master.Kill()
	if _, err := a.NewLock("another").TryLock(context.Background()); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Errorf("a new hold: %v", err)
	}
	inner := locktest.MustLockCtx(t, hold.Context(context.Background()), l)
	locktest.MustUnlock(t, inner)
	a.RenewedAgain(t, "stock", 4) // past the quarantine
	locktest.MustUnlock(t, hold)
	locktest.MustUnlock(t, locktest.MustLock(t, a.NewLock("another")))
}

func TestFailoverQuarantineOfEachType(t *testing.T) {
	t.Parallel()
	quarantined := func(t *testing.T, lease time.Duration) (*redistest.Server, *rlock.Client) {
		server := redistest.Start(t)
		return server, locktest.NewClient(t, server.Client(), rlock.WithWatchdogLease(lease), rlock.WithFailoverQuarantine(lease))
	}
	all := func(t *testing.T, c *rlock.Client, check func(t *testing.T, l rlock.Locker)) {
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) { check(t, k.Open(c, "of "+k.Name)) })
		}
		m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("{m}a"), c.NewLock("{m}b")})
		if err != nil {
			t.Fatal(err)
		}
		t.Run("MultiLock", func(t *testing.T) { check(t, m) })
	}
	refused := func(t *testing.T, l rlock.Locker) {
		_, err := l.TryLock(context.Background())
		if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "quarantine") {
			t.Errorf("TryLock: %v", err)
		}
	}
	served := func(t *testing.T, l rlock.Locker) {
		lease, err := l.TryLock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	}
	server, c := quarantined(t, locktest.Patient) // it lasts longer than all types take on a slow machine
	t.Run("new", func(t *testing.T) { all(t, c, refused) })
	bootstrap := func() {
		t.Helper()
		if err := c.BootstrapServer(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		t.Helper()
		if err := server.Client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	bootstrap()
	t.Run("bootstrapped", func(t *testing.T) { all(t, c, served) })
	flush()
	t.Run("flushed", func(t *testing.T) { all(t, c, refused) })

	const short = 2 * time.Second
	server, c = quarantined(t, short)
	bootstrap()
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("waits")))
	flush()
	begun := time.Now()
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock("waits")))
	if d := time.Since(begun); d < short {
		t.Errorf("served %v after the flush", d)
	}
	t.Run("waited", func(t *testing.T) { all(t, c, served) })
}

func TestFailoverQuarantineArguments(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	defer func() { _ = rdb.Close() }()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	for _, bad := range []struct {
		rdb     redis.UniversalClient
		longest time.Duration
	}{{rdb, 0}, {rdb, 29 * time.Second}, {rdb, 25 * time.Hour}, {cluster, time.Minute}} {
		if _, err := rlock.New(bad.rdb, rlock.WithFailoverQuarantine(bad.longest)); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%T, %v: %v", bad.rdb, bad.longest, err)
		}
	}
	c := locktest.NewClient(t, rdb, rlock.WithFailoverQuarantine(time.Minute), rlock.WithWatchdogLease(rlock.DefaultWatchdogLease))
	if _, err := c.NewLock("x").TryLock(context.Background(), rlock.WithLease(2*time.Minute)); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("a longer lease: %v", err)
	}
	if err := locktest.NewClient(t, rdb).BootstrapServer(context.Background()); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Errorf("Bootstrap without the option: %v", err)
	}
}

// An acquire that waits in vain says that it waited for the end of a quarantine.
func TestErrorOfAnAcquireNamesAQuarantine(t *testing.T) {
	t.Parallel()
	c := locktest.OnServer(t).NewClient(t, rlock.WithWatchdogLease(30*time.Second), rlock.WithFailoverQuarantine(30*time.Second))
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			_, err := k.Open(c, k.Name).Lock(bg, rlock.WithWait(4*time.Second))
			if locktest.WantErr(t, err, rlock.ErrNotAcquired); !strings.Contains(err.Error(), "quarantine") {
				t.Error(err)
			}
		})
	}
}
