// Package wire checks what stands in Redis after each step, byte by byte what Redisson has
// there, and what a Redis user has to be permitted. In files model_*, random operations are
// played on each type of lock and on a model of it, which says what callers are told and what
// stands in Redis.
package wire

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
