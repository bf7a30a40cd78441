// Package processes shows what holds when several processes share locks.
//
//   - Locks in operating system processes of their own, some of which are killed or stopped.
//   - adoption_*: a hold that was detached passes to another client by its handle. Of two that
//     believe in it there is never more than one, whatever gets lost, repeated or killed in
//     between, and nobody else can take it.
//   - scale_*: what thousands of holds, waiters and locks cost: time, goroutines, memory,
//     commands. Most of these measure in a process of their own.
package processes

import (
	"context"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }
