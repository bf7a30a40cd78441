//go:build unix

package interop

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// exclusion lets two processes of each language contend for one lock. A number that is
// read and written by separate commands loses nothing.
func (a *arena) exclusion(t *testing.T) {
	for _, c := range []struct {
		column, kind string
		sections     int // of each process
	}{
		{"Lock", "lock", 500},
		{"FairLock", "fair", 250},
		{"FencedLock", "fenced", 500},
		{"SpinLock", "spin", 500},
		{"ReadWriteLock", "rw", 1000}, // of which each fourth writes
	} {
		t.Run(c.kind, func(t *testing.T) {
			shown.by(t, a, caseExclusion, together, c.column)
			a.contend(t, c.kind, c.sections)
		})
	}
}

func (a *arena) contend(t *testing.T, kind string, sections int) {
	// Under one hash tag, so that a cluster has them all on one node: the lock is
	// what is to be slow.
	name := "{" + a.name("exclusion") + "}"
	counter := name + ":counter"
	begin := time.Now()
	var calls []*call
	for _, p := range slices.Concat(a.javas, a.gos) {
		calls = append(calls, p.send(t, "1", "sections", kind, name+"lock", counter, sections))
	}
	writes := 0
	for _, c := range calls {
		r := c.must(t, "ok")
		n, _ := strconv.Atoi(r.values[0])
		writes += n
	}
	took := time.Since(begin)
	t.Logf("%d sections of 4 processes in %v: %.0f a second", 4*sections, took.Round(time.Millisecond), float64(4*sections)/took.Seconds())

	if n, err := a.rdb.Get(bg, counter).Int(); err != nil || n != writes || writes == 0 {
		t.Errorf("the counter is %d (%v) after %d sections", n, err, writes)
	}
	if left := a.fields(t, name+"lock"); len(left) > 0 {
		t.Errorf("at the end there is %v", left)
	}
	if kind != "fenced" {
		return
	}
	tokens, err := a.rdb.LRange(bg, counter+":tokens", 0, -1).Result()
	if err != nil || len(tokens) != writes {
		t.Errorf("%d tokens (%v) of %d sections", len(tokens), err, writes)
	}
	last := 0
	for i, text := range tokens {
		token, err := strconv.Atoi(text)
		if err != nil || token <= last {
			t.Fatalf("section %d has token %s, the one before it %d", i, text, last)
		}
		last = token
	}
}
