package models

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
)

func TestPriorityLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	followsQueuedModel(t, "priority", func(m *queuedModel, c *rlock.Client) map[string]func(*rapid.T) {
		l := c.NewPriorityLock(m.name)
		enter := func(rt *rapid.T) {
			o := m.pick(rt, "enter", func(o *queuedMember) bool { return len(o.leases) == 0 && !o.waits })
			p := rapid.IntRange(rlock.MinPriority, rlock.MaxPriority).Draw(rt, "priority")
			m.lock(rt, o, l, false, -p, rlock.WithPriority(p))
		}
		return map[string]func(*rapid.T){"enter": enter, "enter again": enter}
	})
}
