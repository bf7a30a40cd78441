package locktest

import (
	"os"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// IsNightly reports whether this is a run of make nightly.
func IsNightly() bool { return os.Getenv("RLOCK_NIGHTLY") == "1" }

// IsThorough reports whether this is a run of .ci/run or of make nightly.
func IsThorough() bool { return os.Getenv("RLOCK_THOROUGH") == "1" || IsNightly() }

// Thorough leaves a test to .ci/run, which plays the same in each run, but is not what somebody waits for after
// each small change: one that waits for a quarter of a minute, or a further case of something that costs as much.
func Thorough(t testing.TB) {
	t.Helper()
	if !IsThorough() {
		t.Skip("a part of .ci/run: RLOCK_THOROUGH=1 runs it here")
	}
}

// Repeated leaves to .ci/run a scenario on miniredis that is also played on a real server, where there is one.
func Repeated(t testing.TB) {
	t.Helper()
	if redistest.Installed() {
		Thorough(t)
	}
}

// Nightly leaves a test to make nightly: one that looks for faults that nobody knows yet, so that it may find
// one in any run, or that kills and stops processes while others work. What stands between a change and
// main has the same result each time. What a nightly run finds becomes a test of every day.
func Nightly(t testing.TB) {
	t.Helper()
	if !IsNightly() {
		t.Skip("a part of make nightly: RLOCK_NIGHTLY=1 runs it here")
	}
}
