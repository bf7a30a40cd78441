package fuzz

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/wire"
)

// Every type refuses a name before anything is sent, or uses keys of one slot that have the name in a form of docs/keys.md.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "", "{a}", "{a}b", "a{", "a{}b", "}{", "{{a}}", "order:7", "rlock:clock", "\x00\xff{é}", "redisson_lock_queue:{a}", "a:rlock:cron"} {
		f.Add(name, "")
		f.Add(name, "app:")
		f.Add("a", name)
	}
	f.Add("{0}", "}") // together a hash tag
	f.Fuzz(func(t *testing.T, name, prefix string) {
		c, server, err := newRefused(t, rlock.WithPrefix(prefix))
		if err != nil {
			if sent, _ := server.take(); sent > 0 || !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Fatalf("New with the prefix %q: %v, after %d commands", prefix, err, sent)
			}
			return
		}
		var refused []string
		for _, call := range callsOf(c, name) {
			held, err := call.do(bg)
			sent, keys := server.take()
			switch {
			case held || err == nil:
				t.Fatalf("%s %q: held although Redis refuses everything: %v", call.what, name, err)
			case errors.Is(err, rlock.ErrInvalidArgument):
				refused = append(refused, fmt.Sprint(call.what, ": ", err))
				if sent > 0 {
					t.Errorf("%s %q is refused after %d commands: %v", call.what, name, sent, err)
				}
			case !errors.Is(err, rlock.ErrRefused):
				t.Errorf("%s %q: %v, want ErrRefused", call.what, name, err)
			case sent == 0:
				t.Errorf("%s %q: nothing was sent: %v", call.what, name, err)
			}
			for _, key := range keys {
				checkKey(t, call.what, prefix, prefix+name, key)
			}
		}
		if all := len(callsOf(c, name)); len(refused) != 0 && len(refused) != all {
			t.Errorf("%d of %d types refuse the name %q with the prefix %q, and a name is good for all or for none: %q", len(refused), all, name, prefix, refused)
		}
	})
}

// derived matches what follows the name in braces.
var derived = regexp.MustCompile(`^:(rlock:[a-z].*|timeout|[0-9a-f-]{36}:[0-9]+:rwlock_timeout:[0-9]+)$`)

// checkKey fails if a key is in another slot than its lock, or has a form that docs/keys.md does not have.
func checkKey(t *testing.T, what, prefix, name, key string) {
	t.Helper()
	if key == prefix+"rlock:clock" || key == prefix+"rlock:served" || strings.HasPrefix(key, prefix+"rlock:red:") {
		return // of all locks with the prefix, on one server
	}
	if wire.Slot(key) != wire.Slot(name) {
		t.Errorf("%s %q has the key %q in another slot", what, name, key)
	}
	braced := name
	if !strings.Contains(name, "{") {
		braced = "{" + name + "}"
	}
	if rest, ok := strings.CutPrefix(key, braced); key == name || ok && derived.MatchString(rest) {
		return
	}
	for _, word := range []string{"redisson_lock_queue:", "redisson_lock_timeout:", "redisson_lock_token:", "redisson_sc:", "redisson_rwlock:"} {
		if key == word+braced {
			return
		}
	}
	t.Errorf("%s %q has the key %q, which has no form of docs/keys.md", what, name, key)
}
