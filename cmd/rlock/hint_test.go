//go:build unix

package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
)

// A word that was meant for a command is taken for the name of a lock, as each word is.
func TestHintAtACommand(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	for args, want := range map[string]string{
		"list": "ls", "ps": "ls", "status x": "inspect", "insepct x": "inspect", "aquire x": "acquire", "relase x": "release", "unlok x": "unlock", "-n status x": "inspect", "cheek": "check",
	} {
		r := tl.run(strings.Fields(args)...)
		has(t, r.err, "did you mean rlock "+want+"?")
		if r.code != exitUsage && r.code != exitNotFound || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: %v", args, r)
		}
	}
	for _, args := range []string{"a", "invoices", "deploy x", "list /etc/passwd"} {
		if r := tl.run(strings.Fields(args)...); r.code == 0 || strings.Contains(r.err, "did you mean") {
			t.Errorf("%s: %v", args, r)
		}
	}
	tl.want(0, "list", "true") // a lock may have the name
}

// Other data at the name is not a free lock.
func TestOtherDataIsNoFreeLock(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	rdb := srv.Client()
	for name, err := range map[string]error{
		"string": rdb.Set(t.Context(), "string", "v", 0).Err(), "list": rdb.RPush(t.Context(), "list", "v").Err(),
		"set": rdb.SAdd(t.Context(), "set", "v").Err(), "hash": rdb.HSet(t.Context(), "hash", "product:12", 3).Err(), "zset": rdb.ZAdd(t.Context(), "zset", redis.Z{Member: "v"}).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
		before := rdb.Dump(t.Context(), name).Val()
		for _, args := range [][]string{{"inspect", name}, {"inspect", name, "--json"}, {"wait", name}, {"wait", "-n", name}, {"watch", name}, {"unlock", name, "--force"}, {"-n", name, "true"}} {
			has(t, tl.want(exitForeign, args...).err, "in use for something else")
		}
		if rdb.Dump(t.Context(), name).Val() != before {
			t.Errorf("%s was changed", name)
		}
	}
	tl.want(0, "inspect", "free")
}

func TestListWhereAQuorumAnswers(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartMasters(t, 3)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "redis://"+n.Addr())
	}
	tl := toolAt(t, strings.Join(urls, " "))
	free := tl.hold("--lease", "300", "a")
	nodes[1].Kill()
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"top", "--once"}} {
		if r := tl.want(0, args...); strings.Count(r.out, "RedLock") != 1 {
			t.Errorf("%v: %v", args, r)
		}
	}
	has(t, tl.want(0, "ls").err, "no answer from "+nodes[1].Addr())
	free()
	nodes[2].Kill()
	tl.want(exitUnavailable, "ls")
}

func TestCompletionOfNames(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	for _, name := range []string{"deploy:shop", "deploy:größe", "deploy;reboot", "deploy$(reboot)", "deploy it", "-deploy", "deploy\nx", "other"} {
		if _, err := tl.client.NewLock(name).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"inspect", "dep"}, {"unlock", "dep"}, {"wait", "dep"}, {"watch", "dep"}, {"run", "dep"}, {"sem", "dep"}, {"dep"}, {"-n", "dep"}} {
		out := tl.want(0, append([]string{"__complete"}, args...)...).out
		if has(t, out, "deploy:shop\n", "deploy:größe\n"); strings.ContainsAny(out, ";$ ") || strings.Contains(out, "-deploy") || strings.Contains(out, "other") {
			t.Errorf("%v: %q", args, out)
		}
	}
	for _, args := range [][]string{{"inspect", "deploy:shop", ""}, {"inspect", "*"}, {"release", ""}} {
		if out := tl.want(0, append([]string{"__complete"}, args...)...).out; strings.Contains(out, "deploy") {
			t.Errorf("%v: %q", args, out)
		}
	}
	tl.want(0, "--redis", "redis://127.0.0.1:1", "__complete", "inspect", "")
}

// On a terminal of 30 columns nothing is folded.
func TestNarrowTerminal(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	free := tl.hold("--label", "a-billing-with-a-long-name", "invoices-of-the-whole-year")
	narrow := func(args ...string) *screen {
		return onTerminalOf(t, tl.with("TERM=xterm").command("rlock", args...), 30)
	}
	var all []string
	for _, args := range [][]string{{"ls"}, {"inspect", "invoices-of-the-whole-year"}, {"top", "--once"}} {
		s := narrow(args...)
		s.shows("a-bill")
		s.ends()
		all = append(all, s.read())
	}
	top := narrow("top", "--interval", "0.1")
	top.shows("a-bill")
	top.types("q")
	top.ends()
	waiting := narrow("invoices-of-the-whole-year", "--", "true")
	waiting.shows("waiting for a-bill")
	free()
	waiting.ends()
	for _, text := range append(all, top.read(), waiting.read()) {
		for line := range strings.FieldsFuncSeq(controls.ReplaceAllString(text, "\n"), func(r rune) bool { return r == '\n' || r == '\r' }) {
			if columnsOf(line) > 30 && !strings.HasPrefix(line, "name ") {
				t.Errorf("%d columns: %q", columnsOf(line), line)
			}
		}
	}
}

// A terminal that cannot be painted gets lines.
func TestDumbTerminal(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	dumb := tl.with("TERM=dumb")
	free := tl.hold("--lease", "120", "a")
	waiting := onTerminal(t, dumb.command("rlock", "a", "--", "echo", "ran"))
	watchWaiters(t, tl, "a", 1)
	srv.Pause()
	waiting.shows("rlock: no answer from Redis")
	srv.Resume()
	waiting.shows("rlock: Redis answers again")
	free()
	waiting.shows("ran")
	top := onTerminal(t, dumb.command("rlock", "top"))
	top.shows("--once")
	for _, s := range []*screen{waiting, top} {
		if s.ends(); strings.Contains(s.read(), "\x1b") {
			t.Errorf("%q", s.read())
		}
	}
}

func (s *screen) ends() {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatal("it does not end")
	}
}

var controls = regexp.MustCompile(`\x1b\[[?0-9]*[a-zA-Z]`)
