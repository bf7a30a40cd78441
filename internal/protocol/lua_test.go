package protocol

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// loaded are the scripts of the module.
func loaded(t testing.TB) Scripts {
	t.Helper()
	all, err := Load(os.DirFS("../.."), nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestScriptsCompile(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	for name, s := range loaded(t) {
		if err := rdb.ScriptLoad(context.Background(), s.Text()).Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if head := "-- " + s.Name + ": "; !strings.HasPrefix(s.Text(), head) {
			t.Errorf("%s does not begin with %q", name, head)
		}
		for _, entry := range []string{"KEYS[1]", "Reply", "Caller", "Twice"} {
			if !strings.Contains(s.Text(), "\n-- "+entry) {
				t.Errorf("%s says nothing of %s", name, entry)
			}
		}
	}
}
