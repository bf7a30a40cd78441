package faults

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// unheard counts what an Observer is told of messages that could not be published.
type unheard struct {
	locktest.Ignoring
	mu   sync.Mutex // guards the rest
	errs []error
}

func (u *unheard) Unpublished(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.errs = append(u.errs, err)
}

// Who may not publish can lock and unlock. That waiters are not woken is told once.
func TestReleaseThatMayNotBePublishedSucceeds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	if err := admin.Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	type suspect struct {
		name string
		open func(c *rlock.Client) rlock.Locker
	}
	var suspects []suspect
	for _, k := range locktest.Types {
		if k.Name != "SpinLock" { // it publishes nothing
			suspects = append(suspects, suspect{k.Name, func(c *rlock.Client) rlock.Locker { return k.Open(c, k.Name) }})
		}
	}
	suspects = append(suspects,
		suspect{"Election", func(c *rlock.Client) rlock.Locker {
			return locktest.Electing{Election: c.NewElection("election"), Value: "value"}
		}},
		suspect{"MultiLock", func(c *rlock.Client) rlock.Locker {
			l, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("{m}:1"), c.NewLock("{m}:2")})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}},
		suspect{"RedLock", func(c *rlock.Client) rlock.Locker {
			l, err := rlock.NewRedLock("red", []*rlock.Client{c}, rlock.WithNodeTimeout(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}},
	)
	for _, k := range suspects {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			var (
				log  locktest.LogLines
				told unheard
			)
			c := locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }),
				rlock.WithObserver(&told), rlock.WithLogger(log.Logger()), rlock.WithLongestPoll(50*time.Millisecond))
			// A waiter, so that the types that wake one waiter have somebody to wake.
			other := locktest.NewClient(t, s.Client(), rlock.WithLongestPoll(50*time.Millisecond))
			for range 3 {
				lease := locktest.MustLock(t, k.open(c))
				got := make(chan *rlock.Lease)
				go func() { got <- locktest.MustLock(t, k.open(other)) }()
				if lockOf, ok := k.open(other).(locktest.AnyLock); ok && !strings.Contains(k.name, "ReadLock") {
					locktest.Eventually(t, "it waits", func() bool { st, err := lockOf.State(bg); return err == nil && st.Waiters == 1 })
				}
				locktest.MustUnlock(t, lease)
				locktest.MustUnlock(t, <-got)
			}
			if lock, ok := k.open(c).(locktest.AnyLock); ok {
				locktest.MustLock(t, lock)
				if was, err := lock.ForceUnlock(bg); !was || err != nil {
					t.Errorf("%v, %v", was, err)
				}
			}
			if k.name == "fair ReadLock" {
				return // nobody was woken
			}
			locktest.Eventually(t, "it was told", func() bool { return log.With("WARN", "does not permit to publish") > 0 })
			told.mu.Lock()
			defer told.mu.Unlock()
			if len(told.errs) != 1 || !strings.Contains(told.errs[0].Error(), "channel") {
				t.Errorf("told %q", told.errs)
			}
			if n := log.With("publish"); n != 1 {
				t.Errorf("%d lines", n)
			}
		})
	}
}

// The same for what is no lock: whoever waits looks by itself.
func TestOnceAndDoubleBarrierThatMayNotPublish(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if err := s.Client().Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	var told unheard
	client := func() *rlock.Client {
		return locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }),
			rlock.WithObserver(&told), rlock.WithLongestPoll(50*time.Millisecond), rlock.WithWaiterLease(300*time.Millisecond))
	}
	a, b := client(), client()
	inside, results := make(chan struct{}), make(chan string, 2)
	do := func(c *rlock.Client, fn func(context.Context) ([]byte, error)) {
		result, _, err := c.NewOnce("job", time.Minute).Do(bg, fn)
		if err != nil {
			t.Error(err)
		}
		results <- string(result)
	}
	go do(a, func(context.Context) ([]byte, error) {
		close(inside)
		time.Sleep(100 * time.Millisecond) // the other waits
		return []byte("result"), nil
	})
	<-inside
	go do(b, func(context.Context) ([]byte, error) { return []byte("another"), nil })
	for range 2 {
		if got := <-results; got != "result" {
			t.Errorf("%q", got)
		}
	}

	var members sync.WaitGroup
	for _, c := range []*rlock.Client{a, b} {
		members.Go(func() {
			b := c.NewDoubleBarrier("phase", 2)
			lease, err := b.Enter(bg)
			if err == nil {
				err = b.Leave(bg, lease)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	members.Wait()

	e := a.NewElection("job")
	seen, err := b.NewElection("job").Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lease, err := e.Campaign(bg, "one")
	if err == nil {
		err = e.Proclaim(bg, lease, "two")
	}
	if err != nil {
		t.Fatal(err)
	}
	for l := range seen {
		if l.Value == "two" {
			break
		}
	}
	locktest.MustUnlock(t, lease)
	told.mu.Lock()
	defer told.mu.Unlock()
	if len(told.errs) == 0 {
		t.Error("nobody was told")
	}
}
