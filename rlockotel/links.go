package rlockotel

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// links keeps the traces of holds in Redis, and finds the traces of holders. One goroutine does it, which
// runs while there is something to do. Nothing waits for it but the end of a span.
//
// The key of a hold has its id, which is never used again, so a key that is left says nothing wrong: it
// ends by its TTL. After a hand-over the id is the previous hold's; a lookup then finds the owner that
// was written last.
type links struct {
	rdb   redis.UniversalClient
	wake  chan struct{}
	after time.Duration // holds that end sooner are not written

	mu      sync.Mutex // guards the rest
	fresh   []*note    // holds that are not written yet, by age
	kept    map[*note]struct{}
	asked   []*question
	renewed time.Time     // when all of kept were last written
	done    chan struct{} // closed when the goroutine has ended; nil: it does not run
	over    bool          // after shutdown
}

const (
	// writeAfter: most holds are over by then, and cost no command.
	writeAfter = 10 * time.Millisecond
	// keepFor is the TTL of a key. Who has waited for a hold looks for its trace soon after its end.
	keepFor = time.Minute
	// refreshAfter leaves time for two attempts.
	refreshAfter = 20 * time.Second
	// mostNotes bounds what is kept here of holds, and of acquires whose spans are to end. Of more than
	// that there are no links.
	mostNotes = 10_000
	// pipelined is how many commands go in one pipeline.
	pipelined = 500
	// commandTimeout bounds one pipeline.
	commandTimeout = 3 * time.Second
)

// note is a hold whose trace others may want.
type note struct {
	key, value string
	begun      time.Time
	over       bool // guarded by links.mu
}

// question is an acquire that has waited for a hold.
type question struct {
	key  string
	own  trace.SpanContext // of the hold that it has got
	span trace.Span
	end  time.Time
}

func newLinks(rdb redis.UniversalClient) *links {
	return &links{rdb: rdb, after: writeAfter, wake: make(chan struct{}, 1), kept: map[*note]struct{}{}}
}

// keyOf is the key of a hold's trace: in the slot of the lock, and of a form that no lock's name has.
func keyOf(lock, holdID string) string {
	if strings.Contains(lock, "{") {
		return lock + ":rlock:trace:" + holdID
	}
	return "{" + lock + "}:rlock:trace:" + holdID
}

// holds notes a hold, if its trace is sampled.
func (l *links) holds(e rlock.Event, of trace.SpanContext) *note {
	if !of.IsSampled() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), of), carrier)
	n := &note{key: keyOf(e.Lock, e.HoldID), value: carrier["traceparent"], begun: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.value == "" || l.over || len(l.fresh)+len(l.kept) >= mostNotes {
		return nil
	}
	l.fresh = append(l.fresh, n)
	l.runLocked(len(l.fresh) == 1)
	return n
}

// ends forgets a hold.
func (l *links) ends(n *note) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.over = true
	delete(l.kept, n)
}

// endLinked ends the span of an acquire that has waited, as of now, with a link to the hold that kept
// it out, as soon as that is known.
func (l *links) endLinked(span trace.Span, e rlock.AcquireEvent, own trace.SpanContext) {
	q := &question{key: keyOf(e.Lock, e.HolderID), own: own, span: span, end: time.Now()}
	l.mu.Lock()
	late := l.over || len(l.asked) >= mostNotes
	if !late {
		l.asked = append(l.asked, q)
		l.runLocked(true)
	}
	l.mu.Unlock()
	if late {
		q.finish("")
	}
}

// finish ends the span; found is the trace in Redis, if there is one.
func (q *question) finish(found string) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": found})
	if of := trace.SpanContextFromContext(ctx); of.IsValid() && (of.TraceID() != q.own.TraceID() || of.SpanID() != q.own.SpanID()) {
		q.span.AddLink(trace.Link{SpanContext: of, Attributes: toHolder})
	}
	q.span.End(trace.WithTimestamp(q.end))
}

// runLocked has the goroutine run, and wakes it if there is news that it may not wait for.
func (l *links) runLocked(news bool) {
	if l.done == nil {
		l.done = make(chan struct{})
		go l.run(l.done)
		return
	}
	if news {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

func (l *links) run(done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		asked, write, next, over := l.take(time.Now())
		if over {
			return
		}
		// Those first: a hold that was handed over has the key of the one that they ask for.
		l.answer(asked)
		l.write(write)
		if len(asked)+len(write) > 0 {
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-l.wake:
		}
	}
}

// take returns what is to be done now, or how long there is nothing to do; or over, if there will be
// nothing to do until somebody starts the goroutine again.
func (l *links) take(now time.Time) (asked []*question, write []*note, next time.Duration, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, l.asked = l.asked, nil
	if l.over {
		l.fresh = nil
		clear(l.kept)
	}
	due := 0
	for ; due < len(l.fresh) && (l.fresh[due].over || now.Sub(l.fresh[due].begun) >= l.after); due++ {
		if n := l.fresh[due]; !n.over {
			write = append(write, n)
		}
	}
	l.fresh = l.fresh[due:]
	if len(l.kept) == 0 {
		l.renewed = now
	}
	if now.Sub(l.renewed) >= refreshAfter {
		l.renewed = now
		for n := range l.kept {
			write = append(write, n)
		}
	}
	for _, n := range write {
		l.kept[n] = struct{}{}
	}
	switch {
	case len(asked)+len(write) > 0:
	case len(l.fresh) > 0:
		next = l.after - now.Sub(l.fresh[0].begun)
	case len(l.kept) > 0:
		next = refreshAfter - now.Sub(l.renewed)
	default:
		l.done, over = nil, true
	}
	return asked, write, next, over
}

// unsampled is a parent of commands in the background: they belong to no trace.
var unsampled = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})

// send sends commands. What fails is not repeated: a link is missing then.
func (l *links) send(fill func(p redis.Pipeliner)) {
	ctx, cancel := context.WithTimeout(trace.ContextWithSpanContext(context.Background(), unsampled), commandTimeout)
	defer cancel()
	defer func() { _ = recover() }() // a hook of the user's: nobody would catch it here
	p := l.rdb.Pipeline()
	fill(p)
	_, _ = p.Exec(ctx)
}

func (l *links) write(all []*note) {
	for len(all) > 0 {
		some := all[:min(len(all), pipelined)]
		all = all[len(some):]
		l.send(func(p redis.Pipeliner) {
			for _, n := range some {
				p.Set(context.Background(), n.key, n.value, keepFor)
			}
		})
	}
}

func (l *links) answer(all []*question) {
	for len(all) > 0 {
		some := all[:min(len(all), pipelined)]
		all = all[len(some):]
		cmds := make([]*redis.StringCmd, len(some))
		l.send(func(p redis.Pipeliner) {
			for i, q := range some {
				cmds[i] = p.Get(context.Background(), q.key)
			}
		})
		for i, q := range some {
			var found string
			if cmd := cmds[i]; cmd != nil && cmd.Err() == nil {
				found = cmd.Val()
			}
			q.finish(found)
		}
	}
}

// shutdown waits until all spans have ended.
func (l *links) shutdown(ctx context.Context) error {
	l.mu.Lock()
	l.over = true
	done := l.done
	if done != nil {
		l.runLocked(true)
	}
	l.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
