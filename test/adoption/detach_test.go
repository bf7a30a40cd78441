package adoption

import (
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// detaches is the script by which a holder of a type leaves its hold.
func detaches(k locktest.Type) string {
	return map[string]string{
		"lock/adopt": "lock/detach", "rw/read_adopt": "rw/read_detach", "rw/write_adopt": "rw/write_detach", "queue/adopt": "queue/detach",
	}[adopts(k)]
}

// Before the Detach of a hold arrives, the hold is removed, and somebody else may have the lock. What is gone
// is not left to anybody.
func TestDetachOfAHoldThatIsGone(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		next   bool // somebody has the lock
		resent bool // a copy had found the hold, and its reply was lost
		want   []error
	}{
		"removed":               {false, false, []error{rlock.ErrLeaseLost, rlock.ErrRemoved, nil, rlock.ErrUnconfirmed}},
		"taken over":            {true, false, []error{rlock.ErrLeaseLost, rlock.ErrTakenOver, nil, rlock.ErrUnconfirmed}},
		"removed between":       {false, true, []error{rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost}},
		"taken over in between": {true, true, []error{rlock.ErrUnconfirmed, rlock.ErrUnreachable, nil, rlock.ErrLeaseLost}},
	} {
		locktest.Beside(t, what, func(t *testing.T) {
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				families(func(k locktest.Type) {
					t.Run(k.Name, func(t *testing.T) {
						proxy := faultproxy.New(t, b.Addr)
						a, other, rdb := locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), patient), b.NewClient(t), b.Client(t)
						locktest.LoadScripts(t, rdb, detaches(k))
						first := locktest.MustLock(t, k.Open(a, name(t)))
						var next *rlock.Lease
						copies := 0
						proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
							if !cmd.IsScript(locktest.SHA(detaches(k))) {
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
						if (handle == "") == c.resent {
							t.Errorf("the handle is %q", handle)
						}
						if c.resent {
							stale(t, other, handle)
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
