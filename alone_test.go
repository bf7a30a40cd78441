package rlock_test

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"
)

const aloneEnv = "RLOCK_TEST_ALONE"

// alone runs the test that calls it in a process of its own, beside the other
// tests: it measures what belongs to a process, such as goroutines or memory. It
// returns true in that process and false in the one that started it.
func alone(t *testing.T) bool {
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
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel=1",
		"-test.short="+strconv.FormatBool(testing.Short()), "-test.timeout="+timeout.String())
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
