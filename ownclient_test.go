package rlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// refused is the error of a wait that is long enough for a look, on any machine.
func refused(waits func(wait time.Duration) error) (err error) {
	for wait := 50 * time.Millisecond; wait < locktest.Patience; wait *= 2 {
		if err = waits(wait); err == nil || strings.Contains(err.Error(), "held by ") {
			break
		}
	}
	return err
}

func refusedWait(l rlock.Locker) error {
	return refused(func(wait time.Duration) error {
		_, err := l.Lock(bg, rlock.WithWait(wait))
		return err
	})
}

// Who is kept out by a hold of its own client may wait for itself, for ever, with the context from
// outside the lease. The error says what to do, if there is something.
func TestRefusalByTheOwnClientSaysHowToEnterAgain(t *testing.T) {
	t.Parallel()
	const again, unless = "; whoever holds it enters again with the context of its lease", "; whoever holds it enters again with the context of its lease, unless it is a reader's"
	type refusal struct {
		held, asks rlock.Locker
		advice     string
	}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		mine, other := b.NewClient(t, rlock.WithAnonymity()), b.NewClient(t)
		refusals := map[string]func(c *rlock.Client) refusal{
			"a reader keeps the writer out": func(c *rlock.Client) refusal {
				return refusal{mine.NewReadWriteLock("rw").Reader, c.NewReadWriteLock("rw").Writer, unless}
			},
			"Lock, not reentrant": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("once"), c.NewLock("once", rlock.WithNonReentrant()), ""}
			},
			"another type of lock": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("types"), c.NewSpinLock("types"), again}
			},
			"MultiLock in one script": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("{m}b"), locktest.MultiLockOf(t, c, "{m}a", "{m}b"), again}
			},
			"MultiLock of types": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("n"), locktest.NewMultiLock(t, c.NewFairLock("m"), c.NewLock("n")), again}
			},
			"MultiLock that is not reentrant": func(c *rlock.Client) refusal {
				return refusal{mine.NewLock("{o}b"), locktest.NewMultiLock(t, c.NewLock("{o}a", rlock.WithNonReentrant()), c.NewLock("{o}b", rlock.WithNonReentrant())), ""}
			},
			"RedLock": func(c *rlock.Client) refusal {
				open := func(c *rlock.Client) rlock.Locker {
					return locktest.NewRedLock(t, "red", []*rlock.Client{c}, rlock.WithNodeTimeout(5*time.Second))
				}
				return refusal{open(mine), open(c), again}
			},
			"PermitSemaphore": func(c *rlock.Client) refusal {
				open := func(c *rlock.Client) rlock.Locker {
					return locktest.PermitLocker{PermitSemaphore: locktest.MustSetPermits(t, c.NewPermitSemaphore("permits", rlock.WithFairness()), 1), N: 1}
				}
				return refusal{open(mine), open(c), ""}
			},
		}
		for _, k := range locktest.Types {
			advice := again
			if strings.HasSuffix(k.Name, "WriteLock") {
				advice = unless
			}
			refusals[k.Name] = func(c *rlock.Client) refusal {
				return refusal{k.Blocker(mine, "type:"+k.Name), k.Open(c, "type:"+k.Name), advice}
			}
		}
		for name, of := range refusals {
			t.Run(name, func(t *testing.T) {
				for _, c := range []*rlock.Client{mine, other} {
					r := of(c)
					lease := locktest.MustLock(t, r.held, rlock.WithLease(time.Hour))
					for how, ask := range map[string]func() (*rlock.Lease, error){
						"TryLock": func() (*rlock.Lease, error) { return r.asks.TryLock(bg) },
						"Lock":    func() (*rlock.Lease, error) { return nil, refusedWait(r.asks) },
					} {
						var err error
						// What an earlier wait had of a MultiLock may not have been given back yet.
						for tries := 0; tries < 20; tries++ {
							_, err = ask()
							// Nor does one that ended before its last look was answered know what is left.
							if err != nil && strings.Contains(err.Error(), lease.HoldID()) && strings.Contains(err.Error(), " left") {
								break
							}
						}
						locktest.WantErr(t, err, rlock.ErrNotAcquired)
						who, advice := "held by "+lease.HoldID(), ""
						if c == mine {
							who, advice = "held by this client ("+lease.HoldID()+")", r.advice
						}
						_, text, found := strings.Cut(err.Error(), who)
						_, rest, left := strings.Cut(text, " left")
						if !found || !left || rest != advice {
							t.Errorf("%s of the same client: %v: %v\nis not %q, and %q at the end", how, c == mine, err, who, advice)
						}
						var e *rlock.Error
						oneScript := strings.Contains(err.Error(), "one of the locks is")
						if !errors.As(err, &e) || e.HolderID != lease.HoldID() && !oneScript {
							t.Errorf("held by %s: %+v", lease.HoldID(), e)
						}
					}
					locktest.MustUnlock(t, lease)
				}
			})
		}
	})
}

// Several holders are readers, and a reader that asks to write is refused.
func TestRefusalByReadersOfTheOwnClientGivesNoAdvice(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	for name, rw := range map[string]bothSides{
		"ReadWriteLock": {c.NewReadWriteLock("rw").Reader, c.NewReadWriteLock("rw").Writer},
		"fair":          {c.NewFairReadWriteLock("fair").Reader, c.NewFairReadWriteLock("fair").Writer},
	} {
		reader, writer := rw.reader, rw.writer
		leases := []*rlock.Lease{locktest.MustLock(t, reader), locktest.MustLock(t, reader)}
		_, err := writer.TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "held by this client (") || !strings.Contains(err.Error(), ") and 1 more") || strings.Contains(err.Error(), "pass on") {
			t.Errorf("%s: %v", name, err)
		}
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
	}
}

type bothSides struct{ reader, writer rlock.Locker }

// A waiter behind others of its client has not looked itself, and is told the same. What it asked for
// decides whether there is advice: the one before it need not be of its type.
func TestWaitersBehindOthersHearOfTheOwnClient(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	lease := locktest.MustLock(t, c.NewLock("a"))
	first := locktest.Begin(t, bg, c.NewLock("a", rlock.WithNonReentrant()))
	locktest.Eventually(t, "the first waits", func() bool { return locktest.Waiters(t, c.NewLock("a")) == 1 })
	if err := refusedWait(c.NewLock("a")); !strings.HasSuffix(err.Error(), " left; whoever holds it enters again with the context of its lease") {
		t.Error(err)
	}
	if err := first.GiveUp(); strings.Contains(err.Error(), "pass on") ||
		!strings.Contains(err.Error(), "held by this client ("+lease.HoldID()+")") && !errors.Is(err, rlock.ErrUnreachable) { // a look that was cut off, on a busy machine
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)
}

// The leader of a client of which another candidate waits, and who runs a Once, are named so, too.
func TestCandidateBehindItsOwnClientIsTold(t *testing.T) {
	t.Parallel()
	c := locktest.OnMiniredis(t).NewClient(t)
	e := c.NewElection("job")
	lease, err := e.Campaign(bg, "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Campaign(bg, "b", rlock.WithWait(0))
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	if !strings.Contains(err.Error(), "held by this client ("+lease.HoldID()+")") || strings.Contains(err.Error(), "pass on") {
		t.Error(err)
	}
	locktest.MustUnlock(t, lease)

	o := c.NewOnce("once", time.Minute)
	_, _, err = o.Do(bg, func(context.Context) ([]byte, error) {
		return nil, refused(func(wait time.Duration) error {
			ctx, cancel := context.WithTimeout(bg, wait)
			defer cancel()
			_, _, err := o.Do(ctx, func(context.Context) ([]byte, error) { return nil, errors.New("it ran") })
			return err
		})
	})
	locktest.WantErr(t, err, rlock.ErrNotAcquired, context.DeadlineExceeded)
	if !strings.Contains(err.Error(), "held by this client (") || strings.Contains(err.Error(), "pass on") {
		t.Error(err)
	}
}
