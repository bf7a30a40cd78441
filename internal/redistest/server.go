package redistest

import (
	"cmp"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// patience bounds every wait. It is far above what a loaded two-core
	// machine needs, since reaching it always fails a test.
	patience = 30 * time.Second

	// logTail is how much of a server's log a failed test prints.
	logTail = 4 << 10
)

// Need skips the test when redis-server is not installed, or fails it when the
// environment has RLOCK_REQUIRE_REDIS=1, as CI should, so that a missing
// package cannot pass for a green run.
//
// Sentinels are redis-server too (redis-server --sentinel), so the separate
// redis-sentinel package is not needed.
func Need(t testing.TB) {
	t.Helper()
	if Installed() {
		return
	}
	how := "redistest: " + program() + " is not there; install it, for example with: apt-get install redis-server"
	if os.Getenv("RLOCK_REQUIRE_REDIS") == "1" {
		t.Fatal(how + " (RLOCK_REQUIRE_REDIS=1 forbids skipping)")
	}
	t.Skip(how)
}

// Installed reports whether the server is.
func Installed() bool {
	_, err := exec.LookPath(program())
	return err == nil
}

// program is the server to start: redis-server of the PATH, or RLOCK_REDIS_SERVER, which may be another version, or
// Valkey.
func program() string { return cmp.Or(os.Getenv("RLOCK_REDIS_SERVER"), "redis-server") }

// Server is one redis-server process, listening on a loopback port of its own.
type Server struct {
	t    testing.TB
	dir  string
	argv func(*Server) []string
	env  []string // in addition to ours

	port    int
	busPort int // cluster bus; taken for every server, it costs nothing

	ordinary bool  // as any other: another test may have it later
	again    bool  // another test had it
	logFrom  int64 // what comes before it in the log is of that test

	mu      sync.Mutex // guards the rest
	proc    *process   // nil while the server is killed
	ctl     *redis.Client
	spoiled bool // it was paused or killed
}

// Start runs a server without persistence and returns when it answers. The
// arguments are appended to the command line as further configuration, for
// example "--maxmemory", "2mb"; they win over the defaults given here.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if len(args) == 0 {
		return StartMasters(t, 1)[0]
	}
	return startAll(t, 1, plain(args...))[0]
}

// StartMasters runs n servers that know nothing of each other, started in
// parallel.
func StartMasters(t testing.TB, n int) []*Server {
	t.Helper()
	servers := takeIdle(n)
	for _, s := range servers {
		s.t = t
		t.Cleanup(s.shutdown)
	}
	fresh := startAll(t, n-len(servers), plain())
	for _, s := range fresh {
		s.ordinary = true
	}
	return append(servers, fresh...)
}

// Addr is the server's host:port. It stays the same across [Server.Restart].
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port is the server's port. It stays the same across [Server.Restart].
func (s *Server) Port() int { return s.port }

// Pid is the process id, another one after [Server.Restart], or 0 after
// [Server.Kill].
func (s *Server) Pid() int {
	if p := s.process(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Client connects a new client with go-redis defaults, which edit may change.
// It is closed when the test ends, before the server is killed; closing it
// earlier is fine.
func (s *Server) Client(edit ...func(*redis.Options)) *redis.Client {
	opts := &redis.Options{Addr: s.Addr()}
	for _, e := range edit {
		e(opts)
	}
	c := redis.NewClient(opts)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Pause stops the process (SIGSTOP) and returns when it stands still: the
// kernel still accepts connections and data, nobody answers.
func (s *Server) Pause() {
	s.t.Helper()
	p := s.mustRun("Pause")
	s.spoil()
	if err := p.signal(sigStop); err != nil {
		s.t.Fatalf("redistest: pausing %s: %v", s.Addr(), err)
	}
	err := await("SIGSTOP to take effect on "+s.Addr(), func() error {
		if !stopped(p.cmd.Process.Pid) {
			return errors.New("still running")
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Resume continues a paused process (SIGCONT). It then executes whatever its
// clients sent meanwhile, for clients that gave up too.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.mustRun("Resume").signal(sigCont); err != nil {
		s.t.Fatalf("redistest: resuming %s: %v", s.Addr(), err)
	}
}

// Kill ends the process as a crash would (SIGKILL) and returns when it is
// gone. It works on a paused server; a server that is dead stays dead.
func (s *Server) Kill() {
	s.mu.Lock()
	p, ctl := s.proc, s.ctl
	s.proc, s.ctl, s.spoiled = nil, nil, true
	s.mu.Unlock()
	if ctl != nil {
		_ = ctl.Close()
	}
	if p != nil {
		p.kill()
	}
}

// Wipe removes what the server has saved to disk, for a start without data after
// [Server.Kill].
func (s *Server) Wipe() {
	s.t.Helper()
	for _, name := range []string{"dump.rdb", "appendonly.aof", "appendonlydir"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			s.t.Fatalf("redistest: %v", err)
		}
	}
}

// Restart starts the server again after [Server.Kill], on the same port and in
// the same directory, and returns when it answers. It has the data of the last
// SAVE, if there was one, unless the server was started with arguments that ask for
// persistence.
func (s *Server) Restart() {
	s.t.Helper()
	if s.process() != nil {
		s.t.Fatalf("redistest: Restart of %s, which runs; Kill it first", s.Addr())
	}
	// While the server was down its port was free for any outgoing connection
	// on this machine, so a taken port is a reason to wait, not to give up.
	var err error
	for began := time.Now(); ; pause(began) {
		if err = s.start(); !errors.Is(err, errPortTaken) || time.Since(began) > patience {
			break
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// spoil keeps the server from being used again.
func (s *Server) spoil() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoiled = true
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// alive reports whether the server is up; a server that died is not.
func (s *Server) alive() bool {
	p := s.process()
	return p != nil && !p.exited()
}

func (s *Server) mustRun(verb string) *process {
	s.t.Helper()
	p := s.process()
	if p == nil {
		s.t.Fatalf("redistest: %s of %s, which is killed", verb, s.Addr())
	}
	return p
}

// shutdown runs when the test ends, after the cleanups of its clients.
func (s *Server) shutdown() {
	if s.keep() {
		return
	}
	s.Kill()
	if s.t.Failed() {
		s.t.Logf("redistest: end of the log of %s:\n%s", s.Addr(), s.logSince(s.logFrom))
	}
	if err := s.removeFiles(); err != nil {
		s.t.Error(err)
	}
}

// removeFiles does not leave that to t.TempDir: a forked child that was saving may outlive the server for a
// moment and create a file while the directory is being removed.
func (s *Server) removeFiles() error {
	return await("the files of "+s.Addr()+" to be removed", func() error { return os.RemoveAll(s.dir) })
}
