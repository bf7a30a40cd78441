package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// With this in its environment, the test binary is the program.
const asProgram = "RLOCK_TEST_SHUTDOWN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// When it is told to stop, it ends the item that it has begun, and unlocks.
func TestProgramEndsItsItemAndUnlocks(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGTERM")
	}
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_ADDR="+mini.Addr())
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := ""
	for lines := bufio.NewScanner(log); lines.Scan(); {
		out += lines.Text() + "\n"
		if strings.HasSuffix(lines.Text(), "begins item 2") {
			if !mini.Exists("items") {
				t.Error("it works without the lock")
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || strings.Count(out, "begins") != strings.Count(out, "ends item") || !strings.HasSuffix(out, "all is unlocked\n") {
		t.Errorf("%v:\n%s", err, out)
	}
	if mini.Exists("items") {
		t.Error("the lock is still held")
	}
}
