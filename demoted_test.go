package rlock_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// guard is a write that changes nothing: a server that is no master refuses it.
var guard = regexp.MustCompile(`redis\.call\('(hdel|zrem)', [\w\[\]]+, ''\)`)

// What a demoted master does not know, or still knows, may be old. So it refuses
// every script about a hold, whatever the reply would be. Only "not now" to somebody
// who wants to enter may be old: that one looks again.
func TestDemotedMasterSaysReadonlyAboutEachHold(t *testing.T) {
	t.Parallel()
	bg := context.Background()
	r := redistest.StartReplicated(t, 1)
	// Without go-redis's own retries, which READONLY brings about.
	master, replica := r.Master.Client(), r.Replicas[0].Client(func(o *redis.Options) { o.MaxRetries = -1 })
	c := locktest.NewClient(t, master, rlock.WithPrefix("p:"))

	// Nobody holds "free", others hold "held". What is "mine" the replica knows: where a
	// reply says so without any write, that too must come from a master.
	const stranger = "stranger:1"
	mine := func(script string, keys []string, args ...any) rlock.Request {
		return rlock.Request{Script: script, Keys: keys, Args: args}
	}
	red := func(name string) []string {
		return []string{name, name + ":counter", "rlock:red:highest", name + ":gone"}
	}
	about := []rlock.Request{
		mine("acquire_all", []string{"clock", "free", "gone"}, stranger, 1000),
		mine("release_all", []string{"free", "gone"}, "publish", stranger, 0, "channel"),
		mine("release_all", []string{"held Lock", "gone", "free", "gone"}, "publish", stranger, 0, "channel", stranger, 1000, "channel"),
		mine("serve", []string{"{x}served"}),
		mine("red_acquire", red("free"), stranger, 1000),
		mine("red_acquire", red("red"), "me:1", 1000),
		mine("red_admit", []string{"rlock:red:highest", "rlock:red:admitted"}, "epoch", 1, 1000),
		mine("red_force_unlock", []string{"free"}, "", "gone:", 1000, "channel", "publish"),
		mine("red_force_unlock", []string{"red"}, stranger, "gone:", 1000, "channel", "publish"),
		mine("red_highest", []string{"rlock:red:highest", "rlock:red:admitted"}, 0),
		mine("red_raise", red("free")[:3], stranger, "1", "1"),
		mine("red_raise", red("red")[:3], stranger, "1", "1"),
		mine("red_release", red("free"), stranger, 1000, 0, "channel", "publish"),
		mine("red_renew", red("free"), stranger, "1", 1000),
		mine("red_renew", red("red"), stranger, "1", 1000),
		mine("rw_read_enter", []string{"reads", "gone", "{reads}:me:1:rwlock_timeout:1"}, "me:1", "{reads}:", 1000, ""),
	}
	if err := master.HSet(bg, "p:reads", "mode", "read", "me:1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	for _, k := range locktest.Types {
		for _, name := range []string{"free", "held " + k.Name} {
			about = append(about, rlock.RequestsAbout(k.Open(c, name).(rlock.Internals), stranger)...)
		}
		lease := locktest.MustLock(t, k.Blocker(c, "held "+k.Name), rlock.WithLease(time.Hour))
		t.Cleanup(func() { _ = lease.Unlock(bg) })
	}
	seed := func(cmd ...any) {
		t.Helper()
		if err := master.Do(bg, cmd...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	seed("hset", "reads", "mode", "read", "me:1", 1)
	seed("set", "{reads}:me:1:rwlock_timeout:1", 1, "px", 3600_000)
	seed("hset", "red", "attempt", "me:1", "stamp", 1, "until", time.Now().Add(time.Hour).UnixMicro())
	if n, err := master.Do(bg, "wait", 1, 20_000).Int(); n != 1 {
		t.Fatal(n, err)
	}

	// believed is what the replica replies, if it does.
	believed := func(text string, q rlock.Request) (reply any, ok bool) {
		reply, err := replica.Eval(bg, text, q.Keys, q.Args...).Result()
		if err != nil && strings.Contains(err.Error(), "READONLY") {
			return nil, false
		}
		if err != nil && err != redis.Nil {
			t.Fatalf("%s of %q %v: %v", q.Script, q.Keys, q.Args, err)
		}
		list, _ := reply.([]any)
		notNow := len(list) > 1 && list[0] == int64(0) && (strings.Contains(q.Script, "enter") || strings.Contains(q.Script, "acquire"))
		return reply, !notNow
	}

	byScript := map[string][]rlock.Request{}
	for _, q := range about {
		byScript[q.Script] = append(byScript[q.Script], q)
		if reply, ok := believed(rlock.ScriptText(q.Script), q); ok {
			t.Errorf("%s of %q %v: %v, want READONLY", q.Script, q.Keys, q.Args, reply)
		}
	}

	// Each guard is planted out. A request that is answered then shows that the table
	// would notice. (Before a write that comes anyway a guard decides nothing; it is
	// there for a server at its memory limit.)
	decisive := 0
	for _, name := range rlock.ScriptNames() {
		if strings.HasSuffix(name, "inspect") || strings.HasSuffix(name, "probe") {
			continue // a look changes nothing, and may be answered by a replica
		}
		if len(byScript[name]) == 0 {
			t.Errorf("%s has no case", name)
		}
		text := rlock.ScriptText(name)
		for _, at := range guard.FindAllStringIndex(text, -1) {
			without := text[:at[0]] + "local _ = 0" + text[at[1]:]
			if slices.ContainsFunc(byScript[name], func(q rlock.Request) bool {
				_, ok := believed(without, q)
				return ok
			}) {
				decisive++
			}
		}
	}
	if decisive < 20 {
		t.Errorf("the table notices only %d guards that are missing", decisive)
	}
}
