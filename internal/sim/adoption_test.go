package sim

import (
	"context"
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
	text    string
	who     string
	token   int64
	shared  bool
	until   time.Duration // the hold lasts as long; 0: it is not known whether it was detached
	tried   int           // how often somebody has begun to adopt it
	adopted int           // and how often it was adopted
}

// keeper is a lease that somebody has.
type keeper struct {
	*rlock.Lease
	who    string
	shared bool
}

// adoptions are what the workers of a run do with handles, and what is wrong with that.
type adoptions struct {
	w *World

	mu      sync.Mutex // guards the rest; never held while waiting
	open    []*keeper  // leases that were not unlocked
	handles []*passedOn
	newest  int64
	wrong   []string
	log     []string

	adopted, extended, undone, stale int
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
	case !shared && l.Token() <= newest:
		j.accuseLocked("%s has token %d, not above %d", who, l.Token(), newest)
	}
	for _, h := range j.handles {
		if of == nil && h.tried == 0 && !(h.shared && shared) && j.w.Elapsed() < h.until {
			j.accuseLocked("%s has the lock, which was left to whoever adopts it until %v", who, h.until)
		}
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

// passes notes the handle of a hold that was to last for left, for others to adopt.
func (j *adoptions) passes(k *keeper, text string, left time.Duration, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s detached %s for %v: %v", k.who, k.HoldID(), left, err)
	if text == "" {
		return
	}
	h := &passedOn{text: text, who: k.who, token: k.Token(), shared: k.shared}
	if err == nil {
		h.until = j.w.Elapsed() + left
	}
	j.handles = append(j.handles, h)
}

// extends is called with the result of an Extend of a handle, by which the hold was to last until some time.
func (j *adoptions) extends(who string, of *passedOn, until time.Duration, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s extends the hold of %s until %v: %v", who, of.who, until, err)
	if err != nil {
		return
	}
	j.extended++
	if of.until > 0 {
		of.until = max(of.until, until)
	}
}

// unlocks is called with the result of an Unlock of a handle.
func (j *adoptions) unlocks(who string, of *passedOn, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s unlocks the hold of %s: %v", who, of.who, err)
	if err == nil && of.adopted > 0 {
		j.accuseLocked("%s has unlocked a hold that was adopted", who)
	}
}

// leaves is called before somebody unlocks or detaches.
func (j *adoptions) leaves(k *keeper) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = slices.DeleteFunc(j.open, func(o *keeper) bool { return o == k })
}

// adoptionRun plays one seed.
func adoptionRun(t *testing.T, seed uint64, s scenario) (trace []string, j *adoptions) {
	bubble(t, seed, Config{Servers: s.kind.servers, Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		j = &adoptions{w: w}
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
					if r.IntN(8) == 0 {
						_ = k.Extend(context.Background(), upTo(2*time.Second)+time.Millisecond)
					}
					pause := upTo(80 * time.Millisecond)
					if r.IntN(12) == 0 {
						pause = lockLease + upTo(lockLease)
					}
					p.h.Sleep(who, pause)
					j.works(k)
				}
				j.leaves(k)
				if r.IntN(3) > 0 {
					deadline := k.Deadline()
					text, err := k.Detach(context.Background())
					j.passes(k, text, time.Until(deadline), err)
					return
				}
				j.say("%s unlocked %s: %v", k.who, k.HoldID(), k.Unlock(context.Background()))
			}
			adopt := func() {
				j.mu.Lock()
				if len(j.handles) == 0 {
					j.mu.Unlock()
					return
				}
				of := j.handles[len(j.handles)-1-r.IntN(min(len(j.handles), 3))] // one of the latest
				for _, h := range j.handles {
					if h.adopted == 0 && r.IntN(3) > 0 {
						of = h
					}
				}
				gone := of.adopted > 0
				j.mu.Unlock()
				if of.who == who {
					return // what wakes both of one client at the same instant is for the scheduler to order
				}
				if r.IntN(4) == 0 {
					lease := upTo(2*time.Second) + time.Millisecond
					began := w.Elapsed()
					err := p.c.Extend(context.Background(), of.text, lease)
					j.extends(who, of, began+lease, err)
				}
				j.mu.Lock()
				of.tried++
				j.mu.Unlock()
				if r.IntN(8) == 0 {
					err := p.c.Unlock(context.Background(), of.text)
					j.unlocks(who, of, err)
					return
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
				byTurns(t)
				var sum adoptions
				for _, seed := range seedsOf(ordinary(60)) {
					trace, j := adoptionRun(t, seed, s)
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
					sum.extended += j.extended
					sum.undone += j.undone
					sum.stale += j.stale
					if os.Getenv("RLOCK_NIGHTLY") == "" {
						continue // it takes as long again
					}
					if again, _ := adoptionRun(t, seed, s); !slices.Equal(again, trace) {
						t.Errorf("seed %d: two runs differ: %s", seed, firstDifference(trace, again))
					}
				}
				t.Logf("%d adoptions; %d were given up or came too late, %d had a stale handle; %d holds were extended by a handle", sum.adopted, sum.undone, sum.stale, sum.extended)
				if sum.adopted == 0 || sum.extended == 0 || sum.undone+sum.stale == 0 {
					t.Error("something that should be tried never happened")
				}
			})
		}
	}
}

func TestSimulationFindsMutationsOfAdoptions(t *testing.T) {
	if locktest.UnderRace() && !thorough() {
		t.Skip("the race detector does not look into scripts, and it makes this take long")
	}
	finds(t, []mistake{
		{
			name: "an offer is taken twice", want: "was adopted before",
			script: "shared/adoption", old: "(taken == '0' or by == id)", instead: "true",
		},
		{
			name: "who adopts has what is left of the lease", want: "and so does",
			script: "lock/adopt", old: "redis.call('pexpire', lock, lease)", instead: "",
		},
		{
			name: "whoever has the lock is adopted", want: "",
			script: "lock/adopt", old: "local by, token = offered(tombstone, id, secret)", instead: "local by, token = redis.call('hkeys', lock)[1], '1'",
		},
	}, func(t *testing.T, seed uint64, s scenario) []string {
		_, j := adoptionRun(t, seed, s)
		return j.wrong
	})
}
