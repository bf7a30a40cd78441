//go:build unix

package processes

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// TestChildProcess is what a child process runs.
func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{
		"sections":     childSections,
		"hold":         childHold,
		"labeled":      childLabeled,
		"watch":        childWatch,
		"wait":         childWait,
		"handover":     childHandOver,
		"deploy":       childDeploy,
		"fair":         childFair,
		"multi":        childMulti,
		"priority":     childPriority,
		"rw sections":  childReadWriteSections,
		"rw hold":      childReadWriteHold,
		"red sections": childRedSections,
		"red hold":     childRedHold,
		"detaches":     childDetaches,
		"adopts":       childAdopts,
		"relays":       childRelays,
		"pings":        childPings,
	})
}
