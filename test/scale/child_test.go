//go:build unix

package scale

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// What a child process of a test runs.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"pings": childPings})
}
