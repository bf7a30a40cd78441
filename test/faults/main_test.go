// Package faults shows what holders and waiters are told, and what is left in Redis, when
// replies are lost, servers hang or restart, and hooks, loggers or publishing fail.
package faults

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) {
	if locktest.UnderRace() {
		locktest.Main(m)
		return
	}
	locktest.MainAtMost(m, 80) // they compute next to nothing
}
