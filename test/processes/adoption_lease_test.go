package processes

import (
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// wantRest checks that Redis keeps a hold for its own lease, whatever was left of those before.
func wantRest(t *testing.T, l rlock.Inspector, lease time.Duration) {
	t.Helper()
	s, err := l.State(bg)
	if err != nil || len(s.Holders) != 1 || s.TTL > lease || s.TTL < lease/2 {
		t.Fatalf("%+v, %v; want a lease of %v", s, err, lease)
	}
}

// The lease of who adopts counts, and no other: the lock is free soon if that process dies, however often the
// hold was passed on.
func TestLeasesAreNotAddedUp(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		const lease = rlock.DefaultWatchdogLease
		c := [2]*rlock.Client{b.NewClient(t, rlock.WithWatchdogLease(lease)), b.NewClient(t, rlock.WithWatchdogLease(lease))}
		for _, k := range locktest.Types {
			t.Run(k.Name, func(t *testing.T) {
				l := k.Open(c[0], name(t))
				held := locktest.MustLock(t, l)
				for i := range 10 {
					held = adopt(t, c[(i+1)%2], detach(t, held))
					wantRest(t, l, lease)
				}
				if err := held.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				held = adopt(t, c[1], detach(t, held))
				wantRest(t, l, lease)
				held = adopt(t, c[0], detach(t, held), rlock.WithLease(long))
				wantRest(t, l, long)
				held = adopt(t, c[1], detach(t, held)) // a shell tool's, of which ten minutes were left
				wantRest(t, l, lease)
				held = adopt(t, c[0], detach(t, held), rlock.WithLease(time.Second))
				if s, err := l.State(bg); err != nil || s.TTL > time.Second {
					t.Errorf("%+v, %v", s, err)
				}
				if err := held.Unlock(bg); err != nil && !errors.Is(err, rlock.ErrLeaseLost) { // a busy machine
					t.Error(err)
				}
			})
		}
	})
}

// Late copies of Adopt, of Extend, and of what the holder before has said when it left, do not shorten the lease
// that the hold has since.
func TestLateCopiesDoNotShortenTheLease(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		families(func(k locktest.Type) {
			t.Run(k.Name, func(t *testing.T) {
				first, second := faultproxy.New(t, b.Addr), faultproxy.New(t, b.Addr)
				a := locktest.NewClient(t, locktest.Dialer(first.Addr())(t, nil), patient)
				c := locktest.NewClient(t, locktest.Dialer(second.Addr())(t, nil), rlock.WithWatchdogLease(rlock.DefaultWatchdogLease))
				l := k.Open(c, name(t))
				handle := detach(t, locktest.MustLock(t, k.Open(a, name(t))))
				if err := a.Extend(bg, handle, long); err != nil {
					t.Fatal(err)
				}
				is := adopt(t, c, handle)
				wantRest(t, l, rlock.DefaultWatchdogLease)
				if err := is.Extend(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				copies := commandsOf(second, locktest.SHA(adopts(k)))
				replay(t, first, scriptsOf(first))
				replay(t, second, copies)
				wantRest(t, l, time.Hour)
				if s, _ := l.State(bg); s.Holders[0].HoldID != is.HoldID() {
					t.Errorf("%+v", s)
				}
				locktest.MustUnlock(t, is)
				replay(t, second, copies)
				replay(t, first, scriptsOf(first))
				locktest.MustBeFree(t, k.Blocker(c, name(t)))
			})
		})
	})
}

// No lease of a client with a quarantine is longer than that, also of a hold that is extended by its handle: a server
// that has lost the hold gives the lock away when the quarantine is over.
func TestAHandleIsNotExtendedBeyondTheQuarantine(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	c := b.NewClient(t, rlock.WithFailoverQuarantine(time.Second), rlock.WithWatchdogLease(time.Second))
	handle := detach(t, locktest.MustLock(t, b.NewClient(t, patient).NewLock("a")))
	locktest.WantErr(t, c.Extend(bg, handle, time.Hour), rlock.ErrInvalidArgument)
	if err := c.Extend(bg, handle, time.Second); err != nil {
		t.Error(err)
	}
}
