package wire

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// All scripts declare the keys that they use, as some servers require. Of the types with one server each script, in each
// state of a lock, is run by TestScriptsDeclareTheirKeys of internal/protocol; these are the requests of RedLocks.
func TestScriptsOfARedLockDeclareTheirKeys(t *testing.T) {
	redistest.Need(t)
	t.Parallel()
	all := []string{"quorum/acquire", "quorum/renew", "quorum/raise", "quorum/release", "quorum/force_unlock", "quorum/inspect", "quorum/highest", "quorum/admit", "quorum/quarantined"}
	names, ran := map[string]string{}, map[string]bool{}
	for _, name := range all {
		names[locktest.SHA(name)], names[locktest.ScriptText(name)] = name, name
	}
	for _, k := range aclTypes {
		if !strings.HasPrefix(k.name, "RedLock") {
			continue
		}
		servers := redistest.StartMasters(t, k.nodes)
		var runs []func() []redistest.ScriptRun
		for _, s := range servers {
			aclDo(t, s.Client(), "ACL SETUSER app on >password +@all ~* &*")
			runs = append(runs, s.Scripts(t))
		}
		aclUse(t, k, servers)
		var clients []*rlock.Client
		for _, s := range servers {
			clients = append(clients, locktest.NewClient(t, s.Client(), append(k.opts, rlock.WithPrefix("app:"))...))
		}
		l := k.open(clients, "stock")[0].(*rlock.RedLock)
		if was, err := l.ForceUnlock(bg); was || err != nil {
			t.Errorf("%v, %v", was, err)
		}
		if _, err := clients[0].Check(bg, l); err != nil {
			t.Error(err)
		}
		for i, s := range servers {
			some := slices.DeleteFunc(runs[i](), func(run redistest.ScriptRun) bool { return names[run.Script] == "" })
			for name := range redistest.Declared(t, s.Client(), some, names, func(string, string) bool { return false }) {
				ran[name] = true
			}
		}
	}
	for _, name := range all {
		if !ran[name] {
			t.Errorf("%s has not run", name)
		}
	}
}
