package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupts handles the signals that this process gets: they end a wait, or are passed on to the command that runs.
type interrupts struct {
	mu     sync.Mutex
	to     *child // nil if no command runs
	cancel context.CancelCauseFunc
	first  os.Signal // first signal that asked the command, or this process, to end
}

// listen returns a context that the first signal ends while no command runs. Signals that were ignored when the
// program began, as by nohup, stay ignored.
func listen() (context.Context, *interrupts) {
	ctx, cancel := context.WithCancelCause(context.Background())
	i := &interrupts{cancel: cancel}
	ch := make(chan os.Signal, 16)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(ch, sig)
		}
	}
	go func() { // as long as the process
		for sig := range ch {
			i.got(sig)
		}
	}()
	return ctx, i
}

func (i *interrupts) got(sig os.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.first == nil && ends(sig) {
		i.first = sig
	}
	switch {
	case i.to != nil:
		i.to.signal(sig)
	case ends(sig):
		i.cancel(interrupted{sig})
	}
}

// attach passes signals on to a command, including a signal that came a moment before.
func (i *interrupts) attach(c *child) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.to = c
	if i.first != nil {
		c.signal(i.first)
	}
}

// detach is called when a command has ended.
func (i *interrupts) detach() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.to = nil
}

// requested reports whether this process was requested to end.
func (i *interrupts) requested() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.first != nil
}

func ends(sig os.Signal) bool {
	return sig == os.Interrupt || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

func signalCode(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitSignal
}
