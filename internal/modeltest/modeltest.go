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

// Follow plays as many runs as fit into two seconds: rapid's own number is made for what
// takes microseconds. Each has a name of its own, and acts for two clients, of which the
// second loses replies.
func Follow(t *testing.T, b *locktest.Backend, begin func(name string, clients []*rlock.Client) Run, opts ...rlock.Option) {
	t.Helper()
	proxy := faultproxy.New(t, b.Addr)
	locktest.Lossy(proxy)
	clients := []*rlock.Client{b.NewClient(t, opts...), locktest.NewClient(t, locktest.Dialer(proxy.Addr())(t, nil), opts...)}
	end, played := time.Now().Add(2*time.Second), 0
	if testing.Short() {
		end = time.Now().Add(time.Second / 2)
	}
	rapid.Check(t, func(rt *rapid.T) {
		if time.Now().After(end) {
			return
		}
		played++
		r := begin(fmt.Sprint("m", runs.Add(1)), clients)
		defer r.End(rt)
		rt.Repeat(r.Actions)
	})
	t.Logf("%d runs", played)
}
