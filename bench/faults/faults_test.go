package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/redistest"
)

func TestMain(m *testing.M) {
	if isChild() {
		for _, wrong := range []string{keepsSilent, hangs, litters, asksNobody} {
			libraries = append(libraries, plant(wrong))
		}
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	redis.SetLogger(quiet{})
	os.Exit(m.Run())
}

// briefLease is that of the tests: long enough for a machine that is busy with others.
const briefLease = 3 * time.Second

func brief(t *testing.T, l []library, ids ...string) plan {
	redistest.Need(t)
	p := plan{lease: briefLease, tries: 1, parallel: 6, libraries: l, say: t.Logf}
	for _, s := range scenarios {
		for _, id := range ids {
			if s.id == id {
				p.scenarios = append(p.scenarios, s)
			}
		}
	}
	return p
}

// All hit, and this library keeps what it promises; what others do depends on chance too.
func TestFaultsHitEachLibrary(t *testing.T) {
	l := []library{libraryNamed(rlockName), libraryNamed(redislockName), libraryNamed(redsyncName)}
	r, err := brief(t, l, "release", "restart").run()
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range r.Records {
		if rec.Library == rlockName && rec.Hung+rec.Failed+rec.Keys > 0 {
			t.Errorf("%s: %v", rec.Scenario, rec)
		}
	}
	lease := float64(briefLease.Milliseconds())
	if rec := r.of(rlockName, "release")[0]; rec.Next == nil || *rec.Next > lease/2 || !strings.Contains(rec.Unlock, "not confirmed") {
		t.Errorf("release: %v", rec)
	}
	if rec := r.of(rlockName, "restart")[0]; rec.Told == nil || *rec.Told > lease || !strings.Contains(rec.Unlock, "lease lost") {
		t.Errorf("restart: %v", rec)
	}
	page := r.page()
	for _, lib := range l {
		if n := strings.Count(page, "\n| "+lib.Name+" | "); n < 2 {
			t.Errorf("%s has %d rows:\n%s", lib.Name, n, page)
		}
	}
}

// Libraries that do wrong, to be caught.
const (
	keepsSilent = "planted: notifies nobody"
	hangs       = "planted: waits for ever"
	litters     = "planted: leaves a key"
	asksNobody  = "planted: does without Redis"
)

func plant(wrong string) library {
	return library{Name: wrong, nodes: 1, open: func(addrs []string, lease time.Duration) (driver, error) {
		return planted{connect(addrs[0], lease), lease, wrong}, nil
	}}
}

type planted struct {
	rdb   *redis.Client
	lease time.Duration
	wrong string
}

type plantedHeld struct {
	planted
	name string
}

func (p planted) lock(ctx context.Context, name string) (held, error) {
	for p.wrong != asksNobody {
		if p.rdb.SetArgs(ctx, name, "held", redis.SetArgs{Mode: "NX", TTL: p.lease}).Err() == nil {
			break
		}
		if p.wrong == hangs {
			select {}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return plantedHeld{p, name}, nil
}

func (h plantedHeld) lost() <-chan struct{} { return nil }

func (h plantedHeld) unlock(ctx context.Context) error {
	switch h.wrong {
	case asksNobody:
		return nil
	case litters:
		h.rdb.Set(ctx, h.name+":left", "", 0)
	}
	return h.rdb.Del(ctx, h.name).Err()
}

func TestWrongsAreCaught(t *testing.T) {
	redistest.Need(t)
	for _, c := range []struct {
		wrong, scenario, cell string
		caught                func(rec record) bool
	}{
		{keepsSilent, "restart", "1 of 1, until the first released", func(rec record) bool { return rec.Open && *rec.Shared > notable && rec.Told == nil }},
		{keepsSilent, "pause", "1 of 1", func(rec record) bool { return rec.Wrote && rec.Told == nil }},
		{hangs, "kill", "never, 1 of 1", func(rec record) bool { return rec.Hung == 1 && rec.Next == nil }},
		{litters, "kill", "1, without a TTL", func(rec record) bool { return rec.Keys == 1 && rec.KeyTTL == nil }},
	} {
		t.Run(c.wrong+"/"+c.scenario, func(t *testing.T) {
			t.Parallel()
			p := brief(t, []library{plant(c.wrong)}, c.scenario)
			r, err := p.run()
			if err != nil {
				t.Fatal(err)
			}
			rec := r.of(c.wrong, c.scenario)[0]
			if !c.caught(rec) {
				t.Errorf("not caught: %v", rec)
			}
			var cells []string
			for _, col := range columns[c.scenario] {
				cells = append(cells, col.cell(p.libraries[0], []record{rec}))
			}
			if !strings.Contains(strings.Join(cells, "|"), c.cell) {
				t.Errorf("the page has %q, without %q", cells, c.cell)
			}
		})
	}
}

// A fault that hits nothing is an error, and no figure.
func TestFaultThatMissesIsNoResult(t *testing.T) {
	l := plant(asksNobody)
	r, err := brief(t, []library{l}, "acquire").run()
	if err == nil || !strings.Contains(err.Error(), "hit in 0 of 1 tries") || len(r.of(l.Name, "acquire")) != 0 {
		t.Errorf("%v, %v", err, r.Records)
	}
}

// A run in which too few tries count is an error.
func TestFewTriesAreAnError(t *testing.T) {
	l := libraryNamed(rlockName)
	p := plan{tries: 5, libraries: []library{l}, scenarios: scenarios[:1]}
	r := newResults(p)
	for i := range 5 {
		rec := record{Library: l.Name, Scenario: scenarios[0].id}
		if i < 2 {
			rec.Invalid = "missed"
		}
		r.add(rec)
	}
	if err := r.complete(p); err == nil {
		t.Error("three of five are enough")
	}
	r.Records[0].Invalid = ""
	if err := r.complete(p); err != nil {
		t.Error(err)
	}
}

// docs/peers.md is what the program makes of the results that are kept with it.
func TestPageIsOfTheResults(t *testing.T) {
	r, err := load(resultsIn("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(pageIn("../..")); err != nil || string(got) != r.page() {
		t.Errorf("docs/peers.md is another (%v); go run ./faults -from ../docs/benchmarks/peers.json -out .. writes it", err)
	}
	if err := r.complete(plan{tries: r.Tries, libraries: libraries, scenarios: scenarios}); err != nil {
		t.Error(err)
	}
}
