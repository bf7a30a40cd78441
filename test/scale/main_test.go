// Package scale measures what thousands of holds, waiters and locks cost: time,
// goroutines, memory, commands.
package scale

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
