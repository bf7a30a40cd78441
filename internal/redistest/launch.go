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

	"github.com/go-rlock/rlock/internal/loopback"
)

// plain is the command line of a data server.
func plain(extra ...string) func(*Server) []string {
	return func(s *Server) []string {
		args := append(s.listen(),
			"--save", "",
			"--appendonly", "no",
			// A full synchronization starts immediately instead of after five
			// seconds spent waiting for further replicas.
			"--repl-diskless-sync-delay", "0",
		)
		return append(args, extra...)
	}
}

// listen has the settings of every kind of server.
func (s *Server) listen() []string {
	args := []string{
		"--port", strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--protected-mode", "no",
		"--dir", s.dir,
	}
	if !isOld() {
		args = append(args, "--enable-debug-command", "yes")
	}
	return args
}

// isOld reports whether the server is older than Redis 7: it needs no leave for DEBUG, and its bus has the port of a
// cluster and 10,000.
var isOld = sync.OnceValue(func() bool {
	version, _ := exec.Command(program(), "--version").Output()
	return strings.Contains(string(version), " v=6.")
})

// IsOld reports whether the server is older than Redis 7: it has neither sharded channels, nor ACL DRYRUN, nor statistics of
// subcommands.
func IsOld() bool { return isOld() }

// NeedSharded skips a test of what no server before Redis 7 has.
func NeedSharded(t testing.TB) {
	t.Helper()
	if isOld() {
		t.Skip("redistest: before Redis 7 there are no sharded channels")
	}
}

// startAll runs n servers in parallel and fails the test unless all answer.
func startAll(t testing.TB, n int, argv func(*Server) []string) []*Server {
	t.Helper()
	return startAllIn(t, n, argv, nil, nil)
}

// startAllIn is startAll with additions to the environment and, before each
// server starts, to its directory.
func startAllIn(t testing.TB, n int, argv func(*Server) []string, env []string, prepare func(*Server) error) []*Server {
	t.Helper()
	Need(t)
	servers := make([]*Server, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range servers {
		dir, err := os.MkdirTemp("", "redistest-")
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		s := &Server{t: t, dir: dir, argv: argv, env: env}
		servers[i] = s
		t.Cleanup(s.shutdown)
		if prepare != nil {
			if err := prepare(s); err != nil {
				t.Fatalf("redistest: %v", err)
			}
		}
		wg.Go(func() { errs[i] = s.startOnFreePort() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return servers
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

// freePorts returns two ports that nobody else gets.
func freePorts() (port, busPort int, err error) {
	if port, err = loopback.Port(); err == nil && isOld() {
		busPort = port + 10_000
	} else if err == nil {
		busPort, err = loopback.Port()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("redistest: %w", err)
	}
	return port, busPort, nil
}

// start runs the process once and waits until it answers.
func (s *Server) start() error {
	path, err := exec.LookPath(program())
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
	p, err := spawn(path, s.argv(s), s.env, s.dir, log)
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

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// logEnd is where the log ends.
func (s *Server) logEnd() int64 {
	info, err := os.Stat(s.logPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince is the log from an offset on, at most its last logTail bytes.
func (s *Server) logSince(offset int64) string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	b = b[min(offset, int64(len(b))):]
	return string(b[max(0, len(b)-logTail):])
}
