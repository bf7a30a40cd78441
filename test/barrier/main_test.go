// Package barrier shows that the members of a DoubleBarrier begin and end together.
package barrier

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
