package counting

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// taker is how one of a crowd takes a permit, and gives it back.
type taker func(ctx context.Context) (giveBack func() error, err error)

// takers are the types that wake others by a message to all who listen.
func takers(c *rlock.Client, name string) map[string]taker {
	s, p := c.NewSemaphore(name), c.NewPermitSemaphore(name)
	return map[string]taker{
		"Semaphore": func(ctx context.Context) (func() error, error) {
			return func() error { return s.Release(bg, 1) }, s.Acquire(ctx, 1)
		},
		"PermitSemaphore": func(ctx context.Context) (func() error, error) {
			lease, err := p.Acquire(ctx, 1)
			return func() error { return lease.Unlock(bg) }, err
		},
	}
}

// scripts is how many scripts a server has run.
func scripts(t testing.TB, rdb redis.UniversalClient) (n int) {
	t.Helper()
	calls := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(rdb.Info(bg, "commandstats").Val())
	if calls != nil {
		n, _ = strconv.Atoi(calls[1])
	}
	return n
}

// Where many clients wait, a permit that comes back wakes about as many of them as can enter: an
// acquire and a release are two scripts, and few more are in vain.
func TestPermitsOfACrowdCostFewScripts(t *testing.T) {
	t.Parallel()
	const clients, most = 40, 8.0
	for _, kind := range []string{"Semaphore", "PermitSemaphore"} {
		for _, permits := range []int{1, 8} {
			t.Run(kind+" with "+strconv.Itoa(permits), func(t *testing.T) {
				b := locktest.OnServer(t)
				rdb := b.Client(t)
				ok(t, rdb.Set(bg, "s", permits, 0).Err())
				const each = 10
				var wg sync.WaitGroup
				var taken atomic.Int64
				begin := make(chan struct{})
				for range clients {
					take := takers(b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)), "s")[kind]
					wg.Go(func() {
						<-begin
						for range each {
							giveBack, err := take(bg)
							if err != nil {
								t.Error(err)
								return
							}
							taken.Add(1)
							time.Sleep(2 * time.Millisecond) // what it is for
							if err := giveBack(); err != nil {
								t.Error(err)
							}
						}
					})
				}
				before, began := scripts(t, rdb), time.Now()
				close(begin)
				wg.Wait()
				got := float64(scripts(t, rdb)-before) / float64(taken.Load())
				t.Logf("%.1f scripts a permit, %v", got, time.Since(began))
				if got > most {
					t.Errorf("%.1f scripts a permit, at most %v are expected", got, most)
				}
			})
		}
	}
}

// A look that was put off is sent though nobody tells what is left: here Redis refuses it. So no
// permit lies idle, whatever becomes of the messages of those who take one.
func TestPermitsAreUsedWithoutMessagesOfTakers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Semaphore", "PermitSemaphore"} {
		locktest.Beside(t, kind, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			ok(t, rdb.Do(bg, "acl", "setuser", "some", "on", ">secret", "~*", "+@all", "resetchannels", "&redisson_sc:{s}").Err())
			ok(t, rdb.Set(bg, "s", 0, 0).Err())
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			taken := make(chan struct{})
			var wg sync.WaitGroup
			for range 8 {
				dial := locktest.Dialer(b.Addr)(t, func(o *redis.Options) { o.Username, o.Password = "some", "secret" })
				take := takers(locktest.NewClient(t, dial, rlock.WithLongestPoll(locktest.Patient)), "s")[kind]
				wg.Go(func() {
					for {
						if _, err := take(ctx); err != nil {
							return
						}
						taken <- struct{}{}
					}
				})
			}
			listened(t, rdb, "s", 8)
			for range 100 {
				ok(t, rdb.Publish(bg, "redisson_sc:{s}", rdb.Incr(bg, "s").Val()).Err())
				select {
				case <-taken:
				case <-time.After(20 * time.Second):
					t.Fatal("a permit lies idle")
				}
			}
			cancel()
			wg.Wait()
		})
	}
}
