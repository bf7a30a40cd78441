//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	write(t, tl.path("text"), "no program")
	for _, c := range []struct {
		code int
		args string
		says string
	}{
		{0, "a true", ""},
		{7, "a -- sh -c exit\t7", ""},
		{128 + 15, "a -- sh -c kill\t$$", ""},
		{128 + 9, "a -- sh -c kill\t-9\t$$", ""},
		{3, "run a -c exit\t3", ""},
		{exitNotFound, "a -- there-is-no-such-command", "not found"},
		{exitNotFound, "a -- ./there-is-no-such-command", "no such file"},
		{exitNotRunnable, "a -- /etc/passwd", "permission denied"},
		{exitUsage, "a", "no command"},
		{exitUsage, "9", "file descriptor"},
		{exitUsage, "-n", "no name"},
		{exitUsage, "run", "no name"},
		{exitUsage, "", "no name"},
		{exitUsage, "-z a true", "unknown"},
		{exitUsage, "--nosuch a true", "unknown"},
		{exitUsage, "-w x a true", "neither a number"},
		{exitUsage, "-w -1 a true", "negative"},
		{exitUsage, "-n -w 3 a true", "exclude"},
		{exitUsage, "-E 256 a true", "0 to 255"},
		{exitUsage, "-F a true", "-F"},
		{exitUsage, "-u a true", "-u"},
		{exitUsage, "-s -x a true", "exclude"},
		{exitUsage, "-c true a", "-c"},
		{exitUsage, "--lease 0.5 a true", "one second"},
		{exitUsage, "--grace 20 a true", "half of the lease"},
		{exitUsage, "--quorum 2 a true", "RedLock"},
		{exitUsage, "--redis http://x a true", "scheme"},
		{exitUsage, "--redis localhost a true", "scheme"},
		{exitUsage, "--redis redis://localhost:x a true", "port"},
		{exitUsage, "--redis redis-sentinel://localhost a true", "master"},
		{exitUsage, "--redis redis://localhost?nonsense=1 a true", "nonsense"},
		{exitUsage, "{ true", "{"},
		{exitUsage, "--label a\x01b a true", "Label"},
		{exitUnavailable, "-n --redis redis://127.0.0.1:1 a true", "no answer"},
		{exitUnavailable, "-w 0.3 --redis redis://127.0.0.1:1 a true", "no lock from Redis"},
	} {
		if c.args == "-c true a" { // flock takes it: -c before the name
			c.args, c.says = "a -c true more", "quote"
		}
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			tl := *tl
			tl.t = t
			args := strings.Fields(strings.ReplaceAll(c.args, "\t", "\x00"))
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "\x00", " ")
			}
			r := tl.want(c.code, args...)
			has(t, r.err, c.says)
			if c.says == "" && r.err != "" || strings.Count(r.err, "\n") > 1 {
				t.Errorf("it says %q", r.err)
			}
		})
	}
}

func TestPasswordIsNotSaid(t *testing.T) {
	t.Parallel()
	tl := toolAt(t, "")
	for _, u := range []string{"redis://me:s3cret@local host/", "redis://me:s3cret@localhost/x", "redis://me:s3cret@localhost:1?nonsense=1", "redis://me:s3cret@127.0.0.1:1", "s3cret@localhost", "redis-cluster://me:s3cret@localhost/1",
		"redis-sentinel://me:s3cret@127.0.0.1:1?master=m&x=s3cret", "redis://127.0.0.1:1?password=a&s3cret=1", "s3cret:s3cret@h://x", "redis://s3cret@127.0.0.1:1"} {
		if r := tl.run("--redis", u, "-n", "a", "true"); r.code != exitUsage && r.code != exitUnavailable || strings.Contains(r.err, "s3cret") {
			t.Errorf("%s: %v", u, r)
		}
	}
	// What is not percent-encoded ends the password where the reader of URLs sees it end.
	for _, password := range []string{"s3c/ret", "s3c?ret", "s3c#ret", "123/456", "123?456", "123#456", "s3c%ret", "s3c[ret", "/s3cret", "s3c ret", "s3c\\ret", "a/s3c@ret", "s3c^ret"} {
		for _, scheme := range []string{"redis://me:", "redis://:", "rediss://", "unix://:", "redis-cluster://:", "redis-sentinel://me:", "redis://a:1,b:"} {
			for _, host := range []string{"127.0.0.1:1", "127.0.0.1:1/0", "127.0.0.1:1?master=m", "/no/such.sock"} {
				_, address, err := open(scheme + password + "@" + host)
				if err == nil {
					err = errors.New(address)
				}
				for _, part := range []string{"s3c", "ret", "123", "456"} {
					if strings.Contains(err.Error(), part) {
						t.Errorf("%s: %v", scheme+password+"@"+host, err)
					}
				}
			}
		}
	}
	has(t, tl.want(exitUsage, "--redis", "redis://me:pass/word@127.0.0.1:1", "a", "true").err, "percent-encode")
	for _, args := range [][]string{{"-redis=redis://me:s3cret@h", "a", "true"}, {"a", "-redis=redis://me:s3cret@h", "true"}} {
		if r := tl.want(exitUsage, args...); strings.Contains(r.err, "s3cret") {
			t.Error(r)
		}
	}
	if text := redacted("redis://s3cret:s3cret@host:1/0?sentinel_password=s3cret"); text != "redis://...@host:1/0?..." {
		t.Error(text)
	}
}

// A variable that is set for the command may be a secret, and others are told the label.
func TestLabelHasNoSecret(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"./deploy shop":                   "deploy",
		"DB_PASSWORD=s3cret ./deploy":     "deploy",
		"A=1 B=s3cret  /opt/größe/run -x": "run",
		"DB_PASSWORD='s3 cret' ./deploy":  "sh",
		`DB_PASSWORD="s3 cret" ./deploy`:  "sh",
		`DB_PASSWORD=s3\ cret ./deploy`:   "sh",
		"DB_PASSWORD=$(cat s3cret) x":     "sh",
		"DB_PASSWORD=s3cret;./deploy":     "sh",
		"DB_PASSWORD=s3cret":              "sh",
		"(DB_PASSWORD=s3cret ./deploy)":   "sh",
		"{ DB_PASSWORD=s3cret ./deploy;}": "sh",
		"a[0]=s3cret x":                   "sh",
		"A+=s3cret x":                     "sh",
		"cd /srv && ./deploy":             "cd",
		"'/opt/my tool/run' s3cret":       "sh",
		"mysql -ps3cret":                  "mysql",
	} {
		if got := (&runTask{argv: []string{"/bin/sh", "-c", line}, line: line}).label(); got != want {
			t.Errorf("the label of %s is %s, want %s", line, got, want)
		}
	}
	tl, _ := newTool(t)
	free := tl.sh(`rlock a -c 'DB_PASSWORD=s3cret sh -c "rlock inspect a; rlock ls; rlock -n a true"' 2>&1`)
	if strings.Contains(free.out, "s3cret") || !strings.Contains(free.out, "sh@") {
		t.Error(free)
	}
}

func TestCommandIsTold(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	r := tl.with("RLOCK_TOKEN=old").sh(`echo input | rlock a -- sh -c 'cat; env | grep ^RLOCK_ | sort'`)
	if r.code != 0 || r.err != "" {
		t.Fatal(r)
	}
	has(t, r.out, "input\n", "RLOCK_NAME=a\n", "RLOCK_HOLD_ID=", "RLOCK_LOST_FD=")
	if strings.Count(r.out, "RLOCK_TOKEN=") != 1 || strings.Contains(r.out, "old") {
		t.Error(r)
	}
}

func TestInheritedDescriptorsKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	if r := tl.sh(`rlock a -- sh -c 'echo three >&3; echo nine >&9' 3>three 9>nine`); r.code != 0 {
		t.Fatal(r)
	}
	has(t, read(t, tl.path("three")), "three")
	has(t, read(t, tl.path("nine")), "nine")
}

func TestScriptWithoutAFirstLine(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	write(t, tl.path("script"), "echo by sh $1\nexit 3\n")
	if r := tl.want(3, "a", "./script", "x"); r.out != "by sh x\n" {
		t.Error(r)
	}
}

func TestRefusalSaysWhoHoldsIt(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	free := tl.hold("--label", "billing", "invoices")
	defer free()
	r := tl.want(exitBusy, "-n", "invoices", "true")
	has(t, r.err, "rlock: invoices is held by billing@", "(pid ", " of its lease left, token ")
	if strings.Count(r.err, "\n") != 1 || r.out != "" {
		t.Error(r)
	}
	if r := tl.want(9, "-q", "-w", "0.5", "-E", "9", "invoices", "true"); r.err != "" || r.out != "" {
		t.Error(r)
	}
	if r := tl.want(0, "-n", "-E", "0", "-q", "invoices", "false"); r.err != "" {
		t.Error(r)
	}
	var told struct {
		Exit  int
		Busy  bool
		State holding
	}
	r = tl.want(exitBusy, "--json", "-n", "invoices", "true")
	if err := json.Unmarshal([]byte(r.err), &told); err != nil {
		t.Fatal(err, r)
	}
	if !told.Busy || told.Exit != 1 || told.State.Token == 0 || told.State.LeftMS == 0 || len(told.State.Holders) != 1 || told.State.Holders[0].Label != "billing" || told.State.Holders[0].Since.IsZero() {
		t.Errorf("%+v", told)
	}
}

func TestSidesAndOrder(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	free := tl.hold("-s", "prices")
	tl.want(0, "-s", "-n", "prices", "true")
	for _, side := range []string{"-x", "--fair", "-o"} { // -o: as a Lock
		r := tl.want(exitBusy, side, "-n", "prices", "true")
		has(t, r.err, "prices is")
	}
	free()
	tl.want(0, "-x", "prices", "true")
	tl.want(0, "--fair", "prices", "true")
}

func TestSignalEndsTheWait(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	free := tl.hold("a")
	defer free()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		waiting := tl.start("a", "--", "true")
		watchWaiters(t, tl, "a", 1)
		if err := waiting.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if r := tl.finish(waiting); r.code != 128+int(sig) || r.err != "" {
			t.Errorf("%v: %v", sig, r)
		}
	}
}

// watchWaiters waits until as many others wait for a lock.
func watchWaiters(t *testing.T, tl *tool, name string, n int) {
	t.Helper()
	lock := tl.client.NewLock(name)
	tl.eventually("others wait", func() bool {
		s, err := lock.State(t.Context())
		return err == nil && s.Waiters >= n
	})
}

func TestSignalsGoToTheGroup(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	s := tl.start("a", "--", "sh", "-c", `
		sh -c 'trap "echo below >> got; exit 0" TERM; echo > below; while :; do sleep 0.02; done' &
		trap 'echo above >> got; wait; exit 5' TERM
		trap 'echo usr1 >> got' USR1
		echo > above; while :; do sleep 0.02; done`)
	tl.eventually("both run", func() bool { return exists(tl.path("above")) && exists(tl.path("below")) })
	_ = s.Process.Signal(unix.SIGTERM)
	if r := tl.finish(s); r.code != 5 {
		t.Fatal(r)
	}
	has(t, read(t, tl.path("got")), "above", "below")
}

func TestIgnoredHangupStaysIgnored(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	r := tl.sh(`trap '' HUP; rlock a -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'`)
	if r.code != 0 || r.out != "alive\n" {
		t.Fatal(r)
	}
}

// What the command leaves behind would run beside the next holder.
func TestLeftProcessesEndWithTheLock(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	if r := tl.run("--grace", "0.2", "a", "--", "sh", "-c", "stamp "+stampCommand+" left for-ever & while [ ! -s left ]; do sleep 0.02; done; exit 4"); r.code != 4 {
		t.Fatal(r)
	}
	r := tl.run("a", "--", "stamp", stampCommand, "next", "once")
	last, first := lastStamp(t, tl.path("left")), stamps(t, tl.path("next"))[0]
	if r.code != 0 || last >= first {
		t.Errorf("%v; a process that was left ran until %v, and the next from %v", r, last, first)
	}
}

func TestCloseLeavesProcesses(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	r := tl.sh(`rlock -o a -c 'sleep 300 >/dev/null 2>&1 & echo $!' > pid; kill $(cat pid) && echo was alive`)
	if r.code != 0 || r.out != "was alive\n" {
		t.Fatal(r)
	}
}

// Twelve usual recipes of flock, with the word replaced. Where there is a flock, it does the same.
func TestRecipesOfFlock(t *testing.T) {
	t.Parallel()
	const busy = `WORD L -c 'echo > held; while [ ! -e free ]; do sleep 0.02; done' & while [ ! -e held ]; do sleep 0.02; done; `
	const free = `; echo > free; wait`
	for name, script := range map[string]string{
		"1 a line of cron":             `WORD -n L -c 'echo ran'`,
		"2 skip if it runs":            busy + `WORD -n L echo ran || echo skipped` + free,
		"3 wait for a time":            busy + `WORD -w 2 L echo ran; echo $?` + free,
		"4 a status of one's own":      busy + `WORD -n -E 42 L echo ran; echo $?` + free,
		"5 the status of the command":  `WORD L sh -c 'exit 3'; echo $?`,
		"6 standard input":             `seq 3 | WORD L cat`,
		"7 readers beside each other":  `WORD -s L -c 'WORD -s -n L echo beside; WORD -x -n L echo ran; echo $?'`,
		"8 one after the other":        `for i in 1 2 3 4 5; do WORD L -c 'n=$(cat n 2>/dev/null || echo 0); sleep 0.02; echo $((n+1)) > n' & done; wait; cat n`,
		"9 a script that locks itself": `printf '[ "$AGAIN" != "$0" ] && exec env AGAIN="$0" WORD -en "$0" "$0" "$@" || :\necho "alone with $1"\n' > script; chmod 700 script; sed -i '1i#!/bin/sh' script; ./script x`,
		"10 killed by a signal":        `WORD L sh -c 'kill -TERM $$'; echo $?`,
		"11 the output in a variable":  `out=$(WORD --timeout 5 L echo text); echo "got $out"`,
		"12 one lock in another":       `WORD A WORD B echo both; WORD L WORD -n B echo second`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tl, _ := newTool(t)
			r := tl.sh(strings.ReplaceAll(script, "WORD", "rlock -q"))
			if r.err != "" {
				t.Error(r)
			}
			if strings.HasPrefix(name, "9 ") {
				r = tl.sh(strings.ReplaceAll(script, "WORD", "rlock"))
			}
			if _, err := exec.LookPath("flock"); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip("there is no flock to compare with")
			}
			other := toolAt(t, "")
			if f := other.sh(strings.ReplaceAll(script, "WORD", "flock")); f.out != r.out || f.code != r.code {
				t.Errorf("rlock: %v\nflock: %v", r, f)
			}
		})
	}
}
