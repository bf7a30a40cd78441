//go:build unix

package interop

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

var update = flag.Bool("interop.update", false, "write the table of what was shown to docs/redisson.md")

// classPath is what Java runs the driver with.
var classPath string

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(quiet{})
	if args := os.Getenv(childEnv); args != "" {
		goDriver(args)
		return
	}
	os.Exit(run(m))
}

// run runs the tests, and compares what they have shown with what is told.
func run(m *testing.M) int {
	if missing := missing(); missing != "" {
		if os.Getenv("RLOCK_REQUIRE_INTEROP") == "1" {
			fmt.Fprintf(os.Stderr, "interop: %s is not there, and RLOCK_REQUIRE_INTEROP=1 forbids skipping\n", missing)
			return 1
		}
		fmt.Fprintf(os.Stderr, "interop: SKIPPED: the tests want Java 17, Maven and redis-server, and %s is not there\n", missing)
		return 0
	}
	var err error
	if classPath, err = buildJava(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	// The parallel tests wait for leases to end, not for a processor.
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	if err := shown.compare(*update); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	return 0
}

// missing is a program that the tests need and that is not there.
func missing() string {
	for _, program := range []string{"java", "mvn", "redis-server"} {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	return ""
}

// quiet drops what go-redis logs of connections that end with a test.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
