// Package modeltest has rapid draw operations on a type that waits, and on a model of it.
package modeltest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Run is one sequence of operations.
type Run struct {
	Actions map[string]func(*rapid.T) // as Repeat of package rapid takes them
	End     func(*rapid.T)            // called in any case
}

var runs atomic.Int64

// isFull reports whether models are played at their full length: in .ci/run and make nightly. The seed is
// the same every day, so each shorter run is the beginning of a full one.
func isFull() bool { return locktest.IsThorough() && !testing.Short() }

// Time is for how long a model is played if each of its runs takes long: as many runs as fit, and one at least.
func Time() time.Duration {
	if isFull() {
		return 2 * time.Second
	}
	return time.Second / 2
}

// Check plays a model a number of times in .ci/run, and a quarter of them every day. rapid's own number, 100, is made
// for what takes microseconds. -rapid.checks=N plays N.
func Check(t *testing.T, most int, play func(*rapid.T)) {
	t.Helper()
	if !isFull() {
		most = (most + 3) / 4
	}
	played, broken := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if played >= most && !broken && !locktest.Given("rapid.checks") { // rapid repeats what is broken, to shorten it
			return
		}
		played++
		ended := false
		defer func() { broken = broken || !ended || rt.Failed() }()
		play(rt)
		ended = true
	})
	t.Logf("%d runs", played)
}

// Follow plays as many runs as fit into Time. Each has a name of its own, and acts for two clients, of which the
// second loses replies.
func Follow(t *testing.T, b *locktest.Backend, begin func(name string, clients []*rlock.Client) Run, opts ...rlock.Option) {
	t.Helper()
	proxy := faultproxy.New(t, b.Addr)
	locktest.Lossy(proxy)
	clients := []*rlock.Client{b.NewClient(t, opts...), locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), opts...)}
	end, played := time.Now().Add(Time()), 0
	rapid.Check(t, func(rt *rapid.T) {
		if played > 0 && time.Now().After(end) {
			return
		}
		played++
		r := begin(fmt.Sprint("m", runs.Add(1)), clients)
		defer r.End(rt)
		rt.Repeat(r.Actions)
	})
	t.Logf("%d runs", played)
}
