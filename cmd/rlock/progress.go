package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock"
)

// progress shows on a terminal what a command waits for. It is an Observer, to distinguish an outage from a lock that
// others hold.
type progress struct {
	w              *os.File // nil without a terminal
	reportsOutages bool     // write lines about outages; not needed on a terminal

	mu     sync.Mutex
	outage error // the last request had no answer
}

func (a *app) newProgress() *progress {
	p := &progress{reportsOutages: true}
	if f, ok := a.stderr.(*os.File); ok && paints(f) && !a.quiet && !a.json {
		p.w, p.reportsOutages = f, false
	}
	return p
}

func (p *progress) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (p *progress) AcquireEnd(context.Context, rlock.AcquireEvent)                       {}
func (p *progress) Lost(context.Context, rlock.LossEvent)                                {}
func (p *progress) Unlocked(context.Context, rlock.UnlockEvent)                          {}

// Retry is called for requests without a usable reply.
func (p *progress) Retry(_ context.Context, e rlock.RetryEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outage = e.Err
}

// show writes a line each second until the returned function is called, which wipes it away.
func (p *progress) show(ctx context.Context, state func(ctx context.Context) (*holding, error)) (stop func()) {
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
				lasts := fmt.Sprintf(", %.0f s", time.Since(started).Seconds())
				line := clip(p.line(ctx, state), widthOf(p.w)-1-len(lasts)) + lasts // a folded line would not be wiped
				if ctx.Err() == nil {
					fmt.Fprint(p.w, "\r\x1b[K"+line)
					shown = true
				}
			}
		}
	}()
	return func() { // may be called more than once
		cancel()
		<-done
	}
}

func (p *progress) line(ctx context.Context, state func(ctx context.Context) (*holding, error)) string {
	bounded, cancel := context.WithTimeout(ctx, noteTime)
	defer cancel()
	h, err := state(bounded)
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

// waits shows what a command waits for, and reports when Redis is away.
func (d *deployment) waits(ctx context.Context, p *progress, state func(ctx context.Context) (*holding, error)) (bounded context.Context, stop func()) {
	bounded, leave := d.patient(ctx, p.reportsOutages)
	wipe := p.show(bounded, state)
	return bounded, func() { // may be called more than once
		wipe()
		leave()
	}
}

// states returns a function that requests the state of a lock, for a progress.
func (d *deployment) states(name string, lock rlock.Inspector) func(ctx context.Context) (*holding, error) {
	return func(ctx context.Context) (*holding, error) {
		s, err := lock.State(ctx)
		if err != nil {
			return nil, err
		}
		return d.holding(ctx, name, "", s), nil
	}
}
