//go:build unix

package coordination

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

const jobs = 15

// childDo asks for the results of all jobs, from many goroutines, and compares them with
// what others got.
func childDo(t *testing.T, p *locktest.Parent, addr string, args []string) {
	lease, _ := time.ParseDuration(args[1])
	c, _ := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lease), rlock.WithLongestPoll(500*time.Millisecond))
	plain := redis.NewClient(&redis.Options{Addr: args[0]})
	p.Report("begins")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for i := 0; i < jobs; i++ {
				job := strconv.Itoa(i)
				got, ran, err := c.NewOnce(job, time.Hour).Do(bg, func(ctx context.Context) ([]byte, error) {
					n := plain.Incr(bg, "runs:"+job).Val()
					time.Sleep(20 * time.Millisecond)
					if n == 1 && i%5 == 0 {
						return nil, errors.New("the first one fails")
					}
					return []byte(fmt.Sprint(c.ID(), " ", n)), nil
				})
				if ran && err != nil || errors.Is(err, rlock.ErrFailed) {
					i-- // it failed, or was too slow: the next run counts
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				plain.HSetNX(bg, "results", job, got)
				if first := plain.HGet(bg, "results", job).Val(); first != string(got) {
					t.Errorf("job %d: %q, and %q before", i, got, first)
				}
			}
		})
	}
	wg.Wait()
	p.Report("done")
}

// Four processes ask for the same results over connections that lose replies, and some of
// those that run are killed.
func TestProcessesShareResults(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for _, test := range []struct {
		name  string
		kills int
		lease time.Duration
	}{{"all live", 0, rlock.DefaultWatchdogLease}, {"killed", 3, locktest.Ample(time.Second)}} {
		locktest.Beside(t, test.name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			start := func() *locktest.Child {
				proxy := faultproxy.New(t, b.Addr)
				if test.kills > 0 {
					locktest.Lossy(proxy)
				}
				c := locktest.StartChild(t, "do", proxy.Addr(), b.Addr, test.lease.String())
				c.Report("begins")
				return c
			}
			var children []*locktest.Child
			for range 4 {
				children = append(children, start())
			}
			for i := range test.kills {
				// The one that runs the latest job that has begun.
				locktest.Eventually(t, "a job runs", func() bool { return rdb.Exists(bg, fmt.Sprint("runs:", 4*i+1)).Val() == 1 })
				children[i].Kill()
				children = append(children, start())
			}
			for _, c := range children[test.kills:] {
				c.Report("done")
				c.Finish()
			}
			for i := range jobs {
				n, _ := rdb.Get(bg, fmt.Sprint("runs:", i)).Int()
				want := 1
				if i%5 == 0 {
					want = 2
				}
				if n < want || test.kills == 0 && n > want {
					t.Errorf("job %d ran %d times", i, n)
				}
				if !rdb.HExists(bg, "results", strconv.Itoa(i)).Val() {
					t.Errorf("job %d has no result", i)
				}
			}
		})
	}
}
