package coordination

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// endsOn waits until an Observe shows a leader.
func endsOn(t testing.TB, seen <-chan rlock.Leader, want rlock.Leader) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for last := (rlock.Leader{Value: "nothing seen"}); ; {
		select {
		case l, ok := <-seen:
			if !ok {
				t.Fatal("closed")
			}
			if last = l; unnamed(l) == want {
				return
			}
		case <-timeout:
			t.Fatalf("the last that was seen is %+v, not %+v", last, want)
		}
	}
}

func mustObserve(t testing.TB, ctx context.Context, e *rlock.Election) <-chan rlock.Leader {
	t.Helper()
	seen, err := e.Observe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func TestObserveOfAClosedClientSaysWhy(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	locktest.Stop(c)
	seen, err := c.NewElection("job").Observe(bg)
	locktest.WantErr(t, err, rlock.ErrClosed)
	if seen != nil {
		t.Error("there is a channel")
	}
}

func TestObserveShowsEachLeaderAndValue(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		// Only messages tell: nobody polls.
		e := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewElection("job")
		c := b.NewClient(t)
		ctx, cancel := context.WithCancel(bg)
		seen := mustObserve(t, ctx, c.NewElection("job"))
		second := mustObserve(t, bg, c.NewElection("job"))
		endsOn(t, seen, rlock.Leader{})
		for i := range 3 {
			value := fmt.Sprint(i)
			lease := mustLead(t, e, value)
			endsOn(t, seen, led(lease, value))
			if err := e.Proclaim(bg, lease, value+" more"); err != nil {
				t.Fatal(err)
			}
			endsOn(t, seen, led(lease, value+" more"))
			endsOn(t, second, led(lease, value+" more"))
			if i == 1 {
				if _, err := e.ForceUnlock(bg); err != nil {
					t.Fatal(err)
				}
			} else {
				locktest.MustUnlock(t, lease)
			}
			endsOn(t, seen, rlock.Leader{})
		}
		cancel()
		for range seen {
		}
		locktest.Stop(c)
		for range second {
		}
	})
}

func TestObserveReportsTheEndOfALeaseWithoutAMessage(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		seen := mustObserve(t, bg, b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewElection("job"))
		lease := mustLead(t, b.NewClient(t).NewElection("job"), "a", rlock.WithLease(locktest.Ample(500*time.Millisecond)))
		endsOn(t, seen, led(lease, "a"))
		endsOn(t, seen, rlock.Leader{})
	})
}

// Whatever happens to its connections, an Observe ends on the latest.
func TestObserveEndsOnTheLatestAcrossReconnects(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		proxy := faultproxy.New(t, b.Addr)
		c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), rlock.WithLongestPoll(locktest.Patient))
		seen := mustObserve(t, bg, c.NewElection("job"))
		e := b.NewClient(t).NewElection("job")
		lease := mustLead(t, e, "a")
		endsOn(t, seen, led(lease, "a"))
		for i := range 4 {
			value := fmt.Sprint(i)
			switch i % 2 {
			case 0:
				proxy.ResetAll()
			case 1:
				proxy.Refuse(true)
			}
			if err := e.Proclaim(bg, lease, value); err != nil {
				t.Fatal(err)
			}
			proxy.Refuse(false)
			endsOn(t, seen, led(lease, value))
		}
		proxy.ResetAll()
		locktest.MustUnlock(t, lease)
		endsOn(t, seen, rlock.Leader{})
	})
}
