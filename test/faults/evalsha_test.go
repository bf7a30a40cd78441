package faults

import (
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// Where there is no EVALSHA, for nobody or not for this user, scripts are sent in full. Check says which command is
// missing, and advises nothing that cannot help.
func TestServerWithoutEvalsha(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	for _, c := range []struct {
		name, finding, remedy string // of Check
		args                  []string
		user                  string // what it may not do
		works                 bool   // locks do, all the same
	}{
		{name: "another renamed", args: []string{"--rename-command", "PUBLISH", ""}, finding: "PUBLISH", remedy: "rename-command", works: true},
		{name: "renamed", args: []string{"--rename-command", "EVALSHA", ""}, finding: "has no EVALSHA", remedy: "rename-command", works: true},
		{name: "denied", user: "-evalsha", finding: "may not send EVALSHA", remedy: "ACL SETUSER app +evalsha", works: true},
		{name: "both renamed", args: []string{"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""}, finding: "EVAL", remedy: "rename-command"},
		{name: "both denied", user: "-evalsha -eval", finding: "EVAL", remedy: "ACL SETUSER app +eval"},
	} {
		locktest.Beside(t, c.name, func(t *testing.T) {
			s := redistest.Start(t, c.args...)
			o := &redis.Options{Addr: s.Addr(), DisableIdentity: true}
			if c.user != "" {
				o.Username, o.Password = "app", "password"
				words := []any{"acl", "setuser", "app", "on", ">password", "~*", "&*", "+@all"}
				for _, word := range strings.Fields(c.user) {
					words = append(words, word)
				}
				run(t, s, words...)
			}
			rdb := redis.NewClient(o)
			t.Cleanup(func() { _ = rdb.Close() })
			client := locktest.NewClient(t, rdb)
			report, err := client.Check(bg)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, f := range report.Findings {
				found = found || strings.Contains(f.Problem, c.finding) && strings.Contains(f.Remedy, c.remedy)
				if strings.Contains(f.Remedy, "accept writes") || c.user == "" && strings.Contains(f.Remedy, "ACL SETUSER") {
					t.Errorf("%v: that does not help", f)
				}
			}
			if !found || len(report.Findings) > 1 {
				t.Errorf("%v", report)
			}
			if !c.works {
				_, err := client.NewLock("a").TryLock(bg)
				locktest.WantErr(t, err, rlock.ErrRefused)
				return
			}
			for _, k := range locktest.Types {
				lease := locktest.MustLock(t, k.Open(client, k.Name))
				if err := lease.Extend(bg, 2*locktest.Lease); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, lease)
			}
			var all sync.WaitGroup
			for range 64 { // some share pipelines
				all.Go(func() { locktest.MustUnlock(t, locktest.MustLock(t, client.NewLock("crowd"))) })
			}
			all.Wait()
			locktest.MustBeFree(t, client.NewLock("crowd"))
		})
	}
}
