package multilock

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// odd is a Locker of a caller's own.
type odd struct {
	rlock.Locker
	lock func() (*rlock.Lease, error)
}

func (o odd) Lock(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error) { return o.lock() }
func (o odd) TryLock(context.Context, ...rlock.TryOption) (*rlock.Lease, error)  { return o.lock() }

// A member may be of any type: if its call does not return, or returns nothing, the others are
// given back.
func TestOddMemberLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func() (*rlock.Lease, error){
		"panics":        func() (*rlock.Lease, error) { panic("a fault of the member") },
		"ends":          func() (*rlock.Lease, error) { runtime.Goexit(); return nil, nil },
		"returns nil":   func() (*rlock.Lease, error) { return nil, nil },
		"returns empty": func() (*rlock.Lease, error) { return &rlock.Lease{}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.OnMiniredis(t)
			c := b.NewClient(t)
			m := locktest.NewMultiLock(t, c.NewLock("a"), odd{c.NewLock("z"), lock})
			for _, acquire := range []func() (*rlock.Lease, error){
				func() (*rlock.Lease, error) { return m.Lock(bg) },
				func() (*rlock.Lease, error) { return m.TryLock(bg) },
			} {
				var err error
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					defer func() { _ = recover() }()
					_, err = acquire()
				}()
				<-gone
				if name[0] == 'r' {
					locktest.WantErr(t, err, rlock.ErrNotHeld)
				}
				locktest.MustUnlock(t, locktest.MustLock(t, b.NewClient(t).NewLock("a")))
			}
		})
	}
}

// What any member would refuse is refused before anything is sent.
func TestOptionsThatAMemberRefuses(t *testing.T) {
	t.Parallel()
	rdb := locktest.OnMiniredis(t).Client(t)
	c := locktest.NewClient(t, rdb)
	slow := locktest.NewClient(t, rdb, rlock.WithDrift(0, 100*time.Millisecond))
	sent := &locktest.CountHook{}
	rdb.AddHook(sent)
	for _, x := range []struct {
		m   *rlock.MultiLock
		opt rlock.TryOption
	}{
		{locktest.NewMultiLock(t, c.NewLock("a"), slow.NewLock("b")), rlock.WithLease(50 * time.Millisecond)},
	} {
		_, err := x.m.Lock(bg, x.opt)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = x.m.TryLock(bg, x.opt)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
	}
	if n := sent.N.Load(); n > 0 {
		t.Errorf("%d commands", n)
	}
}
