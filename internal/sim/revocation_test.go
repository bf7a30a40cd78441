package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// hearsWithin is how soon a holder hears a request if nothing fails: a message and a look. It is
// far less than a third of the watchdog lease, after which it looks by itself.
const hearsWithin = lockLease / 8

// revocation is one RequestRelease.
type revocation struct {
	who      string
	shared   bool // by who wants to share
	from, to time.Duration
	asked    bool // it said so
}

// listening is one hold of a holder that listens.
type listening struct {
	who       string
	shared    bool
	from, got time.Duration // when it asked for the lock, and had it
	listens   time.Duration // since when; 0: it does not
	heard     time.Duration // 0: nothing
	ended     time.Duration
}

// concerns reports whether a request by that side is for a hold.
func (r revocation) concerns(h listening) bool { return !r.shared || !h.shared }

// revocations are what happened to one lock.
type revocations struct {
	mu    sync.Mutex // guards the rest
	asked []revocation
	holds []listening
	wrong []string
}

// judge says what is wrong. Who hears a request was asked while it had the lock or was to
// get it. If nothing failed, who had the lock all the while was asked, and has heard it.
func (v *revocations) judge(calm bool) (wrong []string) {
	for _, h := range v.holds {
		for _, r := range v.asked {
			if !calm || !r.concerns(h) || h.got > r.from || r.to > h.ended {
				continue
			}
			if !r.asked {
				wrong = append(wrong, fmt.Sprintf("%s held the lock and was not asked: %+v, %+v", h.who, h, r))
			}
			due := max(r.to, h.listens) + hearsWithin
			if h.listens != 0 && h.ended > due && (h.heard == 0 || h.heard > due) {
				wrong = append(wrong, fmt.Sprintf("%s was asked and did not hear it: %+v, %+v", h.who, h, r))
			}
		}
		if h.heard != 0 && !slices.ContainsFunc(v.asked, func(r revocation) bool {
			return r.concerns(h) && r.from <= h.heard && r.to >= h.from
		}) {
			wrong = append(wrong, fmt.Sprintf("%s heard a request that nobody made for it: %+v", h.who, h))
		}
	}
	return append(wrong, v.wrong...)
}

// revocationRun plays a seed: hosts that take the lock, hold it until they are asked for it, or
// have had enough, and ask each other.
func revocationRun(t *testing.T, seed uint64, s scenario) (trace []string, v *revocations) {
	v = &revocations{}
	bubble(t, seed, Config{Servers: s.kind.servers, Rates: s.rates}, func(w *World) {
		const span = 8 * time.Second
		var players []*player
		var work sync.WaitGroup
		name, bg := lockNames[0], context.Background()
		for i := range 3 {
			p := newPlayer(w, s, string(rune('a'+i)))
			players = append(players, p)
			r := w.Rand(fmt.Sprint("worker", i))
			upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
			side := func() (l rlock.Locker, shared bool) {
				if other := p.shared[name]; other != nil && r.IntN(2) == 0 {
					return other, true
				}
				return p.locks[name], false
			}
			request := func() {
				l, shared := side()
				a := revocation{who: p.h.Name, shared: shared, from: w.Elapsed()}
				asked, err := l.(rlock.ReleaseRequester).RequestRelease(bg)
				a.to, a.asked = w.Elapsed(), asked && err == nil
				v.mu.Lock()
				defer v.mu.Unlock()
				v.asked = append(v.asked, a)
				if err != nil && (s.calm() || !unanswered(err)) {
					v.wrong = append(v.wrong, fmt.Sprintf("%s: RequestRelease: %v", p.h.Name, err))
				}
			}
			work.Go(func() {
				for w.Elapsed() < span {
					p.h.Sleep(p.h.Name, upTo(80*time.Millisecond))
					if r.IntN(3) > 0 {
						request()
					}
					l, shared := side()
					opts := []rlock.AcquireOption{rlock.WithWait(upTo(1200 * time.Millisecond))}
					if r.IntN(3) == 0 {
						opts = append(opts, rlock.WithLease(2*time.Second))
					}
					h := listening{who: p.h.Name, shared: shared, from: w.Elapsed()}
					lease, err := l.Lock(bg, opts...)
					if err != nil {
						continue
					}
					h.got = w.Elapsed()
					if r.IntN(3) == 0 {
						p.h.Sleep(p.h.Name, upTo(300*time.Millisecond))
					}
					var requested <-chan struct{}
					if r.IntN(6) > 0 {
						h.listens = w.Elapsed()
						requested = lease.ReleaseRequested()
					}
					enough := time.NewTimer(upTo(1500 * time.Millisecond))
					select {
					case <-requested:
						h.heard = w.Elapsed()
					case <-lease.Done():
					case <-enough.C:
					}
					enough.Stop()
					p.h.Sleep(p.h.Name, upTo(5*time.Millisecond))
					h.ended = w.Elapsed()
					_ = lease.Unlock(bg) // what it says is the other tests' business
					v.mu.Lock()
					v.holds = append(v.holds, h)
					v.mu.Unlock()
				}
			})
		}
		w.Play(s.schedule(w, span))
		w.Heal()
		work.Wait()

		time.Sleep(lockLease + lockPoll + 10*time.Second) // what was left behind has run out
		l, other := players[0].locks[name], players[1].locks[name]
		for range 2 {
			lease, err := l.Lock(bg, rlock.WithWait(30*time.Second))
			if err != nil {
				v.wrong = append(v.wrong, fmt.Sprintf("in the end: %v", err))
				break
			}
			requested := lease.ReleaseRequested()
			time.Sleep(time.Second)
			select {
			case <-requested:
				v.wrong = append(v.wrong, "in the end, a new holder heard an old request")
			default:
			}
			asked, err := other.(rlock.ReleaseRequester).RequestRelease(bg)
			for tries := 0; err != nil && unanswered(err) && tries < 10; tries++ {
				// Connections in the pool may be broken: a node of a RedLock is not asked again.
				asked, err = other.(rlock.ReleaseRequester).RequestRelease(bg)
			}
			if err != nil || !asked {
				v.wrong = append(v.wrong, fmt.Sprintf("in the end: %v, %v", asked, err))
			}
			select {
			case <-requested:
			case <-time.After(hearsWithin):
				v.wrong = append(v.wrong, "in the end, a holder did not hear a request")
			}
			_ = lease.Unlock(bg)
		}
		trace = w.Trace()
		for _, p := range players {
			p.close()
		}
	})
	return trace, v
}

func TestRequestsToReleaseReachTheirHolders(t *testing.T) {
	of := []kind{plainLock}
	for _, k := range slices.Concat(kinds, redKinds[:1]) {
		if k.name == "spin" || k.name == "read-write" || k.name == "fair read-write" || k.name == "redlock" || thorough() && k.begin == nil && !strings.HasSuffix(k.name, "permits") {
			of = append(of, k)
		}
	}
	for i, k := range of {
		for _, s := range scenarios {
			if few := s.name != "calm" && s.name != "harsh"; few && (k.name != plainLock.name || brief()) && !thorough() {
				continue
			}
			if brief() && i > 0 && (s.name == "calm") == (i%2 == 0) { // a Lock has both, of the others each has one
				continue
			}
			s.kind = k
			t.Run(k.name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				byTurns(t)
				runs := ordinary(4)
				if k.servers > 1 {
					runs = 1
				}
				heard, asked := 0, 0
				for i, seed := range seedsOf(runs) {
					trace, v := revocationRun(t, seed, s)
					for _, wrong := range v.judge(s.calm()) {
						t.Errorf("seed %d: %s", seed, wrong)
					}
					for _, h := range v.holds {
						if h.heard != 0 {
							heard++
						}
					}
					asked += len(v.asked)
					if i > 0 || k.servers > 1 {
						continue
					}
					if again, _ := revocationRun(t, seed, s); !slices.Equal(again, trace) {
						t.Errorf("seed %d: two runs differ: %s", seed, firstDifference(trace, again))
					}
				}
				if t.Logf("%d requests, %d heard", asked, heard); heard == 0 {
					t.Errorf("only %d of %d requests were heard", heard, asked)
				}
			})
		}
	}
}

func TestSimulationFindsMutationsOfRequests(t *testing.T) {
	if locktest.UnderRace() && !thorough() {
		t.Skip("the race detector does not look into scripts, and it makes this take long")
	}
	for name, m := range map[string]struct {
		want    string
		changes []change
	}{
		"a request tells nobody": {"did not hear it", []change{{"lock/request_release", "announce(how, channel, '1')", ""}}},
		"a request leaves nothing for who is told": {"did not hear it", []change{
			{"lock/request_release", "redis.call('set', asked, 1, 'px', stands)", ""},
		}},
		"a request is for whoever has the lock": {"nobody made for it", []change{
			{"lock/request_release", "redis.call('set', asked, 1, 'px', stands)", "redis.call('set', channel, 1, 'px', stands)"},
			{"lock/asked", "redis.call('exists', KEYS[1])", "redis.call('exists', (KEYS[1]:gsub(':asked:.*', ':asked')))"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == "calm" })]
			s.kind, s.scripts = plainLock, changed(t, m.changes...)
			shows(t, m.want, func(seed uint64) []string {
				_, v := revocationRun(t, seed, s)
				return v.judge(true)
			})
		})
	}
}
