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

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

const (
	cronTicks  = 20
	cronPeriod = 200 * time.Millisecond
	cronHangs  = 7 // in this tick the process is killed
)

func cronOptions(takeover string) (opts []rlock.CronJobOption) {
	if takeover == "true" {
		opts = append(opts, rlock.WithTakeover())
	}
	return opts
}

// childCron is a scheduler with a clock of its own. Who first runs one of the ticks says so, and goes on with
// it until it is killed.
func childCron(t *testing.T, p *locktest.Parent, addr string, args []string) {
	lease, _ := time.ParseDuration(args[0])
	ahead, _ := time.ParseDuration(args[1])
	start, _ := strconv.ParseInt(args[2], 10, 64)
	c, plain := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(lease))
	job := c.NewCronJob("job", cronOptions(args[3])...)
	var wg sync.WaitGroup
	for i := range cronTicks {
		tick := time.UnixMilli(start).Add(time.Duration(i) * cronPeriod)
		time.Sleep(time.Until(tick.Add(-ahead)))
		wg.Go(func() {
			run, err := job.Do(bg, tick, func(context.Context) error {
				n := plain.HIncrBy(bg, "runs", strconv.Itoa(i), 1).Val()
				if i == cronHangs && n == 1 {
					plain.Set(bg, "inside", args[4], 0)
					select {}
				}
				time.Sleep(20 * time.Millisecond)
				return nil
			})
			switch {
			case errors.Is(err, rlock.ErrLeaseLost): // a machine that is too slow
				plain.HIncrBy(bg, "lost", strconv.Itoa(i), 1)
			case err != nil || run.HoldID == "":
				t.Error(i, run, err)
			}
		})
	}
	wg.Wait()
	p.Report("done")
}

// Three processes have a job, with clocks that differ by more than its period. The one that runs it is killed.
func TestProcessesRunEachTickOnce(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	for _, takeover := range []string{"false", "true"} {
		locktest.Beside(t, "takeover "+takeover, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb := b.Client(t)
			start := time.Now().Add(time.Second).Truncate(cronPeriod)
			var children []*locktest.Child
			for i, ahead := range []string{"500ms", "0s", "-500ms"} {
				children = append(children, locktest.StartChild(t, "cron", b.Addr, locktest.Ample(3*time.Second).String(), ahead, fmt.Sprint(start.UnixMilli()), takeover, strconv.Itoa(i)))
			}
			killed := -1
			locktest.Eventually(t, "one runs the tick that hangs", func() bool {
				n, err := rdb.Get(bg, "inside").Int()
				if err == nil {
					killed = n
				}
				return err == nil
			})
			children[killed].Kill()
			for i, c := range children {
				if i != killed {
					c.Report("done")
					c.Finish()
				}
			}
			job := b.NewClient(t).NewCronJob("job", cronOptions(takeover)...)
			runs, lost := rdb.HGetAll(bg, "runs").Val(), rdb.HGetAll(bg, "lost").Val()
			for i := range cronTicks {
				n, _ := strconv.Atoi(runs[strconv.Itoa(i)])
				late, _ := strconv.Atoi(lost[strconv.Itoa(i)])
				tick := start.Add(time.Duration(i) * cronPeriod)
				want := 1
				if i == cronHangs && takeover == "true" {
					want = 2
				}
				if n < want || n > want+late {
					t.Errorf("tick %d ran %d times, of which %d were lost", i, n, late)
				}
				if i != cronHangs {
					continue
				}
				locktest.Eventually(t, "the lease of the dead process is over", func() bool {
					run := peekRun(t, job, tick)
					return takeover == "true" && run.TakenOver && run.Err == nil && !run.End.IsZero() ||
						takeover == "false" && errors.Is(run.Err, rlock.ErrLeaseLost) && run.End.IsZero()
				})
				if run, err := job.Do(bg, tick, mustNot); run.Here || err != nil {
					t.Error(run, err)
				}
			}
		})
	}
}
