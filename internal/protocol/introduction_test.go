package protocol

import (
	"encoding/hex"
	"strings"
	"testing"
)

// The key of a client follows from the id of a hold, and from that of a permit, which has less of it;
// from no other id. No lock can have its name.
func TestKeyOfAClientFollowsFromItsHolds(t *testing.T) {
	const client = "4b5a8f3e-3f8d-8a1c-9e07-0d1f5d7a4c11"
	permit := hex.EncodeToString([]byte(permitBase(client+":7") + "\x00\x00"))
	for _, id := range []string{client + ":7", client + ":-1", permit} {
		if part := ClientOf(id); part == "" || ClientKey("app:", part) != "app:rlock:client:4b5a8f3e-3f8d-8a1c-9e" || ClientKey("app:", client) != ClientKey("app:", part) {
			t.Errorf("%s: %q", id, part)
		}
	}
	for _, id := range []string{
		"", "a", client, client[:20], strings.Replace(client, "-8a1c", "-4a1c", 1) + ":7", strings.ToUpper(client) + ":7", "{" + client[1:] + ":7",
		strings.Repeat("x", 40), strings.Repeat("x", 14) + "8" + strings.Repeat("x", 21) + ":1", strings.Replace(permit, permit[12:13], "4", -1), permit + "0", "../" + permit[3:],
	} {
		if part := ClientOf(id); part != "" {
			t.Errorf("%q is taken for a hold of the client %q", id, part)
		}
	}
	for _, name := range []string{ClientKey("", client), ClientKey("app:", client), ClientKey("{app}:", client), ClientKey("app:", "short")} {
		if new(Names).Derive(name) == nil {
			t.Errorf("a lock may have the name %q", name)
		}
	}
}
