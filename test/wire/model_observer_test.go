package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A crowd does whatever it likes, and the gauges of its clients must tell the truth whenever it rests.

// kept is a lease that a worker holds.
type kept struct {
	*rlock.Lease
	of   string // its lock, and the side
	many bool   // of a MultiLock
}

// live are the holds of the lease that have not ended.
func (k kept) live(holds map[string]bool) {
	leases := []*rlock.Lease{k.Lease}
	if k.many {
		leases = k.Members()
	}
	for _, l := range leases {
		if err := l.Err(); err == nil || errors.Is(err, rlock.ErrClosed) && !errors.Is(err, rlock.ErrLeaseLost) {
			holds[fmt.Sprint(l.Name(), k.of, l.HoldID(), l.Token())] = true
		}
	}
}

// pool is what a worker can lock.
type pool []struct {
	side string
	rlock.Locker
}

func poolOf(t *testing.T, c *rlock.Client, nodes []*rlock.Client) (p pool) {
	add := func(side string, l rlock.Locker) {
		p = append(p, struct {
			side string
			rlock.Locker
		}{side, l})
	}
	handOver := rlock.WithHandOver(8, time.Minute)
	for _, l := range []rlock.Locker{
		c.NewLock("lock", handOver), c.NewLock("lock", handOver), c.NewLock("never re-entered", rlock.WithNonReentrant()),
		c.NewFairLock("fair"), c.NewSpinLock("spin"), c.NewFencedLock("fenced"), c.NewPriorityLock("priority"),
		locktest.NewRedLock(t, "red", append([]*rlock.Client{c}, nodes...), rlock.WithNodeTimeout(5*time.Second)),
		locktest.NewMultiLock(t, c.NewLock("{slot}a"), c.NewLock("{slot}b")),
		locktest.NewMultiLock(t, c.NewLock("{slot}b"), c.NewLock("{other}c"), c.NewFairLock("fair")),
	} {
		add("", l)
	}
	rw, fair := c.NewReadWriteLock("rw"), c.NewFairReadWriteLock("fair rw")
	add("read", rw.Reader)
	add("write", rw.Writer)
	add("read", fair.Reader)
	add("write", fair.Writer)
	return p
}

// worker does a few random things, and returns the leases that it keeps.
func (p pool) worker(r *rand.Rand, own context.Context, held []kept) []kept {
	for range 8 {
		ctx := own
		if r.IntN(3) == 0 {
			ctx = bg
		}
		if len(held) > 0 && r.IntN(2) == 0 {
			ctx = held[r.IntN(len(held))].Context(ctx)
		}
		ctx, cancel := context.WithCancel(ctx)
		l := p[r.IntN(len(p))]
		if r.IntN(3) > 0 { // where there is a crowd
			l = p[r.IntN(2)]
		}
		var lease *rlock.Lease
		var err error
		var opts []rlock.AcquireOption
		var try []rlock.TryOption
		if r.IntN(4) == 0 {
			opts, try = append(opts, rlock.WithLease(time.Hour)), append(try, rlock.WithLease(time.Hour))
		}
		switch r.IntN(6) {
		case 0:
			lease, err = l.TryLock(ctx, try...)
		case 1:
			time.AfterFunc(time.Duration(r.IntN(30))*time.Millisecond, cancel)
			lease, err = l.Lock(ctx, opts...)
		default:
			lease, err = l.Lock(ctx, append(opts, rlock.WithWait(time.Duration(1+r.IntN(60))*time.Millisecond))...)
		}
		cancel()
		if err == nil {
			_, many := l.Locker.(*rlock.MultiLock)
			held = append(held, kept{lease, l.side, many})
		}
		for len(held) > 0 && r.IntN(3) > 0 {
			i := r.IntN(len(held))
			one := held[i]
			held = append(held[:i], held[i+1:]...)
			_ = one.Unlock(bg)
			if r.IntN(4) == 0 {
				_ = one.Unlock(bg)
			}
		}
		if with, ok := l.Locker.(interface {
			ForceUnlock(context.Context) (bool, error)
		}); ok && r.IntN(20) == 0 {
			_, _ = with.ForceUnlock(bg)
		}
	}
	return held
}

func TestGaugesOfARandomCrowd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			nodes := []*rlock.Client{locktest.OnMiniredis(t).NewClient(t), locktest.OnMiniredis(t).NewClient(t)}
			var clock locktest.Clock
			const clients, workers = 2, 5
			var gauges [clients]locktest.Gauges
			var cs [clients]*rlock.Client
			var pools [clients]pool
			for i := range cs {
				cs[i] = b.NewClient(t, clock.Option(), rlock.WithObserver(&gauges[i]))
				pools[i] = poolOf(t, cs[i], nodes)
			}
			var held [clients][workers][]kept
			var owners [clients][workers]context.Context
			for i := range owners {
				for j := range owners[i] {
					owners[i][j] = rlock.WithOwner(bg)
				}
			}
			quiet := func(when string) {
				t.Helper()
				for i := range gauges {
					g := &gauges[i]
					locktest.Eventually(t, when+": the gauges tell the truth", func() bool {
						truth := map[string]bool{}
						for _, leases := range held[i] {
							for _, l := range leases {
								l.live(truth)
							}
						}
						acquiring, waiting, held, _ := g.Now()
						return acquiring == 0 && waiting == 0 && held == len(truth) || len(g.Faults()) > 0
					})
					if faults := g.Faults(); len(faults) > 0 {
						t.Fatalf("%s: %s", when, faults)
					}
				}
			}
			random := rand.New(rand.NewPCG(seed, 1))
			for round := range uint64(6) {
				var wg sync.WaitGroup
				for i := range cs {
					for j := range workers {
						r := rand.New(rand.NewPCG(seed, round<<16|uint64(i)<<8|uint64(j)))
						wg.Go(func() { held[i][j] = pools[i].worker(r, owners[i][j], held[i][j]) })
					}
				}
				wg.Wait()
				quiet("a rest")
				switch random.IntN(3) {
				case 0:
					clock.Forward(locktest.Lease / 3) // renewals find losses
				case 1:
					clock.Forward(2 * time.Hour)
				}
				quiet("later")
			}
			for i, c := range cs {
				down := make(chan error)
				go func() { down <- c.Shutdown(bg) }()
				for _, leases := range held[i] {
					for _, l := range leases {
						_ = l.Unlock(bg)
					}
				}
				if err := <-down; err != nil {
					t.Error(err)
				}
			}
			held = [clients][workers][]kept{}
			quiet("the end")
			for i := range gauges {
				all, _ := gauges[i].Renewals()
				t.Logf("renewals: %d, seen: %v", all, gauges[i].Seen())
			}
		})
	}
}
