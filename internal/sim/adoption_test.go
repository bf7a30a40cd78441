package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// passedOn is a handle, and what has become of its hold.
type passedOn struct {
	text     string
	who      string
	token    int64
	shared   bool
	unlocked time.Duration // when an Unlock of the hold has returned nil; 0: none has
	adopted  int           // how often it was adopted
}

// keeper is a lease that somebody has.
type keeper struct {
	*rlock.Lease
	who    string
	shared bool
	of     *passedOn // its handle, if it has one
}

// adoptions are what the workers of a run do with handles, and what is wrong with that.
type adoptions struct {
	w      *World
	strict bool // each holder is to be told why

	mu      sync.Mutex // guards the rest; never held while waiting
	open    []*keeper  // leases that were not unlocked
	handles []*passedOn
	newest  int64
	wrong   []string
	log     []string

	adopted, told, undone, stale int
}

func (j *adoptions) sayLocked(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%v %s", j.w.Elapsed(), fmt.Sprintf(format, args...)))
}

func (j *adoptions) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked(format, args...)
}

func (j *adoptions) accuseLocked(format string, args ...any) {
	j.sayLocked("VIOLATION: "+format, args...)
	j.wrong = append(j.wrong, j.log[len(j.log)-1])
}

// asks returns the highest token so far.
func (j *adoptions) asks() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest
}

// has is called in the instant in which somebody is handed a lease: by Lock, which had seen the
// token newest when it began; or by Adopt, of a handle.
func (j *adoptions) has(who string, l *rlock.Lease, shared bool, newest int64, of *passedOn) *keeper {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := &keeper{Lease: l, who: who, shared: shared}
	j.sayLocked("%s has %s with token %d, adopted: %v", who, l.HoldID(), l.Token(), of != nil)
	j.excludeLocked(k)
	switch {
	case of != nil:
		j.adopted++
		of.adopted++
		if of.adopted > 1 {
			j.accuseLocked("%s has adopted a hold that was adopted before", who)
		}
		if of.token != l.Token() {
			j.accuseLocked("%s has adopted a hold with token %d, and its token is %d", who, of.token, l.Token())
		}
		if of.unlocked != 0 {
			j.accuseLocked("%s has adopted a hold that was unlocked at %v", who, of.unlocked)
		}
	case !shared && l.Token() <= newest:
		j.accuseLocked("%s has token %d, not above %d", who, l.Token(), newest)
	}
	j.newest = max(j.newest, l.Token())
	j.open = append(j.open, k)
	return k
}

// excludeLocked looks for others who believe to hold what somebody holds.
func (j *adoptions) excludeLocked(k *keeper) {
	if k.Err() != nil {
		return
	}
	for _, other := range j.open {
		if other != k && !(other.shared && k.shared) && other.Err() == nil {
			j.accuseLocked("%s holds it with token %d, and so does %s with token %d", k.who, k.Token(), other.who, other.Token())
		}
	}
}

func (j *adoptions) works(k *keeper) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.excludeLocked(k)
}

// passes notes the handle of a lease, for others to adopt.
func (j *adoptions) passes(k *keeper, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if k.of == nil {
		k.of = &passedOn{text: text, who: k.who, token: k.Token(), shared: k.shared}
		j.handles = append(j.handles, k.of)
	} else if k.of.text != text {
		j.accuseLocked("%s has two handles for one hold", k.who)
	}
}

// leaves is called before somebody unlocks or detaches.
func (j *adoptions) leaves(k *keeper) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = slices.DeleteFunc(j.open, func(o *keeper) bool { return o == k })
}

// left is called with the result of an Unlock.
func (j *adoptions) left(k *keeper, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s unlocked %s: %v", k.who, k.HoldID(), err)
	switch {
	case err == nil && k.of != nil && k.of.adopted > 0:
		j.accuseLocked("%s has unlocked a hold that was adopted", k.who)
	case err == nil && k.of != nil:
		k.of.unlocked = j.w.Elapsed()
	case errors.Is(err, rlock.ErrAdopted):
		j.told++
		if k.of == nil {
			j.accuseLocked("%s was told of an adoption, and nobody has its handle", k.who)
		}
	case !j.strict:
		// With faults an adoption may be given back so late that the lease of the hold ends, and others
		// have the lock.
	case errors.Is(err, rlock.ErrTakenOver), errors.Is(err, rlock.ErrRemoved):
		j.accuseLocked("%s was not told why it has lost the hold: %v", k.who, err)
	}
}

// adoptionRun plays one seed.
func adoptionRun(t *testing.T, seed uint64, s scenario, strict bool) (trace []string, j *adoptions) {
	bubble(t, seed, Config{Servers: s.kind.servers, Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		j = &adoptions{w: w, strict: strict}
		var players []*player
		var work sync.WaitGroup
		name := lockNames[0]
		for i := range 4 {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			who, r := p.h.Name, w.Rand(fmt.Sprint("worker", i))
			upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }
			options := func() (opts []rlock.AcquireOption) {
				opts = append(opts, rlock.WithWait(upTo(1500*time.Millisecond)))
				if r.IntN(3) == 0 {
					opts = append(opts, rlock.WithLease(200*time.Millisecond+upTo(2*time.Second)))
				}
				return opts
			}
			// use does something with a lease, and ends it.
			use := func(k *keeper) {
				for range 1 + r.IntN(4) {
					switch r.IntN(8) {
					case 0:
						_ = k.Extend(context.Background(), upTo(2*time.Second)+time.Millisecond)
					case 1, 2, 3:
						if text, err := k.Handle(); err == nil {
							j.passes(k, text)
						}
					}
					pause := upTo(80 * time.Millisecond)
					if r.IntN(12) == 0 {
						pause = lockLease + upTo(lockLease)
					}
					p.h.Sleep(who, pause)
					j.works(k)
				}
				if text, err := k.Handle(); err == nil && r.IntN(3) == 0 {
					j.passes(k, text)
					j.leaves(k)
					_, err := k.Detach(context.Background())
					j.say("%s detached %s: %v", who, k.HoldID(), err)
					return
				}
				j.leaves(k)
				j.left(k, k.Unlock(context.Background()))
			}
			adopt := func() {
				j.mu.Lock()
				if len(j.handles) == 0 {
					j.mu.Unlock()
					return
				}
				of := j.handles[len(j.handles)-1-r.IntN(min(len(j.handles), 3))] // one of the latest
				for _, h := range j.handles {
					if h.adopted == 0 && h.unlocked == 0 && r.IntN(3) > 0 {
						of = h
					}
				}
				gone := of.adopted > 0 || of.unlocked > 0
				j.mu.Unlock()
				if of.who == who {
					return // what wakes both of one client at the same instant is for the scheduler to order
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if r.IntN(4) == 0 {
					stop := time.AfterFunc(upTo(600*time.Millisecond), cancel)
					defer stop.Stop()
				}
				l, err := p.c.Adopt(ctx, of.text, options()...)
				j.say("%s adopts: %v", who, err)
				if err != nil {
					j.mu.Lock()
					defer j.mu.Unlock()
					if gone {
						j.stale++
					} else {
						j.undone++
					}
					if s.calm() && unanswered(err) && !tooLate(err) && !strings.Contains(err.Error(), "timed out") { // after a wait that is shorter than the way
						j.accuseLocked("%s: Adopt: %v", who, err)
					}
					return
				}
				use(j.has(who, l, of.shared, 0, of))
			}
			work.Go(func() {
				for w.Elapsed() < span {
					p.h.Sleep(who, upTo(60*time.Millisecond))
					if r.IntN(3) > 0 {
						adopt()
						continue
					}
					lock, shared, newest := p.locks[name], false, j.asks()
					if side := p.shared[name]; side != nil && r.IntN(2) == 0 {
						lock, shared = side, true
					}
					l, err := lock.Lock(context.Background(), options()...)
					if err != nil {
						continue // what it says is the other tests' business
					}
					use(j.has(who, l, shared, newest, nil))
				}
			})
		}
		w.Play(s.schedule(w, span))
		time.Sleep(max(0, span-w.Elapsed()))
		w.Heal()
		work.Wait()

		// What was detached and never adopted has run out, and nothing else is left.
		time.Sleep(longestFix + lockLease + 10*time.Second)
		for _, k := range j.open {
			j.accuseLocked("%s has never left", k.who)
		}
		for _, p := range players {
			l, err := p.locks[name].Lock(context.Background(), rlock.WithWait(lockLease+lockPoll+time.Second))
			if err == nil {
				err = l.Unlock(context.Background())
			}
			if err != nil {
				j.wrong = append(j.wrong, fmt.Sprintf("in the end: %v; Redis: %s", err, w.contents()))
			}
		}
		time.Sleep(time.Minute + longestFix + lockLease)
		for _, key := range w.keys() {
			if !remains(key) {
				j.wrong = append(j.wrong, "left in Redis: "+key)
			}
		}
		trace = w.Trace()
		for _, p := range players {
			p.close()
		}
	})
	return trace, j
}

// adoptionScenarios have no loss of data, which gives a lock to two without any adoption.
func adoptionScenarios() (all []scenario) {
	for _, s := range scenarios {
		if s.name != "everything" {
			all = append(all, s)
		}
	}
	return all
}

// Whoever adopts, and whatever gets lost: never do two believe to hold the lock, each handle is good
// for one adoption, and the tokens say who came after whom.
func TestAdoptionsKeepTheirPromises(t *testing.T) {
	of := []kind{plainLock}
	for _, k := range kinds {
		switch k.name {
		case "spin", "fenced", "fair", "read-write", "fair read-write", "priority":
			of = append(of, k)
		}
	}
	for i, k := range of {
		for n, s := range adoptionScenarios() {
			if n != i%4 && (s.name != "harsh" || brief() && i > 0) && !thorough() {
				continue
			}
			s.kind = k
			t.Run(k.name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				var sum adoptions
				for _, seed := range seedsOf(ordinary(60)) {
					trace, j := adoptionRun(t, seed, s, s.calm())
					for _, wrong := range j.wrong {
						t.Errorf("seed %d: %s", seed, wrong)
					}
					if *seedFlag != 0 {
						t.Log(strings.Join(trace, "\n"))
					}
					if len(j.wrong) > 0 {
						t.Logf("seed %d:\n%s", seed, strings.Join(j.log, "\n"))
					}
					sum.adopted += j.adopted
					sum.told += j.told
					sum.undone += j.undone
					sum.stale += j.stale
					if os.Getenv("RLOCK_NIGHTLY") == "" {
						continue // it takes as long again
					}
					if again, _ := adoptionRun(t, seed, s, s.calm()); !slices.Equal(again, trace) {
						t.Errorf("seed %d: two runs differ: %s", seed, firstDifference(trace, again))
					}
				}
				t.Logf("%d adoptions, of which %d holders were told at their Unlock; %d were given up or came too late, %d had a stale handle", sum.adopted, sum.told, sum.undone, sum.stale)
				if sum.adopted == 0 || sum.undone+sum.stale == 0 {
					t.Error("something that should be tried never happened")
				}
			})
		}
	}
}

// Each of these mistakes is found by a few seeds.
func TestSimulationFindsMutationsOfAdoptions(t *testing.T) {
	if locktest.UnderRace() && !thorough() {
		t.Skip("the race detector does not look into scripts, and it makes this take long")
	}
	finds(t, []mistake{
		{
			name: "who adopts does not wait for the holder before", want: "and so does",
			script: "shared/adoption", old: "rest = left and 0 or math.max(rest, 0)", instead: "rest = 0",
		},
		{
			name: "a hold that others wait to end is taken for one that has ended", want: "and so does",
			script: "shared/adoption", old: "if by ~= id then\n    return 0\n  end\n  return math.max(to - serverMillis(), 0), entries", instead: "return 0",
		},
		{
			name: "the hold of the holder before stays", want: "",
			script: "lock/adopt", old: "redis.call('hdel', lock, old)", instead: "redis.call('hdel', lock, '')",
		},
		{
			name: "whoever has the lock is adopted", want: "",
			script: "lock/adopt", old: "local entries, ms = redis.call('hget', lock, old)", instead: "old = redis.call('hkeys', lock)[1] or old\n  local entries, ms = redis.call('hget', lock, old)",
		},
		{
			name: "an adoption that is undone ends the hold", want: "was not told why",
			script: "lock/give_back", old: "redis.call('hset', lock, old, entries)", instead: "",
		},
		{
			name: "a holder is not told that it was adopted", want: "was not told why",
			script: "lock/renew_known", old: "wasAdopted(KEYS[2]) and -2 or reply", instead: "reply",
		},
	}, func(t *testing.T, seed uint64, s scenario) []string {
		_, j := adoptionRun(t, seed, s, true)
		return j.wrong
	})
}
