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

// watchdog renews the holds of a client. Each hold is a task of the timers, which call it when it has to be
// renewed (renewal.go), and at its deadline. The watchdog has a list of all holds, and logs outages.
type watchdog struct {
	*timers.Timers
	events *events

	mu      sync.Mutex      // guards the rest
	holds   map[int64]*hold // holds by number; hold.twin links holds with the same number
	count   int             // number of holds
	most    int             // largest size of holds so far
	failing failing

	losses losses
}

// spareHolds is the size up to which the watchdog keeps an empty map.
const spareHolds = 1000

func newWatchdog(env *seam.Env, t clock.Timeline, d *wire.Deployment, events *events, lease time.Duration) *watchdog {
	w := &watchdog{events: events, failing: failing{lease: lease}}
	w.Timers = timers.New(timers.Config{
		Env: env, Timeline: t, Wire: d, Slack: min(lease/60, 100*time.Millisecond), Answered: w.renewed,
	})
	w.losses.watchdog, w.losses.entry.Task = w, &w.losses
	w.AddBackground(&w.losses.entry)
	return w
}

// watch adds a hold, which is due at a time.
func (w *watchdog) watch(h *hold, at clock.Instant) {
	w.mu.Lock()
	if w.holds == nil {
		w.holds = map[int64]*hold{}
	}
	h.twin, w.holds[h.number] = w.holds[h.number], h
	w.count++
	w.mu.Unlock()
	w.Add(&h.Entry, at)
}

// forget is called when a hold has ended, perhaps before it is watched.
func (w *watchdog) forget(h *hold) {
	w.Remove(&h.Entry)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, len(w.holds))
	first := w.holds[h.number]
	for at := &first; *at != nil; at = &(*at).twin {
		if *at == h {
			*at, h.twin = h.twin, nil
			w.count--
			break
		}
	}
	if first != nil {
		w.holds[h.number] = first
		return
	}
	delete(w.holds, h.number)
	if len(w.holds) > 0 {
		return
	}
	w.failing.nodes = nil // without renewals, the end of an outage cannot be detected
	if w.most > spareHolds {
		w.holds, w.most = nil, 0 // a map does not shrink
	}
}

// all returns the holds, in no order.
func (w *watchdog) all() []*hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*hold, 0, w.count)
	for _, h := range w.holds {
		for ; h != nil; h = h.twin {
			all = append(all, h)
		}
	}
	return all
}

// held returns the number of holds.
func (w *watchdog) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// tokenOf returns the fencing token of a hold of this client, or 0.
func (w *watchdog) tokenOf(lock protocol.LockID, side protocol.Side, number int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := w.holds[number]; h != nil; h = h.twin {
		if h.core.side == side && h.core.id() == lock {
			return h.token
		}
	}
	return 0
}

// check polls the client's holds of a lock in Redis, as a renewal would; see
// seam.Env.
func (w *watchdog) check(lock string) {
	held := slices.DeleteFunc(w.all(), func(h *hold) bool { return h.core.name() != lock })
	// A simulation must be repeatable.
	slices.SortFunc(held, func(a, b *hold) int { return cmp.Compare(a.number, b.number) })
	for _, h := range held {
		h.askNow()
	}
}

// failing has the outages that the renewals of a client have met, by node. The mutex of the watchdog guards it.
type failing struct {
	lease time.Duration
	nodes map[any]failure
}

// failure is an outage of a node, with the times of the first and the latest failed renewal.
type failure struct{ firstFailed, latestFailed clock.Instant }

// fails records a failed renewal, and reports whether it begins an outage. If no renewal has failed for a whole
// lease, the previous outage ended with the last hold on the node.
func (f *failing) fails(node any, now clock.Instant) (isNew bool) {
	outage, goesOn := f.nodes[node]
	if goesOn = goesOn && now.Sub(outage.latestFailed) <= f.lease; !goesOn {
		outage.firstFailed = now
	}
	if f.nodes == nil {
		f.nodes = map[any]failure{}
	}
	f.nodes[node] = failure{outage.firstFailed, now}
	return !goesOn
}

// succeeds records a successful renewal, and reports whether it ends an outage, and how long the outage has
// lasted.
func (f *failing) succeeds(node any, now clock.Instant) (after time.Duration, ends bool) {
	outage, is := f.nodes[node]
	delete(f.nodes, node)
	return now.Sub(outage.firstFailed), is && now.Sub(outage.latestFailed) <= f.lease
}

// renewed handles the replies of a node to a pipeline of renewals.
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
// fail without an answer, and when a renewal succeeds again. It logs each once, no matter how many holds there
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

// ofNode returns attributes for the log, after the address of a node if it is known.
func ofNode(node redis.UniversalClient, attrs ...any) []any {
	if one, ok := node.(*redis.Client); ok {
		attrs = append([]any{"node", one.Options().Addr}, attrs...)
	}
	return attrs
}

// mostLossLines is how many lost holds get a log line each within a second. All other losses of that second share one
// line: an outage may end very many holds.
const mostLossLines = 9

// losses logs lost holds. It implements timers.Task to write the shared line at the end of a second.
type losses struct {
	watchdog *watchdog
	entry    timers.Entry

	mu          sync.Mutex    // guards the rest
	secondStart clock.Instant // when the second began
	lines       int           // lines in the second
	more        int           // losses without a line
	cause       error         // cause of the latest loss without a line
	isClosed    bool          // the client is closed: each loss gets a line
}

// log logs a lost hold. It is called by the goroutine of the queue, which may call the Logger.
func (s *losses) log(attrs []any, cause error) {
	now := s.watchdog.Now()
	s.mu.Lock()
	more := 0
	if now.Sub(s.secondStart) >= time.Second {
		more, s.more, s.secondStart, s.lines = s.more, 0, now, 0
	}
	single, before := s.isClosed || s.lines < mostLossLines, s.cause
	if single {
		s.lines++
	} else {
		if s.more, s.cause = s.more+1, cause; s.more == 1 {
			s.watchdog.Move(&s.entry, s.secondStart.Add(time.Second))
		}
	}
	s.mu.Unlock()
	s.together(more, before)
	if single {
		s.watchdog.events.Logger.Warn("rlock: lease lost", append(attrs, "cause", cause)...)
	}
}

// together logs the number of further lost holds.
func (s *losses) together(holds int, cause error) {
	if holds > 0 {
		s.watchdog.events.Logger.Warn("rlock: more leases lost", "holds", holds, "cause", cause)
	}
}

// flush queues the shared line of the second. It goes through the queue because queued losses are counted before it. After
// a call with closed, each loss gets a line, because no second ends any more.
func (s *losses) flush(closed bool) {
	s.watchdog.events.Always(func() {
		s.mu.Lock()
		more, cause := s.more, s.cause
		s.more, s.isClosed = 0, s.isClosed || closed
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

// Close ends the timers, and logs the last losses.
func (w *watchdog) Close() (left []timers.Task) {
	left = w.Timers.Close()
	w.losses.flush(true)
	return left
}
