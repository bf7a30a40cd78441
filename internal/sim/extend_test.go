package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// A holder that asks for a little more again and again still has its lease renewed: none of
// that is as long as the watchdog lease.
func TestShortExtensionsDoNotPutRenewalsOff(t *testing.T) {
	for name, lengthen := range map[string]func(p *player, l *rlock.Lease, d time.Duration) error{
		"Extend": func(_ *player, l *rlock.Lease, d time.Duration) error { return l.Extend(context.Background(), d) },
		"re-entry": func(p *player, l *rlock.Lease, d time.Duration) error {
			again, err := p.locks["stock"].Lock(l.Context(context.Background()), rlock.WithLease(d))
			if err == nil {
				err = again.Unlock(context.Background())
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, Config{}, func(w *World) {
				p := newPlayer(w, scenario{}, "a")
				defer p.close()
				l, err := p.locks["stock"].Lock(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				defer l.Unlock(context.Background())
				const d = lockLease / 30
				for range 100 {
					if err := lengthen(p, l, d); err != nil {
						t.Errorf("after %v of a watchdog lease of %v: %v", w.Elapsed(), lockLease, err)
						return
					}
					time.Sleep(d)
				}
			})
		})
	}
}

// A process is stopped between the arrival of the answer to Extend and its deadline: as with a
// renewal, the lease is lost, whichever it looks at first.
func TestExtendReadAfterTheDeadlineDoesNotRevive(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ { // it takes some luck: who goes on first is drawn
		bubble(t, seed, Config{}, func(w *World) {
			p := newPlayer(w, scenario{}, "a")
			defer p.close()
			l, err := p.locks["stock"].Lock(context.Background(), rlock.WithLease(lockLease))
			if err != nil {
				t.Error(err)
				return
			}
			l.Extend(context.Background(), lockLease) // loads the script
			end := l.Deadline()
			time.Sleep(time.Until(end) - 50*time.Millisecond)
			requests := w.Stats().Requests
			extended := make(chan error, 1)
			go func() { extended <- l.Extend(context.Background(), time.Hour) }()
			for w.Stats().Requests == requests {
				time.Sleep(10 * time.Microsecond) // until it has arrived
			}
			p.h.Pause(time.Until(end) + time.Millisecond)
			if err := <-extended; !errors.Is(err, rlock.ErrLeaseLost) {
				t.Errorf("seed %d: Extend after the deadline: %v", seed, err)
			}
			if l.Deadline() != end || !errors.Is(l.Err(), rlock.ErrLeaseLost) {
				t.Errorf("seed %d: the deadline moved by %v after it had passed, and Err is %v", seed, l.Deadline().Sub(end), l.Err())
			}
			l.Unlock(context.Background())
		})
	}
}
