package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
	"github.com/go-rlock/rlock/internal/seam"
)

// revived counts the hold ids that hold a lock, if only on some servers, when all have
// left it: those that came back, and others.
func (j *judge) revived(lock string) (back, others int) {
	for h := range j.s.kind.traces(j.w, lock) {
		found, came := 0, 0
		for i := range j.w.servers {
			if j.mentions(i, h.owner) {
				found++
				if j.cameBack(i, h.owner) {
					came++
				}
			}
		}
		if came > 0 && came == found {
			back++
		} else {
			others++
		}
	}
	return back, others
}

// cameBack reports whether a server holds something for a hold id by the one history
// that excuses it: the hold was given up there with a tombstone, the server then lost
// its data, and the tombstone with it, and a late copy of a request for the hold has
// run after that. With the data went the only thing that could have stopped it. Nobody
// acts on such a hold, and it is over with its lease.
func (j *judge) cameBack(server int, id string) bool {
	var tombstone, lost, came bool
	for _, s := range j.history(server, id) {
		switch {
		case s.script == "":
			lost, came, tombstone = lost || tombstone, false, false
		case s.tombstone:
			tombstone, lost, came = true, false, false
		case lost && s.late && asks(s.script):
			came = true
		}
	}
	if came {
		j.say("server %d holds something for %s, which came back after a loss", server, id)
	}
	return came
}

// asks reports whether a script can give a lock to a hold id that does not have it. The renewal
// of a RedLock is one: it gives the vote anew where nobody has it.
func asks(script string) bool {
	switch _, verb, _ := strings.Cut(script, "/"); verb {
	case "enter", "enter_all", "enter_many", "read_enter", "write_enter", "stand_by":
		return true
	}
	return script == "quorum/acquire" || script == "quorum/renew"
}

// step is what a server did for a hold id, or a loss of its data.
type step struct {
	at        time.Duration
	script    string // "": the loss
	late      bool   // a late copy
	tombstone bool   // it leaves one
	text      string
}

func (s step) String() string { return fmt.Sprint(s.at, " ", s.text) }

// history is what has become of a hold id on a server, as far as that has seen it.
func (j *judge) history(server int, id string) (steps []step) {
	link := fmt.Sprint(">", server, "#")
	called := j.called(id)
	for _, e := range j.w.events() {
		if !strings.Contains(e.who, link) || !bytes.Contains(e.b, []byte(called)) {
			continue
		}
		names := j.scriptNames()
		if ws := words(e.b); slices.Contains(ws, called) {
			script := "?"
			if len(ws) > 1 {
				script = cmp.Or(names[ws[1]], script)
			}
			steps = append(steps, step{
				at: e.at, script: script, late: strings.HasSuffix(e.who, "~"),
				tombstone: slices.Contains(ws, "60000"), // for so long one stays
				text:      fmt.Sprint(e.who, " ", ws[0], " ", script, " ", ws[min(len(ws), 2):]),
			})
		}
	}
	for _, at := range j.forgot[server] {
		steps = append(steps, step{at: at, text: "all data is lost"})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// histories are those of whoever has something in Redis, for a failure's text.
func (j *judge) histories() string {
	var out []string
	for i := range j.w.servers {
		seen := map[string]bool{}
		for _, e := range j.w.events() {
			for _, word := range words(e.b) {
				if strings.Count(word, "-") == 4 && strings.Count(word, ":") == 1 && !seen[word] {
					seen[word] = true
					if j.mentions(i, word) {
						for _, s := range j.history(i, word) {
							out = append(out, fmt.Sprintf("server %d, %s: %v", i, word, s))
						}
					}
				}
			}
		}
	}
	return strings.Join(out, "\n")
}

// scriptNames are the names of the scripts of the run, by what EVAL and EVALSHA say.
func (j *judge) scriptNames() map[string]string {
	j.loaded.Do(func() {
		if j.scripts = unmutated(); j.s.scripts == nil {
			return
		}
		all, err := files().Scripts(j.s.scripts)
		if err != nil {
			panic(err)
		}
		j.scripts = map[string]string{}
		for name, script := range all {
			j.scripts[script.Text()], j.scripts[script.SHA()] = name, name
		}
	})
	return j.scripts
}

// unmutated are the names of the scripts as the library brings them.
var unmutated = sync.OnceValue(func() map[string]string {
	all, err := files().Scripts(nil)
	if err != nil {
		panic(err)
	}
	names := map[string]string{}
	for name := range all {
		text, sha := seam.Script(name) // the files may have changed since the test was built
		names[text], names[sha] = name, name
	}
	return names
})

// files are those of the scripts.
var files = sync.OnceValue(func() *protocol.Files {
	all, err := protocol.Read(os.DirFS("../.."))
	if err != nil {
		panic(err)
	}
	return all
})

// called is what Redis and its commands have for a hold id.
func (j *judge) called(id string) string {
	if j.s.kind.called != nil {
		return j.s.kind.called(id)
	}
	return id
}

// mentions reports whether a server has something for a hold id, but for tombstones.
func (j *judge) mentions(server int, id string) bool {
	m := j.w.Redis(server)
	called := j.called(id)
	return slices.ContainsFunc(j.w.keysOf(server), func(key string) bool {
		switch m.Type(key) {
		case "hash":
			fields, _ := m.HKeys(key)
			return slices.ContainsFunc(fields, func(f string) bool {
				return f == id || f == id+":write" || m.HGet(key, f) == id
			})
		case "zset":
			members, _ := m.ZMembers(key)
			return called != id && slices.ContainsFunc(members, func(m string) bool { return strings.HasPrefix(m, called) })
		}
		return false
	})
}
