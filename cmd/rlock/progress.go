package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/go-rlock/rlock"
)

// progress says on a terminal, and only there, what is waited for. It is an Observer, to tell an outage from a lock
// that others hold.
type progress struct {
	w io.Writer // nil: no terminal

	mu     sync.Mutex
	outage error // the last request had no answer
}

func (a *app) newProgress() *progress {
	p := &progress{}
	if f, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) && !a.quiet && !a.json {
		p.w = f
	}
	return p
}

func (p *progress) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (p *progress) AcquireEnd(context.Context, rlock.AcquireEvent)                       {}
func (p *progress) Lost(context.Context, rlock.LossEvent)                                {}
func (p *progress) Unlocked(context.Context, rlock.UnlockEvent)                          {}

// Retry is told of requests that had no usable answer.
func (p *progress) Retry(_ context.Context, e rlock.RetryEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outage = e.Err
}

// show writes a line each second until the returned function is called, which wipes it away.
func (p *progress) show(ctx context.Context, look func(ctx context.Context) (*holding, error)) (stop func()) {
	if p.w == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	started := time.Now()
	go func() { // until stop
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		shown := false
		for {
			select {
			case <-ctx.Done():
				if shown {
					fmt.Fprint(p.w, "\r\x1b[K")
				}
				return
			case <-tick.C:
				line := fmt.Sprintf("%s, %.0f s", clip(p.line(ctx, look), 68), time.Since(started).Seconds())
				if ctx.Err() == nil {
					fmt.Fprint(p.w, "\r\x1b[K"+line)
					shown = true
				}
			}
		}
	}()
	return func() { // more than once is fine
		cancel()
		<-done
	}
}

func (p *progress) line(ctx context.Context, look func(ctx context.Context) (*holding, error)) string {
	bounded, cancel := context.WithTimeout(ctx, noteTime)
	defer cancel()
	h, err := look(bounded)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.outage != nil {
			err = p.outage
		}
		return "waiting for Redis: " + plain(err)
	}
	if len(h.Holders) == 0 {
		return "waiting for " + h.Name
	}
	var names []string
	for _, by := range h.Holders[:min(2, len(h.Holders))] {
		names = append(names, by.who())
	}
	return "waiting for " + strings.Join(names, ", ")
}

// states is how a lock looks, for a progress.
func (d *deployment) states(name string, lock rlock.Inspector) func(ctx context.Context) (*holding, error) {
	return func(ctx context.Context) (*holding, error) {
		s, err := lock.State(ctx)
		if err != nil {
			return nil, err
		}
		return d.holding(ctx, name, "", s), nil
	}
}
