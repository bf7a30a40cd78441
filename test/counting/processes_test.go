//go:build unix

package counting

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// TestChildProcess is what a child process runs.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"sections": childSections, "permits": childPermits, "count": childCount})
}
