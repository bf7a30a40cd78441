package rlocktest

import (
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// Fail makes the server answer each command with an error, until Recover. Use a
// reply of Redis: "LOADING Redis is loading the dataset in memory" is an outage
// that rlock tries to outlast; "OOM command not allowed" or "NOPERM no permissions"
// make calls fail immediately. The error of such a call matches rlock.ErrRefused.
//
// How long a call tries is rlock.WithCommandTimeout, in real time: a test that
// waits for it should make it short, or run in a synctest bubble.
func (s *Server) Fail(reply string) {
	s.t.Helper()
	if reply == "" || strings.ContainsAny(reply, "\r\n") {
		s.t.Fatalf("rlocktest: Fail(%q): need one line", reply)
	}
	s.failing.Store(&reply)
}

// ReadOnly makes the server refuse commands that write, in scripts too, until Recover, as if it
// were demoted to a replica. Calls try for as long as rlock.WithCommandTimeout; their errors match
// rlock.ErrRefused. Calls that only read, such as State, succeed.
func (s *Server) ReadOnly() { s.readOnly.Store(true) }

// Disconnect breaks all connections and refuses new ones, until Recover: the server is down, or
// the network. A reply under way is lost, and its command may have run. Calls try for as long as
// rlock.WithCommandTimeout; their errors match rlock.ErrUnreachable. A hold whose lease runs out
// meanwhile is lost with that cause.
func (s *Server) Disconnect() { s.network.change(func(c *condition) { c.cut = true }) }

// Hang stops the server, until Recover: nothing is answered, and connections stay open. Afterwards
// the server runs what it was sent meanwhile, even if the caller has left; rlock undoes that. The
// errors of calls match rlock.ErrUnreachable, as with Disconnect. Connections for messages break.
func (s *Server) Hang() { s.network.change(func(c *condition) { c.hung = true }) }

// Slow delays each command by d, in real time, until Recover. Messages are not delayed. The
// delays of commands on one connection overlap.
func (s *Server) Slow(d time.Duration) {
	s.t.Helper()
	s.checkTime("Slow", d)
	s.network.change(func(c *condition) { c.slow = d })
}

// Recover ends what Fail, ReadOnly, Disconnect, Hang and Slow began. The data does not change.
func (s *Server) Recover() {
	s.failing.Store(nil)
	s.readOnly.Store(false)
	s.network.change(func(c *condition) { *c = condition{} })
}

// fails reports whether the server answers with errors.
func (s *Server) fails() bool { return s.failing.Load() != nil || s.readOnly.Load() }

const demoted = "READONLY You can't write against a read only replica."

// before is called before each command that the server runs, in scripts too. It reports
// whether it has answered the command.
func (s *Server) before(p *server.Peer, cmd string, _ ...string) bool {
	nested := s.isNested(p)
	if reply := s.failing.Load(); reply != nil {
		p.WriteError(*reply)
		return true
	}
	if s.readOnly.Load() && s.writes(cmd) {
		if nested {
			p.WriteError("-" + demoted) // the form of Redis 6: miniredis puts its own text before
		} else {
			p.WriteError(demoted)
		}
		return true
	}
	// During a script this goroutine holds the lock of the server. The time of a script is
	// when it began, as in Redis.
	if !nested {
		s.clock.show(s.mini.SetTime)
	}
	return false
}

// isNested reports whether a command is one of a script. A script has a separate peer, which has a
// context from the beginning, unlike the peer of a connection.
func (s *Server) isNested(p *server.Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.peers[p]; known {
		return false
	}
	if p.Ctx != nil {
		return true
	}
	if s.peers == nil {
		s.peers = map[*server.Peer]struct{}{}
	}
	s.peers[p] = struct{}{}
	p.OnDisconnect(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, p)
	})
	return false
}

// writes reports whether a replica refuses a command.
func (s *Server) writes(cmd string) bool {
	return !neverWrite[cmd] && !s.mini.Server().IsReadOnlyCommand(cmd)
}

// neverWrite has commands that do not write, although miniredis does not mark them as read-only.
var neverWrite = func() map[string]bool {
	m := map[string]bool{}
	for _, cmd := range strings.Fields(`EVAL EVALSHA EVAL_RO EVALSHA_RO SCRIPT MULTI EXEC DISCARD WATCH UNWATCH
		PUBLISH SUBSCRIBE UNSUBSCRIBE PSUBSCRIBE PUNSUBSCRIBE PUBSUB
		HELLO AUTH CLIENT SELECT PING ECHO QUIT TIME INFO COMMAND CLUSTER WAIT OBJECT MEMORY`) {
		m[cmd] = true
	}
	return m
}()
