// Package multilock shows that a MultiLock holds all of its members or none: orders that
// cross, faults of members, loss, release by one script.
package multilock

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
