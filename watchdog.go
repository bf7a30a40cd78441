package rlock

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/clock"
	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/timers"
	"github.com/go-rlock/rlock/internal/wire"
)

// watchdog looks after the holds of a client: each is one of the timers, which call it when it has to be
// renewed (renewal.go), and at its deadline. The watchdog knows which holds there are, and logs outages.
type watchdog struct {
	*timers.Timers
	events *events
	hash   func(holdKey) uint64

	mu      sync.Mutex                 // guards the rest
	holds   map[uint64]*timers.Entry   // by hash
	twins   map[uint64][]*timers.Entry // others of the same hash, if ever there are
	most    int                        // holds that there were
	failing failing

	losses losses
}

// spareHolds is for how many holds that have ended the watchdog keeps room.
const spareHolds = 1000

func newWatchdog(env *seam.Env, t clock.Timeline, d *wire.Deployment, events *events, lease time.Duration) *watchdog {
	w := &watchdog{events: events, hash: hash, failing: failing{lease: lease}}
	w.Timers = timers.New(timers.Config{
		Env: env, Timeline: t, Wire: d, Slack: min(lease/60, 100*time.Millisecond), Answered: w.renewed,
	})
	w.losses.of, w.losses.entry.Task = w, &w.losses
	w.AddBackground(&w.losses.entry)
	return w
}

// watched is what the watchdog knows of a hold.
type watched interface {
	timers.Task
	key() holdKey
	lockName() string
	fence() int64
	askNow() // asks Redis about it, as a renewal does, and waits for the answer
}

func of(e *timers.Entry) watched { return e.Task.(watched) }

// holdKey identifies a hold of a client. The members of a MultiLock can have one number, and so can a writer and the
// reader under it.
type holdKey struct {
	lock   protocol.LockID
	side   protocol.Side
	number int64
}

// hash is what the watchdog knows a hold by: there are very many, and the key is large. Few holds have the number of
// another one, and the name of their lock ends in another way.
func hash(k holdKey) uint64 {
	n := uint64(k.number)*2 + uint64(k.side)
	for i := max(0, len(k.lock.Name)-8); i < len(k.lock.Name); i++ {
		n = n*0x9e3779b97f4a7c15 + uint64(k.lock.Name[i])
	}
	return n
}

// watch begins to look after a hold, which is due at a time.
func (w *watchdog) watch(e *timers.Entry, at clock.Instant) {
	n := w.hash(of(e).key())
	w.mu.Lock()
	if w.holds == nil {
		w.holds, w.twins = map[uint64]*timers.Entry{}, map[uint64][]*timers.Entry{}
	}
	if w.holds[n] == nil {
		w.holds[n] = e
	} else {
		w.twins[n] = append(w.twins[n], e)
	}
	w.mu.Unlock()
	w.Add(e, at)
}

// forget is called when a hold has ended.
func (w *watchdog) forget(e *timers.Entry) {
	w.Remove(e)
	n := w.hash(of(e).key())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, len(w.holds))
	twins := w.twins[n]
	switch {
	case len(twins) == 0:
		if w.holds[n] == e {
			delete(w.holds, n)
		}
	case w.holds[n] == e:
		w.holds[n], twins = twins[0], twins[1:]
		w.twins[n] = twins
	default:
		twins = slices.DeleteFunc(twins, func(other *timers.Entry) bool { return other == e })
		w.twins[n] = twins
	}
	if len(twins) == 0 {
		delete(w.twins, n)
	}
	if len(w.holds) > 0 {
		return
	}
	w.failing.nodes = nil // there are no more renewals that could show the end of an outage
	if w.most > spareHolds {
		w.holds, w.most = nil, 0 // a map does not shrink by itself
	}
}

// all returns the holds, in no order.
func (w *watchdog) all() []watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]watched, 0, len(w.holds))
	for n, e := range w.holds {
		all = append(all, of(e))
		for _, twin := range w.twins[n] {
			all = append(all, of(twin))
		}
	}
	return all
}

func (w *watchdog) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.holds)
	for _, twins := range w.twins {
		n += len(twins)
	}
	return n
}

// tokenOf is the fencing token of a hold of this client, or 0.
func (w *watchdog) tokenOf(k holdKey) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.hash(k)
	if e := w.holds[n]; e != nil && of(e).key() == k {
		return of(e).fence()
	}
	for _, e := range w.twins[n] {
		if of(e).key() == k {
			return of(e).fence()
		}
	}
	return 0
}

// check asks Redis about the client's holds of a lock, as a renewal would; see
// seam.Env.
func (w *watchdog) check(lock string) {
	var held []watched
	for _, h := range w.all() {
		if h.lockName() == lock {
			held = append(held, h)
		}
	}
	// A simulation must be repeatable.
	slices.SortFunc(held, func(a, b watched) int { return cmp.Compare(a.key().number, b.key().number) })
	for _, h := range held {
		h.askNow()
	}
}

// failing are the outages that the renewals of a client see, by node. The mutex of the watchdog guards it.
type failing struct {
	lease time.Duration
	nodes map[any]failure
}

// failure is an outage of a node: when a renewal failed there first, and when last.
type failure struct{ since, last clock.Instant }

// fails notes a failed renewal, and reports whether an outage begins with it. If no renewal has failed for a whole
// lease, the outage before has ended with the last hold there.
func (f *failing) fails(node any, now clock.Instant) (begins bool) {
	outage, goesOn := f.nodes[node]
	if goesOn = goesOn && now.Sub(outage.last) <= f.lease; !goesOn {
		outage.since = now
	}
	if f.nodes == nil {
		f.nodes = map[any]failure{}
	}
	f.nodes[node] = failure{outage.since, now}
	return !goesOn
}

// succeeds notes a renewal that has succeeded, and reports whether an outage ends with it, and how long that
// was.
func (f *failing) succeeds(node any, now clock.Instant) (after time.Duration, ends bool) {
	outage, is := f.nodes[node]
	delete(f.nodes, node)
	return now.Sub(outage.since), is && now.Sub(outage.last) <= f.lease
}

// renewed counts the answers of a node to a pipeline of renewals.
func (w *watchdog) renewed(node redis.UniversalClient, renewals []wire.Answer) {
	renewed, failed := false, error(nil)
	for _, a := range renewals {
		renewed = renewed || a.Err == nil
		if a.Err != nil && wire.Transient(a.Err) {
			failed = a.Err
		}
	}
	w.renewals(node, node, renewed, failed)
}

// renewals logs when the renewals of a node, or of the nodes of a RedLock, begin to
// fail without an answer, and when one succeeds again: once each, however many holds there
// are.
func (w *watchdog) renewals(key any, node redis.UniversalClient, renewed bool, failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	switch {
	case renewed:
		if after, ends := w.failing.succeeds(key, now); ends {
			attrs := ofNode(node, "after", after.Round(time.Millisecond))
			w.events.Later(func() { w.events.Logger.Info("rlock: renewals get through again", attrs...) })
		}
	case failed == nil, len(w.holds) == 0: // a late answer about a hold that has ended
	case w.failing.fails(key, now):
		attrs := ofNode(node, "error", failed)
		w.events.Later(func() { w.events.Logger.Warn("rlock: renewals fail, trying again", attrs...) })
	}
}

// ofNode are attributes for the log, after the address of a node if that is known.
func ofNode(node redis.UniversalClient, attrs ...any) []any {
	if one, ok := node.(*redis.Client); ok {
		attrs = append([]any{"node", one.Options().Addr}, attrs...)
	}
	return attrs
}

// mostLossLines is how many lost holds have a line of the log each, in a second. All others of that second have one
// together: an outage may end very many.
const mostLossLines = 9

// losses logs lost holds. It implements timers.Task, for the line at the end of a second.
type losses struct {
	of    *watchdog
	entry timers.Entry

	mu    sync.Mutex    // guards the rest
	since clock.Instant // when the second began
	lines int           // in it
	more  int           // holds without a line
	cause error         // of the last of them
	over  bool          // the client is closed: each has a line
}

// log logs a lost hold. It is called where the Logger may be.
func (s *losses) log(attrs []any, cause error) {
	now := s.of.Now()
	s.mu.Lock()
	more := 0
	if now.Sub(s.since) >= time.Second {
		more, s.more, s.since, s.lines = s.more, 0, now, 0
	}
	single, before := s.over || s.lines < mostLossLines, s.cause
	if single {
		s.lines++
	} else {
		if s.more, s.cause = s.more+1, cause; s.more == 1 {
			s.of.Move(&s.entry, s.since.Add(time.Second))
		}
	}
	s.mu.Unlock()
	s.together(more, before)
	if single {
		s.of.events.Logger.Warn("rlock: lease lost", append(attrs, "cause", cause)...)
	}
}

// together logs how many more holds were lost.
func (s *losses) together(holds int, cause error) {
	if holds > 0 {
		s.of.events.Logger.Warn("rlock: more leases lost", "holds", holds, "cause", cause)
	}
}

// flush has the line of the second written, after what waits for the Logger: losses are counted there. No second ends when the
// client is closed.
func (s *losses) flush(over bool) {
	s.of.events.Surely(func() {
		s.mu.Lock()
		more, cause := s.more, s.cause
		s.more, s.over = 0, s.over || over
		s.mu.Unlock()
		s.together(more, cause)
	})
}

// Due implements timers.Task.
func (s *losses) Due(now clock.Instant, _ time.Duration) (timers.Do, clock.Instant) {
	s.flush(false)
	return timers.Do{}, now.Add(seam.FarAway)
}

// Answered implements timers.Task: it sends nothing.
func (s *losses) Answered(timers.Do, clock.Instant, protocol.Result[protocol.Kept]) clock.Instant {
	return 0
}

// Drain implements timers.Task. Holds may be lost until the timers are closed: see Close.
func (s *losses) Drain() {}

// Close ends the timers, and has the last losses logged.
func (w *watchdog) Close() (left []timers.Task) {
	left = w.Timers.Close()
	w.losses.flush(true)
	return left
}
