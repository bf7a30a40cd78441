package rlock_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// setTokens changes all that tokens are drawn from on a server.
func setTokens(t *testing.T, rdb redis.UniversalClient, change func(key string, token int64) error) {
	t.Helper()
	changed := 0
	for _, key := range rdb.Keys(bg, "*").Val() {
		if token, err := strconv.ParseInt(rdb.Get(bg, key).Val(), 10, 64); err == nil {
			if err := change(key, token); err != nil {
				t.Fatal(err)
			}
			changed++
		}
	}
	if changed == 0 {
		t.Fatal("there is nothing to draw tokens from")
	}
}

// A holder whose token is lower than that of an earlier hold cannot rely on a fence. So the acquire fails, once, and
// leaves nothing.
func TestTokenThatDoesNotRiseEndsItsHold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb, r := b.Client(t), &locktest.Recorder{}
		c := locktest.NewClient(t, rdb, rlock.WithObserver(r))
		for _, k := range locktest.Types {
			if !k.Shared {
				t.Run(k.Name, func(t *testing.T) { tokensFall(t, r, k.Open(c, k.Name), rdb) })
			}
		}
	})
}

// A RedLock checks it too, and does not fail if fewer nodes than a quorum have lost their data.
func TestTokenOfARedLockThatDoesNotRiseEndsItsHold(t *testing.T) {
	t.Parallel()
	var clients []*rlock.Client
	var nodes []redis.UniversalClient
	r := &locktest.Recorder{}
	for range 3 {
		rdb := locktest.OnMiniredis(t).Client(t)
		nodes, clients = append(nodes, rdb), append(clients, locktest.NewClient(t, rdb, rlock.WithObserver(r)))
	}
	l, err := rlock.NewRedLock("stock", clients)
	if err != nil {
		t.Fatal(err)
	}
	tokensFall(t, r, l, nodes...)

	before := locktest.MustLock(t, l)
	locktest.MustUnlock(t, before)
	setTokens(t, nodes[0], func(key string, _ int64) error { return nodes[0].Del(bg, key).Err() })
	after := locktest.MustLock(t, l)
	if after.Token() <= before.Token() {
		t.Errorf("token %d after %d, and one of three nodes has lost its data", after.Token(), before.Token())
	}
	locktest.MustUnlock(t, after)
}

// reported fails the test unless the latest event of an acquire has this error.
func reported(t *testing.T, r *locktest.Recorder, err error) {
	t.Helper()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if e := r.Acquires[len(r.Acquires)-1]; e.Err == nil || e.Err.Error() != err.Error() || e.HoldID != "" {
		t.Errorf("%v is reported as %+v", err, e)
	}
}

// mustBeGivenBack waits until what a refused acquire has in Redis is given back, which happens in the background.
func mustBeGivenBack(t *testing.T, l locktest.AnyLock) {
	t.Helper()
	locktest.Eventually(t, "the hold is given back", func() bool {
		locked, err := l.IsLocked(bg)
		return !locked && err == nil
	})
}

func tokensFall(t *testing.T, r *locktest.Recorder, l locktest.AnyLock, servers ...redis.UniversalClient) {
	t.Helper()
	locktest.MustUnlock(t, locktest.MustLock(t, l))
	for _, rdb := range servers {
		setTokens(t, rdb, func(key string, token int64) error { return rdb.Set(bg, key, token+1e10, 0).Err() })
	}
	high := locktest.MustLock(t, l)
	locktest.MustUnlock(t, high)
	for _, rdb := range servers { // the data are lost, and the clock of the server is behind
		setTokens(t, rdb, func(key string, _ int64) error { return rdb.Del(bg, key).Err() })
	}
	_, err := l.Lock(bg)
	if !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "is not greater than "+strconv.FormatInt(high.Token(), 10)) {
		t.Fatalf("after the fall: %v", err)
	}
	reported(t, r, err)
	mustBeGivenBack(t, l)
	again := locktest.MustLock(t, l) // the tokens after the fall rise
	if again.Token() >= high.Token() {
		t.Fatalf("token %d after %d", again.Token(), high.Token())
	}
	locktest.MustUnlock(t, again)
}

// A refusal that names the refused hold as the holder is the reply to another request.
func TestReplyForAnotherHoldIsReported(t *testing.T) {
	t.Parallel()
	rdb := locktest.OnMiniredis(t).Client(t)
	locktest.LoadScripts(t, rdb, "lock/enter")
	mixed := true
	rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
		err := next()
		if mixed && locktest.Runs(cmd, "lock/enter") {
			cmd.(interface{ SetVal(any) }).SetVal([]any{int64(0), int64(1000), cmd.Args()[6], int64(0)})
		}
		return err
	}})
	r := &locktest.Recorder{}
	l := locktest.NewClient(t, rdb, rlock.WithObserver(r)).NewLock("stock")
	_, err := l.TryLock(bg)
	if !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "unexpected reply") {
		t.Fatalf("after a reply for another hold: %v", err)
	}
	reported(t, r, err)
	mixed = false
	mustBeGivenBack(t, l) // the hold of the request whose reply was mixed up
	locktest.MustUnlock(t, locktest.MustLock(t, l))
}

// A grant without a token is the reply to another request, or of a broken proxy, and ends the hold that it may be of.
func TestGrantWithoutATokenIsReported(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, k := range locktest.Types {
			if k.Shared {
				continue
			}
			for _, token := range []int64{0, -1} {
				t.Run(fmt.Sprint(k.Name, " ", token), func(t *testing.T) {
					rdb := b.Client(t)
					l := k.Open(locktest.NewClient(t, rdb), t.Name())
					locktest.MustUnlock(t, locktest.MustLock(t, l)) // its scripts are loaded
					mixed := true
					rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
						err := next()
						if evaluated, is := cmd.(interface{ SetVal(any) }); is && mixed && err == nil {
							evaluated.SetVal([]any{int64(1), token})
							mixed = false
						}
						return err
					}})
					if _, err := l.TryLock(bg); mixed || !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "unexpected reply") {
						t.Fatalf("after a grant without a token: %v", err)
					}
					mustBeGivenBack(t, l)
					locktest.MustUnlock(t, locktest.MustLock(t, l))
				})
			}
		}
	})
}

// The same goes for a hold that is adopted, which is given back.
func TestAdoptionWithoutATokenIsReported(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		handle, err := locktest.MustLock(t, b.NewClient(t).NewLock("stock"), rlock.WithLease(time.Hour)).Detach(bg)
		if err != nil {
			t.Fatal(err)
		}
		locktest.LoadScripts(t, rdb, "lock/adopt")
		mixed := true
		rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if mixed && err == nil && locktest.Runs(cmd, "lock/adopt") {
				cmd.(interface{ SetVal(any) }).SetVal([]any{int64(1), int64(0), "0"})
				mixed = false
			}
			return err
		}})
		c := locktest.NewClient(t, rdb)
		if _, err := c.Adopt(bg, handle); mixed || !errors.Is(err, rlock.ErrRefused) || !strings.Contains(err.Error(), "unexpected reply") {
			t.Fatalf("after an adoption without a token: %v", err)
		}
		var again *rlock.Lease
		locktest.Eventually(t, "the hold is detached again", func() bool {
			again, err = c.Adopt(bg, handle)
			return err == nil
		})
		locktest.MustUnlock(t, again)
	})
}

// Of several callers that wait while the tokens fall, one gets the error.
func TestFallOfTokensIsReportedToOneCaller(t *testing.T) {
	t.Parallel()
	rdb := locktest.OnMiniredis(t).Client(t)
	l := locktest.NewClient(t, rdb).NewFencedLock("stock")
	for range 10 {
		locktest.MustUnlock(t, locktest.MustLock(t, l))
	}
	held := locktest.MustLock(t, l)
	const waiters = 5
	errs := make(chan error, waiters)
	for range waiters {
		go func() {
			lease, err := l.Lock(bg)
			if err == nil {
				err = lease.Unlock(bg)
			}
			errs <- err
		}()
	}
	locktest.Eventually(t, "all wait", func() bool { return locktest.Waiters(t, l) == waiters })
	setTokens(t, rdb, func(key string, _ int64) error { return rdb.Del(bg, key).Err() })
	locktest.MustUnlock(t, held)
	failed := 0
	for range waiters {
		if err := <-errs; errors.Is(err, rlock.ErrRefused) {
			failed++
		} else if err != nil {
			t.Error(err)
		}
	}
	if failed != 1 {
		t.Errorf("%d callers got the error", failed)
	}
}

// The reply to a renewal that comes after the deadline is no renewal: the lease has ended, and the loss is reported.
func TestRenewalThatIsAnsweredTooLateIsALoss(t *testing.T) {
	t.Parallel()
	rdb, r := locktest.OnMiniredis(t).Client(t), &locktest.Recorder{}
	var lease atomic.Pointer[rlock.Lease]
	var answered atomic.Int64
	late := func(next func() error) error {
		err := next()
		if l := lease.Load(); l != nil && err == nil {
			<-l.Done()
			answered.Add(1)
		}
		return err
	}
	rdb.AddHook(&locktest.ScriptHook{
		One:  func(_ redis.Cmder, next func() error) error { return late(next) },
		Pipe: func(_ []redis.Cmder, next func() error) error { return late(next) },
	})
	l := locktest.MustLock(t, locktest.NewClient(t, rdb, rlock.WithObserver(r), rlock.WithWatchdogLease(2*time.Second)).NewLock("stock"))
	lease.Store(l)
	<-l.Done()
	locktest.Eventually(t, "the loss is reported, and a renewal is answered", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return answered.Load() > 0 && len(r.Losses) == 1 && r.Losses[0].HoldID == l.HoldID() && errors.Is(r.Losses[0].Cause, rlock.ErrUnreachable)
	})
	lease.Store(nil)
	locktest.WantErr(t, l.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrUnreachable)
}
