package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/seam"
)

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

	combined atomic.Int64 // pipelines in which several acquires or releases were
	given    atomic.Int64 // holds that its waiters were given
}

// retryCount counts the requests that were sent again, or may run later than
// their caller thinks. Where there is none, counts in Redis are exact.
type retryCount struct {
	locktest.Ignoring
	mu sync.Mutex // guards n
	n  int
}

func (r *retryCount) Retry(context.Context, rlock.RetryEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
}

func (r *retryCount) Renewed(_ context.Context, e rlock.RenewalEvent) {
	if e.Err != nil {
		r.Retry(context.Background(), rlock.RetryEvent{})
	}
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
		if s.named { // which only clients of this module are: see protocol.ClientOf
			env.Anonymous, env.ClientID = false, env.ClientID[:14]+"8"+env.ClientID[15:]
		}
		gate := env.Gate
		env.Gate = func(point string) {
			if point == "passed" {
				p.given.Add(1)
			}
			gate(point)
		}
		if s.kind.combined {
			env.Alone = 1
			p.rdbs[i].AddHook(&combining{p, s.garble})
		}
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

// combining is a hook that sees the requests that were combined.
type combining struct {
	p      *player
	garble func([]redis.Cmder)
}

func (h *combining) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *combining) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *combining) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		n := 0
		for _, cmd := range cmds {
			switch {
			case locktest.RunsForCaller(cmd):
				n++
			case locktest.RunsForCallers(cmd):
				n += 2
			}
		}
		if n > 1 {
			h.p.combined.Add(1)
			if h.garble != nil {
				h.garble(cmds)
			}
		}
		return err
	}
}

func (p *player) close() {
	for i, c := range p.cs {
		c.Close()
		p.rdbs[i].Close()
	}
}

// worker is one of the goroutines that use the locks of a player.
type worker struct {
	*player
	j   *judge
	who string
	r   *rand.Rand
	bg  *sync.WaitGroup // watchers, and what cancels waits
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
		wait     []rlock.AcquireOption
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
		wait = append(wait, rlock.WithWait(patience))
	case 3:
		ctx, cancel = context.WithTimeout(ctx, patience)
	case 4:
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		t := time.AfterFunc(patience, stop)
		cancel = func() { t.Stop(); stop() }
	}
	lease := k.lease()
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
		l, err = lock.TryLock(ctx, lease...)
	} else {
		l, err = lock.Lock(ctx, append(wait, locktest.Options(lease)...)...)
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
func (k *worker) lease() []rlock.TryOption {
	switch k.r.IntN(6) {
	case 0:
		return []rlock.TryOption{rlock.WithLease(k.fix(k.between(100*time.Millisecond, 2*time.Second)))}
	case 1:
		return []rlock.TryOption{rlock.WithLease(k.fix(k.between(2*time.Second, longestFix)))}
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
	case errors.Is(err, rlock.ErrNotAcquired) && unanswered(err):
		k.j.accuse("%s: was refused, and not answered: %v", k.who, err)
	case ctxDone && errors.Is(err, ctx.Err()): // perhaps before it saw anything
	case tooLate(err):
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
	return errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, rlock.ErrRefused)
}

// tooLate reports whether what was granted had run out when the answer came.
func tooLate(err error) bool {
	return errors.Is(err, rlock.ErrUnreachable) && strings.Contains(err.Error(), "over before it came")
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
			if len(open) > 3 || k.j.s.kind.enteredOnce {
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
	if k.j.s.kind.proclaim != nil {
		k.proclaim(name, first)
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
	opts := k.lease()
	if within != nil && len(opts) > 0 {
		k.j.longer(within, 0)
	}
	inner, err := lock.Lock(l.Context(ctx), locktest.Options(opts)...)
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
	case errors.Is(err, rlock.ErrLeaseLost) && errors.Is(err, context.Canceled):
		k.j.loss(k.who, l.Lease, err) // with which its context ended
	case errors.Is(err, rlock.ErrLeaseLost):
		k.j.loss(k.who, under, err)
	case errors.Is(err, context.Canceled) && l.Err() != nil: // its context ended with the lease
	case upgrade && errors.Is(err, rlock.ErrUpgrade):
	case upgrade, !unanswered(err) && !tooLate(err), k.j.s.calm():
		k.j.accuse("%s: a re-entry failed with %v", k.who, err)
	}
	return grip{}, false
}

// proclaim has a holder tell something some times.
func (k *worker) proclaim(name string, l grip) {
	for n := k.r.IntN(4); n > 0; n-- {
		err := k.j.s.kind.proclaim(k.locks[name], l.Lease, n)
		k.j.say("%s proclaimed: %v", k.who, err)
		switch {
		case errors.Is(err, rlock.ErrLeaseLost):
			k.j.loss(k.who, l.Lease, err)
			return
		case err != nil && (!unanswered(err) || k.j.s.calm()):
			k.j.accuse("%s: Proclaim failed with %v", k.who, err)
		}
	}
}

func (k *worker) extend(l *rlock.Lease) {
	d := k.fix(k.between(100*time.Millisecond, longestFix))
	before := l.Deadline()
	k.j.longer(l, d)
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
	k.j.say("%s unlocks %s", k.who, l.HoldID())
	valid := k.j.unlocks(name, l.Lease)
	err := l.Unlock(ctx)
	k.j.say("%s unlocked %s: %v", k.who, l.HoldID(), err)
	switch {
	case err == nil:
		k.j.count(&k.j.released)
		k.j.left(name, l)
		if !valid {
			k.j.accuse("%s: Unlock of a lease that was over returned nil", k.who)
		}
	case errors.Is(err, rlock.ErrLeaseLost):
		k.j.loss(k.who, l.Lease, err)
	// A RedLock may have had answers from all nodes, but from some only to the second copy of the release.
	case !unanswered(err) && !errors.Is(err, rlock.ErrUnconfirmed) || k.j.s.calm():
		k.j.accuse("%s: Unlock returned %v", k.who, err)
	}
	return err
}

// counts compares the count in Redis with the open leases, just after an
// operation. It may be wrong while copies of requests are under way.
func (k *worker) counts(name string, open []grip, retries int) {
	if k.retries.now() != retries || k.j.losses() > 0 || k.j.s.kind.uncounted {
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
