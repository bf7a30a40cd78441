package redistest_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

type tests func() int

func (f tests) Run() int { return f() }

// A server that a test had comes to another one as new, unless that test did to it what outlives a flush.
func TestServersAreUsedAgain(t *testing.T) {
	redistest.Need(t)
	pid, addr := 0, ""
	redistest.Run{Tests: tests(func() int {
		for _, c := range []struct {
			name   string
			spoils func(s *redistest.Server)
		}{
			{"", nil},
			{"config", func(s *redistest.Server) { s.Client().ConfigSet(ctx, "maxmemory", "100mb") }},
			{"user", func(s *redistest.Server) { s.Client().Do(ctx, "acl", "setuser", "app") }},
			{"statistics", func(s *redistest.Server) { s.Client().ConfigResetStat(ctx) }},
			{"paused", func(s *redistest.Server) { s.Pause(); s.Resume() }},
			{"killed", func(s *redistest.Server) { s.Kill(); s.Restart() }},
			{"saved", func(s *redistest.Server) { s.Client().Save(ctx) }},
		} {
			t.Run("first "+c.name, func(t *testing.T) {
				s := redistest.Start(t)
				rdb := s.Client()
				if err := rdb.Set(ctx, "a", "1", 0).Err(); err != nil {
					t.Fatal(err)
				}
				if err := rdb.Eval(ctx, "return 1", nil).Err(); err != nil {
					t.Fatal(err)
				}
				pid, addr = s.Pid(), s.Addr()
				if c.spoils != nil {
					c.spoils(s)
					pid = s.Pid()
				}
			})
			t.Run("second "+c.name, func(t *testing.T) {
				s := redistest.Start(t)
				if again := s.Pid() == pid; again != (c.spoils == nil) || s.Addr() == addr {
					t.Errorf("used again: %v, at %s after %s", again, s.Addr(), addr)
				}
				rdb := s.Client()
				if n, err := rdb.DBSize(ctx).Result(); n != 0 || err != nil {
					t.Errorf("%d keys, %v", n, err)
				}
				if there, err := rdb.ScriptExists(ctx, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db").Result(); err != nil || there[0] {
					t.Errorf("the script is there: %v, %v", there, err)
				}
				s.Kill() // not for the next case
			})
		}
		return 0
	})}.Run()
}
