// Package topologies runs locks on clusters, on replicas and behind Sentinel: failover,
// slot migration, acknowledgments of replicas, sharded publishing, wrapped clients.
package topologies

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
