// Package readwrite shows how readers and writers of a ReadWriteLock wait for each other,
// also beside Redisson's, and what lost replies and dead readers do.
package readwrite

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
