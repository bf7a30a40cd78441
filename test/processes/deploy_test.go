//go:build unix

package processes

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Processes replace each other, as in a deploy, while their workers hold the lock
// and look at nothing but the end of their work. Each process ends as programs do:
// main returns, and with it a deferred Close. No two workers are ever in the
// section at once.
func TestDeployWithHoldersAtWork(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const rounds, abreast = 6, 2
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	var old []*locktest.Child
	for round := range rounds {
		var fresh []*locktest.Child
		for i := range abreast {
			c := locktest.StartChild(t, "deploy", b.Addr, strconv.Itoa(round*abreast+i))
			c.Report("ready")
			fresh = append(fresh, c)
		}
		was := rdb.Get(bg, "sections").Val()
		locktest.Eventually(t, "the workers are at it", func() bool { return rdb.Get(bg, "sections").Val() != was })
		for _, c := range old {
			c.Order("stop")
		}
		for _, c := range old {
			c.Report("closed")
			c.Finish()
		}
		old = fresh
	}
	for _, c := range old {
		c.Order("stop")
		c.Report("closed")
		c.Finish()
	}
	if n := rdb.LLen(bg, "overlaps").Val(); n > 0 {
		t.Errorf("%d times a worker met another one in the section: %q", n, rdb.LRange(bg, "overlaps", 0, 5).Val())
	}
	if n, _ := rdb.Get(bg, "sections").Int(); n < rounds {
		t.Errorf("only %d sections", n)
	}
	locktest.WantKeys(t, rdb, "sections")
	locktest.WantClients(t, rdb)
}

// childDeploy is a program with workers and a deferred Close.
func childDeploy(t *testing.T, p *locktest.Parent, addr string, args []string) {
	c, rdb := locktest.ChildClient(t, addr)
	lock := c.NewLock("deploy")
	var workers sync.WaitGroup
	func() {
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		for i := range 2 {
			workers.Go(func() {
				for {
					err := rlock.Do(context.Background(), lock, func(context.Context) error {
						return deploySection(rdb, args[0]+"/"+strconv.Itoa(i))
					})
					if errors.Is(err, rlock.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		p.Report("ready")
		p.Await("stop")
	}()
	workers.Wait() // a program would be gone; here it would hide an error
	p.Report("closed")
}

// deploySection is work that cannot be stopped halfway.
func deploySection(rdb *redis.Client, who string) error {
	ctx := context.Background()
	alone, err := rdb.SetNX(ctx, "inside", who, 0).Result()
	if err != nil {
		return err
	}
	if !alone {
		return rdb.RPush(ctx, "overlaps", who+" met "+rdb.Get(ctx, "inside").Val()).Err()
	}
	time.Sleep(50 * time.Millisecond) // the work
	if err := rdb.Incr(ctx, "sections").Err(); err != nil {
		return err
	}
	return rdb.Del(ctx, "inside").Err()
}
