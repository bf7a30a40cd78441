//go:build unix

package coordination

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// TestChildProcess is what a child process runs.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{
		"lead": childLead, "do": childDo, "member": childMember, "holds": childHolds, "cron": childCron,
	})
}
