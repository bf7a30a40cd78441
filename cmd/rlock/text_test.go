//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

const hostile = "x\x1b]0;owned\x07\x1b[2J\r\nrlock: y is free\u009b31m\u202edecar\u2066\u200f\U000e0041"

// What others have written neither moves the cursor nor begins a line.
func TestTextOfOthers(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	rdb := srv.Client()
	name := "a" + hostile
	lease, err := tl.client.NewLock(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(note{Label: hostile, Host: hostile, User: hostile, Reason: hostile, Hold: lease.HoldID(), Since: time.Now()})
	if err == nil {
		err = rdb.Set(t.Context(), noteKey+lease.HoldID(), text, time.Hour).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	client := strings.Split(lease.HoldID(), ":")[0]
	for _, key := range rdb.Keys(t.Context(), "rlock:client:*").Val() {
		process, _ := json.Marshal(map[string]any{"client": client, "label": hostile, "program": hostile, "host": hostile, "pid": 1})
		rdb.Set(t.Context(), key, process, time.Hour)
	}
	tick := time.Now().Truncate(time.Hour)
	_, _ = tl.client.NewCronJob("job").Do(t.Context(), tick, func(context.Context) error { return errors.New(hostile) })
	if _, err := tl.client.NewElection("e"+hostile).Campaign(t.Context(), hostile); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitBusy, []string{"-n", name, "true"}}, {exitBusy, []string{"--json", "-n", name, "true"}}, {exitBusy, []string{"acquire", "-n", name}},
		{exitBusy, []string{"wait", "-n", name}}, {0, []string{"ls"}}, {0, []string{"ls", "--json"}}, {0, []string{"inspect", name}}, {0, []string{"inspect", name, "--json"}},
		{0, []string{"inspect", "job"}}, {0, []string{"top", "--once"}}, {0, []string{"check", name}}, {exitBusy, []string{"unlock", name, "--hold", hostile + ":1"}},
		{exitUsage, []string{"--" + hostile}}, {exitUsage, []string{"release", hostile}}, {exitNotFound, []string{"b", "--", "/" + hostile}},
		{exitUsage, []string{"--redis", hostile, "b", "true"}}, {exitUsage, []string{"--redis", "redis://" + hostile, "b", "true"}}, {exitUsage, []string{"--redis", hostile + "://x", "b", "true"}},
		{exitUsage, []string{"man", hostile}}, {0, []string{"--verbose", "b" + hostile, "true"}},
	} {
		r := tl.want(c.code, c.args...)
		for line := range strings.Lines(r.out + r.err) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsFunc(line, func(r rune) bool { return !visible.Is(r) }) || strings.HasPrefix(line, "rlock: y") {
				t.Errorf("%q: %q", c.args, line)
			}
		}
	}
	// JSON has each name as it is.
	var h holding
	if err := json.Unmarshal([]byte(tl.want(0, "inspect", name, "--json").out), &h); err != nil || h.Name != name || h.Holders[0].HoldID != lease.HoldID() {
		t.Errorf("%+v %v", h, err)
	}
}

func TestLabelsOfEveryScript(t *testing.T) {
	t.Parallel()
	tl, _ := newTool(t)
	const who = "Jürgen 日本"
	free := tl.hold("--label", who, "a")
	defer free()
	tl.want(0, "acquire", "b", "--holder", who, "--reason", "größer ist besser")
	for _, c := range [][]string{{"-n", "a", "true"}, {"-n", "b", "true"}} {
		has(t, tl.want(exitBusy, c...).err, who+"@")
	}
	has(t, tl.want(0, "ls").out, who+"@")
	has(t, tl.want(0, "inspect", "b").out, who+"@", "größer ist besser")
	long := printable(strings.Repeat("日", rlock.MaxLabelLength))
	if len(long) > rlock.MaxLabelLength || strings.Trim(long, "日") != "" || printable("a\x1bb\xff") != "a_b_" {
		t.Errorf("%q", long)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"日本語", 6, "日本語"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"}, {"a\nb", 4, `a\nb`}, {"a\nb", 3, `a\…`}, {"abc", 1, "…"}, {"🙂🙂", 3, "🙂…"},
	} {
		if got := clip(c.text, c.most); got != c.want || columnsOf(got) > c.most {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
