//go:build unix

package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/seam"
)

// Redis takes the lock, and then does not answer: a handle is printed only if it is one.
func TestAcquireWhoseDetachIsNotAnswered(t *testing.T) {
	t.Parallel()
	_, offer := seam.Script("adoption/offer")
	for what, c := range map[string]struct {
		lost int64 // requests
		code int
	}{"never again": {1000, exitUnavailable}, "for a while": {3, 0}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tl, srv := newTool(t)
			tl.want(0, "release", strings.TrimSpace(tl.want(0, "acquire", "warm-up").out)) // the server knows the scripts
			proxy := faultproxy.New(t, srv.Addr())
			var seen atomic.Int64
			proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
				if cmd.IsScript(offer) && seen.Add(1) <= c.lost {
					return faultproxy.Hold
				}
				return faultproxy.Pass
			})
			r := tl.with("REDIS_URL=redis://"+proxy.Addr()).run("acquire", "a")
			if r.code != c.code || (r.code == 0) != (r.out != "") {
				t.Errorf("%v, want exit %d", r, c.code)
			}
			if handle := strings.TrimSpace(r.out); handle != "" {
				tl.want(0, "renew", handle)
				tl.want(0, "release", handle)
			}
		})
	}
}

// A release does not arrive: the hold is as before, for whoever looks at it too, and the release can be repeated.
func TestReleaseThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	_, frees := seam.Script("lock/abandon")
	tl, srv := newTool(t)
	tl.want(0, "release", strings.TrimSpace(tl.want(0, "acquire", "warm-up").out)) // the server knows the scripts
	handle := strings.TrimSpace(tl.want(0, "acquire", "a", "--holder", "ann", "--reason", "release 4.2").out)
	proxy := faultproxy.New(t, srv.Addr())
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.IsScript(frees) {
			return faultproxy.ResetBefore
		}
		return faultproxy.Pass
	})
	if r := tl.with("REDIS_URL=redis://"+proxy.Addr()).run("release", handle); r.code != exitUnavailable {
		t.Fatal(r)
	}
	var renewed grant
	if err := json.Unmarshal([]byte(tl.want(0, "renew", "--json", handle).out), &renewed); err != nil {
		t.Fatal(err)
	}
	has(t, tl.want(0, "inspect", "a").out, "ann", "release 4.2")
	if s, err := tl.client.NewLock("a").State(context.Background()); err != nil || len(s.Holders) != 1 || s.Holders[0].HoldID != renewed.HoldID {
		t.Errorf("%+v, %v; renew has printed %s", s, err, renewed.HoldID)
	}
	tl.want(0, "release", handle)
	tl.want(0, "-n", "a", "true")
}
