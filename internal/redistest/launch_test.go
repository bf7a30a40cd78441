package redistest

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
)

// bare is a server that nothing has started yet.
func bare(t *testing.T, args ...string) *Server {
	Need(t)
	s := &Server{t: t, dir: t.TempDir(), argv: plain(args...)}
	t.Cleanup(s.Kill)
	return s
}

func TestStartReportsATakenPort(t *testing.T) {
	t.Parallel()
	s := bare(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := s.start(); !errors.Is(err, errPortTaken) {
		t.Errorf("start on a port in use: %v, want %v", err, errPortTaken)
	}
}

func TestStartReportsTheLogOfAServerThatExits(t *testing.T) {
	err := bare(t, "--no-such-directive", "1").startOnFreePort()
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("start with a wrong argument: %v", err)
	}
}

// The kernel would kill the server with the thread that forked it. There are
// two callers, because one may sit on the main thread, which never ends.
func TestServerOutlivesTheThreadOfItsCaller(t *testing.T) {
	servers := []*Server{bare(t), bare(t)}
	started := make(chan error)
	end := make(chan struct{})
	for _, s := range servers {
		go func() {
			runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
			started <- s.startOnFreePort()
			<-end
		}()
	}
	for range servers {
		if err := <-started; err != nil {
			t.Error(err)
		}
	}
	close(end)
	for range 50 {
		for _, s := range servers {
			if err := s.do("ping").Err(); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
	}
}

// recorder is a test that notes how it was ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) { r.skipped = args[0].(string); runtime.Goexit() }

func (r *recorder) Fatal(args ...any) { r.failed = args[0].(string); runtime.Goexit() }

func TestNeedSkipsUnlessRedisIsRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	need := func() *recorder {
		r := &recorder{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Need(r)
		}()
		<-done
		return r
	}
	t.Setenv("RLOCK_REQUIRE_REDIS", "")
	if r := need(); !strings.Contains(r.skipped, "apt-get install") || r.failed != "" {
		t.Errorf("got %+v, want a skip", r)
	}
	t.Setenv("RLOCK_REQUIRE_REDIS", "1")
	if r := need(); !strings.Contains(r.failed, "apt-get install") || r.skipped != "" {
		t.Errorf("got %+v, want a failure", r)
	}
}
