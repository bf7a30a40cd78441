// Package wire checks what stands in Redis after each step, byte by byte what Redisson has
// there, and what a Redis user has to be permitted.
package wire

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
