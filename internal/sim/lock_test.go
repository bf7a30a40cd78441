package sim

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/seam"
)

// The library itself, under faults. Each run has a few hosts with a Client
// each, and two workers on each host, which do with locks whatever the API
// allows, in an order that the seed draws. A judge looks on: it knows at every
// instant of virtual time who believes to hold what.

// The times have no common multiples, or a renewal would fall due in the instant
// in which an earlier one times out, and the scheduler would decide (rule 3).
const (
	lockLease   = 1503 * time.Millisecond // of the watchdog
	lockPoll    = 1009 * time.Millisecond
	lockWaiter  = 1297 * time.Millisecond
	lockCommand = 887 * time.Millisecond // a second copy is sent at half of it
	lockUnlock  = 1193 * time.Millisecond
	longestFix  = 20 * time.Second // fixed leases are at most this long
	longestHold = 4500 * time.Millisecond

	// giveUpWithin is longer than an acquire stays to see itself undone, and
	// shorter than a command takes to time out.
	giveUpWithin = 300 * time.Millisecond
)

// lockNames are the locks of a run. The first is drawn most often.
var lockNames = []string{"stock", "audit:{7}"}

// kind is a type of lock, and how its holds stand in Redis.
type kind struct {
	name string
	// open returns the lock, or its two sides.
	open func(c *rlock.Client, name string) (exclusive, shared rlock.Locker)
	// holds reads the counts in Redis.
	holds   func(m *miniredis.Miniredis, lock string) map[hold]string
	placed  bool // each waiter has a channel of its own
	forgets bool // a loss of data takes its tokens along

	several // servers
}

// holdsIn are the holds of a lock, wherever they stand.
func (k kind) holdsIn(w *World, lock string) map[hold]string {
	if k.everywhere != nil {
		return k.everywhere(w, lock)
	}
	return k.holds(w.Redis(0), lock)
}

// traces are what holds have left behind, if only on some servers.
func (k kind) traces(w *World, lock string) map[hold]string {
	if k.anywhere != nil {
		return k.anywhere(w, lock)
	}
	return k.holdsIn(w, lock)
}

// hold is what stands in Redis for an owner.
type hold struct {
	owner  string
	shared bool
}

func plainHolds(m *miniredis.Miniredis, lock string) map[hold]string {
	holds := map[hold]string{}
	if !m.Exists(lock) {
		return holds // expired: miniredis drops it when it is asked for
	}
	owners, _ := m.HKeys(lock)
	for _, o := range owners {
		holds[hold{o, false}] = m.HGet(lock, o)
	}
	return holds
}

var plainLock = kind{
	name:  "lock",
	open:  func(c *rlock.Client, name string) (exclusive, shared rlock.Locker) { return c.NewLock(name), nil },
	holds: plainHolds,
}

// grip is a lease of one side.
type grip struct {
	*rlock.Lease
	shared bool
}

func (g grip) hold() hold { return hold{g.Owner(), g.shared} }

// scenario is a kind of run.
type scenario struct {
	name   string
	kind   kind // plainLock if there is none
	rates  Rates
	mix    Mix
	faults int
	runs   int // seeds in a normal run

	scripts  map[string]string // mutations of the library
	heedless bool              // holders do not look at their leases
}

func (s scenario) calm() bool { return s.faults == 0 && s.rates == Rates{} }

var scenarios = []scenario{
	{name: "calm", runs: 10},
	{name: "network", mix: Network, faults: 14, runs: 50},
	{name: "late", rates: Rates{Swallow: 0.1, ResetAfter: 0.1, Late: 1, LateWithin: 6 * time.Second}, runs: 20},
	{name: "harsh", rates: Harsh, mix: Network, faults: 8, runs: 70},
	{name: "everything", rates: Harsh, mix: Everything, faults: 14, runs: 50},
}

// judge knows every lease and says what is wrong.
type judge struct {
	w      *World
	s      scenario
	forgot [][]time.Duration // by server: when it has lost its data; the run's own goroutine only

	mu    sync.Mutex // guards the rest; never held while waiting
	locks map[string]*verdicts
	wrong []string
	log   []string

	acquired, refused, unreachable, nested, extended, lost, released int
	doubles, disorders                                               int // violations: two holders; tokens
}

// verdicts are what the judge knows about one lock.
type verdicts struct {
	stays    []*stay // that have open leases
	newest   int64   // greatest token handed out
	newestBy string
	gone     map[hold]int // those that have left, and the data losses by then
}

// stay is what the judge knows about one hold: its open leases.
type stay struct {
	hold
	token  int64
	who    string
	losses int // data losses before it was asked for
	leases []*rlock.Lease
}

func (j *judge) sayLocked(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%v %s", j.w.Elapsed(), fmt.Sprintf(format, args...)))
}

func (j *judge) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked(format, args...)
}

func (j *judge) accuseLocked(format string, args ...any) {
	j.sayLocked("VIOLATION: "+format, args...)
	j.wrong = append(j.wrong, j.log[len(j.log)-1])
}

func (j *judge) accuse(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.accuseLocked(format, args...)
}

func (j *judge) count(n *int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*n++
}

// question is what is known when a worker asks for a lock.
type question struct {
	who    string
	lock   string
	shared bool
	losses int
	newest int64
	within *rlock.Lease     // a re-entry into this hold
	parts  map[string]int64 // newest of each lock: that of members too
}

func (j *judge) asks(who, lock string, shared bool, within *rlock.Lease) question {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s asks for %s (to share: %v, re-entry: %v)", who, lock, shared, within != nil)
	j.ghostsLocked(lock, losses)
	q := question{who, lock, shared, losses, j.locks[lock].newest, within, map[string]int64{}}
	for part, v := range j.locks {
		q.parts[part] = v.newest
	}
	return q
}

// losses are those of data that can have been the end of a hold.
func (j *judge) losses() int {
	if j.s.kind.sturdy {
		return 0
	}
	return j.w.Stats().Losses
}

// ghostsLocked looks for an owner in Redis that has left the lock, and was told
// so. A late copy may not bring it back, unless its tombstone was lost.
func (j *judge) ghostsLocked(lock string, losses int) {
	for h := range j.s.kind.holdsIn(j.w, lock) {
		if before, ok := j.locks[lock].gone[h]; ok && before == losses {
			j.accuseLocked("%s is held by nobody: %v has left", lock, h)
		}
	}
	if f := j.s.kind.ghost; f != nil {
		if g := f(j.w, lock); g != "" {
			j.accuseLocked("%s is held by nobody: %s", lock, g)
		}
	}
}

// left is called when the last Unlock of a hold has returned nil.
func (j *judge) left(lock string, l grip) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.locks[lock]
	if !slices.ContainsFunc(v.stays, func(s *stay) bool { return s.hold == l.hold() }) {
		v.gone[l.hold()] = losses
		for _, m := range l.Members() {
			v.gone[hold{m.Owner(), false}] = losses
		}
		j.ghostsLocked(lock, losses)
	}
}

// handed is called in the instant in which a lease is handed out.
func (j *judge) handed(q question, l *rlock.Lease) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sayLocked("%s has %s as %s, token %d, until %v", q.who, q.lock, l.Owner(), l.Token(), l.Deadline().Sub(j.w.Start()))
	if err := l.Err(); err != nil {
		j.accuseLocked("%s was handed a lease that is over: %v", q.who, err)
	}
	if q.within != nil {
		j.nested++
		if l.Owner() != q.within.Owner() || l.Token() != q.within.Token() {
			j.accuseLocked("%s entered again and got another hold: %s with token %d", q.who, l.Owner(), l.Token())
		}
		for _, s := range j.staysLocked(q.within) {
			s.leases = append(s.leases, l)
		}
		return
	}
	j.acquired++
	j.startsLocked(q, q.lock, &stay{hold{l.Owner(), q.shared}, l.Token(), q.who, q.losses, []*rlock.Lease{l}}, losses)
	for _, m := range l.Members() {
		part := member(m)
		if j.locks[part] == nil {
			j.locks[part] = &verdicts{gone: map[hold]int{}}
		}
		j.startsLocked(q, part, &stay{hold{m.Owner(), false}, m.Token(), q.who, q.losses, []*rlock.Lease{l}}, losses)
	}
}

// member is what the judge calls the lock of a member of a MultiLock: locks of
// one name may be on several servers.
func member(m *rlock.Lease) string {
	client, _, _ := strings.Cut(m.Owner(), ":")
	return m.Name() + "@" + client[len(client)-1:]
}

// staysLocked are those of which a lease is one.
func (j *judge) staysLocked(l *rlock.Lease) (stays []*stay) {
	for _, v := range j.locks {
		for _, s := range v.stays {
			if slices.Contains(s.leases, l) {
				stays = append(stays, s)
			}
		}
	}
	return stays
}

// startsLocked looks at a new hold.
func (j *judge) startsLocked(q question, lock string, s *stay, losses int) {
	v := j.locks[lock]
	j.excludeLocked(lock, s, losses)
	wrong := len(j.wrong)
	switch newest := q.parts[lock]; {
	case s.shared:
		if s.token != 0 {
			j.accuseLocked("%s shares %s and has token %d", q.who, lock, s.token)
		}
	case j.s.kind.forgets && losses > 0:
	case s.token <= newest:
		j.accuseLocked("%s has token %d of %s, not above %d, which was there when it asked", q.who, s.token, lock, newest)
	case s.token <= v.newest && q.losses == losses:
		// With a loss in between, two grants may be under way at once.
		j.accuseLocked("%s has token %d of %s, not above %d of %s", q.who, s.token, lock, v.newest, v.newestBy)
	}
	j.disorders += len(j.wrong) - wrong
	if s.token > v.newest {
		v.newest, v.newestBy = s.token, q.who
	}
	v.stays = append(v.stays, s)
}

// excludeLocked looks for others who believe to hold what s holds. A loss of
// the data that one of the two has lived through can have caused that.
func (j *judge) excludeLocked(lock string, s *stay, losses int) {
	wrong := len(j.wrong)
	defer func() { j.doubles += len(j.wrong) - wrong }()
	for _, other := range j.locks[lock].stays {
		if other == s || other.losses != losses || s.losses != losses {
			continue
		}
		if s.shared && other.shared || s.shared != other.shared && s.who == other.who {
			continue // readers; a writer that reads
		}
		for _, l := range other.leases {
			if j.believes(l) {
				j.accuseLocked("%s holds %s with token %d, and so does %s with token %d, until %v", s.who, lock, s.token, other.who, other.token, l.Deadline().Sub(j.w.Start()))
			}
		}
	}
}

// believes is a holder's own opinion.
func (j *judge) believes(l *rlock.Lease) bool {
	return j.s.heedless || l.Err() == nil
}

// works is called when a holder does what the lock is for.
func (j *judge) works(lock string, l grip) {
	losses := j.losses()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.believes(l.Lease) {
		return
	}
	for lock, v := range j.locks {
		for _, s := range v.stays {
			if slices.Contains(s.leases, l.Lease) {
				j.excludeLocked(lock, s, losses)
			}
		}
	}
}

// unlocks is called just before Unlock, and reports whether the lease is valid.
func (j *judge) unlocks(lock string, l *rlock.Lease) bool {
	valid := l.Err() == nil
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.locks {
		for i, s := range v.stays {
			if k := slices.Index(s.leases, l); k >= 0 {
				s.leases = slices.Delete(s.leases, k, k+1)
				if len(s.leases) == 0 {
					v.stays = slices.Delete(v.stays, i, i+1)
				}
				break
			}
		}
	}
	return valid
}

var causes = []error{rlock.ErrExpired, rlock.ErrTakenOver, rlock.ErrRemoved, rlock.ErrUnreachable, rlock.ErrMaxHold}

// loss checks that an error that matches ErrLeaseLost has one cause, and that
// the loss was due: without a loss of data, only time ends a hold.
func (j *judge) loss(who string, l *rlock.Lease, err error) {
	n := 0
	for _, c := range causes {
		if errors.Is(err, c) {
			n++
		}
	}
	if n != 1 {
		j.accuse("%s: a loss with %d causes: %v", who, n, err)
	}
	if st := j.w.Stats(); st.Losses == 0 && st.Jumps == 0 && time.Now().Before(l.Deadline()) {
		j.accuse("%s: lost before the deadline %v: %v", who, l.Deadline().Sub(j.w.Start()), err)
	}
}

// watch sees to it that a lease ends no later than it says.
func (j *judge) watch(h *Host, who string, l *rlock.Lease) {
	for {
		end := l.Deadline()
		t := time.NewTimer(time.Until(end) + 2*spread) // the watchdog passes a gate
		select {
		case <-l.Done():
			t.Stop()
			if err := l.Err(); errors.Is(err, rlock.ErrLeaseLost) {
				j.count(&j.lost)
				j.say("%s lost %s: %v", who, l.Owner(), err)
				j.loss(who, l, err)
			}
			return
		case <-t.C:
		}
		if l.Deadline().After(end) {
			continue
		}
		// A process that is stopped closes nothing. It does when it goes on.
		for resume := h.resumesAt(); time.Now().Before(resume.Add(2 * spread)); resume = h.resumesAt() {
			time.Sleep(time.Until(resume.Add(2 * spread)))
		}
		select {
		case <-l.Done():
		default:
			if l.Deadline().After(end) {
				j.accuse("%s: the lease came back after its deadline %v", who, end.Sub(j.w.Start()))
				continue
			}
			j.accuse("%s: Done is open after the deadline %v", who, end.Sub(j.w.Start()))
			return
		}
	}
}

// player is a machine with a process that uses locks.
type player struct {
	h       *Host
	rdb     *redis.Client // of the first server
	c       *rlock.Client
	rdbs    []*redis.Client
	cs      []*rlock.Client // one for each server
	locks   map[string]rlock.Locker
	shared  map[string]rlock.Locker // the other sides, if there are
	retries *retryCount
}

// retryCount counts the requests that were sent again, or may run later than
// their caller thinks. Where there is none, counts in Redis are exact.
type retryCount struct {
	rlock.NopObserver
	mu sync.Mutex // guards n
	n  int
}

func (r *retryCount) Retry(string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
}

func (r *retryCount) now() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

func newPlayer(w *World, s scenario, name string) *player {
	if s.kind.name == "" {
		s.kind = plainLock
	}
	p := &player{h: w.Host(name), locks: map[string]rlock.Locker{}, shared: map[string]rlock.Locker{}, retries: &retryCount{}}
	for i := range w.servers {
		p.rdbs = append(p.rdbs, redis.NewClient(p.h.Options(i)))
		env := p.h.Env()
		if len(w.servers) > 1 {
			env = p.h.EnvOf(i)
		}
		env.Scripts = s.scripts
		c, err := rlock.New(p.rdbs[i], seam.Option(env).(rlock.Option),
			rlock.WithWatchdogLease(lockLease), rlock.WithLongestPoll(lockPoll), rlock.WithWaiterLease(lockWaiter),
			rlock.WithCommandTimeout(lockCommand), rlock.WithUnlockTimeout(lockUnlock),
			rlock.WithObserver(p.retries))
		if err != nil {
			panic(err)
		}
		p.cs = append(p.cs, c)
	}
	p.rdb, p.c = p.rdbs[0], p.cs[0]
	for _, name := range lockNames {
		var exclusive, shared rlock.Locker
		if s.kind.openAll != nil {
			exclusive = s.kind.openAll(p.cs, name)
		} else {
			exclusive, shared = s.kind.open(p.c, name)
		}
		p.locks[name] = exclusive
		if shared != nil {
			p.shared[name] = shared
		}
	}
	return p
}

// worker is one of the goroutines that use the locks of a player.
type worker struct {
	*player
	j   *judge
	who string
	r   *rand.Rand
	bg  *sync.WaitGroup // watchers and cancellers
}

func (k *worker) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(k.r.Int64N(int64(hi-lo)))
}

// turn takes a lock in one of the ways there are, and uses it.
func (k *worker) turn() {
	name := lockNames[0]
	if k.r.IntN(5) == 0 {
		name = lockNames[1]
	}
	ctx := context.Background()
	var (
		opts     []rlock.AcquireOption
		try      bool
		bounded  bool // by WithWait
		cancel   = func() {}
		patience = k.between(0, 1200*time.Millisecond)
	)
	switch k.r.IntN(10) {
	case 0, 1:
		try = true
	case 2:
		bounded = true
		opts = append(opts, rlock.WithWait(patience))
	case 3:
		ctx, cancel = context.WithTimeout(ctx, patience)
	case 4:
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		t := time.AfterFunc(patience, stop)
		cancel = func() { t.Stop(); stop() }
	}
	opts = append(opts, k.lease()...)
	lock, shared := k.locks[name], false
	if side := k.shared[name]; side != nil && k.r.IntN(3) > 0 {
		lock, shared = side, true
	}

	retries := k.retries.now()
	q := k.j.asks(k.who, name, shared, nil)
	var (
		l   *rlock.Lease
		err error
	)
	if try {
		l, err = lock.TryLock(ctx, opts...)
	} else {
		l, err = lock.Lock(ctx, opts...)
	}
	if err != nil {
		k.refused(err, try, bounded, ctx)
		cancel()
		return
	}
	k.j.handed(q, l)
	k.bg.Go(func() { k.j.watch(k.h, k.who, l) })
	cancel()
	k.hold(name, grip{l, shared}, retries)
}

// lease draws a fixed lease or none.
func (k *worker) lease() []rlock.AcquireOption {
	switch k.r.IntN(6) {
	case 0:
		return []rlock.AcquireOption{rlock.WithLease(k.fix(k.between(100*time.Millisecond, 2*time.Second)))}
	case 1:
		return []rlock.AcquireOption{rlock.WithLease(k.fix(k.between(2*time.Second, longestFix)))}
	}
	return nil
}

// fix keeps a lease within what the type allows.
func (k *worker) fix(d time.Duration) time.Duration {
	if most := k.j.s.kind.longest; most > 0 {
		return min(max(d, most/8), most)
	}
	return d
}

// refused checks the error of an acquire.
func (k *worker) refused(err error, try, bounded bool, ctx context.Context) {
	k.j.say("%s does not have it: %v", k.who, err)
	k.j.count(&k.j.refused)
	ctxDone := ctx.Err() != nil
	switch {
	case unanswered(err) && !k.j.s.calm():
		k.j.count(&k.j.unreachable)
	case !errors.Is(err, rlock.ErrNotAcquired):
		k.j.accuse("%s: an acquire failed with %v", k.who, err)
	case ctxDone && !errors.Is(err, ctx.Err()):
		k.j.accuse("%s: the context ended, but the error does not say so: %v", k.who, err)
	case !ctxDone && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		k.j.accuse("%s: the context did not end, but the error says so: %v", k.who, err)
	case !ctxDone && !try && !bounded && k.j.s.calm():
		k.j.accuse("%s: an acquire without a bound was refused: %v", k.who, err)
	}
}

// unanswered reports whether too few servers could be asked.
func unanswered(err error) bool {
	return errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, rlock.ErrNoQuorum)
}

// hold does things with a lease and ends it.
func (k *worker) hold(name string, first grip, retries int) {
	open := []grip{first}
	k.counts(name, open, retries)
	for steps := 1 + k.r.IntN(5); steps > 0; steps-- {
		l := open[k.r.IntN(len(open))]
		pause := k.between(0, 60*time.Millisecond)
		if k.r.IntN(20) == 0 {
			pause = k.between(lockLease, longestHold)
		}
		k.h.Sleep(k.who, pause)
		k.j.works(name, l)
		if l.Err() != nil && !k.j.s.heedless {
			break
		}
		switch k.r.IntN(6) {
		case 0, 1:
			if len(open) > 3 {
				break
			}
			if inner, ok := k.enterAgain(name, l, open); ok {
				open = append(open, inner)
				k.counts(name, open, retries)
			}
		case 2:
			k.extend(l.Lease)
		case 3:
			if len(open) > 1 {
				i := slices.Index(open, l)
				open = slices.Delete(open, i, i+1)
				if k.unlock(name, l) == nil {
					k.counts(name, open, retries)
				}
			}
		}
	}
	for len(open) > 0 {
		i := k.r.IntN(len(open))
		l := open[i]
		open = slices.Delete(open, i, i+1)
		k.unlock(name, l)
		if k.r.IntN(8) == 0 {
			if err := l.Unlock(context.Background()); !errors.Is(err, rlock.ErrUnlocked) {
				k.j.accuse("%s: the second Unlock returned %v", k.who, err)
			}
		}
		if err := l.Err(); err == nil {
			k.j.accuse("%s: a lease is valid after its Unlock", k.who)
		}
	}
}

// enterAgain enters with a context that descends from all open leases and ends with
// one of them: the same side again, or the other one.
func (k *worker) enterAgain(name string, l grip, open []grip) (grip, bool) {
	lock, shared := k.locks[name], false
	if side := k.shared[name]; side != nil && k.r.IntN(2) > 0 {
		lock, shared = side, true
	}
	// What the owner has of that side, and what lets it in if it has nothing.
	var within *rlock.Lease
	under := l.Lease
	for _, o := range open {
		if o.shared == shared {
			within, under = o.Lease, o.Lease
			break
		} else if !o.shared {
			under = o.Lease
		}
	}
	q := k.j.asks(k.who, name, shared, within)
	ctx := context.Background()
	for _, o := range open {
		ctx = context.WithoutCancel(o.Context(ctx))
	}
	inner, err := lock.Lock(l.Context(ctx), k.lease()...)
	upgrade := within == nil && !shared
	if err == nil {
		if upgrade {
			k.j.accuse("%s: reads %s and may write", k.who, name)
		}
		k.j.handed(q, inner)
		k.bg.Go(func() { k.j.watch(k.h, k.who, inner) })
		return grip{inner, shared}, true
	}
	k.j.say("%s does not enter again: %v", k.who, err)
	switch {
	case errors.Is(err, rlock.ErrLeaseLost):
		k.j.loss(k.who, under, err)
	case errors.Is(err, rlock.ErrNotAcquired) && l.Err() != nil: // its context ended with the lease
	case upgrade && errors.Is(err, rlock.ErrUpgrade):
	case upgrade, !unanswered(err), k.j.s.calm():
		k.j.accuse("%s: a re-entry failed with %v", k.who, err)
	}
	return grip{}, false
}

func (k *worker) extend(l *rlock.Lease) {
	d := k.fix(k.between(100*time.Millisecond, longestFix))
	before := l.Deadline()
	k.j.say("%s extends by %v", k.who, d)
	err := l.Extend(context.Background(), d)
	k.j.say("%s extended: %v", k.who, err)
	switch {
	case err == nil:
		k.j.count(&k.j.extended)
	case errors.Is(err, rlock.ErrLeaseLost):
		k.j.loss(k.who, l, err)
	case !unanswered(err) || k.j.s.calm():
		k.j.accuse("%s: Extend failed with %v", k.who, err)
	}
	if l.Deadline().Before(before) {
		k.j.accuse("%s: Extend made the lease shorter", k.who)
	}
}

func (k *worker) unlock(name string, l grip) error {
	ctx := context.Background()
	if k.r.IntN(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	k.j.say("%s unlocks %s", k.who, l.Owner())
	valid := k.j.unlocks(name, l.Lease)
	err := l.Unlock(ctx)
	k.j.say("%s unlocked %s: %v", k.who, l.Owner(), err)
	switch {
	case err == nil:
		k.j.count(&k.j.released)
		k.j.left(name, l)
		if !valid {
			k.j.accuse("%s: Unlock of a lease that was over returned nil", k.who)
		}
	case errors.Is(err, rlock.ErrLeaseLost):
		k.j.loss(k.who, l.Lease, err)
	case !errors.Is(err, rlock.ErrUnreachable) || k.j.s.calm():
		k.j.accuse("%s: Unlock returned %v", k.who, err)
	}
	return err
}

// counts compares the count in Redis with the open leases, just after an
// operation. It may be wrong while copies of requests are under way.
func (k *worker) counts(name string, open []grip, retries int) {
	if k.retries.now() != retries || k.j.w.Stats().Losses > 0 || k.j.s.kind.uncounted {
		return
	}
	n := map[grip]int{} // by the first lease of each side
	for _, l := range open {
		i := slices.IndexFunc(open, func(o grip) bool { return o.shared == l.shared })
		n[open[i]]++
	}
	for _, l := range open {
		if want := n[l]; want > 0 && l.Err() == nil {
			if got := k.count(name, l); got != strconv.Itoa(want) {
				k.j.accuse("%s: the count in Redis is %q with %d open leases", k.who, got, want)
			}
		}
	}
}

// count is the count of a hold in Redis.
func (k *worker) count(name string, l grip) string {
	return k.j.s.kind.holdsIn(k.j.w, name)[l.hold()]
}

// outcome is what one run comes to.
type outcome struct {
	world *World
	stats Stats
	judge *judge
}

// lockRun plays one seed.
func lockRun(t *testing.T, seed uint64, s scenario) (o outcome) {
	if s.kind.name == "" {
		s.kind = plainLock
	}
	over := false
	defer func() {
		if !over { // a panic is on its way, or everybody waits for ever
			fmt.Fprintf(os.Stderr, "%s\ntrace: %s\n", replay(t, seed), o.keep(t))
		}
	}()
	bubble(t, seed, Config{Servers: s.kind.servers, Rates: s.rates}, func(w *World) {
		j := &judge{w: w, s: s, locks: map[string]*verdicts{}, forgot: make([][]time.Duration, len(w.servers))}
		o = outcome{world: w, judge: j}
		for _, name := range lockNames {
			j.locks[name] = &verdicts{gone: map[hold]int{}}
		}
		var (
			work, bg sync.WaitGroup
			players  []*player
			workers  []*worker
			span     = 8 * time.Second
		)
		for i := range 3 + int(seed%2) {
			p := newPlayer(w, s, string(rune('a'+i)))
			if i == 0 && s.kind.begin != nil {
				w.SetRates(Rates{})
				if err := s.kind.begin(p); err != nil {
					t.Error(err)
				}
				w.SetRates(s.rates)
			}
			players = append(players, p)
			for n := range 2 {
				who := fmt.Sprint(p.h.Name, n)
				workers = append(workers, &worker{p, j, who, w.Rand("worker " + who), &bg})
			}
		}
		for _, k := range workers {
			work.Go(func() {
				for w.Elapsed() < span {
					k.h.Sleep(k.who, k.between(0, 50*time.Millisecond))
					k.turn()
				}
			})
		}
		for _, f := range s.schedule(w, span) {
			w.Play([]Fault{f})
			j.say("fault: %v", f)
			if i := f.Server % len(w.servers); f.Kind == Lose {
				j.forgot[i] = append(j.forgot[i], w.Elapsed())
			}
		}
		time.Sleep(max(0, span-w.Elapsed())) // the rates stay until then
		w.Heal()
		j.say("healed")
		healed := w.Elapsed()
		work.Wait()
		if late := w.Elapsed() - max(healed, span); late > time.Minute {
			j.accuse("the workers came to an end only %v after the faults", late)
		}
		j.say("all have left")
		after(w, j, s, players, workers, healed)
		bg.Wait()
		o.stats = w.Stats()
	})
	over = true
	return o
}

// after is the part of a run when all faults are over and all leases unlocked.
func after(w *World, j *judge, s scenario, players []*player, workers []*worker, healed time.Duration) {
	ctx := context.Background()

	// A stranger gets in within a lease and a poll: it may have to wait for the
	// clean-up of what was left, but not longer.
	fresh := newPlayer(w, s, "fresh")
	patience := lockLease + lockPoll + time.Second + s.kind.recovers
	for _, name := range lockNames {
		l, err := fresh.locks[name].Lock(ctx, rlock.WithWait(patience))
		if back, _ := j.revived(name); err != nil && back > 0 {
			time.Sleep(longestFix + time.Second)
			l, err = fresh.locks[name].Lock(ctx, rlock.WithWait(patience))
		}
		if err != nil {
			j.accuse("%s cannot be had %v after everybody has left: %v; Redis: %s\n%s", name, patience, err, w.contents(), j.histories())
			continue
		}
		if err := l.Unlock(ctx); err != nil {
			j.accuse("Unlock of %s in peace: %v", name, err)
		}
	}

	// When the last late copy has run, nobody holds anything, without waiting
	// for the end of a lease.
	time.Sleep(max(0, healed+max(s.rates.LateWithin, 4*time.Second)+time.Second-w.Elapsed()) + 3*time.Second)
	for _, name := range lockNames {
		switch back, others := j.revived(name); {
		case others == 0 && back > 0:
			time.Sleep(longestFix + time.Second) // it kept fresh out of too few servers, or came later
		case others > 0:
			j.accuse("%s is held by nobody: %s\n%s", name, w.contents(), j.histories())
		}
	}

	// Everybody gets on, the counts are right again.
	j.say("once more")
	before := j.acquired
	var work sync.WaitGroup
	for _, k := range workers {
		work.Go(func() {
			k.h.Sleep(k.who, k.between(0, 20*time.Millisecond))
			q := j.asks(k.who, lockNames[0], false, nil)
			l, err := k.locks[lockNames[0]].Lock(ctx)
			if err != nil {
				j.accuse("%s: in peace, Lock returned %v", k.who, err)
				return
			}
			j.handed(q, l)
			losses := w.Stats().Losses
			var open []*rlock.Lease
			for range k.r.IntN(3) {
				inner, err := k.locks[lockNames[0]].Lock(l.Context(ctx))
				if err != nil {
					j.accuse("%s: in peace, a re-entry returned %v", k.who, err)
					break
				}
				open = append(open, inner)
			}
			open = append(open, l)
			for len(open) > 0 {
				if n := k.count(lockNames[0], grip{Lease: l}); n != strconv.Itoa(len(open)) && losses == w.Stats().Losses && !s.kind.uncounted {
					j.accuse("%s: in peace, the count in Redis is %q with %d open leases", k.who, n, len(open))
				}
				k.h.Sleep(k.who, k.between(0, 5*time.Millisecond))
				if len(open) == 1 {
					j.unlocks(lockNames[0], l)
				}
				if err := open[0].Unlock(ctx); err != nil {
					j.accuse("%s: in peace, Unlock returned %v", k.who, err)
				}
				open = open[1:]
			}
		})
	}
	start := w.Elapsed()
	work.Wait()
	if took := w.Elapsed() - start; took > time.Duration(len(workers))*(lockPoll/2) {
		j.accuse("%d workers took %v to get the lock once each", j.acquired-before, took)
	}

	// Redis forgets everything but the clocks.
	time.Sleep(time.Minute + longestFix)
	var left []string
	for i := range w.servers {
		for _, key := range w.keysOf(i) {
			// The record of a vote outlives the vote: the next one to vote replaces it.
			if !remains(key) && !(strings.HasSuffix(key, ":rlock:red") && j.cameBack(i, w.Redis(i).HGet(key, "attempt"))) {
				left = append(left, key)
			}
		}
	}
	if len(left) > 0 {
		j.accuse("left in Redis: %s; all: %s\n%s", strings.Join(left, ", "), w.contents(), j.histories())
	}

	// A client that is closed leaves nothing: no hold, no waiter.
	for _, p := range append(players, fresh) {
		l, err := p.locks[lockNames[0]].Lock(ctx)
		if err != nil {
			j.accuse("%s: Lock before Close: %v", p.h.Name, err)
			continue
		}
		waiter := make(chan error, 1)
		go func() {
			_, err := p.locks[lockNames[0]].Lock(ctx)
			waiter <- err
		}()
		p.h.Sleep("close", 10*time.Millisecond)
		closed := make(chan error, len(p.cs))
		go func() {
			for _, c := range p.cs {
				closed <- c.Close()
			}
		}()
		<-l.Done()
		if err := l.Err(); !errors.Is(err, rlock.ErrClosed) {
			j.accuse("%s: a lease during Close: %v", p.h.Name, err)
		}
		p.h.Sleep("leave", 10*time.Millisecond)
		if !j.held(lockNames[0]) {
			j.accuse("%s: Close took the lock from its holder: %s", p.h.Name, w.contents())
		}
		if err := l.Unlock(ctx); err != nil {
			j.accuse("%s: Unlock during Close: %v", p.h.Name, err)
		}
		for range p.cs {
			if err := <-closed; err != nil {
				j.accuse("%s: Close: %v", p.h.Name, err)
			}
		}
		if err := <-waiter; !errors.Is(err, rlock.ErrClosed) {
			j.accuse("%s: a waiter after Close: %v", p.h.Name, err)
		}
		if j.held(lockNames[0]) {
			j.accuse("%s: Close left a hold: %s", p.h.Name, w.contents())
		}
		for _, rdb := range p.rdbs {
			rdb.Close()
		}
	}
}

// revived counts the stays that hold a lock, if only on some servers, when all have
// left it: those that came back, and others.
func (j *judge) revived(lock string) (back, others int) {
	for h := range j.s.kind.traces(j.w, lock) {
		found, came := 0, 0
		for i := range j.w.servers {
			if j.w.mentions(i, h.owner) {
				found++
				if j.cameBack(i, h.owner) {
					came++
				}
			}
		}
		if came > 0 && came == found {
			back++
		} else {
			others++
		}
	}
	return back, others
}

// cameBack reports whether a server holds something for a stay by the one history
// that excuses it: the stay was given up there with a tombstone, the server then lost
// its data, and the tombstone with it, and a late copy of a request for the hold has
// run after that. With the data went the only thing that could have stopped it. Nobody
// acts on such a hold, and it is over with its lease.
func (j *judge) cameBack(server int, stay string) bool {
	var tombstone, lost, came bool
	for _, s := range j.history(server, stay) {
		switch {
		case s.script == "":
			lost, came, tombstone = lost || tombstone, false, false
		case s.tombstone:
			tombstone, lost, came = true, false, false
		case lost && s.late && slices.Contains(asking, s.script):
			came = true
		}
	}
	if came {
		j.say("server %d holds something for %s, which came back after a loss", server, stay)
	}
	return came
}

// asking are the scripts that can make a stay hold that does not. The renewal of a
// RedLock is one: it gives the vote anew where nobody has it.
var asking = []string{
	"acquire", "acquire_all", "fair_enter", "rw_read_enter", "rw_write_enter", "queued_enter",
	"red_acquire", "red_renew",
}

// step is what a server did for a stay, or a loss of its data.
type step struct {
	at        time.Duration
	script    string // "": the loss
	late      bool   // a late copy
	tombstone bool   // it leaves one
	text      string
}

func (s step) String() string { return fmt.Sprint(s.at, " ", s.text) }

// history is what has become of a stay on a server, as far as that has seen it.
func (j *judge) history(server int, stay string) (steps []step) {
	for _, e := range j.w.events() {
		if ws := words(e.b); strings.Contains(e.who, fmt.Sprint(">", server, "#")) && slices.Contains(ws, stay) {
			script := j.s.runsScript(ws)
			steps = append(steps, step{
				at: e.at, script: script, late: strings.HasSuffix(e.who, "~"),
				tombstone: slices.Contains(ws, "60000"), // for so long one stays
				text:      fmt.Sprint(e.who, " ", ws[0], " ", script, " ", ws[min(len(ws), 2):]),
			})
		}
	}
	for _, at := range j.forgot[server] {
		steps = append(steps, step{at: at, text: "all data is lost"})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// histories are those of whoever has something in Redis, for a failure's text.
func (j *judge) histories() string {
	var out []string
	for i := range j.w.servers {
		seen := map[string]bool{}
		for _, e := range j.w.events() {
			for _, word := range words(e.b) {
				if strings.Count(word, "-") == 4 && strings.Count(word, ":") == 1 && !seen[word] {
					seen[word] = true
					if j.w.mentions(i, word) {
						for _, s := range j.history(i, word) {
							out = append(out, fmt.Sprintf("server %d, %s: %v", i, word, s))
						}
					}
				}
			}
		}
	}
	return strings.Join(out, "\n")
}

// scriptNames are the names of the scripts, by what EVAL and EVALSHA say.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	files, err := os.ReadDir("../../scripts")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		name, script := strings.CutSuffix(f.Name(), ".lua")
		if !script {
			continue
		}
		text, err := source(name)
		if err != nil {
			panic(err)
		}
		names[text], names[redis.NewScript(text).Hash()] = name, name
	}
	return names
})

// runsScript is the name of the script that a request runs, or "?".
func (s scenario) runsScript(request []string) string {
	if len(request) < 2 {
		return "?"
	}
	for name, text := range s.scripts {
		if request[1] == text || request[1] == redis.NewScript(text).Hash() {
			return name
		}
	}
	return cmp.Or(scriptNames()[request[1]], "?")
}

// mentions reports whether a server has something for a stay, but for tombstones.
func (w *World) mentions(server int, stay string) bool {
	m := w.Redis(server)
	return slices.ContainsFunc(w.keysOf(server), func(key string) bool {
		if m.Type(key) != "hash" {
			return false
		}
		fields, _ := m.HKeys(key)
		return slices.ContainsFunc(fields, func(f string) bool {
			return f == stay || f == stay+":write" || m.HGet(key, f) == stay
		})
	})
}

func (p *player) close() {
	for i, c := range p.cs {
		c.Close()
		p.rdbs[i].Close()
	}
}

// remains reports whether a key is one that outlives the holds: a counter, or who
// may vote.
func remains(key string) bool {
	return strings.Contains(key, "rlock:clock:") || strings.Contains(key, "redisson_lock_token:") ||
		strings.HasSuffix(key, "rlock:red:counter") || strings.Contains(key, "rlock:red:highest") ||
		strings.Contains(key, "rlock:red:admitted") || strings.Contains(key, "rlock:red:since")
}

// held reports whether Redis shows a holder.
func (j *judge) held(lock string) bool {
	return len(j.s.kind.holdsIn(j.w, lock)) > 0
}

// exists, keys and contents look into Redis past the network. Expiry is lazy
// there, so a key without time left is none.
func (w *World) exists(key string) bool { return slices.Contains(w.keys(), key) }

func (w *World) keys() (keys []string) {
	for i := range w.servers {
		keys = append(keys, w.keysOf(i)...)
	}
	return keys
}

func (w *World) keysOf(i int) []string {
	m := w.Redis(i)
	return slices.DeleteFunc(m.Keys(), func(k string) bool { return !m.Exists(k) })
}

func (w *World) contents() string {
	var out []string
	for i := range w.servers {
		m := w.Redis(i)
		for _, k := range w.keysOf(i) {
			text := fmt.Sprint(i, ": ", k)
			if m.Type(k) == "hash" {
				fields, _ := m.HKeys(k)
				for _, f := range fields {
					text += fmt.Sprintf(" %s=%s", f, m.HGet(k, f))
				}
			}
			out = append(out, fmt.Sprintf("%s (%v)", text, m.TTL(k)))
		}
	}
	return strings.Join(out, "; ")
}

// lockSeeds is how many seeds a test plays: what it says, unless -sim.seeds
// says otherwise.
func lockSeeds(n int) int {
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "sim.seeds" {
			n = *seeds
		}
	})
	return n
}

// thorough reports whether there is time for what takes long: in CI and in the
// soak.
func thorough() bool { return len(seedsOf(0)) > 0 }

// seedsOf are the seeds that a test plays: the fixed ones, and fresh ones if they
// are asked for.
func seedsOf(n int) (all []uint64) {
	for i := range lockSeeds(n) {
		all = append(all, uint64(i)+1)
	}
	for i := range *fresh {
		all = append(all, *first+uint64(i))
	}
	return all
}

func TestLockKeepsItsPromises(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			s.play(t, s.runs, func(sum *judge) bool {
				return sum.extended > 0 && (s.faults == 0 || sum.unreachable > 0 && sum.lost > 0)
			})
		})
	}
}

// play plays a number of seeds, or the one that is asked for, and sees to it that
// things happened.
func (s scenario) play(t *testing.T, runs int, enough func(sum *judge) bool) {
	if *seedFlag != 0 {
		o := lockRun(t, *seedFlag, s)
		for _, l := range merged(o) {
			t.Log(l)
		}
		complain(t, *seedFlag, o)
		return
	}
	var (
		mu     sync.Mutex
		sum    judge
		faults Stats
	)
	all := seedsOf(runs)
	total := len(all)
	t.Cleanup(func() {
		t.Logf("%d seeds: %d holds, %d re-entries, %d extensions, %d unlocks, %d refusals, %d of them without an answer, %d leases lost; %d double holds, %d tokens out of order; %+v",
			total, sum.acquired, sum.nested, sum.extended, sum.released, sum.refused, sum.unreachable, sum.lost, sum.doubles, sum.disorders, faults)
		few := total < 3 // one or two seeds need not have everything
		if sum.acquired < 3*total || !few && (sum.nested == 0 || sum.refused == 0) || !enough(&sum) {
			t.Error("something that should be tried never happened")
		}
	})
	shards := min(runtime.GOMAXPROCS(0), total)
	for shard := range shards {
		t.Run(fmt.Sprint("shard ", shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < total; i += shards {
				o := lockRun(t, all[i], s)
				complain(t, all[i], o)
				mu.Lock()
				sum.acquired += o.judge.acquired
				sum.nested += o.judge.nested
				sum.extended += o.judge.extended
				sum.released += o.judge.released
				sum.refused += o.judge.refused
				sum.unreachable += o.judge.unreachable
				sum.lost += o.judge.lost
				sum.doubles += o.judge.doubles
				sum.disorders += o.judge.disorders
				faults.add(o.stats)
				mu.Unlock()
			}
		})
	}
}

func complain(t *testing.T, seed uint64, o outcome) {
	t.Helper()
	if len(o.judge.wrong) > 0 {
		t.Errorf("seed %d: %d violations, first:\n%s\n%s\ntrace: %s", seed, len(o.judge.wrong), o.judge.wrong[0], replay(t, seed), o.keep(t))
	}
}

// replay says how to play a seed again.
func replay(t *testing.T, seed uint64) string {
	test, _, _ := strings.Cut(t.Name(), "/shard")
	return fmt.Sprintf("replay: go test ./internal/sim -run '^%s$' -v -args -sim.seed=%d", strings.ReplaceAll(test, "/", "$/^"), seed)
}

// kept counts the traces of this process: if everything goes wrong, a few will do.
var kept atomic.Int32

// keep writes the trace to a file, in the directory RLOCK_SIM_TRACES if there is
// one. It stays there: not every run can be repeated exactly.
func (o outcome) keep(t *testing.T) string {
	if kept.Add(1) > 10 {
		return "not kept, there are ten"
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ ,", r) {
			return '-'
		}
		return r
	}, t.Name())
	f, err := os.CreateTemp(os.Getenv("RLOCK_SIM_TRACES"), fmt.Sprintf("rlock-%s-seed-%d-*.txt", name, o.world.Seed))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Join(merged(o), "\n") + "\n"); err != nil {
		return err.Error()
	}
	return f.Name()
}

// merged is what the judge saw between what the servers saw.
func merged(o outcome) []string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, l := range append(o.world.Trace(), o.judge.log...) {
		at, _, _ := strings.Cut(l, " ")
		d, _ := time.ParseDuration(at)
		lines = append(lines, line{d, l})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.text
	}
	return out
}

// Seeds that have found something, with what they found. A change of the
// workload gives them another meaning; the tests below them say the same
// without a seed.
var failedOnce = []struct {
	scenario string
	seed     uint64
	what     string
}{
	{"harsh", 828, "a request that lengthened the lease ran but was not answered, and the lock stayed locked when the loss had been unlocked"},
	{"harsh", 952, "the same"},
	{"everything", 982, "the same"},
	{"everything", 133, "a late copy came back after a loss had taken its tombstone: the judge was wrong"},
}

func TestSeedsThatFailedOnce(t *testing.T) {
	for _, f := range failedOnce {
		t.Run(fmt.Sprint(f.scenario, " ", f.seed), func(t *testing.T) {
			t.Parallel()
			s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == f.scenario })]
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
	for seed := uint64(1); seed <= 100; seed++ { // it takes some luck: who goes on first is drawn
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

// mutations are mistakes that somebody could make, and that the runs must find.
var mutations = []struct {
	name    string
	want    string // part of a violation
	within  int    // seeds
	soak    bool   // it takes too many of them for every day and for CI
	long    bool   // it takes too many of them for every day
	in      string // scenario, if not "harsh"
	kind    string // of lock, if not "lock"
	mutate  func(s *scenario)
	script  string
	old     string
	instead string
}{
	{
		name: "the count is added to instead of set", want: "the count in Redis", within: 10,
		script: "acquire", old: "redis.call('hset', lock, stay, 1)\nend", instead: "redis.call('hset', lock, stay, 1)\nelse\n  redis.call('hincrby', lock, stay, 1)\nend",
	},
	{
		name: "a re-entry adds to the count", want: "the count in Redis", within: 10,
		script: "acquire", old: "redis.call('hset', lock, stay, ARGV[3])", instead: "redis.call('hincrby', lock, stay, 1)",
	},
	{
		name: "holders do not look at their leases", want: "and so does", within: 10,
		mutate: func(s *scenario) { s.heedless = true },
	},
	{
		name: "acquire does not look for a tombstone", want: "held by nobody", within: 10, in: "late",
		script: "acquire", old: "redis.call('exists', KEYS[3]) == 1", instead: "false",
	},
	{
		name: "release does not look for its owner", want: "lost before the deadline", within: 20,
		script: "release", old: "redis.call('hexists', lock, stay) == 0", instead: "redis.call('exists', lock) == 0",
	},
	{
		name: "renew makes the lock anew", want: "", within: 50,
		script: "renew", old: "return -redis.call('exists', KEYS[1])", instead: "redis.call('hset', KEYS[1], ARGV[1], 1)",
	},
	{
		name: "acquire does not look for a holder", want: "and so does", within: 3,
		script: "acquire", old: "not mine and redis.call('exists', lock) == 1", instead: "false",
	},
	{
		name: "tokens do not grow", want: "not above", within: 3,
		script: "acquire", old: "math.max(last + 1, now[1] * 1000000 + now[2])", instead: "last",
	},
	{
		name: "a waiter in line does not look for its tombstone", want: "", within: 20, in: "late", kind: "fair",
		script: "fair_enter", old: "redis.call('exists', KEYS[7]) == 1", instead: "false",
	},
	{
		name: "who is first in line does not look for a holder", want: "and so does", within: 5, kind: "fair",
		script: "fair_enter", old: "local free = redis.call('exists', lock) == 0", instead: "local free = true",
	},
	{
		name: "a reader does not look for a writer", want: "and so does", within: 5, kind: "read-write",
		script: "rw_read_enter", old: "mode ~= 'read' and redis.call('exists', lock) == 1", instead: "false",
	},
	{
		name: "a writer does not look for readers", want: "and so does", within: 5, kind: "read-write",
		script: "rw_write_enter", old: "local ms, seen = alive()", instead: "local ms, seen = 0, true",
	},
	{
		name: "a renewal forgets the reader's timer", want: "lost before the deadline", within: 10, kind: "read-write",
		script: "rw_read_renew", old: "lengthen(KEYS[2], lease)", instead: "",
	},
	{
		name: "a reader does not look for its tombstone", want: "held by nobody", within: 10, in: "late", kind: "read-write",
		script: "rw_read_enter", old: "redis.call('exists', KEYS[2]) == 1", instead: "false",
	},
	{
		name: "a reader in the queue does not look for a writer", want: "and so does", within: 5, kind: "fair read-write",
		script: "queued_enter", old: "stays(redis.call('zscore', ends, 'exclusive'))", instead: "",
	},
	{
		name: "a writer in the queue does not look for holders", want: "and so does", within: 5, kind: "priority",
		script: "queued_enter", old: "stays(redis.call('zrevrange', ends, 0, 0, 'withscores')[2])", instead: "",
	},
	{
		name: "a waiter in the queue does not look for its tombstone", want: "", within: 20, in: "late", kind: "fair read-write",
		script: "queued_enter", old: "redis.call('exists', KEYS[8]) == 1", instead: "false",
	},
	{
		name: "who stands in line cannot tell", want: "", within: 20, kind: "fair",
		script: "fair_enter", old: "queued = redis.call('zscore', deadlines, stay)", instead: "queued = false",
	},
	{
		name: "a node votes twice", want: "and so does", within: 5, kind: "redlock",
		script: "red_acquire", old: "elseif held then", instead: "elseif false then",
	},
	{
		name: "a node forgets its counter", want: "not above", within: 5, kind: "redlock",
		script: "red_acquire", old: "local count = counter() + 1", instead: "local count = 1",
	},
	{
		name: "the token is not written back", want: "not above", within: 100, soak: true, in: "everything", kind: "redlock",
		script: "red_raise", old: "raise(tonumber(ARGV[3]))", instead: "",
	},
	{
		name: "a node votes for one who has left", want: "held by nobody", within: 20, long: true, in: "late", kind: "redlock",
		script: "red_acquire", old: "redis.call('exists', KEYS[4]) == 1", instead: "false",
	},
	{
		name: "a renewal votes for one who has left", want: "held by nobody", within: 40, long: true, in: "late", kind: "redlock",
		script: "red_renew", old: "redis.call('exists', KEYS[4]) == 1", instead: "false",
	},
	{
		name: "a release takes another's vote back", want: "", within: 10, kind: "redlock",
		script: "red_release", old: "redis.call('hget', record, 'attempt') == ARGV[1]", instead: "true",
	},
	{
		name: "no quarantine", want: "and so does", within: 30, long: true, in: "losses", kind: "redlock",
		mutate: func(s *scenario) { s.kind.forgetful = 5 },
	},
	{
		name: "no quarantine for tokens", want: "not above", within: 30, long: true, in: "losses", kind: "redlock",
		mutate: func(s *scenario) { s.kind.forgetful = 5 },
	},
	{
		name: "three of five forget", want: "and so does", within: 100, soak: true, in: "losses", kind: "redlock, 4 of 5",
		mutate: func(s *scenario) { s.kind.forgetful = 3 },
	},
	{
		name: "all masters may vote", want: "and so does", within: 30, long: true, in: "losses", kind: "redlock with quarantine",
		mutate: func(s *scenario) {
			s.scripts = map[string]string{}
			for _, name := range []string{"red_acquire", "red_raise", "red_renew"} {
				text, err := source(name)
				if err != nil {
					panic(err)
				}
				text = strings.Replace(text, "if not admitted then", "if false then", 1)
				s.scripts[name] = strings.Replace(text, "floor = tonumber(redis.call('hget', ADMITTED, 'floor'))", "", 1)
			}
		},
	},
	{
		name: "nobody looks at the clock", want: "and so does", within: 100, soak: true, in: "clocks", kind: "redlock with quarantine",
		script: "red_acquire", old: "now < tonumber(ARGV[#ARGV - 1]) or now > tonumber(ARGV[#ARGV])", instead: "false",
	},
	{
		// Runs with a loss of data excuse records only of those who came back by it.
		name: "a release leaves the record, its time over", want: "left in Redis", within: 5, in: "losses", kind: "redlock, 4 of 5",
		script: "red_release", old: "redis.call('del', record)\n  announce", instead: "redis.call('hset', record, 'until', 0)\n  announce",
	},
	{
		name: "a member is taken that is held", want: "and so does", within: 10, kind: "multi at once",
		script: "acquire_all", old: "mine == 0 and redis.call('exists', KEYS[i]) == 1", instead: "false",
	},
}

// source is the text of a script, whole.
func source(name string) (string, error) {
	text, err := os.ReadFile("../../scripts/" + name + ".lua")
	whole := string(text)
	for err == nil {
		before, after, found := strings.Cut(whole, "-- include ")
		if !found {
			break
		}
		shared, rest, _ := strings.Cut(after, "\n")
		text, err = os.ReadFile("../../scripts/shared/" + shared + ".lua")
		head, tail, _ := strings.Cut(string(text), "-- include the rest\n")
		whole = before + head + rest + tail
	}
	return whole, err
}

func TestSimulationFindsMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.soak && lockSeeds(0) == 0 {
				t.Skip("needs -sim.seeds")
			}
			if m.long && !thorough() {
				t.Skip("needs -sim.seeds or -sim.fresh")
			}
			all := append(slices.Clone(scenarios), redScenarios...)
			s := all[slices.IndexFunc(all, func(s scenario) bool { return s.name == cmp.Or(m.in, "harsh") })]
			if m.kind != "" {
				all := slices.Concat(kinds, redKinds, multiKinds)
				s.kind = all[slices.IndexFunc(all, func(k kind) bool { return k.name == m.kind })]
			}
			if m.mutate != nil {
				m.mutate(&s)
			}
			if m.script != "" {
				text, err := source(m.script)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Count(text, m.old) != 1 {
					t.Fatalf("%s.lua has changed: it does not have %q once", m.script, m.old)
				}
				s.scripts = map[string]string{m.script: strings.Replace(text, m.old, m.instead, 1)}
			}
			for seed := uint64(1); seed <= uint64(m.within); seed++ {
				for _, v := range lockRun(t, seed, s).judge.wrong {
					if strings.Contains(v, m.want) {
						t.Logf("seed %d: %s", seed, v)
						return
					}
				}
			}
			t.Errorf("not found in %d seeds", m.within)
		})
	}
}

func TestSameSeedSameLockRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for i, s := range append(slices.Clone(scenarios), repeatable("everything")...) {
		few := 2
		if i >= len(scenarios) {
			few = 1
		} else if thorough() {
			few = 4
		}
		for seed := range uint64(min(lockSeeds(few), 50)) {
			var first outcome
			for run := range 3 {
				runtime.GOMAXPROCS(1 + run%2)
				o := lockRun(t, seed+1, s)
				if run == 0 {
					first = o
				} else if o.world.Digest() != first.world.Digest() || o.stats != first.stats {
					t.Errorf("%s %s, seed %d: run %d differs: %s", s.kind.name, s.name, seed+1, run, firstDifference(first.world.Trace(), o.world.Trace()))
				}
			}
		}
	}
}
