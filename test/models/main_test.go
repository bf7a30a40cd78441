// Package models plays random operations on each type of lock and on a model of it, and
// compares what callers are told and what stands in Redis.
package models

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
