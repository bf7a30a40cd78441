package world

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/go-rlock/rlock/internal/seam"
)

// played plays a scenario in a bubble, and returns what has happened.
func played(t *testing.T, s Scenario) (happened []Event, verdicts []Verdict) {
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(nil, seam.Env{})
		if err != nil {
			t.Fatal(err)
		}
		verdicts, err = s.Play(t.Context(), w)
		happened = w.Events()
		w.Close()
		time.Sleep(time.Minute) // what go-redis leaves behind, such as a dial under way
		if err != nil {
			t.Fatal(err)
		}
	})
	return happened, verdicts
}

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{}) // it reports each dial into a network that is cut
	m.Run()
}

// source returns the text of a script, as it is in its file.
func source(t *testing.T, script string) string {
	t.Helper()
	text, err := os.ReadFile("../../scripts/" + script + ".lua")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func proves(t *testing.T, s Scenario) {
	t.Helper()
	happened, verdicts := played(t, s)
	for _, v := range verdicts {
		if !v.True {
			t.Error("not true:", v.Text)
		}
	}
	if t.Failed() || testing.Verbose() {
		for _, e := range happened {
			t.Logf("%6.3f s  %-11s %s", e.At.Seconds(), e.Kind, e.Text)
		}
	}
}

func TestScenarioPaused(t *testing.T)   { proves(t, paused) }
func TestScenarioFence(t *testing.T)    { proves(t, fence) }
func TestScenarioFailover(t *testing.T) { proves(t, failover) }
func TestScenarioCut(t *testing.T)      { proves(t, cut) }
func TestScenarioKilled(t *testing.T)   { proves(t, killed) }
func TestScenarioReply(t *testing.T)    { proves(t, reply) }

// TestReaderActs does what a reader may do in free play, in an order that no scenario has.
func TestReaderActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer time.Sleep(time.Minute)
		defer w.Close()
		a, b, c := w.Client("A"), w.Client("B"), w.Client("C")
		next := 0
		await := func(client string, kind Kind) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if next, err = w.Await(ctx, next, func(e Event) bool { return e.Client == client && e.Kind == kind }); err != nil {
				t.Fatalf("%s is not %s: %v", client, kind, w.Events())
			}
		}
		a.Lock()
		a.Lock() // does nothing
		await("A", Accepted)
		b.Lock()
		await("B", Waiting)
		b.Unlock()
		await("B", GaveUp)
		a.Pause(2 * time.Second) // shorter than the lease: it keeps the lock
		await("A", Paused)
		if s := a.Status(); !s.Paused || !s.Holds || s.Left <= 0 {
			t.Errorf("%+v", s)
		}
		await("A", Resumed)
		await("A", Accepted)
		c.Pause(time.Hour)
		c.Lock() // when it continues
		a.Kill()
		a.Lock() // nobody is there
		if s := a.Status(); s.Alive {
			t.Errorf("%+v", s)
		}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		a.Lock()
		await("A", Waiting)
		await("A", Held)
		a.Cut()
		a.Heal() // in time
		await("A", Renewed)
		a.Unlock()
		await("A", Released)
		for _, e := range w.Events() {
			if e.Kind == Lost || e.Kind == LostUpdate || e.Client == "C" && e.Kind != Paused {
				t.Errorf("unexpected: %v", e)
			}
		}
	})
}
