// Package coordination shows what processes agree on besides locks: who leads (Election), who
// runs a function whose result is for all (Once), who begins and ends together
// (DoubleBarrier); and how holders hear that they are asked to release (RequestRelease, of
// every type).
package coordination

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
