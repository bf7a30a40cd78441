package faults

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Renewals that get no answer are worth a line, and that they do again: one each, and
// not one for each hold. A loss is logged for each.
func TestFailingRenewalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	const holds = 150
	lock := func(t *testing.T, c *rlock.Client) {
		for i := range holds {
			locktest.MustLock(t, c.NewLock(fmt.Sprint("{x}", i)))
		}
	}
	t.Run("hung", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var log locktest.LogLines
		rdb := s.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond })
		c := locktest.NewClient(t, rdb, rlock.WithLogger(log.Logger()), rlock.WithWatchdogLease(9*time.Second))
		lock(t, c)
		s.Pause()
		locktest.Eventually(t, "it is logged", func() bool { return log.With("WARN", "renewals fail", s.Addr(), "error=") > 0 })
		s.Resume()
		locktest.Eventually(t, "it is logged", func() bool { return log.With("INFO", "renewals get through again", s.Addr(), "after=") > 0 })
		if n := strings.Count(log.String(), "\n"); n != 3 { // with the id of the client
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
	// An outage ends with the hold that saw it: the next one is another, and not as old.
	for how, ends := range map[string]func(t *testing.T, l *rlock.Lease, log *locktest.LogLines){
		"unlocked": func(t *testing.T, l *rlock.Lease, _ *locktest.LogLines) {
			locktest.WantErr(t, l.Unlock(bg), rlock.ErrUnconfirmed)
		},
		"lost": func(t *testing.T, l *rlock.Lease, log *locktest.LogLines) {
			<-l.Done()
			locktest.Eventually(t, "it is logged", func() bool { return log.With("WARN", "lease lost") > 0 })
			_ = l.Unlock(bg)
		},
	} {
		t.Run("twice, "+how, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			var log locktest.LogLines
			rdb := s.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond })
			c := locktest.NewClient(t, rdb, rlock.WithLogger(log.Logger()), rlock.WithWatchdogLease(locktest.Ample(3*time.Second)), rlock.WithUnlockTimeout(300*time.Millisecond))
			l := locktest.MustLock(t, c.NewLock("a"))
			for outage := 1; outage <= 2; outage++ {
				s.Pause()
				locktest.Eventually(t, "it is logged", func() bool { return log.With("WARN", "renewals fail", s.Addr(), "error=") == outage })
				if outage == 1 {
					ends(t, l, &log)
				}
				s.Resume()
				if outage == 1 {
					l = locktest.MustLock(t, c.NewLock("b"))
				}
			}
			locktest.Eventually(t, "it is logged", func() bool { return log.With("INFO", "renewals get through again") > 0 || l.Err() != nil })
			if n := log.With("INFO", "renewals get through again"); n > 1 {
				t.Errorf("%d outages have ended:\n%s", n, log.String())
			}
		})
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		var log locktest.LogLines
		c := locktest.NewClient(t, s.Client(), rlock.WithLogger(log.Logger()), rlock.WithWatchdogLease(3*time.Second))
		lock(t, c)
		s.Kill()
		began := time.Now()
		// Of a second nine have a line each, and all others one together.
		lost := func() int {
			all := log.With("WARN", "lease lost")
			for _, more := range regexp.MustCompile(`more leases lost" holds=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
				n, _ := strconv.Atoi(more[1])
				all += n
			}
			return all
		}
		locktest.Eventually(t, "the losses are logged", func() bool { return lost() == holds })
		most := 10 * (int(time.Since(began)/time.Second) + 2)
		if n := strings.Count(log.String(), "\n"); n > most+2 || log.With("WARN", "renewals fail", s.Addr()) != 1 {
			t.Errorf("%d lines:\n%.2000s", n, log.String())
		}
	})
}
