package rlock_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

// unheard counts what an Observer is told of messages that could not be published.
type unheard struct {
	rlock.NopObserver
	mu   sync.Mutex // guards the rest
	errs []error
}

func (u *unheard) Unpublished(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.errs = append(u.errs, err)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// with counts the lines that contain all of some texts.
func (l *lines) with(texts ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		n++
	}
	return n
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
	for _, k := range typesOfLocks {
		if k.name != "SpinLock" { // it publishes nothing
			suspects = append(suspects, suspect{k.name, func(c *rlock.Client) rlock.Locker { return k.open(c, k.name) }})
		}
	}
	suspects = append(suspects,
		suspect{"MultiLock", func(c *rlock.Client) rlock.Locker {
			l, err := rlock.NewMultiLock(c.NewLock("{m}:1"), c.NewLock("{m}:2"))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}},
		suspect{"RedLock", func(c *rlock.Client) rlock.Locker {
			l, err := rlock.NewRedLock("red", []*rlock.Client{c})
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
				log  lines
				told unheard
			)
			c := newClientOn(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }),
				rlock.WithObserver(&told), rlock.WithLogger(log.logger()), rlock.WithLongestPoll(50*time.Millisecond))
			// A waiter, so that the types that wake one waiter have somebody to wake.
			other := newClientOn(t, s.Client(), rlock.WithLongestPoll(50*time.Millisecond))
			for range 3 {
				lease := mustLock(t, k.open(c))
				got := make(chan *rlock.Lease)
				go func() { got <- mustLock(t, k.open(other)) }()
				if lockOf, ok := k.open(other).(lockOf); ok && !strings.Contains(k.name, "ReadLock") {
					eventually(t, "it waits", func() bool { st, err := lockOf.State(bg); return err == nil && st.Waiters == 1 })
				}
				mustUnlock(t, lease)
				mustUnlock(t, <-got)
			}
			if lock, ok := k.open(c).(lockOf); ok {
				mustLock(t, lock)
				if was, err := lock.ForceUnlock(bg); !was || err != nil {
					t.Errorf("%v, %v", was, err)
				}
			}
			if k.name == "fair ReadLock" {
				return // nobody was woken
			}
			eventually(t, "it was told", func() bool { return log.with("WARN", "does not permit to publish") > 0 })
			told.mu.Lock()
			defer told.mu.Unlock()
			if len(told.errs) != 1 || !strings.Contains(told.errs[0].Error(), "channel") {
				t.Errorf("told %q", told.errs)
			}
			if n := log.with("publish"); n != 1 {
				t.Errorf("%d lines", n)
			}
		})
	}
}
