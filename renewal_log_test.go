package rlock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Renewals that get no answer are worth a line, and that they do again: one each, and
// not one for each hold. A loss is logged for each.
func TestFailingRenewalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	const holds = 150
	lock := func(t *testing.T, c *rlock.Client) {
		for i := range holds {
			mustLock(t, c.NewLock(fmt.Sprint("{x}", i)))
		}
	}
	t.Run("hung", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var log lines
		rdb := s.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond })
		c := newClientOn(t, rdb, rlock.WithLogger(log.logger()), rlock.WithWatchdogLease(9*time.Second))
		lock(t, c)
		s.Pause()
		eventually(t, "it is logged", func() bool { return log.with("WARN", "renewals fail", s.Addr(), "error=") > 0 })
		s.Resume()
		eventually(t, "it is logged", func() bool { return log.with("INFO", "renewals get through again", s.Addr(), "after=") > 0 })
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var log lines
		c := newClientOn(t, s.Client(), rlock.WithLogger(log.logger()), rlock.WithWatchdogLease(3*time.Second))
		lock(t, c)
		s.Kill()
		eventually(t, "the losses are logged", func() bool { return log.with("WARN", "lease lost") == holds })
		if n := strings.Count(log.String(), "\n"); n != holds+1 || log.with("WARN", "renewals fail", s.Addr()) != 1 {
			t.Errorf("%d lines:\n%.2000s", n, log.String())
		}
	})
}
