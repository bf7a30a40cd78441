package main

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

// host stands in for the test that servers, proxies and processes are started for.
type host struct {
	testing.TB // the methods that nobody calls

	mu    sync.Mutex // guards later
	later []func()
}

// invalid is what host panics with: the try does not count.
type invalid struct{ error }

func (h *host) Helper()                           {}
func (h *host) Failed() bool                      { return false }
func (h *host) Name() string                      { return "faults" }
func (h *host) Log(...any)                        {}
func (h *host) Logf(string, ...any)               {}
func (h *host) Error(args ...any)                 { h.Fatal(args...) }
func (h *host) Errorf(format string, args ...any) { h.Fatalf(format, args...) }
func (h *host) Fatal(args ...any)                 { panic(invalid{errors.New(fmt.Sprint(args...))}) }
func (h *host) Fatalf(format string, args ...any) { panic(invalid{fmt.Errorf(format, args...)}) }
func (h *host) Skip(args ...any)                  { h.Fatal(args...) }

// Cleanup has f called at the end, the latest first.
func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.later = append(h.later, f)
}

func (h *host) cleanUp() {
	for {
		h.mu.Lock()
		n := len(h.later)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		f := h.later[n-1]
		h.later = h.later[:n-1]
		h.mu.Unlock()
		f()
	}
}

func (h *host) must(err error) {
	if err != nil {
		h.Fatal(err)
	}
}
