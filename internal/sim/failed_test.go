package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// Seeds that have found something, with what they found. A change of the
// workload gives them another meaning; the tests below them say the same
// without a seed.
var failedOnce = []struct {
	kind     string // "": Lock
	scenario string
	seed     uint64
	what     string
}{
	{"", "harsh", 828, "a request that lengthened the lease ran but was not answered, and the lock stayed locked when the loss had been unlocked"},
	{"", "harsh", 952, "the same"},
	{"", "everything", 982, "the same"},
	{"", "everything", 133, "a late copy came back after a loss had taken its tombstone: the judge was wrong"},
	{"fair permits", "everything", 1795420134877361234, "the same"},
	{"multi of many kinds", "calm", 1795676171920683419, "the wait ended within the first request to a member, and that was taken for an outage"},
}

func TestSeedsThatFailedOnce(t *testing.T) {
	for _, f := range failedOnce {
		t.Run(strings.TrimSpace(fmt.Sprint(f.kind, " ", f.scenario, " ", f.seed)), func(t *testing.T) {
			t.Parallel()
			s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == f.scenario })]
			if f.kind != "" {
				all := slices.Concat(kinds, multiKinds)
				s.kind = all[slices.IndexFunc(all, func(k kind) bool { return k.name == f.kind })]
			}
			complain(t, f.seed, lockRun(t, f.seed, s))
		})
	}
}

// An extension that ran but was not answered makes Redis keep the hold for
// longer than its holder knows.
func TestUnlockOfALostLeaseFreesWhatAnUnansweredRequestExtended(t *testing.T) {
	bubble(t, 1, Config{}, func(w *World) {
		ctx := context.Background()
		p := newPlayer(w, scenario{}, "a")
		defer p.close()
		l, err := p.locks["stock"].Lock(ctx, rlock.WithLease(time.Second))
		if err != nil {
			t.Error(err)
			return
		}
		l.Extend(ctx, time.Second) // loads the script: NOSCRIPT would be lost too
		w.SetRates(Rates{Swallow: 1})
		if err := l.Extend(ctx, time.Hour); !errors.Is(err, rlock.ErrUnreachable) {
			t.Errorf("Extend without an answer: %v", err)
		}
		w.SetRates(Rates{})
		time.Sleep(time.Second)
		if err := l.Unlock(ctx); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("Unlock after the deadline: %v", err)
		}
		time.Sleep(time.Second)
		if w.exists("stock") {
			t.Errorf("still locked: %s", w.contents())
		}
	})
}

// A process that is stopped between the arrival of a renewal's answer and its
// deadline finds the lease lost, whichever it looks at first.
func TestRenewalReadAfterTheDeadlineDoesNotRevive(t *testing.T) {
	runs := uint64(100) // it takes some luck: who goes on first is drawn
	if brief() {
		runs = 30
	}
	for seed := uint64(1); seed <= runs; seed++ {
		bubble(t, seed, Config{}, func(w *World) {
			p := newPlayer(w, scenario{}, "a")
			defer p.close()
			l, err := p.locks["stock"].Lock(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			l.Extend(context.Background(), lockLease) // loads the script
			time.Sleep(lockLease/3 - 50*time.Millisecond)
			for requests := w.Stats().Requests; w.Stats().Requests == requests; {
				time.Sleep(10 * time.Microsecond) // until the renewal has arrived
			}
			end := l.Deadline()
			p.h.Pause(time.Until(end) + time.Millisecond)
			time.Sleep(time.Until(end) + 2*time.Millisecond)
			if l.Deadline() != end || !errors.Is(l.Err(), rlock.ErrLeaseLost) {
				t.Errorf("seed %d: the deadline moved by %v after it had passed, and Err is %v", seed, l.Deadline().Sub(end), l.Err())
			}
			l.Unlock(context.Background())
		})
	}
}

// When Redis has given the first in line no answer for as long as Lock bears
// that, those who have waited as long behind it need not find out again.
func TestWaitersBehindAFailedHeadFailWithIt(t *testing.T) {
	bubble(t, 1, Config{}, func(w *World) {
		ctx := context.Background()
		a, b := newPlayer(w, scenario{}, "a"), newPlayer(w, scenario{}, "b")
		defer a.close()
		defer b.close()
		l, err := a.locks["stock"].Lock(ctx, rlock.WithLease(time.Minute))
		if err != nil {
			t.Error(err)
			return
		}
		failed := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				_, err := b.locks["stock"].Lock(ctx)
				if !errors.Is(err, rlock.ErrUnreachable) {
					t.Errorf("Lock on a host that is cut off: %v", err)
				}
				failed <- w.Elapsed()
			}()
			time.Sleep(time.Millisecond)
		}
		b.h.Partition(time.Minute)
		first, second, third := <-failed, <-failed, <-failed
		if third-first > giveUpWithin {
			t.Errorf("they failed at %v, %v and %v", first, second, third)
		}
		w.Heal()
		l.Unlock(ctx)
	})
}

// The last member of a MultiLock is not extended when all are held: it was granted just
// then. If its reply came late, and to extend the others takes long, it is over before
// they are: then nothing is held, and nothing may be handed out.
func TestMultiLockIsNotHandedOutWhenItsLastMemberIsOver(t *testing.T) {
	bubble(t, 1, Config{Servers: 2}, func(w *World) {
		ctx := context.Background()
		p := newPlayer(w, scenario{kind: multiKinds[0]}, "a")
		defer p.close()
		m, err := rlock.NewMultiLock([]rlock.Locker{p.cs[0].NewLock("one"), p.cs[1].NewLock("two")})
		if err != nil {
			t.Error(err)
			return
		}
		for range 2 { // dials, and loads the scripts
			l, err := m.Lock(ctx)
			if err == nil {
				_ = l.Extend(ctx, time.Second)
				err = l.Unlock(ctx)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
		p.h.PartitionFrom(1, 700*time.Millisecond)
		time.AfterFunc(690*time.Millisecond, func() { p.h.PartitionFrom(0, 400*time.Millisecond) })
		l, err := m.Lock(ctx, rlock.WithLease(time.Second))
		if err != nil {
			t.Error(err)
			return
		}
		if err := l.Err(); err != nil {
			t.Errorf("handed out at %v: %v", w.Elapsed(), err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
}

// One script took all members of a MultiLock, but the process was stopped until the lease
// was over. If the caller's context has ended too, the error says so; if not, the wait goes
// on, as for one lock.
func TestMultiLockByOneScriptOutlastsALateReply(t *testing.T) {
	for name, patience := range map[string]time.Duration{"context over": lockLease, "context open": 10 * lockLease} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, Config{}, func(w *World) {
				p := newPlayer(w, scenario{}, "a")
				defer p.close()
				m, err := rlock.NewMultiLock([]rlock.Locker{p.cs[0].NewLock("{m}one"), p.cs[0].NewLock("{m}two")})
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				p.h.AtGate("granted", func() { p.h.Pause(2 * lockLease) })
				l, err := m.Lock(ctx)
				if over := ctx.Err(); !errors.Is(err, over) {
					t.Errorf("Lock: %v, with a context that says %v", err, over)
				}
				if err == nil {
					err = errors.Join(l.Err(), l.Unlock(context.Background()))
					if err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
