package protocol

import (
	"slices"
	"strings"
	"testing"
)

// besides returns the keys and channels of a lock, of whatever type, beside the key that has its
// name. Users of the library know the ids.
func besides(n *Names, client, id string) []string {
	all := []string{n.Channel(), n.grants(client), n.Channel() + ":" + id, n.Tombstone(id), n.standBy(), n.AskedKey(id), n.AskedChannel(), n.record(client + ":3")}
	for _, what := range []string{"redisson_lock_queue", "redisson_lock_timeout", "redisson_lock_token", "redisson_rwlock", "redisson_sc"} {
		all = append(all, prefixed(what, n.Lock))
	}
	all = append(all, prefixed("redisson_unlock_latch", n.Lock)+":0123456789abcdef0123456789abcdef",
		"redisson_countdownlatch__channel__{"+n.Lock+"}", n.Derived("timeout"), n.Derived(id+":rwlock_timeout:1"))
	for _, what := range []string{
		"waiters", "line", "writers", "readers", "admitted", "opened", "done:" + id, "op:" + client + ":1", "barrier", "barrier:lifted",
		"once", "once:result", "once:free", "cron", "cron:ticks", "cron:free", "cron:1795446013490", "cron:1795446013490:rlock:gone:" + id, "double", "double:places", "double:changed", "red", "red:counter", "red:free",
		"fairrw", "fairrw:ends", "fairrw:turn:" + client, "priority", "priority:queue", "election", "election:news", "permits", "permits:alive",
	} {
		all = append(all, n.Derived("rlock:"+what))
	}
	return all
}

// No name of a lock is a key or channel of another one, and no two locks have one in common,
// whatever their names are: whoever can choose a name can shut only the lock of that name.
func FuzzNames(f *testing.F) {
	const id = uuid + ":42"
	for _, name := range []string{
		"a", "victim", "order:7", "a:timeout", ":timeout", "{a}", "{a}b", "b{a}", "{a}{b}", "{{a}}", "{a}}", "a}", "{a}:", "a:rlock:b", "{a:rlock:b}", "rlock:a",
		"rlock:served", "rlock:red:highest", "rlock:clock:{1}", "rlock:clock", "app:rlock:clock", "redisson_lock", "redisson_lock_queue", "redisson_lock_queue:", "redisson_lock_queue:a", "redisson_lock_queue:{a}",
		"redisson_lock_queue:{a", "redisson_sc:{a}b", "{a}:timeout", "{a}:rlock:gone:" + id, "{a}:" + uuid, "{a}:" + id, "a:" + id, id, uuid, "{a}:" + id + ":rwlock_timeout:1",
		"redisson_countdownlatch__channel__{a}", "redisson_countdownlatch__channel__{{a}}", "\x00{", "{\xff}",
	} {
		f.Add(name, "{a}b")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		var a Names
		if a.Derive(name) != nil {
			return
		}
		own := besides(&a, uuid, id)
		others := map[string]bool{other: true, "{" + name + "}": true, strings.Trim(name, "{}"): true, "{" + name: true, name + "}": true}
		for _, key := range own {
			if new(Names).Derive(key) == nil {
				t.Errorf("a lock may have the name %q, which is a key of the lock %q", key, name)
			}
			// Names from which the same key might be derived, in this or another way.
			for i := range len(key) {
				if key[i] == ':' || key[i] == '{' || key[i] == '}' {
					others[key[:i]], others[key[i:]], others[key[:i+1]], others[key[i+1:]] = true, true, true, true
				}
			}
		}
		for other := range others {
			var b Names
			if other == name || b.Derive(other) != nil {
				continue
			}
			for _, key := range besides(&b, uuid, id) {
				if key == name || slices.Contains(own, key) {
					t.Errorf("the locks %q and %q both have the key %q", name, other, key)
				}
			}
		}
	})
}

// What is refused is no more than that: these look alike, and are names like any other.
func TestNamesThatOnlyLookLikeKeys(t *testing.T) {
	for _, name := range []string{
		"redisson_lock", "redisson_lock:42", "redisson_lock_queue:orders", "orders:timeout", "timeout", "rlock:orders", "rlock:red", "rlock:", "rlock:clock:7", "rlock:clocks", "orders:rlock:gone:1",
		"{orders}:1", "{orders}lock", "orders:{42}", "{a}{b}", "{orders}:timeouts", "{orders}:rlock", "redisson_sortedset_lock:{set}", "{map}:c2hhMjU2:lock",
		"{orders}:0b0a9f1c-7d1e-4c6b-9d43-8f0a1b2c3d4e", "{orders}:0b0a9f1c-7d1e-4c6b-9d43-8f0a1b2c3d4e:7", uuid, "order:" + uuid + ":1", "{orders}:12:34",
	} {
		if err := new(Names).Derive(name); err != nil {
			t.Error(err)
		}
	}
}
