package redistest

import (
	"context"
	"testing"
	"time"
)

func TestClockCanBeSet(t *testing.T) {
	ctx := context.Background()
	s := StartClocked(t, 2)
	a, b := s[0].Client(), s[1].Client()
	off := func() time.Duration {
		t.Helper()
		began := time.Now()
		got, err := a.Time(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		if other := b.Time(ctx).Val(); time.Since(other).Abs() > 10*time.Second {
			t.Errorf("the clock of the other server shows %v", other)
		}
		return got.Sub(began)
	}
	up := func() string { return field(a.Info(ctx, "server").Val(), "run_id") }
	run := up()
	// The bound is for a busy machine.
	for _, want := range []time.Duration{0, 90 * time.Minute, -90 * time.Minute, 1500 * time.Millisecond, -1500 * time.Millisecond, 0} {
		s[0].SetClock(want)
		if got := off(); got < want || got > want+10*time.Second {
			t.Errorf("set %v off, and %v off", want, got)
		}
	}
	a.Set(ctx, "key", 1, time.Hour)
	s[0].SetClock(90 * time.Minute)
	if a.Exists(ctx, "key").Val() != 0 {
		t.Error("a key of an hour lives for longer")
	}
	if now := up(); now != run {
		t.Error("the server was restarted")
	}
	s[0].SetClock(time.Hour)
	s[0].Kill()
	s[0].Restart()
	if got := off(); got < time.Hour {
		t.Errorf("after a restart %v off", got)
	}
}
