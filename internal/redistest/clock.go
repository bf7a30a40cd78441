package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

//go:embed testdata/clockshim.c
var clockShim []byte

// Clocked is a server whose time of day a test can set while it runs. Its
// monotonic clock, and the clocks of everybody else, go on as they are.
type Clocked struct {
	*Server
	offset string // the file that the process has mapped
}

// StartClocked runs n servers that know nothing of each other, each with a clock
// of its own. The test is skipped where that is not possible, or fails if the
// environment has RLOCK_REQUIRE_REDIS=1; see [Need].
func StartClocked(t testing.TB, n int, args ...string) []*Clocked {
	t.Helper()
	Need(t)
	shim := buildClockShim(t)
	// Each server has its offset in its own directory, where it is started.
	env := []string{"LD_PRELOAD=" + shim, "REDISTEST_CLOCK=clock"}
	servers := startAllIn(t, n, plain(args...), env, func(s *Server) error {
		return os.WriteFile(filepath.Join(s.dir, "clock"), make([]byte, 8), 0o600)
	})
	clocked := make([]*Clocked, n)
	for i, s := range servers {
		clocked[i] = &Clocked{s, filepath.Join(s.dir, "clock")}
	}
	return clocked
}

// SetClock makes the server's clock differ from the real one by d. A server that
// is down has it when it is back.
func (c *Clocked) SetClock(d time.Duration) {
	c.t.Helper()
	f, err := os.OpenFile(c.offset, os.O_WRONLY, 0)
	if err == nil {
		// In place, and in one write: the page is mapped.
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d.Microseconds())), 0)
		_ = f.Close()
	}
	if err != nil {
		c.t.Fatalf("redistest: setting the clock of %s: %v", c.Addr(), err)
	}
}

func buildClockShim(t testing.TB) string {
	t.Helper()
	missing := func(why string) {
		t.Helper()
		if os.Getenv("RLOCK_REQUIRE_REDIS") == "1" {
			t.Fatal(why + " (RLOCK_REQUIRE_REDIS=1 forbids skipping)")
		}
		t.Skip(why)
	}
	if runtime.GOOS != "linux" {
		missing("redistest: the clock of a server can be set on Linux only")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		missing("redistest: gcc is not in PATH, and sets the clocks of servers; install it, for example with: apt-get install gcc libc6-dev")
	}
	built, err := shimBuilt()
	if err != nil {
		t.Fatalf("redistest: building the clock shim: %v", err)
	}
	shim := filepath.Join(t.TempDir(), "clockshim.so")
	if err := os.WriteFile(shim, built, 0o700); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return shim
}

// shimBuilt is the library: the compiler runs once for all tests of a package.
var shimBuilt = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	source, shim := filepath.Join(dir, "clockshim.c"), filepath.Join(dir, "clockshim.so")
	if err := os.WriteFile(source, clockShim, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", shim, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(shim)
})
