package rlock_test

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

var bg = context.Background()
