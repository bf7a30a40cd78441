package rlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// allRounds are those of a program that writes three times, with a loss.
var allRounds = []string{"loss at 1", "loss at 2", "loss at 3", "loss at 4", "loss at 5", "loss at 6"}

// program is code that writes three times with the lock "job".
type program func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error

const writes = 3

// wrong are programs that write after a loss, or hide it, and the rounds that have to find it. An acquire is
// point 1, and the n-th write has the points 2n and 2n+1, before and after it.
var wrong = map[string]struct {
	program
	found []string
}{
	"the second write has the context from outside": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewLock("job"), func(inside context.Context) error {
				return errors.Join(r.Write(inside), r.Write(ctx), r.Write(inside))
			})
		},
		[]string{"loss at 1", "loss at 2", "loss at 3", "loss at 4"},
	},
	"it stops after an error, but asks once only": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewLock("job").Lock(ctx)
			if err != nil {
				return err
			}
			if err := lease.Err(); err != nil {
				return errors.Join(err, lease.Unlock(ctx))
			}
			for range writes {
				if err := r.Write(ctx); err != nil {
					break
				}
			}
			return lease.Unlock(ctx)
		},
		[]string{"loss at 2", "loss at 3", "loss at 4", "loss at 5", "loss at 6"},
	},
	"it asks before each write, and a write takes its time": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewLock("job").Lock(ctx)
			if err != nil {
				return err
			}
			for range writes {
				if lease.Err() != nil {
					break
				}
				_ = r.Write(ctx)
			}
			return lease.Unlock(ctx)
		},
		[]string{"loss at 2", "loss at 4", "loss at 6"},
	},
	"it cleans up with a context that does not end": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewLock("job"), func(ctx context.Context) error {
				for range writes {
					if err := r.Write(ctx); err != nil {
						return errors.Join(err, r.Write(context.WithoutCancel(ctx)))
					}
				}
				return nil
			})
		},
		[]string{"loss at 1", "loss at 2", "loss at 3", "loss at 4", "loss at 5", "loss at 6"},
	},
	"it tries again, and goes on with the first lease": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			l := c.NewLock("job")
			lease, err := l.Lock(ctx)
			if err != nil {
				return err
			}
			inside := lease.Context(ctx)
			for range writes {
				if r.Write(inside) != nil {
					again, err := l.Lock(ctx)
					if err != nil {
						return err
					}
					_ = r.Write(context.WithoutCancel(inside))
					_ = again.Unlock(ctx)
				}
			}
			return lease.Unlock(ctx)
		},
		[]string{"loss at 1", "loss at 2", "loss at 3", "loss at 4", "loss at 5", "loss at 6"},
	},
	"it hides the loss": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			_ = rlock.Do(ctx, c.NewLock("job"), func(ctx context.Context) error {
				for range writes {
					_ = r.Write(ctx)
				}
				return nil
			})
			return nil
		},
		[]string{"loss at 1", "loss at 2", "loss at 3", "loss at 4", "loss at 5", "loss at 6", "loss at 7"},
	},
	"it writes after it has unlocked": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			err := rlock.Do(ctx, c.NewLock("job"), func(ctx context.Context) error { return r.Write(ctx) })
			return errors.Join(err, r.Write(ctx))
		},
		[]string{"no loss"},
	},
	"it has no lock": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error { return r.Write(ctx) },
		[]string{"no loss"},
	},
	"a PermitSemaphore, and it goes on": {kinds(true)["PermitSemaphore"], allRounds},
	"a DoubleBarrier, and it goes on":   {kinds(true)["DoubleBarrier"], allRounds},
	"a CronJob, and it goes on":         {kinds(true)["CronJob"], allRounds[1:]}, // it looks before it runs the function
	"a RedLock": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			l, err := rlock.NewRedLock("job", []*rlock.Client{c})
			if err != nil {
				return err
			}
			return rlock.Do(ctx, l, func(ctx context.Context) error { return r.Write(ctx) })
		},
		[]string{"no loss"},
	},
	"it does nothing": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error { return nil },
		[]string{"no loss"},
	},
	"it has another lock": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewLock("jobs"), func(context.Context) error { return nil })
		},
		[]string{"no loss"},
	},
}

// right are programs in which no write is accepted after a loss, and which report it; and their points.
var right = map[string]struct {
	program
	points int
}{
	"Do": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewLock("job"), func(ctx context.Context) error {
				for range writes {
					if err := r.Write(ctx); err != nil {
						return err
					}
				}
				return nil
			})
		}, 7,
	},
	"Lease.Context": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewFairLock("job").Lock(ctx)
			if err != nil {
				return err
			}
			inside, cancel := context.WithCancel(lease.Context(ctx))
			defer cancel()
			for range writes {
				_ = r.Write(inside)
			}
			return lease.Unlock(ctx)
		}, 7,
	},
	"fencing tokens": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewLock("job"), func(inside context.Context) error {
				lease, _ := rlock.LeaseFrom(inside)
				for range writes {
					if err := r.WriteFenced(lease.Token()); err != nil {
						return err
					}
				}
				return nil
			})
		}, 7,
	},
	"Redisson's tokens": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewFencedLock("job").Lock(ctx)
			if err != nil {
				return err
			}
			for range writes {
				_ = r.WriteFenced(lease.Token())
			}
			return lease.Unlock(ctx)
		}, 7,
	},
	"a re-entry": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			l := c.NewLock("job")
			return rlock.Do(ctx, l, func(ctx context.Context) error {
				if err := r.Write(ctx); err != nil {
					return err
				}
				return rlock.Do(ctx, l, func(ctx context.Context) error { return r.Write(ctx) })
			})
		}, 6,
	},
	"it asks, and the resource refuses": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewReadWriteLock("job").Writer.Lock(ctx, rlock.WithLease(time.Hour))
			if err != nil {
				return err
			}
			for range writes {
				if lease.Err() == nil {
					_ = r.WriteFenced(lease.Token())
				}
			}
			return lease.Unlock(ctx)
		}, 7,
	},
	"an election": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := c.NewElection("job").Campaign(ctx, "me")
			if err != nil {
				return err
			}
			for range writes {
				_ = r.Write(lease.Context(ctx))
			}
			return lease.Unlock(ctx)
		}, 7,
	},
	"a priority lock": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			return rlock.Do(ctx, c.NewPriorityLock("job"), func(ctx context.Context) error { return r.Write(ctx) })
		}, 3,
	},
	"a MultiLock": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("job"), c.NewFairLock("other")})
			if err != nil {
				return err
			}
			return rlock.Do(ctx, m, func(ctx context.Context) error { return r.Write(ctx) })
		}, 2, // it tries again by itself if the first member is lost before it has the other
	},
	"a MultiLock whose members share a slot": {
		func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			m, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("job"), c.NewLock("{job}:other")})
			if err != nil {
				return err
			}
			return rlock.Do(ctx, m, func(ctx context.Context) error { return r.Write(ctx) })
		}, 3,
	},
}

// told checks what a program returns.
func told(t *testing.T, r *rlocktest.Round, err error) {
	t.Helper()
	if r.Lost() != errors.Is(err, rlock.ErrLeaseLost) || !r.Lost() && err != nil {
		t.Errorf("lost: %v, returned: %v", r.Lost(), err)
	}
}

func TestLoseAtPassesRightPrograms(t *testing.T) {
	t.Parallel()
	for name, p := range right {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := 0
			rlocktest.LoseAt(t, "job", func(t *testing.T, r *rlocktest.Round) {
				rounds++
				told(t, r, p.program(t.Context(), r.New(t).Client(), r))
			})
			if rounds != p.points+1 {
				t.Errorf("%d rounds, want one more than the %d points", rounds, p.points)
			}
		})
	}
}

// leased are the types with leases, by how one is acquired.
var leased = map[string]func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error){
	"Lock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) { return c.NewLock("job").Lock(ctx) },
	"FairLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewFairLock("job").Lock(ctx)
	},
	"SpinLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewSpinLock("job").Lock(ctx)
	},
	"FencedLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewFencedLock("job").Lock(ctx)
	},
	"PriorityLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewPriorityLock("job").Lock(ctx)
	},
	"ReadLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewReadWriteLock("job").Reader.Lock(ctx)
	},
	"WriteLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewReadWriteLock("job").Writer.Lock(ctx)
	},
	"fair ReadLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewFairReadWriteLock("job").Reader.Lock(ctx)
	},
	"fair WriteLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewFairReadWriteLock("job").Writer.Lock(ctx)
	},
	"PermitSemaphore": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewPermitSemaphore("job", rlock.WithPermits(3)).Acquire(ctx, 2)
	},
	"PermitSemaphore with fairness": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewPermitSemaphore("job", rlock.WithPermits(3), rlock.WithFairness()).Acquire(ctx, 2)
	},
	"Election": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewElection("job").Campaign(ctx, "me")
	},
	"DoubleBarrier": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		return c.NewDoubleBarrier("job", 1).Enter(ctx)
	},
	"MultiLock": func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
		m, err := rlock.NewMultiLock([]rlock.Locker{c.NewFairLock("other"), c.NewLock("job")})
		if err != nil {
			return nil, err
		}
		return m.Lock(ctx)
	},
}

// kinds are programs that write under the lease of each type, and go on if one wants that.
func kinds(again bool) map[string]program {
	work := func(ctx context.Context, r *rlocktest.Round) error {
		for range writes {
			if err := r.Write(ctx); err != nil && !again {
				return err
			} else if err != nil {
				return errors.Join(err, r.Write(context.WithoutCancel(ctx)))
			}
		}
		return nil
	}
	all := map[string]program{
		"Once": func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			_, _, err := c.NewOnce("job", time.Hour).Do(ctx, func(ctx context.Context) ([]byte, error) { return nil, work(ctx, r) })
			return err
		},
		"CronJob": func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			_, err := c.NewCronJob("job").Do(ctx, time.Now().Truncate(time.Second), func(ctx context.Context) error { return work(ctx, r) })
			return err
		},
	}
	for name, acquire := range leased {
		all[name] = func(ctx context.Context, c *rlock.Client, r *rlocktest.Round) error {
			lease, err := acquire(ctx, c)
			if err != nil {
				return err
			}
			err = work(lease.Context(ctx), r)
			return errors.Join(err, lease.Unlock(ctx))
		}
	}
	return all
}

// A right program with each type passes.
func TestLoseAtOfEachType(t *testing.T) {
	t.Parallel()
	for name, p := range kinds(false) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := 0
			rlocktest.LoseAt(t, "job", func(t *testing.T, r *rlocktest.Round) {
				told(t, r, p(t.Context(), r.New(t).Client(), r))
				if r.Lost() {
					lost++
				}
			})
			want := 1 + 2*writes
			if name == "MultiLock" {
				want-- // see right
			}
			if lost != want {
				t.Errorf("it was lost in %d rounds, want %d", lost, want)
			}
		})
	}
}

// In a bubble, with work that takes its time, and goroutines.
func TestLoseAtInBubbles(t *testing.T) {
	t.Parallel()
	lost := 0
	rlocktest.LoseAt(t, "app:job", func(t *testing.T, r *rlocktest.Round) {
		synctest.Test(t, func(t *testing.T) {
			c := r.New(t, rlock.WithPrefix("app:")).Client()
			results := make(chan error)
			for range 2 {
				go func() {
					results <- rlock.Do(t.Context(), c.NewLock("job"), func(ctx context.Context) error {
						for range writes {
							if err := r.Write(ctx); err != nil {
								return err
							}
							select {
							case <-time.After(time.Minute):
							case <-ctx.Done():
							}
						}
						return nil
					})
				}()
			}
			told(t, r, errors.Join(<-results, <-results))
		})
		if r.Lost() {
			lost++
		}
	})
	if lost != 14 {
		t.Errorf("it was lost in %d rounds, want each point of two goroutines", lost)
	}
}

// The lock is free after a loss: who tries again has it, with a newer token.
func TestLoseAtLetsCodeTryAgain(t *testing.T) {
	t.Parallel()
	rlocktest.LoseAt(t, "job", func(t *testing.T, r *rlocktest.Round) {
		srv := r.New(t)
		for try := 1; ; try++ {
			err := rlock.Do(t.Context(), srv.Client().NewLock("job"), func(ctx context.Context) error {
				lease, _ := rlock.LeaseFrom(ctx)
				srv.Advance(time.Minute) // the work is long, and is renewed
				return errors.Join(r.Write(ctx), r.WriteFenced(lease.Token()))
			})
			if err == nil {
				if r.Lost() != (try == 2) {
					t.Errorf("lost: %v, tried %d times", r.Lost(), try)
				}
				return
			}
			if !errors.Is(err, rlock.ErrLeaseLost) || try > 2 {
				t.Fatal(err)
			}
		}
	})
}

// The clock may be moved by one goroutine while another is at a point.
func TestLoseAtWhileTheClockMoves(t *testing.T) {
	t.Parallel()
	rlocktest.LoseAt(t, "job", func(t *testing.T, r *rlocktest.Round) {
		srv := r.New(t)
		srv.StealBy("job", func(ctx context.Context, c *rlock.Client) (*rlock.Lease, error) {
			return c.NewLock("job").TryLock(ctx, rlock.WithLease(time.Minute))
		})
		result := make(chan error, 1)
		l := srv.Client().NewLock("job")
		go func() {
			result <- rlock.Do(t.Context(), l, func(ctx context.Context) error { return r.Write(ctx) })
		}()
		waitFor(t, func() bool { s, _ := l.State(t.Context()); return s.Waiters == 1 })
		began := time.Now()
		for { // the waiter is granted the lock on the way
			srv.Advance(time.Minute)
			select {
			case err := <-result:
				told(t, r, err)
			case <-time.After(time.Millisecond):
				continue
			}
			break
		}
		if passed := time.Since(began); passed > 20*time.Second { // far below what Advance waits for who hangs
			t.Errorf("took %v", passed)
		}
	})
}

// One that was named by -run is found although the others are left out.
func TestLoseAtFindsWrongPrograms(t *testing.T) {
	t.Parallel()
	failed := regexp.MustCompile(`(?m)^ +--- FAIL: TestWrongPrograms/[^/\s]+/(\S+)`)
	for name, p := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(filter string) (found []string, text string) {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongPrograms$/^"+regexp.QuoteMeta(strings.ReplaceAll(name, " ", "_"))+"$"+filter, "-test.v")
				cmd.Env = append(os.Environ(), "RLOCKTEST_MISTAKES=1")
				out, _ := cmd.CombinedOutput()
				for _, m := range failed.FindAllStringSubmatch(string(out), -1) {
					found = append(found, strings.ReplaceAll(m[1], "_", " "))
				}
				return found, string(out)
			}
			if found, text := run(""); !slices.Equal(found, p.found) || !strings.Contains(text, "loseat") {
				t.Errorf("found: %v, want %v\n%s", found, p.found, text)
			}
			last := p.found[len(p.found)-1]
			if found, text := run(fmt.Sprintf("/^%s$", strings.ReplaceAll(last, " ", "_"))); !slices.Equal(found, []string{last}) {
				t.Errorf("alone: %v, want %v\n%s", found, last, text)
			}
		})
	}
}

func TestWrongPrograms(t *testing.T) {
	if os.Getenv("RLOCKTEST_MISTAKES") == "" {
		t.Skip("it is run by the test above")
	}
	for name, p := range wrong {
		t.Run(name, func(t *testing.T) {
			rlocktest.LoseAt(t, "job", func(t *testing.T, r *rlocktest.Round) {
				told(t, r, p.program(t.Context(), r.New(t).Client(), r))
			})
		})
	}
}
