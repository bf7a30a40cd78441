package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
)

// A loss of data can take the tombstone of an acquire that was given up. Then nothing can stop a
// late copy of it: it has the lock, for nobody, until the lease ends. That is so with each type.
func TestCopyThatOutlivesItsTombstoneHoldsForALease(t *testing.T) {
	const lease = 15 * time.Second
	for _, k := range append([]kind{plainLock}, kinds...) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			came := 0
			for seed := uint64(1); seed <= 10; seed++ { // when the copy runs is drawn
				bubble(t, seed, Config{}, func(w *World) {
					ctx := context.Background()
					s := scenario{kind: k}
					j := &judge{w: w, s: s, locks: map[string]*verdicts{}, forgot: make([][]time.Duration, 1)}
					p := newPlayer(w, s, "a")
					defer p.close()
					once := func() error {
						l, err := p.locks["stock"].Lock(ctx)
						if err == nil {
							err = l.Unlock(ctx)
						}
						return err
					}
					for range 2 { // dials, and loads the scripts
						if err := once(); err != nil {
							t.Error(err)
						}
					}
					w.SetRates(Rates{Swallow: 1, Late: 1, LateWithin: 6 * time.Second})
					time.AfterFunc(lockCommand-time.Millisecond, func() { w.SetRates(Rates{}) })
					if l, err := p.locks["stock"].TryLock(ctx, rlock.WithLease(lease)); err == nil {
						t.Errorf("TryLock without an answer: %v", l)
					}
					time.Sleep(time.Second) // the give-up is answered
					j.forgot[0] = append(j.forgot[0], w.Elapsed())
					w.Restart(0, 0, true)
					// Loads the script again, and sets the number of permits. The counter of a FencedLock begins again,
					// which the client reports once.
					if err := once(); (err != nil) != (k.name == "fenced") {
						t.Error(err)
					}
					time.Sleep(6 * time.Second)
					back, others := j.revived("stock")
					if came += back; others > 0 {
						t.Errorf("seed %d: it is held, and that is not excused: %s\n%s", seed, w.contents(), j.histories())
					}
					time.Sleep(lease)
					if back, others = j.revived("stock"); back+others > 0 {
						t.Errorf("seed %d: it is held after the lease: %s", seed, w.contents())
					}
					if err := once(); err != nil {
						t.Error(err)
					}
				})
			}
			if came == 0 {
				t.Error("no copy came back")
			}
		})
	}
}

// The judge excuses a hold that nobody has only if all of that has happened, in this order.
func TestOnlyALossThatTookATombstoneExcusesALateCopy(t *testing.T) {
	const acquire, abandon, renew = "permits/enter", "permits/abandon", "permits/renew"
	done := func(script string) step { return step{script: script} }
	late := func(script string) step { return step{script: script, late: true} }
	ends := step{script: abandon, tombstone: true}
	loss := step{}
	for _, c := range []struct {
		excused bool
		steps   []step
	}{
		{true, []step{done(acquire), ends, loss, late(acquire)}},
		{true, []step{loss, done(acquire), ends, loss, loss, late(acquire), done(renew)}},
		{false, []step{done(acquire), ends, late(acquire)}},
		{false, []step{done(acquire), loss, ends, late(acquire)}},
		{false, []step{done(acquire), done(abandon), loss, late(acquire)}},
		{false, []step{done(acquire), ends, loss, done(acquire)}},
		{false, []step{done(acquire), ends, loss, late(renew)}},
		{false, []step{done(acquire), ends, loss, late(acquire), ends}},
		{false, []step{done(acquire), ends, loss, late(acquire), loss}},
		{false, []step{done(acquire), loss, late(acquire)}},
	} {
		for name, k := range map[string]kind{"id": plainLock, "base": {called: permitBase}} {
			t.Run(fmt.Sprint(name, c.steps), func(t *testing.T) {
				bubble(t, 1, Config{}, func(w *World) {
					const id = "90f29d2d-e0f5-4421-9c70-250ee29abff2:29"
					j := &judge{w: w, s: scenario{kind: k}, forgot: make([][]time.Duration, 1)}
					for i, s := range c.steps {
						at := time.Duration(i) * time.Second
						if s.script == "" {
							j.forgot[0] = append(j.forgot[0], at)
							continue
						}
						e := event{at: at, who: "a>0#1", seq: i}
						if s.late {
							e.who += "~"
						}
						ms := "0"
						if s.tombstone {
							ms = "60000"
						}
						e.b = encode([]string{"evalsha", shaOf(s.script), "0", j.called(id), ms})
						w.record(e)
					}
					if j.cameBack(0, id) != c.excused {
						t.Errorf("excused: %v", !c.excused)
					}
				})
			})
		}
	}
}

func shaOf(script string) string {
	for sha, name := range unmutated() {
		if name == script && len(sha) == 40 {
			return sha
		}
	}
	panic(script)
}
