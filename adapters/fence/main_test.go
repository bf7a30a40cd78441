package fence_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }
