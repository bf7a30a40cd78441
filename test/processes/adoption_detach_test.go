package processes

import (
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Before the Detach of a hold arrives, the hold is removed, and somebody else may have the lock. What is gone
// is not left to anybody.
func TestDetachOfARemovedHold(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		next   bool // somebody has the lock
		resent bool // a copy had offered the hold, and its reply was lost
		want   []error
	}{
		"removed":               {false, false, []error{rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrUnconfirmed}},
		"taken over":            {true, false, []error{rlock.ErrLeaseLost, rlock.ErrTakenOver, nil, rlock.ErrUnconfirmed}},
		"removed between":       {false, true, []error{rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrUnconfirmed}},
		"taken over in between": {true, true, []error{rlock.ErrLeaseLost, rlock.ErrTakenOver, nil, rlock.ErrUnconfirmed}},
	} {
		locktest.Beside(t, what, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				families(func(k locktest.Type) {
					t.Run(k.Name, func(t *testing.T) {
						proxy := faultproxy.New(t, b.Addr)
						a, other, rdb := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), patient), b.NewClient(t), b.Client(t)
						locktest.LoadScripts(t, rdb, "adoption/offer")
						first := locktest.MustLock(t, k.Open(a, name(t)))
						var next *rlock.Lease
						copies := 0
						proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
							if !cmd.IsScript(locktest.SHA("adoption/offer")) {
								return faultproxy.Pass
							}
							copies++
							if c.resent && copies == 1 {
								return faultproxy.ResetAfter
							}
							locktest.DeleteAll(t, rdb)
							if c.next && next == nil {
								next = locktest.MustLock(t, k.Blocker(other, name(t)))
							}
							return faultproxy.Pass
						})
						handle, err := first.Detach(bg)
						proxy.Handle(nil)
						if copies == 0 {
							t.Fatal("it was not asked for")
						}
						locktest.WantErr(t, err, c.want...)
						if handle != "" {
							t.Errorf("the handle is %q", handle)
						}
						if next != nil {
							locktest.MustUnlock(t, next)
						}
						locktest.DeleteAll(t, rdb)
					})
				})
			})
		})
	}
}

// A client that shuts down leaves its holds to their holders: they can detach them, for the process that comes next.
func TestDetachFromAClientThatShutsDown(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				a, c := b.NewClient(t, patient), b.NewClient(t)
				first := locktest.MustLock(t, k.Open(a, name(t)))
				down := make(chan error, 1)
				go func() { down <- a.Shutdown(bg) }()
				<-first.Done()
				handle := detach(t, first)
				if err := <-down; err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, adopt(t, c, handle))
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// A Detach that finds the lease lost says so, once.
func TestDetachOfALostLease(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	l := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	if !b.Mini.Del("a") {
		t.Fatal("it is not there")
	}
	locktest.WantErr(t, l.Extend(bg, time.Minute), rlock.ErrLeaseLost)
	_, err := l.Detach(bg)
	locktest.WantErr(t, err, rlock.ErrLeaseLost, rlock.ErrRemoved)
	if n := strings.Count(err.Error(), "hold "); n != 1 {
		t.Error(err)
	}
}
