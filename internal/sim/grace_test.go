package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/protocol"
)

// A call whose context, or whose wait, ends while Redis is silent returns within the one grace that it has: what undoes
// its requests, what gives back other members, and what asks who the holder is share it.
func TestEndedCallOutlastsASilentRedisByOneGrace(t *testing.T) {
	for i, k := range slices.Concat([]kind{plainLock}, kinds, redKinds[:1], multiKinds) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			byTurns(t)
			all := seedsOf(max(ordinary(60), 6)) // each third one ends in the same way
			if brief() && *seedFlag == 0 {
				all = all[i%3 : i%3+1]
			}
			for _, seed := range all {
				bubble(t, seed, Config{Servers: max(1, k.servers)}, func(w *World) {
					s := scenario{kind: k, named: true}
					a, b := newPlayer(w, s, "a"), newPlayer(w, s, "b")
					defer a.close()
					defer b.close()
					for _, p := range []*player{a, b} { // dials, and loads the scripts
						l, err := p.locks["stock"].Lock(context.Background())
						if err != nil {
							t.Fatal(err)
						}
						if err := l.Unlock(context.Background()); err != nil {
							t.Fatal(err)
						}
					}
					blocker := b.locks["stock"]
					if k.name == multiKinds[0].name {
						blocker = b.cs[1].NewLock("stock-a") // one of its members: others are to be given back
					}
					held, err := blocker.Lock(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					r := w.Rand("silence")
					silent := time.Duration(r.Int64N(int64(3 * lockPoll)))
					ends := silent + time.Duration(r.Int64N(int64(lockPoll)))
					time.AfterFunc(silent, func() { a.h.Partition(time.Minute) })
					ctx, cancel := context.WithCancel(context.Background())
					opts := []rlock.AcquireOption{}
					switch seed % 3 {
					case 0:
						ctx, cancel = context.WithTimeout(ctx, ends)
					case 1:
						time.AfterFunc(ends, cancel)
					case 2:
						opts = append(opts, rlock.WithWait(ends))
					}
					began := w.Elapsed()
					if _, err := a.locks["stock"].Lock(ctx, opts...); err == nil {
						t.Errorf("seed %d: it has the lock", seed)
					} else if late := w.Elapsed() - began - ends; late > protocol.GiveUpGrace+20*time.Millisecond {
						t.Errorf("seed %d: returned %v after the end: %v", seed, late, err)
					}
					cancel()
					w.Heal()
					_ = held.Unlock(context.Background())
				})
			}
		})
	}
}
