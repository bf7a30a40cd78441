package rlock

import (
	"container/heap"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// duty is something that the watchdog must not forget: a hold, which is to be
// renewed and must end at its deadline, or a clean-up that is still to be done.
// The watchdog calls one duty from one goroutine at a time, except that
// answered may come late and beside anything else.
type duty interface {
	// due is called at about the time that was asked for, perhaps a slack too
	// early. It returns a request to send now, if any, and when to be called
	// again; the zero time ends the duty.
	due(now time.Time, slack time.Duration) (*request, time.Time)
	// answered is called with the answer to a request that was sent at sent,
	// if it comes. It returns the same as due.
	answered(r *request, sent time.Time, a answer) time.Time
	// drain is called when the client shuts down. The duty is due then.
	drain()
}

// entry is a duty's place in the watchdog's heap.
type entry struct {
	duty    duty
	at      time.Time // guarded by watchdog.mu, as the rest
	index   int       // in the heap, or -1
	drained bool
	ended   bool
}

const (
	// batchSize is how many requests go into one pipeline. Between pipelines
	// others get their turn, so a renewal of very many holds does not starve
	// acquires.
	batchSize = 100

	farAway = 365 * 24 * time.Hour
)

// watchdog looks after all holds of a client: one goroutine, one timer, one
// heap. It never waits for Redis itself: requests go out in batches from
// goroutines that last as long as the batch, so that a server that hangs
// delays neither the deadlines nor the renewals on other servers.
type watchdog struct {
	c     *Client
	slack time.Duration // what is due within it is done along
	left  tally         // entries that have not ended
	poke  chan func()   // capacity 1: something is due earlier than armed; see wake
	quit  chan struct{}
	ended chan struct{} // closed when the goroutine has ended; nil: never began
	lanes lanes

	mu       sync.Mutex // guards the rest, ended, and the entries
	heap     entries
	holds    map[string]*hold // by id: the exclusive ones among the duties; nil if there is none
	armed    time.Time        // when the goroutine will look next
	draining bool
	closed   bool
	failing  map[any]time.Time // since when renewals fail, by node
}

func newWatchdog(c *Client) *watchdog {
	return &watchdog{
		c:     c,
		slack: min(c.cfg.watchdogLease/60, 100*time.Millisecond),
		poke:  make(chan func(), 1),
		lanes: lanes{c: c},
		quit:  make(chan struct{}),
	}
}

// add begins a duty. If the client is shutting down the duty is drained at once.
func (w *watchdog) add(e *entry, at time.Time) {
	w.mu.Lock()
	e.index = -1
	if w.closed {
		e.ended = true
		w.mu.Unlock()
		e.duty.drain() // too late to do more
		return
	}
	defer w.mu.Unlock()
	w.left.add(1)
	if h, ok := e.duty.(*hold); ok && h.core.side == exclusive {
		if w.holds == nil {
			w.holds = map[string]*hold{}
		}
		w.holds[h.stay] = h
	}
	w.pushLocked(e, at)
	if w.ended == nil {
		w.ended = make(chan struct{})
		w.armed = w.c.clock.Now().Add(farAway)
		go w.run(w.ended, w.c.work())
	}
}

// remove ends a duty from outside.
func (w *watchdog) remove(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(e)
}

// has reports whether a duty has not ended.
func (w *watchdog) has(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !e.ended
}

// move sets when a duty is due; the zero time ends it.
func (w *watchdog) move(e *entry, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.ended:
	case at.IsZero():
		w.endLocked(e)
	default:
		w.pushLocked(e, at)
	}
}

func (w *watchdog) pushLocked(e *entry, at time.Time) {
	if w.draining && !e.drained {
		at = w.c.clock.Now()
	}
	e.at = at
	if e.index >= 0 {
		heap.Fix(&w.heap, e.index)
	} else {
		heap.Push(&w.heap, e)
	}
	if at.Before(w.armed) && !w.closed {
		w.wake()
	}
}

// wake makes the goroutine look at once. Its work begins here, in the eyes of a
// test that moves the clock: what the goroutine does not know of yet may be due.
func (w *watchdog) wake() {
	end := w.c.work()
	select {
	case w.poke <- end:
	default:
		end()
	}
}

func (w *watchdog) endLocked(e *entry) {
	if e.ended {
		return
	}
	e.ended = true
	if e.index >= 0 {
		heap.Remove(&w.heap, e.index)
	}
	w.left.add(-1)
	if h, ok := e.duty.(*hold); ok && w.holds[h.stay] == h {
		delete(w.holds, h.stay)
		if len(w.holds) == 0 {
			w.holds = nil // a map does not shrink by itself
		}
	}
}

// drain has every duty told that the client shuts down, those too that come later.
func (w *watchdog) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return
	}
	w.draining = true
	now := w.c.clock.Now()
	for _, e := range w.heap {
		e.at = now // all of them: still a heap
	}
	if w.ended != nil && !w.closed {
		w.wake()
	}
}

// tokenOf is the fencing token of an exclusive hold of this client, or 0.
func (w *watchdog) tokenOf(stay string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.holds[stay]; h != nil {
		return h.token
	}
	return 0
}

// check asks Redis about the client's holds of a lock, as a renewal would; see
// seam.Env.
func (w *watchdog) check(lock string) {
	w.mu.Lock()
	var holds []*hold
	for _, e := range w.heap {
		if h, ok := e.duty.(*hold); ok && h.core.name == lock {
			holds = append(holds, h)
		}
	}
	w.mu.Unlock()
	for _, h := range holds {
		r, sent := h.core.renew(h.stay, 0), w.c.clock.Now()
		w.move(&h.entry, h.answered(r, sent, w.c.call(w.c.ctx, w.c.cfg.commandTimeout, r)))
	}
}

// isClosed reports whether nothing is looked after any more.
func (w *watchdog) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close ends the goroutine and returns what is left to do, which nobody will.
func (w *watchdog) close() (left []duty) {
	w.mu.Lock()
	ended := w.ended
	if !w.closed {
		w.closed = true
		close(w.quit)
	}
	w.mu.Unlock()
	if ended != nil {
		<-ended
	}
	w.mu.Lock()
	for _, e := range w.heap {
		left = append(left, e.duty)
	}
	w.mu.Unlock()
	for _, d := range left {
		d.drain() // the goroutine may not have come to it: no lease is valid without a watchdog
	}
	return left
}

func (w *watchdog) run(ended chan struct{}, asleep func()) {
	defer close(ended)
	timer := w.c.clock.NewTimer(farAway)
	defer timer.Stop()
	for {
		now := w.c.clock.Now()
		var sends []sending
		for _, e := range w.pop(now) {
			if w.drains(e) {
				e.duty.drain()
			}
			r, next := e.duty.due(now, w.slack)
			if r != nil {
				sends = append(sends, sending{e, r})
			}
			w.move(e, next)
		}
		if len(sends) > 0 {
			w.c.background(func() { w.round(sends) })
		}
		timer.Reset(w.arm(now))
		asleep()
		select {
		case <-timer.C():
			asleep = w.c.work()
		case asleep = <-w.poke:
		case <-w.quit:
			select {
			case end := <-w.poke:
				end()
			default:
			}
			return
		}
		w.c.gate("watchdog")
	}
}

// pop takes what is due out of the heap.
func (w *watchdog) pop(now time.Time) (due []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.heap) > 0 && !w.heap[0].at.After(now.Add(w.slack)) {
		due = append(due, heap.Pop(&w.heap).(*entry))
	}
	return due
}

// drains reports whether a duty has yet to be told that the client shuts down.
func (w *watchdog) drains(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.draining || e.drained {
		return false
	}
	e.drained = true
	return true
}

// arm decides when to look next and returns how long that is from now.
func (w *watchdog) arm(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = now.Add(farAway)
	if len(w.heap) > 0 {
		w.armed = w.heap[0].at
	}
	return max(w.armed.Sub(w.c.clock.Now()), 0)
}

type sending struct {
	e *entry
	r *request
}

// round sends what is due, to each node by itself and one pipeline after the
// other.
func (w *watchdog) round(sends []sending) {
	done := func(s sending, sent time.Time, a answer) {
		if h, ok := s.e.duty.(*hold); ok && s.r.lease > 0 {
			w.renewals(h.core.id.family, a.err == nil, a.err)
		}
		w.move(s.e, s.e.duty.answered(s.r, sent, a))
	}
	sends = slices.DeleteFunc(sends, func(s sending) bool {
		switch {
		case s.r.spread != nil:
			s.r.spread(&w.lanes, func() bool { return w.has(s.e) }, func(sent time.Time, a answer) { done(s, sent, a) })
			return true
		case s.r.do == nil:
			return false
		}
		w.c.background(func() {
			sent := w.c.clock.Now()
			ctx, cancel := context.WithTimeout(w.c.ctx, w.c.cfg.commandTimeout)
			defer cancel()
			done(s, sent, s.r.do(ctx))
		})
		return true
	})
	if w.c.cluster == nil {
		w.sendTo(w.c.rdb, w.c.io, sends)
		return
	}
	ctx, cancel := context.WithTimeout(w.c.ctx, w.c.cfg.commandTimeout)
	defer cancel()
	nodes := map[redis.UniversalClient][]sending{}
	for _, s := range sends {
		// A pipeline of the cluster client would do the grouping too, but wait
		// for the slowest node before it shows any answer.
		node, err := w.c.nodeFor(ctx, s.r.keys[0])
		if err != nil {
			w.move(s.e, s.e.duty.answered(s.r, w.c.clock.Now(), answer{err: err, unsure: true}))
			continue
		}
		nodes[node] = append(nodes[node], s)
	}
	for node, group := range nodes {
		// Through the cluster client all the same: it follows redirections. But
		// WAIT has to go where the renewals went.
		var to redis.Cmdable = w.c.io
		if w.c.cfg.acks > 0 {
			to = node
		}
		w.c.background(func() { w.sendTo(node, to, group) })
	}
}

// sendTo sends requests to one node, a pipeline at a time. If the node does not
// answer one, the rest is not tried: they would only hang one after the other,
// and each is due again soon.
func (w *watchdog) sendTo(node redis.UniversalClient, to redis.Cmdable, sends []sending) {
	for len(sends) > 0 {
		n := min(len(sends), batchSize)
		batch := make([]*request, n)
		for i, s := range sends[:n] {
			batch[i] = s.r
		}
		ctx, cancel := context.WithTimeout(w.c.ctx, w.c.cfg.commandTimeout+w.c.cfg.ackTimeout)
		sent := w.c.clock.Now()
		answers := w.c.sendBatch(ctx, to, batch)
		cancel()
		var silent, failed error
		renewed := false
		for i, a := range answers {
			if batch[i].lease > 0 {
				renewed = renewed || a.err == nil
				if transient(a.err) {
					failed = a.err
				}
			}
			if a.err != nil {
				a.unsure = !notExecuted(a.err)
			}
			if a.unsure && transient(a.err) {
				silent = a.err
			}
			w.move(sends[i].e, sends[i].e.duty.answered(sends[i].r, sent, a))
		}
		w.renewals(node, renewed, failed)
		sends = sends[n:]
		if silent == nil {
			continue
		}
		w.c.refreshTopology()
		for _, s := range sends {
			w.move(s.e, s.e.duty.answered(s.r, sent, answer{err: silent}))
		}
		return
	}
}

// renewals logs when the renewals of a node, or of the nodes of a RedLock, begin to
// fail for want of an answer, and when one gets through again: once each, however many
// holds there are.
func (w *watchdog) renewals(node any, renewed bool, failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	since, failing := w.failing[node]
	now := w.c.clock.Now()
	attrs := []any{}
	if one, ok := node.(*redis.Client); ok {
		attrs = append(attrs, "node", one.Options().Addr)
	}
	switch {
	case renewed && failing:
		delete(w.failing, node)
		attrs = append(attrs, "after", now.Sub(since).Round(time.Millisecond))
		w.c.tell(func() { w.c.cfg.logger.Info("rlock: renewals get through again", attrs...) })
	case !renewed && !failing && failed != nil:
		if w.failing == nil {
			w.failing = map[any]time.Time{}
		}
		w.failing[node] = now
		attrs = append(attrs, "error", failed)
		w.c.tell(func() { w.c.cfg.logger.Warn("rlock: renewals fail, trying again", attrs...) })
	}
}

// entries is a heap by time.
type entries []*entry

func (h entries) Len() int           { return len(h) }
func (h entries) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h entries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *entries) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *entries) Pop() any {
	old := *h
	n := len(old) - 1
	e := old[n]
	old[n] = nil
	e.index = -1
	*h = old[:n]
	return e
}

// cleanup is a stay that must be ended in Redis although its caller has gone:
// an acquire that was given up, or a release without an answer. It is repeated
// until Redis confirms it, or until the hold would have run out by itself.
type cleanup struct {
	entry
	c     *Client
	r     *request
	until time.Time
	done  chan struct{} // closed when it is over

	turn giveUpTurn // guarded by giveUps.mu

	mu     sync.Mutex // guards the rest
	pause  time.Duration
	copies int // that were sent since the last answer
	next   time.Time
	over   bool
	last   bool // the client shuts down: an error that lasts ends it
}

// cleanUp begins a cleanup that gives up at until.
func (c *Client) cleanUp(r *request, from, until time.Time) *cleanup {
	u := &cleanup{c: c, r: r, until: until, done: make(chan struct{}), next: from, pause: 50 * time.Millisecond}
	u.duty = u
	if now := c.clock.Now(); r.do != nil || from.After(now) {
		c.watchdog.add(&u.entry, from)
	} else {
		c.watchdog.add(&u.entry, now.Add(farAway))
		if c.giveUps.admit(u) {
			c.watchdog.move(&u.entry, from)
		}
	}
	return u
}

// yield lets the next clean-up of the lock go.
func (u *cleanup) yield() {
	if next := u.c.giveUps.done(u); next != nil {
		u.c.watchdog.move(&next.entry, u.c.clock.Now())
	}
}

func (u *cleanup) due(now time.Time, _ time.Duration) (*request, time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || now.After(u.until) {
		u.endLocked()
		return nil, time.Time{}
	}
	if now.Before(u.next) {
		return nil, u.next
	}
	if u.r.do == nil && u.c.isLost(min(u.c.cfg.commandTimeout, time.Second)) {
		// There may be very many of these for one node of a RedLock.
		u.yield()
		u.next = now.Add(u.pause)
		u.pause = min(2*u.pause, time.Second)
		return nil, u.next
	}
	// The next copy goes out if this one is not answered: it may hang. Or the server
	// is slow, so each comes later than the one before.
	if u.copies > 0 {
		u.yield()
	}
	patience := min(u.c.cfg.commandTimeout, time.Second) << min(u.copies, 4)
	u.copies++
	u.next = now.Add(max(u.pause, patience))
	return u.r, u.next
}

func (u *cleanup) answered(_ *request, _ time.Time, a answer) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return time.Time{}
	}
	// An error that Redis replies with, such as NOPERM, or a client that is closed may
	// last, so it is asked more and more rarely. What is no lock any more holds nothing.
	lasts := a.err != nil && !transient(a.err) && !panicked(a.err)
	if a.err == nil || lasts && (u.last || strings.Contains(a.err.Error(), "WRONGTYPE")) {
		u.endLocked()
		return time.Time{}
	}
	u.c.tell(func() { u.c.cfg.observer.Retry(u.r.what(), a.err) })
	u.yield()
	u.copies = 0
	u.next = u.c.clock.Now().Add(u.pause)
	longest := time.Second
	if lasts {
		longest = 10 * time.Second
	}
	u.pause = min(2*u.pause, longest)
	return u.next
}

func (u *cleanup) endLocked() {
	if !u.over {
		u.over = true
		close(u.done)
		u.yield()
	}
}

func (u *cleanup) drain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = true
	u.next = u.c.clock.Now()
}
