package adoption

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// adopts is the script by which holds of a type are adopted.
func adopts(k locktest.Type) string {
	switch k.Name {
	case "ReadLock":
		return "rw/read_adopt"
	case "WriteLock", "plain WriteLock":
		return "rw/write_adopt"
	case "fair ReadLock", "fair WriteLock", "PriorityLock":
		return "queue/adopt"
	}
	return "lock/adopt"
}

// families are a type of each protocol.
func families(run func(k locktest.Type)) {
	seen := map[string]bool{}
	for _, k := range locktest.Types {
		if script := adopts(k); !seen[script] || k.Name == "FairLock" || k.Name == "fair WriteLock" {
			seen[script] = true
			run(k)
		}
	}
}

// A reply of Adopt is lost, or the request, or it runs twice: the request that is sent again finds its
// own result.
func TestAdoptWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	families(func(k locktest.Type) {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			locktest.EachLoss(t, adopts(k), func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
				locktest.Unhurried(t, func(timeout time.Duration) error {
					c, proxy, plain := b.Faulty(t, rlock.WithCommandTimeout(timeout))
					locktest.LoadScripts(t, plain, adopts(k))
					a := b.NewClient(t, patient)
					first := locktest.MustLock(t, k.Open(a, "a"))
					handle := detach(t, first)
					locktest.OnNth(t, proxy, adopts(k), 1, action)
					second, err := c.Adopt(bg, handle)
					if err != nil {
						// The hold is not left to anybody.
						locktest.Eventually(t, "it is given up", func() bool {
							held, err := k.Open(a, "a").IsLocked(bg)
							return err == nil && !held
						})
						return err
					}
					if second.Token() != first.Token() {
						t.Error("another token")
					}
					stale(t, a, handle)
					locktest.MustBeHeld(t, k.Blocker(a, "a"))
					locktest.MustUnlock(t, second)
					locktest.MustBeFree(t, k.Blocker(a, "a"))
					return nil
				})
			})
		})
	})
}

// A copy of Adopt comes when the one who has adopted has unlocked, and a successor has the lock.
func TestLateCopyOfAdopt(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				a := b.NewClient(t)
				proxy := faultproxy.New(t, b.Addr)
				c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
				id := locktest.SHA(adopts(k))
				first := locktest.MustLock(t, k.Open(a, name(t)))
				second := adopt(t, c, detach(t, first))
				late := commandsOf(proxy, id)
				locktest.MustUnlock(t, second)
				replay := func() {
					t.Helper()
					for _, copy := range late {
						if err := proxy.Replay(copy); err != nil {
							t.Fatal(err)
						}
					}
				}
				replay()
				locktest.MustBeFree(t, k.Blocker(a, name(t)))
				next := locktest.MustLock(t, k.Open(a, name(t)))
				handleOf(t, next)
				before, _ := k.Open(a, name(t)).State(bg)
				replay()
				after, err := k.Open(a, name(t)).State(bg)
				if err != nil || len(after.Holders) != 1 || after.Holders[0].HoldID != next.HoldID() || after.TTL > before.TTL {
					t.Errorf("%+v, %v; before the copy %+v", after, err, before)
				}
				locktest.MustUnlock(t, next)
			})
		})
	})
}

func commandsOf(p *faultproxy.Proxy, script string) (all []faultproxy.Command) {
	for _, c := range p.Commands() {
		if c.IsScript(script) {
			all = append(all, c)
		}
	}
	return all
}

// Late copies of what the holder before has sent do nothing to the one who has adopted.
func TestLateCopiesOfTheHolderBefore(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				proxy := faultproxy.New(t, b.Addr)
				a := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
				c := b.NewClient(t)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				again := locktest.MustLockCtx(t, first.Context(bg), k.Open(a, name(t)))
				handle := handleOf(t, first)
				if err := first.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, again)
				detach(t, first)
				before := proxy.Commands()
				second := adopt(t, c, handle)
				was, _ := k.Open(c, name(t)).State(bg)
				for _, command := range before {
					if command.Name == "evalsha" || command.Name == "eval" {
						if err := proxy.Replay(command); err != nil {
							t.Fatal(err)
						}
					}
				}
				s, err := k.Open(c, name(t)).State(bg)
				if err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != second.HoldID() || s.TTL > was.TTL {
					t.Errorf("%+v, %v; before the copies %+v", s, err, was)
				}
				locktest.MustUnlock(t, second)
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
				for _, command := range before { // and nothing comes back
					if command.Name == "evalsha" || command.Name == "eval" {
						if err := proxy.Replay(command); err != nil {
							t.Fatal(err)
						}
					}
				}
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// The holder before is cut off from Redis: it may believe in its lease until its deadline, so Adopt
// waits for that, while nobody else can enter.
func TestAdoptWaitsForAHolderThatCannotHear(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			locktest.Beside(t, k.Name, func(t *testing.T) {
				// A busy machine may need longer than the lease to get to its adoption.
				for lease := locktest.Ample(time.Second); !waitsForTheEnd(t, b, k, lease); lease *= 2 {
					if lease > locktest.Patience {
						t.Fatal("the lease is always over before it is adopted")
					}
				}
			})
		})
	})
}

// waitsForTheEnd reports whether the hold was there still when it was to be adopted.
func waitsForTheEnd(t *testing.T, b *locktest.Backend, k locktest.Type, lease time.Duration) bool {
	name := name(t) + lease.String()
	proxy := faultproxy.New(t, b.Addr)
	a, c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil)), b.NewClient(t)
	first := locktest.MustLock(t, k.Open(a, name), rlock.WithLease(lease))
	defer proxy.Blackhole(false)
	defer first.Unlock(bg)
	handle, err := first.Handle()
	if err != nil {
		return false
	}
	proxy.Blackhole(true)
	if l, err := c.Adopt(bg, handle, rlock.WithWait(0)); err == nil {
		t.Fatalf("adopted at once as %s", l.HoldID())
	} else {
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
	}
	second, err := c.Adopt(bg, handle)
	if err != nil {
		locktest.WantErr(t, err, rlock.ErrNotAcquired)
		return false
	}
	if first.Err() == nil {
		t.Error("two hold it")
	}
	locktest.MustBeHeld(t, k.Blocker(c, name))
	locktest.MustUnlock(t, second)
	return true
}

// An Adopt whose wait ends gives the hold back, and its holder goes on as if nothing had been asked.
func TestAnAdoptionThatIsGivenUpIsUndone(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				proxy := faultproxy.New(t, b.Addr)
				deafen(proxy)
				a := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), patient)
				c := b.NewClient(t)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				again := locktest.MustLockCtx(t, first.Context(bg), k.Open(a, name(t)))
				handle := handleOf(t, first)
				before, err := k.Open(c, name(t)).State(bg)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
					_, err := c.Adopt(ctx, handle)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					after := before
					locktest.Eventually(t, "it is given back", func() bool {
						after, err = k.Open(c, name(t)).State(bg)
						return err == nil && len(after.Holders) == 1 && after.Holders[0].HoldID == before.Holders[0].HoldID && after.Holders[0].Count == before.Holders[0].Count
					})
					if after.TTL > before.TTL {
						t.Errorf("the lease is %v, and was %v", after.TTL, before.TTL)
					}
				}
				proxy.Handle(nil)
				if err := first.Extend(bg, long); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, again)
				if err := first.Err(); err != nil {
					t.Error(err)
				}
				second := adopt(t, c, detach(t, first))
				locktest.MustUnlock(t, second)
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// deafen keeps the holders behind a proxy from finding out that they were adopted, and from renewing.
func deafen(p *faultproxy.Proxy) {
	looks := map[string]bool{}
	for _, script := range []string{"lock/renew_known", "rw/read_renew_known", "rw/write_renew_known", "queue/renew_known"} {
		looks[locktest.SHA(script)] = true
	}
	p.Handle(func(c faultproxy.Command) faultproxy.Action {
		for id := range looks {
			if c.IsScript(id) {
				return faultproxy.Error
			}
		}
		return faultproxy.Pass
	})
}

// A request of an Adopt that was given up comes late: its holder goes on.
func TestLateFirstCopyOfAnAdoptionThatWasGivenUp(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				a := b.NewClient(t)
				proxy := faultproxy.New(t, b.Addr)
				c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
				locktest.LoadScripts(t, b.Client(t), adopts(k))
				first := locktest.MustLock(t, k.Open(a, name(t)))
				handle := handleOf(t, first)
				id := locktest.SHA(adopts(k))
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(id) {
						return faultproxy.Hold
					}
					return faultproxy.Pass
				})
				ctx, cancel := context.WithCancel(bg)
				result := make(chan error, 1)
				go func() {
					_, err := c.Adopt(ctx, handle)
					result <- err
				}()
				locktest.HeldUp(t, proxy, 1)
				cancel()
				if err := <-result; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				locktest.Eventually(t, "it has a tombstone", func() bool { return locktest.Tombstones(locktest.Keys(t, b.Client(t))) > 0 })
				proxy.Handle(nil)
				if proxy.Release() == 0 {
					t.Fatal("nothing came late")
				}
				if err := first.Extend(bg, time.Minute); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, first)
				locktest.MustBeFree(t, k.Blocker(a, name(t)))
				locktest.DeleteAll(t, b.Client(t))
			})
		})
	})
}

// Without messages the holder before finds out by looking, with a fixed lease too.
func TestAHolderLooksByItself(t *testing.T) {
	t.Parallel()
	short := rlock.WithWatchdogLease(locktest.Ample(6 * time.Second)) // it looks each third of that
	for what, opts := range map[string][]rlock.AcquireOption{"renewed": nil, "fixed": {rlock.WithLease(time.Hour)}} {
		locktest.Beside(t, what, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				proxy := faultproxy.New(t, b.Addr)
				proxy.DropMessages(true)
				a := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), short)
				c := b.NewClient(t)
				first := locktest.MustLock(t, a.NewLock("a"), opts...)
				second := adopt(t, c, handleOf(t, first), opts...)
				wasAdopted(t, first)
				locktest.MustUnlock(t, second)
			})
		})
	}
}

// Redis forgets the hold: there is nothing to adopt. Redis has it after a restart: it is adopted.
func TestAdoptAfterARestart(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{"data lost": nil, "data kept": {"--appendonly", "yes", "--appendfsync", "always"}} {
		locktest.Beside(t, what, func(t *testing.T) {
			b := locktest.OnServer(t, args...)
			a, c := b.NewClient(t, patient), b.NewClient(t)
			first := locktest.MustLock(t, a.NewLock("a"))
			handle := detach(t, first)
			b.Real.Kill()
			b.Real.Restart()
			if args == nil {
				var err error
				locktest.Eventually(t, "Redis answers", func() bool {
					_, err = c.Adopt(bg, handle)
					return !errors.Is(err, rlock.ErrUnreachable)
				})
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.MustBeFree(t, c.NewLock("a"))
				return
			}
			second := adopt(t, c, handle)
			if second.Token() != first.Token() {
				t.Error("another token")
			}
			locktest.MustUnlock(t, second)
		})
	}
}

// Redis is gone: Adopt says so, not that the lock is held.
func TestAdoptDuringAnOutage(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t, rlock.WithWatchdogLease(300*time.Millisecond), rlock.WithCommandTimeout(100*time.Millisecond))
	handle := detach(t, locktest.MustLock(t, b.NewClient(t, patient).NewLock("a")))
	b.Real.Kill()
	_, err := c.Adopt(bg, handle)
	locktest.WantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotAcquired, rlock.ErrRefused)
}

// Too few replicas confirm: nothing is adopted, and the hold ends, since its holder has left it.
func TestAdoptThatReplicasDoNotConfirm(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	a := b.NewClient(t, patient)
	c := b.NewClient(t, rlock.WithReplicaAck(1, 10*time.Millisecond))
	first := locktest.MustLock(t, a.NewLock("a"))
	handle := handleOf(t, first)
	_, err := c.Adopt(bg, handle)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.Eventually(t, "nobody has it, or its holder", func() bool {
		s, err := a.NewLock("a").State(bg)
		return err == nil && (len(s.Holders) == 0 || s.Holders[0].HoldID == first.HoldID())
	})
	_ = first.Unlock(bg)
	locktest.MustBeFree(t, a.NewLock("a"))
}

// A hold with a fixed lease is adopted and renewed, and the other way round; what is left of a long
// lease of the holder before does not stay.
func TestTheLeaseOfTheOneWhoAdopts(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		a := b.NewClient(t)
		events := &locktest.Events{}
		c := b.NewClient(t, rlock.WithWatchdogLease(locktest.Ample(1500*time.Millisecond)), rlock.WithObserver(events))
		second := adopt(t, c, detach(t, locktest.MustLock(t, a.NewLock("a"), rlock.WithLease(time.Hour))))
		locktest.Eventually(t, "it is renewed", func() bool { return events.Renewals("a") > 1 })
		locktest.MustUnlock(t, second)
		second = adopt(t, c, detach(t, locktest.MustLock(t, a.NewLock("b"))), rlock.WithLease(time.Hour))
		if left := time.Until(second.Deadline()); left < 50*time.Minute {
			t.Errorf("the lease lasts for %v", left)
		}
		locktest.MustUnlock(t, second)
	})
}

// The client that has adopted shuts down: its lease ends as any other.
func TestAdoptAndShutdown(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	proxy := faultproxy.New(t, b.Addr)
	deafen(proxy)
	a := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), patient)
	c := b.NewClient(t)
	first := locktest.MustLock(t, a.NewLock("a"))
	handle := handleOf(t, first)
	result := make(chan error, 1)
	go func() {
		_, err := c.Adopt(bg, handle)
		result <- err
	}()
	locktest.Eventually(t, "it waits", func() bool {
		s, err := a.NewLock("a").State(bg)
		return err == nil && len(s.Holders) == 1 && s.Holders[0].HoldID != first.HoldID()
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	locktest.WantErr(t, <-result, rlock.ErrClosed)
	if _, err := c.Adopt(bg, handle); !errors.Is(err, rlock.ErrClosed) {
		t.Error(err)
	}
	if s, err := a.NewLock("a").State(bg); err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != first.HoldID() {
		t.Errorf("%+v, %v: not given back", s, err)
	}
	proxy.Handle(nil)
	locktest.MustUnlock(t, first)
}

// A hold whose key has lost its TTL is not adopted: nobody can tell until when its holder believes that it has
// the lock.
func TestAHoldWithoutATTLIsNotAdopted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			if s := adopts(k); s != "lock/adopt" && s != "rw/write_adopt" {
				return
			}
			t.Run(k.Name, func(t *testing.T) {
				first := locktest.MustLock(t, k.Open(b.NewClient(t, patient), name(t)))
				handle := handleOf(t, first)
				if !b.Client(t).Persist(bg, first.Name()).Val() {
					t.Fatal("it had no TTL")
				}
				_, err := b.NewClient(t).Adopt(bg, handle)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.MustUnlock(t, first)
			})
		})
	})
}
