package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

const barrierMembers = 3

// barrierJudge sees to it that no more members are in than there are, all of one generation,
// and that Leave waits for all.
type barrierJudge struct {
	w       *World
	mu      sync.Mutex // guards the rest
	open    []*rlock.Lease
	entered map[int64]int // by token
	left    int           // calls of Leave that have waited for all
	wrong   []string
}

func (j *barrierJudge) accuseLocked(format string, args ...any) {
	j.wrong = append(j.wrong, fmt.Sprintf("%v: %s", j.w.Elapsed(), fmt.Sprintf(format, args...)))
}

func (j *barrierJudge) enters(who string, l *rlock.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entered[l.Token()]++; j.entered[l.Token()] > barrierMembers {
		j.accuseLocked("%s is one too many in %d", who, l.Token())
	}
	for _, other := range j.open {
		if other.Err() == nil && other.Token() != l.Token() {
			j.accuseLocked("%s is in %d, and another in %d", who, l.Token(), other.Token())
		}
	}
	j.open = append(j.open, l)
}

func (j *barrierJudge) leaves(l *rlock.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = slices.DeleteFunc(j.open, func(o *rlock.Lease) bool { return o == l })
}

func (j *barrierJudge) hasLeft(who string, token int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.left++
	for _, other := range j.open {
		if other.Err() == nil && other.Token() == token {
			j.accuseLocked("%s need not wait any more, and another is in %d", who, token)
		}
	}
}

func (j *barrierJudge) turn(k *worker, b *rlock.DoubleBarrier) {
	ctx, cancel := context.WithTimeout(context.Background(), k.between(0, 3*time.Second))
	defer cancel()
	l, err := b.Enter(ctx, locktest.Options(k.lease())...)
	if err != nil {
		return
	}
	j.enters(k.who, l)
	pause := k.between(0, 60*time.Millisecond)
	if k.r.IntN(20) == 0 {
		pause = k.between(lockLease, longestHold)
	}
	k.h.Sleep(k.who, pause)
	token, waits := l.Token(), k.r.IntN(3) > 0
	j.leaves(l)
	if !waits {
		_ = l.Unlock(context.Background())
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), k.between(0, 5*time.Second))
	defer cancel()
	if b.Leave(ctx, l) == nil {
		j.hasLeft(k.who, token)
	}
}

func barrierRun(t *testing.T, seed uint64, s scenario) (j *barrierJudge) {
	bubble(t, seed, Config{Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		j = &barrierJudge{w: w, entered: map[int64]int{}}
		var players []*player
		var work sync.WaitGroup
		for i := range 3 {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			b := p.c.NewDoubleBarrier("phase", barrierMembers)
			for n := range 2 {
				who := fmt.Sprint(p.h.Name, n)
				k := &worker{player: p, j: &judge{s: s}, who: who, r: w.Rand("worker " + who)}
				work.Go(func() {
					for w.Elapsed() < span {
						k.h.Sleep(who, k.between(0, 100*time.Millisecond))
						j.turn(k, b)
					}
				})
			}
		}
		w.Play(w.Schedule(s.mix, s.faults, span))
		time.Sleep(max(0, span-w.Elapsed())) // the rates stay until then
		w.Heal()
		work.Wait()
		time.Sleep(longestFix + 10*time.Second) // what was left behind has run out
		var last sync.WaitGroup
		for _, p := range players {
			last.Go(func() {
				p.h.Sleep(p.h.Name, time.Duration(p.c.ID()[0])*time.Microsecond)
				ctx, cancel := context.WithTimeout(context.Background(), lockLease+lockPoll)
				defer cancel()
				b := p.c.NewDoubleBarrier("phase", barrierMembers)
				l, err := b.Enter(ctx)
				if err == nil {
					err = b.Leave(ctx, l)
				}
				if err != nil {
					j.mu.Lock()
					defer j.mu.Unlock()
					j.accuseLocked("in peace: %v; %s", err, w.contents())
				}
			})
		}
		last.Wait()
		for _, p := range players {
			p.close()
		}
	})
	return j
}

func TestDoubleBarrierKeepsItsPromises(t *testing.T) {
	for _, s := range onceScenarios() { // a loss of data ends a generation
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			byTurns(t)
			for _, seed := range seedsOf((ordinary(s.runs) + 4) / 5) {
				j := barrierRun(t, seed, s)
				for _, v := range j.wrong {
					t.Errorf("seed %d: %s", seed, v)
				}
				if j.left == 0 || len(j.entered) < 2 {
					t.Errorf("seed %d: %d generations, %d have left with all", seed, len(j.entered), j.left)
				}
			}
		})
	}
}

func TestSimulationFindsMutationsOfDoubleBarrier(t *testing.T) {
	finds(t, []mistake{
		{"a late comer enters", "one too many", "places/enter", "if lasts and mine then", "if lasts then"},
		{"nobody waits until all have left", "need not wait", "places/left", "if generation() ~= of then", "if true then"},
		{"the first that leaves ends the generation", "and another in", "shared/places",
			"redis.call('exists', places) == 0 and", ""},
	}, func(t *testing.T, seed uint64, s scenario) []string { return barrierRun(t, seed, s).wrong })
}
