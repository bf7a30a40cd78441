package locktest

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	lua "github.com/yuin/gopher-lua"
	"go.uber.org/goleak"

	"github.com/go-rlock/rlock/internal/redistest"
)

// parallel is how many tests run at a time. They wait most of the time, for
// leases, renewals and timeouts, so it does not follow from the number of CPUs. With 80
// at a time the tests are no quicker, and answers within half a second, on which some depend, come late.
func parallel() int {
	if UnderRace() {
		return 8 // these compute most of the time
	}
	return 40
}

// Main runs the tests of a package: it fails on a leaked goroutine, drops what
// go-redis logs, and lets many tests run side by side.
func Main(m *testing.M) { MainAtMost(m, parallel()) }

// MainAtMost is Main for a package in which so many tests run side by side: its tests have several
// servers each, which on a busy machine would keep each other from answering in time.
func MainAtMost(m *testing.M, tests int) {
	redis.SetLogger(quiet{})
	lua.RegistrySize = 2048 // on miniredis each script that runs makes a Lua state of 80 kB, and uses little of it
	lua.CallStackSize = 64
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // a third of the time of tests on miniredis is spent on such states
	}
	flag.Parse()
	if !Given("test.parallel") {
		_ = flag.Set("test.parallel", strconv.Itoa(tests))
	}
	if flag.Lookup("rapid.seed") != nil && !Given("rapid.seed") && !IsNightly() {
		_ = flag.Set("rapid.seed", "1") // every day the same operations, each night new ones
		// They fail again without a file. One that is replayed after a correction stops somewhere, with locks held.
		_ = flag.Set("rapid.nofailfile", "true")
	}
	if os.Getenv(childEnv) != "" {
		os.Exit(m.Run()) // a child process of a test
	}
	// After some failed dials go-redis probes the server once a second, and
	// looks whether its pool was closed only in between.
	goleak.VerifyTestMain(redistest.Run{Tests: m}, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// childEnv names the mode in a child process.
const childEnv = "RLOCK_TEST_CHILD"

// Given reports whether a flag is on the command line.
func Given(name string) (is bool) {
	flag.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// quiet drops what go-redis logs of broken connections, which tests cause on
// purpose all the time.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// UnderRace reports whether the race detector is on, which makes everything
// several times slower.
var UnderRace = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// Ample is a timeout or a lease that is not the subject of its test: long enough
// for what has to happen within it, and longer where everything takes longer.
func Ample(d time.Duration) time.Duration {
	if UnderRace() {
		return 2 * d
	}
	return d
}

// aloneEnv is set in a process that Alone has started.
const aloneEnv = "RLOCK_TEST_ALONE"

// Alone runs the test that calls it in a separate process, in parallel with the other
// tests: it measures what belongs to a process, such as goroutines or memory. It
// returns true in that process and false in the one that started it.
func Alone(t *testing.T) bool {
	t.Helper()
	t.Parallel()
	if os.Getenv(aloneEnv) != "" {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	timeout := 10 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		timeout = max(time.Until(deadline)-time.Second, time.Second)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.parallel=1",
		"-test.short=" + strconv.FormatBool(testing.Short()), "-test.timeout=" + timeout.String()}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String()) // of the package
		}
	})
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.SysProcAttr = dieWithParent()
	// The signal of a parent's death is sent when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")):
		t.Skipf("%s", out)
	default:
		t.Logf("%s", out)
	}
	return false
}
