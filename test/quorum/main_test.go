// Package quorum shows what a RedLock promises on five masters that are killed, stopped,
// forget, answer late or have a wrong clock.
package quorum

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) {
	atMost := 24
	if locktest.UnderRace() {
		atMost = 12
	}
	locktest.MainAtMost(m, atMost)
}
