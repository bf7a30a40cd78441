package adoption

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// A renewal that was sent before the handle was made known arrives when the hold is adopted, and finds
// none. The holder says all the same that it has left.
func TestARenewalFromBeforeTheHandle(t *testing.T) {
	t.Parallel()
	plain := map[string]string{"lock/adopt": "lock/renew", "rw/read_adopt": "rw/read_renew", "rw/write_adopt": "rw/write_renew", "queue/adopt": "queue/renew"}
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			for _, by := range []string{"Extend", "watchdog"} {
				t.Run(k.Name+" "+by, func(t *testing.T) {
					t.Parallel()
					proxy := faultproxy.New(t, b.Addr)
					proxy.DropMessages(true)
					lease := patient
					if by == "watchdog" {
						lease = rlock.WithWatchdogLease(locktest.Ample(3 * time.Second))
					}
					a := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, func(o *redis.Options) { o.ReadTimeout = locktest.Patience }), lease, rlock.WithCommandTimeout(locktest.Patience))
					c := b.NewClient(t)
					l := k.Open(a, name(t))
					locktest.LoadScripts(t, b.Client(t), plain[adopts(k)])
					first := locktest.MustLock(t, l)
					arrived, pass := make(chan struct{}, 100), make(chan struct{})
					renewal := locktest.SHA(plain[adopts(k)])
					proxy.Handle(func(c faultproxy.Command) faultproxy.Action {
						if c.IsScript(renewal) {
							arrived <- struct{}{}
							<-pass
						}
						return faultproxy.Pass
					})
					if by == "Extend" {
						go first.Extend(bg, long)
					}
					<-arrived
					type result struct {
						*rlock.Lease
						error
					}
					adopted := make(chan result, 1)
					handle := handleOf(t, first)
					go func() {
						ctx, cancel := context.WithTimeout(bg, locktest.Patience)
						defer cancel()
						l, err := c.Adopt(ctx, handle)
						adopted <- result{l, err}
					}()
					locktest.Eventually(t, "it is adopted", func() bool {
						s, err := k.Open(c, name(t)).State(bg)
						return err == nil && len(s.Holders) == 1 && s.Holders[0].HoldID != first.HoldID()
					})
					close(pass)
					second := <-adopted
					if second.error != nil {
						t.Fatalf("Adopt waits for a holder that has left: %v; that: %v", second.error, first.Err())
					}
					wasAdopted(t, first)
					locktest.MustUnlock(t, second.Lease)
					locktest.MustBeFree(t, k.Blocker(c, name(t)))
				})
			}
		})
	})
}

// A MultiLock whose acquire may have late copies is unlocked when a member was adopted.
func TestAMemberOfAMultiLockIsAdopted(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, unsure := range []bool{false, true} {
			a, proxy, plain := b.Faulty(t, patient)
			locktest.LoadScripts(t, plain, "lock/enter_all")
			c := b.NewClient(t)
			if unsure {
				locktest.OnNth(t, proxy, "lock/enter_all", 1, faultproxy.ResetAfter)
			}
			m := locktest.MustLock(t, locktest.MultiLockOf(t, a, "{m}a", "{m}b", "{m}c"))
			deafen(proxy)
			handle := handleOf(t, m.Members()[1])
			adopted := make(chan error, 1)
			var second *rlock.Lease
			go func() {
				ctx, cancel := context.WithTimeout(bg, locktest.Patience)
				defer cancel()
				var err error
				second, err = c.Adopt(ctx, handle)
				adopted <- err
			}()
			locktest.Eventually(t, "it is adopted", func() bool {
				s, err := c.NewLock("{m}b").State(bg)
				return err == nil && len(s.Holders) == 1 && s.Holders[0].HoldID != m.HoldID()
			})
			proxy.Handle(nil)
			locktest.WantErr(t, m.Unlock(bg), rlock.ErrAdopted, rlock.ErrLeaseLost)
			if err := <-adopted; err != nil {
				t.Fatal(err)
			}
			locktest.MustBeFree(t, c.NewLock("{m}a"), c.NewLock("{m}c"))
			locktest.MustUnlock(t, second)
			locktest.MustBeFree(t, c.NewLock("{m}b"))
			locktest.DeleteAll(t, plain)
		}
	})
}

// A hold is adopted from a client that shuts down: it says that its holder has left, before it ends.
func TestAdoptFromAClientThatShutsDown(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				a, c := b.NewClient(t, patient), b.NewClient(t)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				handle := handleOf(t, first)
				down := make(chan error, 1)
				go func() { down <- a.Shutdown(bg) }()
				<-first.Done()
				second := adopt(t, c, handle)
				locktest.WantErr(t, first.Unlock(bg), rlock.ErrAdopted, rlock.ErrLeaseLost)
				if err := <-down; err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, second)
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// An adoption is what its holder has wanted: it is logged, but is no loss to be warned of.
func TestAnAdoptionIsNoWarning(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var log locktest.LogLines
	a, c := b.NewClient(t, patient, rlock.WithLogger(log.Logger())), b.NewClient(t)
	first := locktest.MustLock(t, a.NewLock("a"))
	second := adopt(t, c, handleOf(t, first))
	wasAdopted(t, first)
	locktest.Eventually(t, "it is logged", func() bool {
		return log.With("INFO", "hold adopted by another client", first.HoldID()) == 1
	})
	if log.With("WARN") > 0 {
		t.Error(log.String())
	}
	locktest.MustUnlock(t, second)
	// A hold that is removed is lost.
	lost := locktest.MustLock(t, a.NewLock("a"))
	if !b.Mini.Del("a") {
		t.Fatal("it is not there")
	}
	locktest.WantErr(t, lost.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
	locktest.Eventually(t, "it is logged", func() bool { return log.With("WARN", "lease lost", lost.HoldID()) == 1 })
}
