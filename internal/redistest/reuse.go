package redistest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/loopback"
)

// A server costs ten times as much processor time to start as to clean. So one whose test is over serves
// another test of the package, as if it had just been started: it is empty, has no script, no client and no
// statistics, and listens on a port that was never given out. A server that was stopped or killed, or was asked
// what a flush does not end, is not used again.

// Run runs the tests of a package, of which the later ones get servers of the earlier ones.
type Run struct {
	Tests interface{ Run() int } // a testing.M
}

// Run implements goleak.TestingM.
func (r Run) Run() int {
	idle.mu.Lock()
	idle.most = mostIdle
	idle.mu.Unlock()
	defer func() {
		idle.mu.Lock()
		idle.most = 0
		servers := idle.servers
		idle.servers = nil
		idle.mu.Unlock()
		for _, s := range servers {
			s.Kill()
			_ = s.removeFiles()
		}
	}()
	return r.Tests.Run()
}

// mostIdle is how many servers wait for a test: each wakes ten times a second.
const mostIdle = 32

var idle struct {
	mu      sync.Mutex // guards the rest
	most    int
	servers []*Server // clean
}

// takeIdle returns at most n idle servers.
func takeIdle(n int) []*Server {
	idle.mu.Lock()
	defer idle.mu.Unlock()
	n = min(n, len(idle.servers))
	taken := slices.Clone(idle.servers[:n])
	idle.servers = slices.Delete(idle.servers, 0, n)
	return taken
}

// keep makes an idle server of one whose test is over, and reports whether it can be one.
func (s *Server) keep() bool {
	s.mu.Lock()
	p, ctl, spoiled := s.proc, s.ctl, s.spoiled || !s.ordinary || s.proc == nil
	s.mu.Unlock()
	idle.mu.Lock()
	room := len(idle.servers) < idle.most
	idle.mu.Unlock()
	// An old one does not tell the subcommands that it had.
	if !room || spoiled || s.t.Failed() || isOld() || s.leftMore(ctl) {
		return false
	}
	port, err := loopback.Port()
	if err != nil {
		return false
	}
	ctx := context.Background()
	cmds, err := ctl.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ConfigSet(ctx, "port", strconv.Itoa(port)) // nobody comes any more,
		p.Do(ctx, "client", "kill", "type", "normal", "skipme", "yes")
		p.Do(ctx, "client", "kill", "type", "pubsub") // nor is anybody left,
		p.Do(ctx, "flushall", "sync")
		p.Do(ctx, "script", "flush", "sync")
		p.Do(ctx, "slowlog", "reset")
		p.Do(ctx, "config", "resetstat") // so these begin at nothing
		p.LastSave(ctx)                  // for leftMore
		return nil
	})
	if err != nil || len(cmds) != 8 {
		return false
	}
	_ = ctl.Close()
	clean := &Server{dir: s.dir, argv: s.argv, ordinary: true, again: true, port: port, busPort: s.busPort, proc: p}
	clean.ctl = redis.NewClient(clean.control())
	clean.logFrom = s.logEnd()
	s.mu.Lock()
	s.proc, s.ctl = nil, nil
	s.mu.Unlock()
	idle.mu.Lock()
	defer idle.mu.Unlock()
	idle.servers = append(idle.servers, clean)
	return true
}

// lasting are the commands whose effects outlive what keep does.
var lasting = []string{
	"acl|deluser", "acl|load", "acl|save", "acl|setuser", "bgrewriteaof", "bgsave", "client|pause", "cluster|", "config|rewrite",
	"config|set", "debug", "failover", "function|", "module|", "psync", "replicaof", "save", "script|debug", "shutdown", "slaveof", "swapdb", "sync",
}

// leftMore reports whether the server may differ from a new one in more than keep cleans.
func (s *Server) leftMore(ctl *redis.Client) bool {
	info, err := ctl.Info(context.Background(), "commandstats").Result()
	if err != nil || s.again != strings.Contains(info, "cmdstat_lastsave:") || strings.Contains(info, "cmdstat_config|resetstat:") != s.again {
		return true // or nobody knows which commands it had
	}
	for line := range strings.Lines(info) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if slices.ContainsFunc(lasting, func(l string) bool {
			return name == l || strings.HasSuffix(l, "|") && strings.HasPrefix(name, l)
		}) {
			return true
		}
	}
	return false
}
