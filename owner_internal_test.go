package rlock

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/protocol"
)

// What an owner does at one lock costs the same however many others it holds.
func TestLookingUpALockOfAnOwnerDoesNotWalkTheOthers(t *testing.T) {
	c := &Client{cfg: defaults()}
	look := func(holding int) time.Duration {
		own := &owner{}
		for i := range holding {
			l, _ := newCore(c, protocol.HashFamily, strconv.Itoa(i), lockConfig{}, nil)
			own.at(l) // in use, and so kept
		}
		l, _ := newCore(c, protocol.HashFamily, strconv.Itoa(holding-1), lockConfig{}, nil)
		least := time.Hour
		for range 20 {
			start := time.Now()
			for range 1000 {
				own.at(l).leave()
			}
			least = min(least, time.Since(start)/1000)
		}
		return least
	}
	few, many := look(1), look(16_000)
	t.Logf("holding 1 lock: %v, 16,000: %v", few, many)
	if many > 20*few {
		t.Errorf("a look takes %v for one who holds 16,000 locks, %v for one who holds 1", many, few)
	}
}
