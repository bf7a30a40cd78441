// Package processes runs locks in operating system processes of their own, some of which
// are killed or stopped.
package processes

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
