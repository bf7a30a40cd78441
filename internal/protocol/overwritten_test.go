package protocol

import (
	"testing"
	"time"
)

// A late copy of an acquire finds that its hold was given up, although other data was at the key of the lock then,
// which is gone now.
func TestAbandonUnderAForeignKeyStopsLateCopies(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		open func(*Site, *Names) Protocol
		key  string
	}{
		"Lock":      {func(s *Site, n *Names) Protocol { return NewLock(s, n) }, "l"},
		"Fair":      {func(s *Site, n *Names) Protocol { return NewFair(s, n) }, "l"},
		"ReadSide":  {func(s *Site, n *Names) Protocol { return NewReadSide(s, n, true) }, "l"},
		"WriteSide": {func(s *Site, n *Names) Protocol { return NewWriteSide(s, n, true) }, "l"},
		"Priority":  {func(s *Site, n *Names) Protocol { return NewPriority(s, n, 0) }, "{l}:rlock:priority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site, m, _ := mini(t)
			l := of.open(site, namesOf(t, "l"))
			id := l.NewID().ID
			if err := m.Set(of.key, "text"); err != nil {
				t.Fatal(err)
			}
			if r := l.Abandon(id, true).Do(bg, 5*time.Second); r.Err != nil || r.Outcome != Overwritten {
				t.Errorf("%+v", r)
			}
			m.Del(of.key)
			if late := must(t, l.Enter(entry(id))); late.Verdict != Withdrawn {
				t.Errorf("%+v", late)
			}
		})
	}
}
