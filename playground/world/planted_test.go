package world

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/seam"
)

// TestClaimsFindPlantedMistakes plays scenarios with a mistake in a script of the library, or without the fence.
func TestClaimsFindPlantedMistakes(t *testing.T) {
	for name, plant := range map[string]struct {
		play                 Scenario
		judge                string // the scenario whose claims are judged, if another one
		script, old, instead string
		untrue               []string // beginnings of claims
	}{
		"the lock is granted to everybody": {
			play: cut, script: "lock/enter", old: "redis.call('exists', lock, tombstone) == 0", instead: "redis.call('exists', tombstone) == 0",
			untrue: []string{"That is before B", "No update is lost, and never"},
		},
		"the lock of a killed client is free": {
			play: killed, script: "lock/enter", old: "redis.call('exists', lock, tombstone) == 0", instead: "redis.call('exists', tombstone) == 0",
			untrue: []string{"B gets the lock when A's lease is over", "No update is lost"},
		},
		"a lease lasts too long": {
			play: killed, script: "shared/renewal", old: "lengthen(lock, lease)", instead: "lengthen(lock, 3 * lease)",
			untrue: []string{"B gets the lock when A's lease is over"},
		},
		"a copy of an acquire adds to the count": {
			play: reply, script: "lock/enter", old: "lengthen(lock, tonumber(lease))", instead: "redis.call('hincrby', lock, id, 1)",
			untrue: []string{"Redis has one hold"},
		},
		"tokens do not grow": {
			play: failover, script: "shared/token", old: "return now, last", instead: "return 1, last",
			untrue: []string{"B has a higher token"},
		},
		"a renewal does not find out that the hold is gone": {
			play: failover, script: "shared/renewal", old: "return -redis.call('exists', lock)", instead: "return 1",
			untrue: []string{"A learns of it"},
		},
		"there is no fence": {
			play: paused, judge: "fence",
			untrue: []string{"The resource refuses", "No update is lost"},
		},
		"the fence refuses": {
			play: fence, judge: "paused",
			untrue: []string{"A's late write takes effect"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			judge := plant.play
			if plant.judge != "" {
				judge, _ = Find(plant.judge)
			}
			var env seam.Env
			if plant.script != "" {
				env.Scripts = map[string]string{plant.script: mistake(t, plant.script, plant.old, plant.instead)}
			}
			untrue := untrue(judge.Judge(playedWith(t, plant.play, env)))
			for _, want := range plant.untrue {
				if !slices.ContainsFunc(untrue, func(claim string) bool { return strings.HasPrefix(claim, want) }) {
					t.Errorf("%q is held to be true; only these are not: %q", want, untrue)
				}
			}
		})
	}
}

// TestEachClaimCanBeUntrue removes events of one kind and client from what has happened, in turn, or moves them to the
// end: each claim must notice one of these. Without any events none is true.
func TestEachClaimCanBeUntrue(t *testing.T) {
	if len(Scenarios) != 6 {
		t.Fatalf("%d scenarios", len(Scenarios))
	}
	for _, s := range Scenarios {
		happened, verdicts := played(t, s)
		if got := len(untrue(verdicts)); got != 0 {
			t.Fatalf("%s: %d claims are not true", s.Name, got)
		}
		for _, v := range s.Judge(nil) {
			if v.True {
				t.Errorf("%s: true although nothing has happened: %s", s.Name, v.Text)
			}
		}
		noticed := map[string]bool{}
		for _, e := range happened {
			same := func(one Event) bool { return one.Kind == e.Kind && one.Client == e.Client }
			without := slices.DeleteFunc(slices.Clone(happened), same)
			late := without
			for _, one := range happened {
				if same(one) {
					one.At += time.Hour
					late = append(late, one)
				}
			}
			for _, claim := range append(untrue(s.Judge(without)), untrue(s.Judge(late))...) {
				noticed[claim] = true
			}
		}
		for _, v := range verdicts {
			if !noticed[v.Text] {
				t.Errorf("%s: always true: %s", s.Name, v.Text)
			}
		}
	}
}

func untrue(verdicts []Verdict) (claims []string) {
	for _, v := range verdicts {
		if !v.True {
			claims = append(claims, v.Text)
		}
	}
	return claims
}

// mistake returns the text of a script with a mistake.
func mistake(t *testing.T, script, old, instead string) string {
	t.Helper()
	text := source(t, script)
	if strings.Count(text, old) == 0 {
		t.Fatalf("%s has no %q", script, old)
	}
	return strings.ReplaceAll(text, old, instead)
}

// playedWith plays a scenario with a mistake, until it is over, or can go no further.
func playedWith(t *testing.T, s Scenario, env seam.Env) (happened []Event) {
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(nil, env)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _ = s.Play(ctx, w) // its claims are judged below
		happened = w.Events()
		w.Close()
		time.Sleep(time.Minute)
	})
	return happened
}
