package rlockvet_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockvet"
)

// Each package of cases is checked with the real rlock. A finding without a want fails, too.
func TestCases(t *testing.T) {
	for folder, category := range map[string]string{
		"lost": rlockvet.LostLease, "ends": rlockvet.LostLease, "context": rlockvet.OuterContext, "unlock": rlockvet.UnlockError, "loop": rlockvet.DeferInLoop,
		"tx": rlockvet.InTransaction, "name": rlockvet.TimedName, "wait": rlockvet.LongWait, "permit": rlockvet.LostPermit,
	} {
		t.Run(folder, func(t *testing.T) {
			// The cases of one category are no models for the others.
			a := rlockvet.New()
			others := slices.DeleteFunc(slices.Clone(rlockvet.Categories), func(c string) bool { return c == category })
			if err := a.Flags.Set("skip", strings.Join(others, ",")); err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, r := range analysistest.Run(t, ".", a, "./testdata/"+folder) {
				for _, d := range r.Diagnostics {
					found++
					if d.Category != category || !strings.HasSuffix(d.URL, "/vet/#"+category) || !strings.HasSuffix(d.Message, d.URL) {
						t.Errorf("%+v", d)
					}
				}
			}
			if found == 0 {
				t.Error("nothing found")
			}
		})
	}
}

func TestFlags(t *testing.T) {
	a := rlockvet.New()
	if err := a.Flags.Set("anycontext", "true"); err != nil {
		t.Fatal(err)
	}
	analysistest.Run(t, ".", a, "./testdata/anycontext")

	err := a.Flags.Set("skip", "lost-lease, unlock-eror")
	if err == nil || !strings.Contains(err.Error(), `no category "unlock-eror"; the categories are lost-lease, `) {
		t.Error(err)
	}
	if err := a.Flags.Set("skip", "lost-lease, unlock-error,"); err != nil {
		t.Error(err)
	}
	if got := a.Flags.Lookup("skip").Value.String(); got != "lost-lease,unlock-error" {
		t.Error(got)
	}
}

// Programs of ordinary Go have no findings of any category.
func TestRightPrograms(t *testing.T) {
	for _, r := range analysistest.Run(t, ".", rlockvet.New(), "./testdata/right") {
		if len(r.Diagnostics) > 0 {
			t.Error(r.Diagnostics)
		}
	}
}

// What looks like rlock and is not is passed over, and so is the whole package.
func TestWithoutRlock(t *testing.T) {
	for _, r := range analysistest.Run(t, ".", rlockvet.New(), "./testdata/none") {
		if len(r.Diagnostics) > 0 {
			t.Error(r.Diagnostics)
		}
	}
}

// The analyzer knows rlock by names: each of them is there, with the results that it expects.
func TestNamesAreThoseOfRlock(t *testing.T) {
	lease, failure := reflect.TypeFor[*rlock.Lease](), reflect.TypeFor[error]()
	for _, typ := range []reflect.Type{reflect.TypeFor[rlock.Locker](), reflect.TypeFor[*rlock.PermitSemaphore](), reflect.TypeFor[*rlock.Election](), reflect.TypeFor[*rlock.DoubleBarrier]()} {
		acquires := 0
		for i := range typ.NumMethod() {
			m := typ.Method(i).Type
			if m.NumOut() == 2 && m.Out(0) == lease && m.Out(1) == failure {
				acquires++
			}
		}
		if acquires == 0 {
			t.Error("no acquire of", typ)
		}
	}
	for typ, methods := range map[reflect.Type][]string{
		lease: {"Unlock", "Detach", "Err", "Context", "Deadline", "HoldID", "Name", "ReleaseRequested", "String", "Token"},
		reflect.TypeFor[*rlock.Client](): {"Unlock", "NewSemaphore", "NewLock", "NewFairLock", "NewPriorityLock", "NewSpinLock", "NewFencedLock",
			"NewReadWriteLock", "NewFairReadWriteLock", "NewElection", "NewCronJob"},
		reflect.TypeFor[*rlock.Semaphore](): {"Acquire", "TryAcquire", "Release"},
	} {
		for _, name := range methods {
			if _, ok := typ.MethodByName(name); !ok {
				t.Errorf("%s has no %s", typ, name)
			}
		}
	}
	_, _, _, _, _ = rlock.WithLease, rlock.WithWait, rlock.WithPermits, rlock.NewRedLock, rlock.Do
}
