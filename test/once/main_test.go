// Package once shows that a Once runs one function at a time, and that its result reaches
// everybody.
package once

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
