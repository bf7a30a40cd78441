package models

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

func TestFairReadWriteLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "fairrw", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewFairReadWriteLock(m.name)
		enter := func(side locktest.AnyLock, isShared bool) func(*rapid.T) {
			return func(rt *rapid.T) {
				o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
				m.lock(rt, o, side, isShared, 0)
			}
		}
		return map[string]func(*rapid.T){"read": enter(l.Reader, true), "read again": enter(l.Reader, true), "write": enter(l.Writer, false)}
	})
}
