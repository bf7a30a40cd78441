package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// patience bounds every wait. It is far above what a loaded two-core
	// machine needs, since reaching it always fails a test.
	patience = 30 * time.Second

	// pollInterval is short because starting servers is most of the time that
	// a test against real servers takes.
	pollInterval = 5 * time.Millisecond

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
	if _, err := exec.LookPath("redis-server"); err == nil {
		return
	}
	const how = "redistest: redis-server is not in PATH; install it, for example with: apt-get install redis-server"
	if os.Getenv("RLOCK_REQUIRE_REDIS") == "1" {
		t.Fatal(how + " (RLOCK_REQUIRE_REDIS=1 forbids skipping)")
	}
	t.Skip(how)
}

// Server is one redis-server process, listening on a loopback port of its own.
type Server struct {
	t    testing.TB
	dir  string
	argv func(*Server) []string

	port    int
	busPort int // cluster bus; taken for every server, it costs nothing

	mu   sync.Mutex // guards proc and ctl
	proc *process   // nil while the server is killed
	ctl  *redis.Client
}

// Start runs a server without persistence and returns when it answers. The
// arguments are appended to the command line as further configuration, for
// example "--maxmemory", "2mb"; they win over the defaults given here.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return startAll(t, 1, plain(args...))[0]
}

// StartMasters runs n servers that know nothing of each other, started in
// parallel.
func StartMasters(t testing.TB, n int) []*Server {
	t.Helper()
	return startAll(t, n, plain())
}

// plain is the command line of a data server.
func plain(extra ...string) func(*Server) []string {
	return func(s *Server) []string {
		args := append(s.listen(),
			"--save", "",
			"--appendonly", "no",
			// A full synchronisation starts at once instead of after five
			// seconds spent waiting for further replicas.
			"--repl-diskless-sync-delay", "0",
		)
		return append(args, extra...)
	}
}

// listen is what every kind of server is told.
func (s *Server) listen() []string {
	return []string{
		"--port", strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--protected-mode", "no",
		"--enable-debug-command", "yes",
		"--dir", s.dir,
	}
}

// startAll runs n servers in parallel and fails the test unless all answer.
func startAll(t testing.TB, n int, argv func(*Server) []string) []*Server {
	t.Helper()
	Need(t)
	servers := make([]*Server, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range servers {
		s := &Server{t: t, dir: t.TempDir(), argv: argv}
		servers[i] = s
		t.Cleanup(s.shutdown)
		wg.Go(func() { errs[i] = s.startOnFreePort() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return servers
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
	s.proc, s.ctl = nil, nil
	s.mu.Unlock()
	if ctl != nil {
		_ = ctl.Close()
	}
	if p != nil {
		p.kill()
	}
}

// Restart starts the server again after [Server.Kill], on the same port and in
// the same directory, and returns when it answers. The data is gone unless the
// server was started with arguments that ask for persistence.
func (s *Server) Restart() {
	s.t.Helper()
	if s.process() != nil {
		s.t.Fatalf("redistest: Restart of %s, which runs; Kill it first", s.Addr())
	}
	// While the server was down its port was free for any outgoing connection
	// on this machine, so a taken port is a reason to wait, not to give up.
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(pollInterval) {
		if err = s.start(); !errors.Is(err, errPortTaken) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

var errPortTaken = errors.New("port is taken")

// startOnFreePort starts the server, with other ports if somebody was faster
// to take the ones that were free a moment ago.
func (s *Server) startOnFreePort() error {
	var err error
	for range 10 {
		if s.port, s.busPort, err = freePorts(); err != nil {
			return err
		}
		if err = s.start(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// freePorts holds the first port while it asks for the second, so they differ.
func freePorts() (port, busPort int, err error) {
	a, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, fmt.Errorf("redistest: looking for a free port: %w", err)
	}
	defer a.Close()
	b, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, fmt.Errorf("redistest: looking for a free port: %w", err)
	}
	defer b.Close()
	return a.Addr().(*net.TCPAddr).Port, b.Addr().(*net.TCPAddr).Port, nil
}

// start runs the process once and waits until it answers.
func (s *Server) start() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer log.Close() // the child has its own descriptor
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	p, err := spawn(path, s.argv(s), s.dir, log)
	if err != nil {
		return err
	}
	ctl := redis.NewClient(s.control())
	err = await("redis-server on "+s.Addr()+" to answer", func() error {
		if p.exited() {
			return fatal{fmt.Errorf("it exited: %v", p.cmd.ProcessState)}
		}
		return s.answers(ctl, p)
	})
	if err != nil {
		_ = ctl.Close()
		p.kill()
		out := s.logSince(begin)
		if strings.Contains(out, "Address already in use") || strings.Contains(out, "Failed listening on port") {
			return fmt.Errorf("redistest: %s: %w", s.Addr(), errPortTaken)
		}
		return fmt.Errorf("%w\nlog:\n%s", err, out)
	}
	s.mu.Lock()
	s.proc, s.ctl = p, ctl
	s.mu.Unlock()
	return nil
}

// answers checks that the port is served, past loading, and by this process:
// after a lost race for the port another server would answer.
func (s *Server) answers(ctl *redis.Client, p *process) error {
	// go-redis delays further attempts after some failed ones, so it is asked
	// only once somebody listens.
	c, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return err
	}
	_ = c.Close()
	ctx := context.Background()
	if err := ctl.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := ctl.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if pid := field(info, "process_id"); pid != strconv.Itoa(p.cmd.Process.Pid) {
		return fmt.Errorf("process %s answers instead of %d", pid, p.cmd.Process.Pid)
	}
	return nil
}

// control is a client for this package's own commands: nothing is retried, so
// a wait sees the state as it is, and a paused server costs two seconds.
func (s *Server) control() *redis.Options {
	return &redis.Options{
		Addr:                     s.Addr(),
		MaxRetries:               -1,
		DialerRetries:            1,
		DialTimeout:              2 * time.Second,
		ReadTimeout:              2 * time.Second,
		WriteTimeout:             2 * time.Second,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

var errKilled = errors.New("the server is killed")

// do sends one command over the server's control connection.
func (s *Server) do(args ...any) *redis.Cmd {
	cmd := redis.NewCmd(context.Background(), args...)
	_ = s.run(cmd)
	return cmd
}

// run is do for commands whose reply needs a type of its own.
func (s *Server) run(cmd redis.Cmder) error {
	s.mu.Lock()
	ctl := s.ctl
	s.mu.Unlock()
	if ctl == nil {
		cmd.SetErr(errKilled)
		return errKilled
	}
	return ctl.Process(context.Background(), cmd)
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// alive tells whether the server is up; one that died by itself is not.
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
	s.Kill()
	if s.t.Failed() {
		s.t.Logf("redistest: end of the log of %s:\n%s", s.Addr(), s.logSince(0))
	}
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// logSince is the log from an offset on, at most its last logTail bytes.
func (s *Server) logSince(offset int64) string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	b = b[min(offset, int64(len(b))):]
	return string(b[max(0, len(b)-logTail):])
}
