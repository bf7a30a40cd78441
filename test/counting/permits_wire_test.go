package counting

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// What Redisson's clients see: keys, types, TTLs, ids of 16 bytes, and messages.
func TestPermitsAreThoseOfRedisson(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := b.NewClient(t)
		s := c.NewPermitSemaphore("s")
		const held, channel = "{s}:timeout", "redisson_sc:{s}"
		said := listen(t, rdb, channel)
		step := func(what string, free, n int, messages ...string) {
			t.Helper()
			wantFree(t, rdb, "s", free, n)
			if rdb.PTTL(bg, "s").Val() >= 0 || rdb.PTTL(bg, held).Val() >= 0 {
				t.Fatalf("%s: a key has a TTL", what)
			}
			said.wants(rdb, channel, messages...)
		}

		_, err := s.TryAcquire(bg, 1)
		locktest.WantErr(t, err, rlock.ErrNotSet, nil, rlock.ErrNotAcquired)
		locktest.MustBeEmpty(t, rdb)
		if ok, err := s.TrySetPermits(bg, 5); !ok || err != nil {
			t.Fatal(ok, err)
		}
		step("set", 5, 0, "5")
		if ok, err := s.TrySetPermits(bg, 7); ok || err != nil {
			t.Fatal(ok, err)
		}
		step("set again", 5, 0)

		one := mustAcquire(t, s, 1)
		step("acquire", 4, 1)
		three := mustAcquire(t, s, 3, rlock.WithLease(time.Hour))
		step("acquire 3", 1, 4)
		now := time.Now()
		for _, z := range rdb.ZRangeWithScores(bg, held, 0, -1).Val() {
			id, left := z.Member.(string), time.UnixMilli(int64(z.Score)).Sub(now)
			if len(id) != 16 {
				t.Fatalf("id %x", id)
			}
			lease, most := one, locktest.Lease
			if left > (locktest.Lease+time.Hour)/2 {
				lease, most = three, time.Hour
			}
			client, number, _ := strings.Cut(lease.HoldID(), ":")
			var n int
			_, _ = fmt.Sscan(number, &n)
			if digits := hex.EncodeToString([]byte(id)); !strings.HasPrefix(digits, strings.ReplaceAll(client, "-", "")[:18]+fmt.Sprintf("%010x", n)) {
				t.Fatalf("id %s of %s", digits, lease.HoldID())
			}
			if left > most+time.Second || left < most-10*time.Second {
				t.Fatalf("%x ends in %v, want %v", id, left, most)
			}
		}

		_, err = s.TryAcquire(bg, 2)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		var e *rlock.Error
		if !errors.As(err, &e) || e.HolderID == "" || e.Left <= 0 {
			t.Fatalf("%+v", e)
		}
		step("refused", 1, 4)

		state, err := s.State(bg)
		if err != nil || !state.Set || state.Permits != 5 || state.Available != 1 || len(state.Holders) != 2 ||
			state.Holders[0].Permits+state.Holders[1].Permits != 4 || !slices.ContainsFunc(state.Holders, func(h rlock.PermitHolder) bool {
			return h.HoldID == three.HoldID() && h.Permits == 3 && h.TTL > 50*time.Minute
		}) {
			t.Fatalf("%+v (%v)", state, err)
		}

		if err := one.Extend(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		step("extend", 1, 4)
		locktest.MustUnlock(t, three)
		step("unlock 3", 4, 1, "3")
		locktest.MustUnlock(t, one)
		step("unlock", 5, 0, "5")

		if err := s.AddPermits(bg, 2); err != nil {
			t.Fatal(err)
		}
		step("add", 7, 0, "2")
		if err := s.AddPermits(bg, -9); err != nil {
			t.Fatal(err)
		}
		step("take away", -2, 0)
		if n, err := s.Available(bg); n != -2 || err != nil {
			t.Fatal(n, err)
		}
		if err := s.AddPermits(bg, 3); err != nil {
			t.Fatal(err)
		}
		step("add again", 1, 0, "3")

		// A permit of Java's that has expired is taken back by whoever looks.
		rdb.ZAdd(bg, held, redis.Z{Score: float64(time.Now().UnixMilli() - 1), Member: "0123456789abcdef"})
		if n, err := s.Available(bg); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		step("available", 2, 0, "2")
		rdb.ZAdd(bg, held, redis.Z{Score: float64(time.Now().UnixMilli() - 1), Member: "0123456789abcdef"})
		lease := mustAcquire(t, s, 2)
		step("acquire what has expired", 1, 2, "3")
		// One without an end is never taken back.
		rdb.ZAdd(bg, held, redis.Z{Score: 922337203685477, Member: "0123456789abcdef"})
		if state, err := s.State(bg); err != nil || state.Available != 1 || state.Permits != 4 {
			t.Fatalf("%+v %v", state, err)
		}
		locktest.MustUnlock(t, lease)
		step("unlock both", 3, 1, "2")

		// The TTL of the number becomes that of the permits.
		rdb.PExpire(bg, "s", time.Hour)
		lease = mustAcquire(t, s, 1)
		locktest.WantTTL(t, rdb, held, time.Hour)
		locktest.MustUnlock(t, lease)
		if keys := locktest.Keys(t, rdb); locktest.Tombstones(keys) != 0 {
			t.Errorf("%q", keys)
		}
	})
}

func TestWrongArgumentsOfPermitsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	rdb := b.Client(t)
	sent := &locktest.CountHook{}
	rdb.AddHook(sent)
	c := locktest.NewClient(t, rdb)
	s := c.NewPermitSemaphore("s")
	var none *rlock.PermitSemaphore
	var noContext context.Context
	one := 1 // where an int has 32 bits, one more than the most permits is a negative number, which is refused, too
	before := sent.N.Load()
	for name, call := range map[string]func() error{
		"no permits":      func() error { _, err := s.Acquire(bg, 0); return err },
		"negative":        func() error { _, err := s.TryAcquire(bg, -1); return err },
		"too many":        func() error { _, err := s.Acquire(bg, rlock.MaxLeasePermits+1); return err },
		"far too many":    func() error { _, err := s.TryAcquire(bg, math.MaxInt); return err },
		"set none":        func() error { _, err := s.TrySetPermits(bg, 0); return err },
		"set too many":    func() error { _, err := s.TrySetPermits(bg, rlock.MaxPermits+one); return err },
		"add none":        func() error { return s.AddPermits(bg, 0) },
		"add too many":    func() error { return s.AddPermits(bg, rlock.MaxPermits+one) },
		"remove too many": func() error { return s.AddPermits(bg, -rlock.MaxPermits-1) },
		"short lease":     func() error { _, err := s.TryAcquire(bg, 1, rlock.WithLease(1)); return err },
		"nil option":      func() error { _, err := s.TryAcquire(bg, 1, nil); return err },
		"nil context":     func() error { _, err := s.Acquire(noContext, 1); return err },
		"nil semaphore":   func() error { _, err := none.Acquire(bg, 1); return err },
		"nil, state":      func() error { _, err := none.State(bg); return err },
		"nil, set":        func() error { _, err := none.TrySetPermits(bg, 1); return err },
		"no name":         func() error { _, err := c.NewPermitSemaphore("").Available(bg); return err },
		"brace":           func() error { return c.NewPermitSemaphore("a{b").AddPermits(bg, 1) },
	} {
		t.Run(name, func(t *testing.T) { locktest.WantErr(t, call(), rlock.ErrInvalidArgument) })
	}
	if n := sent.N.Load() - before; n > 0 {
		t.Errorf("%d commands were sent", n)
	}
	if _, err := s.TrySetPermits(bg, rlock.MaxPermits); err != nil {
		t.Fatal(err)
	}
	locktest.WantErr(t, s.AddPermits(bg, 1), rlock.ErrInvalidArgument)
	wantFree(t, rdb, "s", rlock.MaxPermits, 0)
}

// A key that holds something else is told, and not changed.
func TestPermitsUnderAForeignKey(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		s := b.NewClient(t).NewPermitSemaphore("s")
		for what, put := range map[string]func(){
			"hash": func() { rdb.HSet(bg, "s", "a", 1) },
			"text": func() { rdb.Set(bg, "s", "text", 0) },
			"list": func() { rdb.RPush(bg, "s", "a") },
		} {
			rdb.Del(bg, "s")
			put()
			before := rdb.Dump(bg, "s").Val()
			_, err := s.TryAcquire(bg, 1)
			locktest.WantErr(t, err, rlock.ErrForeignKey)
			_, err = s.TrySetPermits(bg, 1)
			locktest.WantErr(t, err, rlock.ErrForeignKey)
			locktest.WantErr(t, s.AddPermits(bg, 1), rlock.ErrForeignKey)
			if rdb.Dump(bg, "s").Val() != before {
				t.Errorf("%s: it was changed", what)
			}
		}
	})
}
