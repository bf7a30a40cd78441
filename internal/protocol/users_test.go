package protocol

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Each command of docs/acl.md can be asked for, and has as many words as Redis wants: it would not look
// itself before it looks for the keys.
func TestEveryCommandOfTheACLPageCanBeChecked(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	users := ReadUsers(string(page))
	if len(users) < 20 || len(users["Lock"].commands) < 20 || len(users["Lock"].patterns) != 3 {
		t.Fatalf("read %v", users)
	}
	known, err := redistest.Start(t).Client().Command(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for heading, u := range users {
		for _, command := range u.commands {
			form := forms[command]
			words := strings.Fields(form)
			if form == "" {
				t.Errorf("%s: %q has no form", heading, command)
				continue
			}
			info := known[words[0]]
			if info == nil {
				t.Errorf("Redis does not know %q", words[0])
				continue
			}
			if n := int(info.Arity); n > 0 && len(words) != n || n < 0 && len(words) < -n {
				t.Errorf("%q has %d words, not %d", form, len(words), n)
			}
		}
	}
}

func TestSamplesOfPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pattern, prefix, lock, own, samples string }{
		{"~app:*", "app:", "app:a", "~app:*", "app:a app:rlock:clock"},
		{"~app:*", "", "a", "~*", "a rlock:clock"},
		{"~{app:*", "x:", "x:a", "~{x:*", "{x:a}:rlock:check"},
		{"~{app:*", "x:", "x:{a}b", "~x:*", "x:{a}b:rlock:check"},
		{"&redisson_sc:{app:*", "x:", "x:a", "&redisson_sc:{x:*", "redisson_sc:{x:a}"},
		{"&redisson_sc:{app:*", "x:", "x:{a}", "&redisson_sc:x:*", "redisson_sc:x:{a}"},
		{"~app:rlock:red:*", "x:", "x:a", "~x:rlock:red:*", "x:rlock:red:check"},
		{"~app:*", "[x]", "[x]a", `~\[x\]*`, "[x]a [x]rlock:clock"},
	} {
		own, all := samples(c.pattern, c.prefix, c.lock)
		if got := strings.Join(all, " "); own != c.own || got != c.samples {
			t.Errorf("%s for %q: %s, %s", c.pattern, c.lock, own, got)
		}
	}
}

// What only a server of that version would show.
func TestTooOldServers(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"5.0.14": true, "6.0.20": true, "6.2.0": false, "7.0.15": false, "10.1": false, "": false, "x": false} {
		if v := (&Survey{Server: "redis", Version: version}); v.TooOld() != old {
			t.Errorf("%q: %v", version, v.TooOld())
		}
	}
}
