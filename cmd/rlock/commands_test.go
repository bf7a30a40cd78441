//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/go-rlock/rlock/internal/redistest"
)

// A hold over several commands, and handles that are of no use any more.
func TestHandles(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	r := tl.sh(`
		h=$(rlock acquire deploy --reason 'release 4.2' --holder ann) || exit
		rlock -n deploy true
		[ $? = 1 ] || exit 20
		[ -z "$(rlock renew "$h" --lease 30m || echo failed)" ] || exit 21
		echo "$h" | rlock renew - --lease 5m || exit 22 # it never shortens a hold
		rlock inspect deploy --json
		echo "$h" | rlock release - || exit
		rlock release "$h"; [ $? = 75 ] || exit 23
		rlock renew "$h"; [ $? = 75 ] || exit 26
		rlock acquire deploy -n > next || exit
		rlock release "$h"; [ $? = 75 ] || exit 24
		rlock renew "$h"; [ $? = 75 ] || exit 27
		rlock acquire deploy -n -E 5; [ $? = 5 ] || exit 25
		rlock release "$(cat next)"`)
	if r.code != 0 {
		t.Fatal(r)
	}
	has(t, r.err, `deploy is held by ann@`, ` for "release 4.2"`, "nothing was changed")
	var h holding
	if err := json.Unmarshal([]byte(r.out), &h); err != nil {
		t.Fatal(err, r.out)
	}
	if len(h.Holders) != 1 || h.Holders[0].Label != "ann" || h.Holders[0].Reason != "release 4.2" || h.Token == 0 || h.LeftMS > 1_800_000 || h.LeftMS < 1_500_000 {
		t.Errorf("%+v", h)
	}
	for _, key := range srv.Client().Keys(t.Context(), "*").Val() {
		if strings.HasPrefix(key, noteKey) {
			t.Errorf("%s is left", key)
		}
	}
	tl.want(exitUsage, "release", "nonsense")
	tl.want(exitUsage, "renew", "")
	tl.want(exitUsage, "acquire")
	tl.want(exitUsage, "acquire", "a", "b")
	tl.want(exitUnavailable, "--redis", "redis://127.0.0.1:1", "acquire", "-n", "a")
	tl.want(exitUsage, "--redis", "redis://127.0.0.1:1", "release", "nonsense")
}

// The lease of a hold without a process ends by itself. Then its handle is of no use, whoever has the lock.
func TestHandleOfAHoldThatHasEnded(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	old := strings.TrimSpace(tl.want(0, "acquire", "a", "--lease", "1").out)
	tl.want(0, "wait", "a")
	next := strings.TrimSpace(tl.want(0, "acquire", "a").out)
	for _, command := range []string{"renew", "release"} {
		has(t, tl.want(exitLost, command, old).err, "nothing was changed")
	}
	tl.want(exitBusy, "-n", "a", "true")
	tl.want(0, "release", next)
}

func TestWait(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	tl.want(0, "wait", "a")
	free := tl.hold("--label", "billing", "a")
	has(t, tl.want(exitBusy, "wait", "-n", "a").err, "a is held by billing@")
	tl.want(7, "wait", "-q", "-w", "0.2", "-E", "7", "a")
	waiting := tl.start("wait", "a")
	interrupted := tl.start("wait", "a")
	watchWaiters(t, tl, "a", 2)
	_ = interrupted.Process.Signal(unix.SIGTERM)
	if r := tl.finish(interrupted); r.code != 128+15 {
		t.Error(r)
	}
	free()
	if r := tl.finish(waiting); r.code != 0 || r.err != "" {
		t.Error(r)
	}
	tl.want(exitUnavailable, "--redis", "redis://127.0.0.1:1", "wait", "-n", "a")
}

func TestSem(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		t.Run(fmt.Sprint("fair ", fair), func(t *testing.T) {
			t.Parallel()
			tl, _ := newTool(t)
			args := []string{"sem", "pool", "--permits", "2"}
			if fair {
				args = append(args, "--fair")
			}
			// At most two at a time, of eight.
			var all []*started
			for range 8 {
				all = append(all, tl.start(append(args, "--", "sh", "-c", `
					mkdir one 2>/dev/null && mine=one || { mkdir two 2>/dev/null && mine=two; } || { echo > third; exit 1; }
					sleep 0.05; rmdir $mine`)...))
			}
			for _, s := range all {
				if r := tl.finish(s); r.code != 0 {
					t.Error(r)
				}
			}
			if exists(tl.path("third")) {
				t.Error("three ran at a time")
			}
			for i := range 2 {
				busy := tl.start(append(args, "--label", "importer", "--", "sh", "-c", fmt.Sprintf("echo > run%d; while [ ! -e free ]; do sleep 0.02; done", i))...)
				defer tl.finish(busy)
				defer write(t, tl.path("free"), "")
				tl.eventually("it runs", func() bool { return exists(tl.path(fmt.Sprint("run", i))) })
			}
			has(t, tl.want(exitBusy, append(args, "-n", "--", "true")...).err, "pool has no free permit: held by importer@")
			has(t, tl.want(0, "inspect", "pool").out, "0 of 2 permits are free", "importer@")
			has(t, tl.want(0, "ls").out, "pool", "Permits")
			tl.want(exitUsage, "unlock", "pool", "--force")
			tl.want(0, append(args, "--permits", "3", "--set")...)
			has(t, tl.want(0, "inspect", "pool").out, "1 of 3 permits are free")
			write(t, tl.path("free"), "")
		})
	}
	tl := toolAt(t, "")
	for _, wrong := range []string{"sem", "sem pool -- true", "sem pool --permits 0 -- true", "sem pool --permits 2", "sem pool --permits 2 true", "sem --permits 2 -- true"} {
		tl.want(exitUsage, strings.Fields(wrong)...)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	// A period that does not end during the test.
	for i := range 3 {
		if r := tl.want(0, "once", "report", "--per", "8760h", "--", "sh", "-c", "echo $RLOCK_NAME; echo ran >> ran"); r.err != "" || (r.out == "report\n") != (i == 0) {
			t.Errorf("%d: %v", i, r)
		}
	}
	if ran := read(t, tl.path("ran")); ran != "ran\n" {
		t.Errorf("it ran: %q", ran)
	}
	has(t, tl.want(0, "once", "report", "--per", "8760h", "--verbose", "--", "true").err, "run by sh@")
	has(t, tl.want(0, "inspect", "report").out, "last tick", "run by    sh@", "took")
	tl.want(5, "once", "yearly", "--cron", "0 0 1 1 *", "-c", "exit 5")
	has(t, tl.want(0, "inspect", "yearly").out, "exit status 5")
	tl.want(0, "once", "--per", "8760h", "--", "sh", "-c", "echo > nameless")
	if !exists(tl.path("nameless")) {
		t.Error("without a name it did not run")
	}
	for _, wrong := range []string{"once x -- true", "once x --per 0 -- true", "once x --per 1m", "once x --per 1m --cron @daily -- true", "once x --cron nonsense -- true", "once x --cron @every\t1m -- true", "once x --per 1m true", "once x y --per 1m -- true"} {
		args := strings.Split(wrong, " ")
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\t", " ")
		}
		tl.want(exitUsage, args...)
	}
	tl.want(exitUnavailable, "--redis", "redis://127.0.0.1:1", "once", "x", "--per", "1m", "--", "true")
}

// One of three leads. When it dies the next one does, and the one that lost the leadership comes again.
func TestElect(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	rdb := srv.Client()
	begin := func(n int) *started {
		return tl.start("elect", "scheduler", "--lease", "9", "--grace", "0.1", "--", "sh", "-c", fmt.Sprintf(`echo %d >> leaders; while [ ! -e end%d ]; do sleep 0.02; done; exit %d`, n, n, n))
	}
	leaders := func() string {
		text, _ := os.ReadFile(tl.path("leaders"))
		return strings.ReplaceAll(string(text), "\n", " ")
	}
	first := begin(1)
	tl.eventually("the first leads", func() bool { return leaders() == "1 " })
	second := begin(2)
	candidates := func(n int) {
		t.Helper()
		tl.eventually("another is a candidate", func() bool {
			all, err := tl.client.NewElection("scheduler").Candidates(t.Context())
			return err == nil && len(all) == n
		})
	}
	candidates(1)
	write(t, tl.path("end1"), "")
	if r := tl.finish(first); r.code != 1 {
		t.Error(r)
	}
	tl.eventually("the second leads", func() bool { return leaders() == "1 2 " })

	// It is deposed while nobody else wants to lead, and leads again.
	tl.want(0, "unlock", "scheduler", "--force")
	tl.eventually("the second leads again", func() bool { return leaders() == "1 2 2 " })
	third := begin(3)
	candidates(1)
	_ = second.Process.Signal(unix.SIGTERM)
	if r := tl.finish(second); r.code != 128+15 {
		t.Error(r)
	} else {
		has(t, r.err, "scheduler was lost while the command ran", "waits to lead again")
	}
	tl.eventually("the third leads", func() bool { return leaders() == "1 2 2 3 " })
	waiting := begin(4)
	candidates(1)
	_ = waiting.Process.Signal(unix.SIGINT)
	if r := tl.finish(waiting); r.code != 128+2 {
		t.Error(r)
	}
	write(t, tl.path("end3"), "")
	if r := tl.finish(third); r.code != 3 {
		t.Error(r)
	}
	if n := rdb.Exists(t.Context(), "{scheduler}:rlock:election").Val(); n != 0 {
		t.Error("somebody leads still")
	}
	tl.want(exitNotFound, "elect", "x", "--", "no-such-command")
	tl.want(exitUsage, "elect", "x")
}

func TestListInspectWatchUnlock(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	if r := tl.want(0, "ls"); strings.Count(r.out, "\n") != 1 {
		t.Error(r)
	}
	long := "a-name-that-is-much-longer-than-its-column"
	handle := strings.TrimSpace(tl.want(0, "acquire", long, "--holder", strings.Repeat("h", 60), "--reason", strings.Repeat("why ", 50)).out)
	tl.want(0, "acquire", "b", "-x")
	tl.want(0, "acquire", "c", "--fair")
	tl.want(0, "acquire", "d", "-s")
	for _, show := range [][]string{{"ls"}, {"inspect", "b"}, {"inspect", long}, {"inspect", "free"}} {
		for line := range strings.Lines(tl.want(0, show...).out) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%v: %d columns: %s", show, n, line)
			}
		}
	}
	lines := strings.Split(strings.TrimSpace(tl.want(0, "ls", "--json").out), "\n")
	if len(lines) != 4 {
		t.Errorf("%q", lines)
	}
	var h holding
	if err := json.Unmarshal([]byte(lines[0]), &h); err != nil || h.Name != long {
		t.Error(err, lines[0])
	}
	if r := tl.want(0, "ls", "[bc]"); strings.Count(r.out, "\n") != 3 {
		t.Error(r)
	}

	watch := tl.command("rlock", "watch", long, "--json")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	states := bufio.NewScanner(out)
	next := func() (h holding) {
		t.Helper()
		if !states.Scan() {
			t.Fatal("watch has ended")
		}
		if err := json.Unmarshal(states.Bytes(), &h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	held := next()
	if held.Mode != "exclusive" || len(held.Holders) != 1 {
		t.Errorf("%+v", held)
	}
	tl.want(exitUsage, "unlock", long)
	tl.want(exitUsage, "unlock", long, "--force", "--hold", "x")
	has(t, tl.want(exitBusy, "unlock", long, "--hold", "another:1").err, "that hold does not have it")
	tl.want(0, "unlock", long, "--hold", held.Holders[0].HoldID)
	if free := next(); free.Mode != "free" {
		t.Errorf("%+v", free)
	}
	_ = watch.Process.Signal(unix.SIGINT)
	if _ = watch.Wait(); watch.ProcessState.ExitCode() != 128+2 {
		t.Error(watch.ProcessState)
	}
	tl.want(exitLost, "release", handle)
	has(t, tl.want(exitBusy, "unlock", long, "--force").err, "is not held")
	for _, name := range []string{"b", "c", "d"} {
		tl.want(0, "unlock", name, "--force", "--json")
	}
	if r := tl.want(0, "ls"); strings.Count(r.out, "\n") != 1 {
		t.Error(r)
	}
	for _, command := range []string{"ls", "inspect a", "watch a", "unlock a --force"} {
		tl.want(exitUnavailable, append([]string{"--redis", "redis://127.0.0.1:1"}, strings.Fields(command)...)...)
	}
	tl.want(exitUsage, "inspect", "a", "--type", "nonsense")
}

// What another type of lock is found and freed as well, without being told its type.
func TestFindsEachType(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	c := tl.client
	ctx := t.Context()
	for typ, take := range map[string]func(name string) error{
		"FairReadWriteLock": func(name string) error { _, err := c.NewFairReadWriteLock(name).Writer.Lock(ctx); return err },
		"ReadWriteLock":     func(name string) error { _, err := c.NewReadWriteLock(name).Reader.Lock(ctx); return err },
		"PriorityLock":      func(name string) error { _, err := c.NewPriorityLock(name).At(3).Lock(ctx); return err },
		"Election":          func(name string) error { _, err := c.NewElection(name).Campaign(ctx, "x"); return err },
		"DoubleBarrier":     func(name string) error { _, err := c.NewDoubleBarrier(name, 1).Enter(ctx); return err },
		"Lock":              func(name string) error { _, err := c.NewFencedLock(name).Lock(ctx); return err },
	} {
		if err := take(typ); err != nil {
			t.Fatal(err)
		}
		has(t, tl.want(0, "inspect", typ).out, "type      "+typ+"\n", "holder    tests@")
		has(t, tl.want(exitBusy, "wait", "-n", typ).err, typ+" is ")
		tl.want(0, "unlock", typ, "--force")
		tl.want(0, "wait", typ)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	has(t, tl.want(0, "check").out, "ok\n")
	tl.want(0, "check", "a", "b", "--type", "fair")
	tl.want(exitUsage, "check", "--type", "nonsense")
	has(t, tl.want(exitUnavailable, "--redis", "redis://127.0.0.1:1", "check").out, "unreachable")
	rdb := srv.Client()
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "100mb").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	var f struct{ Code, Problem, Remedy string }
	r := tl.want(1, "check", "--json")
	if err := json.Unmarshal([]byte(strings.SplitN(r.out, "\n", 2)[0]), &f); err != nil || f.Code != "eviction" || f.Remedy == "" {
		t.Error(err, r)
	}
}

// A user who may use locks with a prefix, and nothing else.
func TestNarrowUser(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	rdb := srv.Client()
	page := read(t, "../../docs/acl.md")
	_, line, _ := strings.Cut(page, "## Lock\n\n```\n")
	line, _, _ = strings.Cut(line, "\n")
	args := []any{}
	for _, word := range strings.Fields(line) {
		args = append(args, word)
	}
	for _, user := range [][]any{args, {"ACL", "SETUSER", "nobody", "on", ">password"}} {
		if err := rdb.Do(t.Context(), user...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	app := tl.with("REDIS_URL=redis://app:password@" + srv.Addr())
	free := app.hold("--prefix", "app:", "a")
	r := app.want(exitBusy, "--prefix", "app:", "-n", "a", "true")
	has(t, r.err, "a is held by sh@", "token")
	app.want(0, "--prefix", "app:", "check")
	has(t, app.want(0, "--prefix", "app:", "inspect", "a").out, "holder    sh@")
	app.want(exitBusy, "--prefix", "app:", "wait", "-n", "a")
	if err := rdb.Do(t.Context(), "EVAL", "for _, k in ipairs(redis.call('keys', 'app:rlock:client:*')) do redis.call('del', k) end return 1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	has(t, app.want(0, "--prefix", "app:", "inspect", "a").out, "holder    sh@") // by its note
	has(t, app.want(exitRefused, "inspect", "a").err, "the user of Redis may not do this")
	free()
	h := strings.TrimSpace(app.want(0, "--prefix", "app:", "acquire", "a").out)
	app.want(0, "--prefix", "app:", "release", h)
	has(t, app.want(exitRefused, "-n", "a", "true").err, "the user of Redis may not do this")
	has(t, app.want(exitRefused, "check").out, "acl")
	has(t, app.want(exitRefused, "--prefix", "app:", "ls").err, "may not")
	for _, user := range []string{"nobody:password", "app:wrong", "unknown:password"} {
		has(t, tl.want(exitRefused, "--redis", "redis://"+user+"@"+srv.Addr(), "-n", "a", "true").err, "the user of Redis may not do this")
	}
}

func TestRedLock(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartMasters(t, 3)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "redis://"+n.Addr())
	}
	tl := toolAt(t, strings.Join(urls, " "))
	free := tl.hold("a")
	has(t, tl.want(exitBusy, "-n", "a", "true").err, "a is held by sh@", "token")
	if r := tl.want(0, "ls"); strings.Count(r.out, "RedLock") != 1 {
		t.Error(r)
	}
	has(t, tl.want(0, "inspect", "a").out, "RedLock")
	nodes[0].Kill()
	tl.want(exitBusy, "-n", "a", "true")
	has(t, tl.want(1, "quorum", "status").out, urls[0]+"  does not vote", urls[1]+"  votes")
	free()
	tl.want(0, "a", "true")
	nodes[1].Kill()
	tl.want(exitUnavailable, "-n", "a", "true")
	tl.want(exitUnavailable, "quorum", "status")
	nodes[0].Restart()
	nodes[1].Restart()
	tl.want(0, "quorum", "status")

	for _, wrong := range []string{"-s a true", "--fair a true", "acquire a", "sem a --permits 2 -- true", "once a --per 1m -- true", "elect a -- true", "quorum", "quorum replace"} {
		tl.want(exitUsage, strings.Fields(wrong)...)
	}
	tl.want(exitUsage, "--redis", urls[0], "quorum", "status")
	fresh := "redis://" + redistest.Start(t).Addr()
	has(t, tl.want(0, "quorum", "replace", "--old", urls[2], "--new", fresh).out, "--quorum 3", "--quorum 2", fresh)
	tl.want(exitUsage, "quorum", "replace", "--old", fresh, "--new", fresh)
	tl.want(exitUsage, "quorum", "replace", "--old", urls[2], "--new", urls[1])
	tl.want(exitUnavailable, "quorum", "replace", "--old", urls[2], "--new", "redis://127.0.0.1:1")
}

func TestQuorumInit(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartMasters(t, 3)
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "redis://"+n.Addr())
	}
	tl := toolAt(t, strings.Join(urls, " "))
	r := tl.want(exitBusy, "--quarantine", "-n", "a", "true")
	has(t, r.err, "quarantine")
	tl.want(0, "quorum", "init")
	tl.want(0, "--quarantine", "-n", "a", "true")
	r = tl.want(exitBusy, "quorum", "replace", "--old", urls[2], "--new", "redis://localhost:"+fmt.Sprint(nodes[1].Port()))
	has(t, r.err, "not empty")
}

func TestConnections(t *testing.T) {
	t.Parallel()
	t.Run("a Unix socket", func(t *testing.T) {
		t.Parallel()
		dir, err := os.MkdirTemp("", "rl") // a short path
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		redistest.Start(t, "--unixsocket", dir+"/s")
		toolAt(t, "unix://"+dir+"/s").want(0, "-n", "a", "true")
	})
	t.Run("a cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartCluster(t, 3, 0)
		hosts := []string{}
		for _, n := range cluster.Nodes {
			hosts = append(hosts, n.Addr())
		}
		for _, u := range []string{"redis-cluster://" + strings.Join(hosts, ","), "redis://" + hosts[0] + "?addr=" + hosts[1]} {
			tl := toolAt(t, u)
			free := tl.hold("a")
			has(t, tl.want(exitBusy, "-n", "a", "true").err, "a is held by sh@", "token")
			for i := range 5 {
				tl.want(0, fmt.Sprint("name", i), "true")
			}
			has(t, tl.want(0, "ls").out, "sh@")
			free()
		}
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		tl := toolAt(t, "redis-sentinel://"+s.Sentinels[0].Addr()+","+s.Sentinels[1].Addr()+"/0?master="+s.MasterName)
		tl.want(0, "-w", "30", "a", "true")
		tl.want(0, "--redis", "redis://"+s.Sentinels[0].Addr()+"?master_name="+s.MasterName, "a", "true")
	})
}

// Jobs without a name are told apart in every fleet: of 200,000 names with 32 bits some five are equal to another.
func TestNamesOfJobsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for n := range 200_000 {
		name := nameOf(&runTask{argv: []string{"/usr/bin/backup", strconv.Itoa(n)}})
		if other, is := seen[name]; is {
			t.Fatalf("jobs %d and %d are both %s", other, n, name)
		}
		seen[name] = n
	}
	if a, b := nameOf(&runTask{argv: []string{"a", "b"}}), nameOf(&runTask{argv: []string{"a", "b"}}); a != b || !strings.HasPrefix(a, "a-") {
		t.Error(a, b)
	}
	if a, b := nameOf(&runTask{argv: []string{"a", "b c"}}), nameOf(&runTask{argv: []string{"a", "b", "c"}}); a == b {
		t.Error(a)
	}
}
