//go:build unix

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Whoever waits for a Redis that is not there is told so, and by which address and cause.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	silent := redistest.Start(t)
	silent.Pause()
	t.Cleanup(silent.Resume)
	for name, c := range map[string]struct {
		url  string
		says []string
	}{
		"refused":            {"redis://me:s3cret@127.0.0.1:1", []string{"127.0.0.1:1", "connection refused"}},
		"unknown host":       {"redis://there-is-no-such-host.invalid:6379", []string{"there-is-no-such-host.invalid:6379"}},
		"TLS, a plain port":  {"rediss://" + srv.Addr(), []string{srv.Addr(), "without TLS"}},
		"it says nothing":    {"redis://" + silent.Addr(), []string{silent.Addr()}},
		"a socket":           {"unix:///there/is/no/such.sock", []string{"/there/is/no/such.sock", "no such file"}},
		"Sentinel":           {"redis-sentinel://127.0.0.1:1,127.0.0.1:2?master=m", []string{"127.0.0.1:1", "connection refused"}},
		"a cluster":          {"redis-cluster://127.0.0.1:1,127.0.0.1:2", []string{"127.0.0.1:1", "connection refused"}},
		"most of a RedLock":  {"redis://" + srv.Addr() + " redis://127.0.0.1:1 redis://127.0.0.1:2", []string{"127.0.0.1:1", "connection refused"}},
		"a RedLock, refused": {"redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3", []string{"127.0.0.1:1", "connection refused"}},
	} {
		for _, args := range []string{"a -- true", "-w 600 a true", "acquire a", "sem a --permits 2 -- true", "elect a -- true", "once a --per 1h -- true", "wait a"} {
			if strings.Contains(name, "RedLock") && !strings.HasSuffix(args, "true") || strings.Contains(c.url, " ") && strings.ContainsAny(args[:1], "seo") {
				continue
			}
			t.Run(name+", "+args, func(t *testing.T) {
				t.Parallel()
				r := toolAt(t, c.url).want(exitUnavailable, append([]string{"--connect-timeout", "4"}, strings.Fields(args)...)...)
				has(t, r.err, "no lock from Redis: ")
				has(t, r.err, c.says...)
				if strings.Count(r.err, "\n") != 1 || strings.Contains(r.err, "s3cret") {
					t.Errorf("it says %q", r.err)
				}
			})
		}
		if name == "refused" || name == "a socket" {
			t.Run(name+", a short wait", func(t *testing.T) { // shorter than a command may take
				t.Parallel()
				has(t, toolAt(t, c.url).want(exitUnavailable, "-w", "0.7", "a", "true").err, c.says...)
			})
		}
	}
	// Whether others hold the lock is not known if the wait is over before the first answer.
	toolAt(t, "redis://"+silent.Addr()).want(exitUnavailable, "-w", "0.01", "a", "true")
	toolAt(t, "").want(exitUsage, "--connect-timeout", "-1", "a", "true")
}

func TestFirstAnswerMayComeLate(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	srv.Kill()
	s := tl.start("--connect-timeout", "120", "a", "--", "echo", "ran")
	endless := tl.begin(tl.command("/bin/sh", "-c", "exec rlock --connect-timeout 0 b -- echo ran 2>said"))
	tl.eventually("it says that it waits", func() bool {
		said, _ := os.ReadFile(tl.path("said"))
		return strings.Contains(string(said), "no answer from Redis, from "+srv.Addr())
	})
	srv.Restart()
	for _, s := range []*started{s, endless} {
		if r := tl.finish(s); r.code != 0 || r.out != "ran\n" {
			t.Error(r)
		}
	}
}

// An outage after the first answer is waited out. It has one line when it begins, and one when it ends.
func TestOutageIsSaid(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	free := tl.hold("--lease", "120", "a")
	waiting := tl.command("/bin/sh", "-c", "exec rlock a -- true 2>said")
	s := tl.begin(waiting)
	watchWaiters(t, tl, "a", 1)
	says := func(text string) {
		t.Helper()
		tl.eventually(text, func() bool {
			said, _ := os.ReadFile(tl.path("said"))
			return strings.Contains(string(said), text)
		})
	}
	srv.Pause()
	says("no answer from Redis, from " + srv.Addr())
	srv.Resume()
	says("Redis answers again, after ")
	free()
	if r := tl.finish(s); r.code != 0 {
		t.Error(r)
	}
	if said := read(t, tl.path("said")); strings.Count(said, "\n") != 2 {
		t.Errorf("%q", said)
	}
}
