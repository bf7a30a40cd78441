package locktest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/go-rlock/rlock"
)

// LogLines keeps what a client logs.
type LogLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *LogLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *LogLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger writes to it.
func (l *LogLines) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// With counts the lines that contain all of some texts.
func (l *LogLines) With(texts ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		n++
	}
	return n
}

// spanKey marks the context of an AcquireStart.
type spanKey struct{}

// Recorder keeps the events of an Observer.
type Recorder struct {
	Ignoring
	Mu          sync.Mutex // guards the rest
	Starts      int
	Acquires    []rlock.AcquireEvent
	Contentions int
	Unlocks     []rlock.UnlockEvent
	Losses      []rlock.LossEvent
}

func (r *Recorder) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Starts++
	return context.WithValue(ctx, spanKey{}, r.Starts)
}

func (r *Recorder) AcquireEnd(ctx context.Context, e rlock.AcquireEvent) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if ctx.Value(spanKey{}) != r.Starts {
		e.Err = errors.New("AcquireEnd without the context of AcquireStart")
	}
	r.Acquires = append(r.Acquires, e)
}

func (r *Recorder) Contended(context.Context, rlock.ContentionEvent) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Contentions++
}

func (r *Recorder) Unlocked(_ context.Context, e rlock.UnlockEvent) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Unlocks = append(r.Unlocks, e)
}

func (r *Recorder) Lost(_ context.Context, e rlock.LossEvent) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Losses = append(r.Losses, e)
}

// Ignoring is an Observer that ignores the required events, to be embedded by one that wants only
// some of it.
type Ignoring struct{}

func (Ignoring) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (Ignoring) AcquireEnd(context.Context, rlock.AcquireEvent)                       {}
func (Ignoring) Lost(context.Context, rlock.LossEvent)                                {}
func (Ignoring) Unlocked(context.Context, rlock.UnlockEvent)                          {}

// NoObserver is an Observer that ignores all events.
type NoObserver struct{}

// AcquireStart implements rlock.Observer, as the others do.
func (NoObserver) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (NoObserver) AcquireEnd(context.Context, rlock.AcquireEvent)                       {}
func (NoObserver) Lost(context.Context, rlock.LossEvent)                                {}
func (NoObserver) Unlocked(context.Context, rlock.UnlockEvent)                          {}
