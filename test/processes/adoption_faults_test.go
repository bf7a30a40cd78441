package processes

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
						// Its handle is as good as before.
						var again *rlock.Lease
						locktest.Eventually(t, "it is given back", func() (is bool) {
							again, _ = a.Adopt(bg, handle)
							return again != nil
						})
						locktest.MustUnlock(t, again)
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

// The same of Detach, and of Extend of a handle.
func TestDetachAndExtendWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	for script, run := range map[string]func(t *testing.T, b *locktest.Backend, c *rlock.Client) error{
		"adoption/offer": func(t *testing.T, b *locktest.Backend, c *rlock.Client) error {
			handle, err := locktest.MustLock(t, c.NewLock("a")).Detach(bg)
			if err != nil && !errors.Is(err, rlock.ErrUnconfirmed) {
				t.Error(err)
			}
			locktest.Eventually(t, "it can be adopted", func() bool { // the request is repeated
				second, _ := b.NewClient(t).Adopt(bg, handle)
				if second == nil {
					return false
				}
				locktest.MustUnlock(t, second)
				return true
			})
			return err
		},
		"adoption/find": func(t *testing.T, b *locktest.Backend, c *rlock.Client) error {
			other := b.NewClient(t)
			handle := detach(t, locktest.MustLock(t, other.NewLock("a")))
			err := c.Extend(bg, handle, long)
			if err != nil {
				locktest.WantErr(t, err, rlock.ErrUnreachable, nil, rlock.ErrNotHeld)
			} else {
				wantRest(t, other.NewLock("a"), long)
			}
			locktest.MustUnlock(t, adopt(t, other, handle))
			return err
		},
		"lock/abandon": func(t *testing.T, b *locktest.Backend, c *rlock.Client) error {
			handle := detach(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
			err := c.Unlock(bg, handle)
			if err != nil && !errors.Is(err, rlock.ErrUnreachable) {
				locktest.WantErr(t, err, rlock.ErrUnconfirmed, nil, rlock.ErrNotHeld)
			}
			for again := err; again != nil && !errors.Is(again, rlock.ErrNotHeld); {
				again = c.Unlock(bg, handle)
			}
			return unreachable(err)
		},
	} {
		locktest.EachLoss(t, script, func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
			locktest.Unhurried(t, func(timeout time.Duration) error {
				c, proxy, plain := b.Faulty(t, patient, rlock.WithCommandTimeout(timeout))
				locktest.LoadScripts(t, plain, script)
				locktest.OnNth(t, proxy, script, 1, action)
				err := run(t, b, c)
				locktest.MustBeFree(t, b.NewClient(t).NewLock("a"))
				return err
			})
		})
	}
}

// unreachable is an error that says that Redis gave no answer, if that is all that was wrong.
func unreachable(err error) error {
	if errors.Is(err, rlock.ErrUnreachable) {
		return err
	}
	return nil
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
				second := adopt(t, c, detach(t, locktest.MustLock(t, k.Open(a, name(t)))))
				late := commandsOf(proxy, locktest.SHA(adopts(k)))
				locktest.MustUnlock(t, second)
				replay(t, proxy, late)
				locktest.MustBeFree(t, k.Blocker(a, name(t)))
				next := locktest.MustLock(t, k.Open(a, name(t)))
				before, _ := k.Open(a, name(t)).State(bg)
				replay(t, proxy, late)
				after, err := k.Open(a, name(t)).State(bg)
				if err != nil || len(after.Holders) != 1 || after.Holders[0].HoldID != next.HoldID() || after.TTL > before.TTL {
					t.Errorf("%+v, %v; before the copy %+v", after, err, before)
				}
				locktest.MustUnlock(t, next)
			})
		})
	})
}

// replay has copies of commands arrive.
func replay(t *testing.T, p *faultproxy.Proxy, all []faultproxy.Command) {
	t.Helper()
	for _, copy := range all {
		if err := p.Replay(copy); err != nil {
			t.Fatal(err)
		}
	}
}

// scriptsOf are all runs of scripts so far.
func scriptsOf(p *faultproxy.Proxy) (all []faultproxy.Command) {
	for _, c := range p.Commands() {
		if c.Name == "evalsha" || c.Name == "eval" {
			all = append(all, c)
		}
	}
	return all
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
				if err := first.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, again)
				handle := detach(t, first)
				before := scriptsOf(proxy)
				second := adopt(t, c, handle)
				was, _ := k.Open(c, name(t)).State(bg)
				replay(t, proxy, before)
				s, err := k.Open(c, name(t)).State(bg)
				if err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != second.HoldID() || s.TTL > was.TTL {
					t.Errorf("%+v, %v; before the copies %+v", s, err, was)
				}
				locktest.MustUnlock(t, second)
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
				replay(t, proxy, before) // and nothing comes back
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// An Adopt that nobody waits for any more comes late, or its answer does: the hold is as detached as before. The
// same again, for a hold that has the id of an adoption that was given up.
func TestAbandonedAdoptionIsUndone(t *testing.T) {
	t.Parallel()
	for what, action := range map[string]faultproxy.Action{"the request is late": faultproxy.Hold, "the answer is lost": faultproxy.SwallowReply} {
		locktest.Beside(t, what, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				families(func(k locktest.Type) {
					t.Run(k.Name, func(t *testing.T) {
						a, plain := b.NewClient(t), b.NewClient(t)
						locktest.LoadScripts(t, b.Client(t), adopts(k))
						l := k.Open(a, name(t))
						first := locktest.MustLock(t, l, rlock.WithLease(long))
						handle := detach(t, first)
						for range 2 {
							abandonAdopt(t, b, k, handle, action)
							locktest.Eventually(t, "it is given back", func() bool {
								s, err := l.State(bg)
								return err == nil && len(s.Holders) == 1 && s.TTL > long/2 // not the lease of an adoption
							})
							if err := plain.Extend(bg, handle, 2*long); err != nil { // the handle is good
								t.Error(err)
							}
							wantRest(t, l, 2*long)
							locktest.MustBeHeld(t, k.Blocker(a, name(t)))
						}
						second := adopt(t, plain, handle)
						if second.Token() != first.Token() {
							t.Errorf("token %d, and it was %d", second.Token(), first.Token())
						}
						locktest.MustUnlock(t, second)
						locktest.MustBeFree(t, k.Blocker(a, name(t)))
						locktest.DeleteAll(t, b.Client(t))
					})
				})
			})
		})
	}
}

// abandonAdopt begins to adopt, and leaves while an action befalls the request, which may come late then.
func abandonAdopt(t *testing.T, b *locktest.Backend, k locktest.Type, handle string, action faultproxy.Action) {
	t.Helper()
	proxy := faultproxy.New(t, b.Addr)
	c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
	id := locktest.SHA(adopts(k))
	seen := make(chan struct{}, 100)
	proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
		if !c.IsScript(id) {
			return faultproxy.Pass
		}
		seen <- struct{}{}
		return action
	})
	ctx, cancel := context.WithCancel(bg)
	result := make(chan error, 1)
	go func() {
		_, err := c.Adopt(ctx, handle, rlock.WithLease(time.Minute))
		result <- err
	}()
	<-seen
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if action == faultproxy.Hold {
		locktest.HeldUp(t, proxy, 1)
	}
	proxy.Handle(nil)
	if err := c.Shutdown(bg); err != nil { // what undoes it has been answered
		t.Fatal(err)
	}
	if proxy.Release() == 0 && action == faultproxy.Hold {
		t.Fatal("nothing came late")
	}
}

// The time of the hold is over when its adoption is given up: it does not come back.
func TestAbandonedAdoptionDoesNotReviveAnExpiredHold(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				a := b.NewClient(t)
				locktest.LoadScripts(t, b.Client(t), adopts(k))
				lease := locktest.Ample(3 * time.Second)
				handle := detach(t, locktest.MustLock(t, k.Open(a, name(t)), rlock.WithLease(lease)))
				proxy := faultproxy.New(t, b.Addr)
				c := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil))
				proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(locktest.SHA(adopts(k))) {
						return faultproxy.SwallowReply
					}
					return faultproxy.Pass
				})
				ctx, cancel := context.WithTimeout(bg, 2*lease)
				defer cancel()
				if l, err := c.Adopt(ctx, handle, rlock.WithLease(long)); err == nil {
					t.Fatalf("adopted as %s without an answer", l.HoldID())
				}
				locktest.Eventually(t, "it is free", func() bool {
					held, err := k.Open(a, name(t)).IsLocked(bg)
					return err == nil && !held
				})
				stale(t, a, handle)
			})
		})
	})
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

// Too few replicas confirm: nothing is adopted, and the hold is as detached as before.
func TestAdoptThatReplicasDoNotConfirm(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	a := b.NewClient(t, patient)
	c := b.NewClient(t, rlock.WithReplicaAck(1, 10*time.Millisecond))
	handle := detach(t, locktest.MustLock(t, a.NewLock("a")))
	_, err := c.Adopt(bg, handle)
	locktest.WantErr(t, err, rlock.ErrNotAcquired)
	locktest.WantErr(t, c.Extend(bg, handle, long), rlock.ErrUnreachable, nil, rlock.ErrNotHeld)
	locktest.MustUnlock(t, adopt(t, a, handle))
	locktest.MustBeFree(t, a.NewLock("a"))

	// A Detach that they do not confirm.
	handle, err = locktest.MustLock(t, a.NewLock("b")).Detach(bg)
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, adopt(t, a, handle))
}

// A hold with a fixed lease is adopted and renewed, and the other way round; what is left of a long
// lease of the holder before does not stay.
func TestLeaseOfAnAdopter(t *testing.T) {
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

// A hold whose key has lost its TTL is not adopted: it may have been made data of somebody.
func TestAHoldWithoutATTLIsNotAdopted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			if s := adopts(k); s != "lock/adopt" && s != "rw/write_adopt" {
				return
			}
			t.Run(k.Name, func(t *testing.T) {
				first := locktest.MustLock(t, k.Open(b.NewClient(t, patient), name(t)))
				handle := detach(t, first)
				if !b.Client(t).Persist(bg, first.Name()).Val() {
					t.Fatal("it had no TTL")
				}
				_, err := b.NewClient(t).Adopt(bg, handle)
				locktest.WantErr(t, err, rlock.ErrNotAcquired)
				locktest.DeleteAll(t, b.Client(t))
			})
		})
	})
}
