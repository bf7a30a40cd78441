package rlock_test

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// snippets is a type checker of a few lines that use the package.
type snippets struct {
	files *token.FileSet
	types types.Importer
	rlock *types.Package
}

func newSnippets(t *testing.T) *snippets {
	t.Helper()
	const path = "github.com/go-rlock/rlock"
	s := &snippets{files: token.NewFileSet()}
	s.types = compiled(t, s.files, path, "context", "time")
	var err error
	if s.rlock, err = s.types.Import(path); err != nil {
		t.Fatal(err)
	}
	return s
}

// compiled imports packages as the compiler has left them.
func compiled(t *testing.T, files *token.FileSet, paths ...string) types.Importer {
	t.Helper()
	list := exec.Command("go", append([]string{"list", "-export", "-f", "{{.ImportPath}}={{.Export}}"}, paths...)...)
	var failed bytes.Buffer
	list.Stderr = &failed
	lines, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, failed.Bytes())
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(lines)) {
		of, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[of] = file
	}
	return importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

// errors is what the compiler says of the body of a function with some values.
func (s *snippets) errors(t *testing.T, body string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(s.files, "", `package user
import ("context"; "time"; "github.com/go-rlock/rlock")
var _, _ = context.Background, time.Now
type mine struct{}
func (mine) Name() string { return "" }
func (mine) Lock(context.Context, ...rlock.AcquireOption) (*rlock.Lease, error) { return nil, nil }
func (mine) TryLock(context.Context, ...rlock.TryOption) (*rlock.Lease, error) { return nil, nil }
func _(ctx context.Context, c *rlock.Client, cs []*rlock.Client, lock *rlock.Lock, press *rlock.PriorityLock, rw *rlock.ReadWriteLock,
	multi *rlock.MultiLock, s *rlock.Semaphore, permits *rlock.PermitSemaphore, latch *rlock.CountDownLatch, barrier *rlock.Barrier,
	double *rlock.DoubleBarrier, election *rlock.Election, lease *rlock.Lease, once *rlock.Once,
	fn func(context.Context) error, result func(context.Context) ([]byte, error)) {
	`+body+`
}`, 0)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	check := types.Config{Importer: s.types, Error: func(err error) { all = append(all, err.(types.Error).Msg) }}
	_, _ = check.Check("user", s.files, []*ast.File{file}, nil)
	return all
}

// must checks that a body compiles, or that the one thing that is wrong with it is this.
func (s *snippets) must(t *testing.T, body, wrong string) {
	t.Helper()
	switch got := s.errors(t, body); {
	case wrong == "" && got != nil:
		t.Errorf("%s\ndoes not compile: %q", body, got)
	case wrong != "" && (len(got) != 1 || !strings.Contains(got[0], wrong)):
		t.Errorf("%s\nthe compiler should say %q, and says %q", body, wrong, got)
	}
}

// Options of constructors, and to which of them they fit.
var (
	lockMakers    = []string{"NewLock", "NewFairLock", "NewSpinLock", "NewFencedLock", "NewReadWriteLock", "NewFairReadWriteLock", "NewPriorityLock", "NewRedLock"}
	optionFitters = map[string][]string{
		"WithNonReentrant()":                    lockMakers,
		"WithMaxHold(time.Hour)":                append([]string{"NewPermitSemaphore", "NewElection", "NewOnce", "NewCronJob"}, lockMakers...),
		"WithHandOver(1, time.Second)":          {"NewLock"},
		"WithBackoff(rlock.ConstantBackoff(1))": {"NewSpinLock"},
		"WithAging(time.Hour)":                  {"NewPriorityLock"},
		"WithReaderPreference()":                {"NewReadWriteLock"},
		"WithQuorum(3)":                         {"NewRedLock"},
		"WithNodeTimeout(time.Second)":          {"NewRedLock"},
		"WithRestartQuarantine()":               {"NewRedLock"},
		"WithLongestLease(time.Hour)":           {"NewRedLock"},
		"WithRound(time.Second)":                {"NewMultiLock"},
		"WithFairness()":                        {"NewPermitSemaphore"},
		"WithPermits(9)":                        {"NewSemaphore", "NewPermitSemaphore"},
		"WithTakeover()":                        {"NewCronJob"},
		"WithRetention(time.Hour)":              {"NewCronJob"},
		"WithLeastInterval(time.Hour)":          {"NewCronJob"},
		"WithLease(time.Hour)":                  nil,
		"WithWait(time.Hour)":                   nil,
		"WithWatchdogLease(time.Hour)":          nil, // of a Client
	}
	oddMakers = map[string]string{
		"NewRedLock":       `rlock.NewRedLock("a", cs, `,
		"NewMultiLock":     `rlock.NewMultiLock([]rlock.Locker{lock}, `,
		"NewDoubleBarrier": `c.NewDoubleBarrier("a", 2, `,
		"NewOnce":          `c.NewOnce("a", time.Hour, `,
	}
	// What a constructor takes, if the type has no interface of its own: types with the same options share one. "": none.
	sharedOptions = map[string]string{
		"NewFairLock": "AnyLockOption", "NewFencedLock": "AnyLockOption", "NewFairReadWriteLock": "AnyLockOption",
		"NewElection": "HoldOption", "NewOnce": "HoldOption",
		"NewCountDownLatch": "", "NewBarrier": "", "NewDoubleBarrier": "",
	}
)

func TestOptionsOfOtherTypesDoNotCompile(t *testing.T) {
	t.Parallel()
	s := newSnippets(t)
	makers := maps.Clone(oddMakers)
	for _, of := range []string{"Semaphore", "PermitSemaphore", "CountDownLatch", "Barrier", "Election", "CronJob"} {
		makers["New"+of] = `c.New` + of + `("a", `
	}
	for _, of := range lockMakers {
		if makers[of] == "" {
			makers[of] = `c.` + of + `("a", `
		}
	}
	for of, call := range makers {
		option, shared := sharedOptions[of]
		if !shared {
			option = strings.TrimPrefix(of, "New") + "Option"
		}
		call, takes := "_, _ = "+call, "as rlock."+option+" value in argument to "
		if option == "" {
			takes = "too many arguments in call to "
		}
		if of != "NewRedLock" && of != "NewMultiLock" {
			call = strings.Replace(call, "_, _ =", "_ =", 1)
		}
		s.must(t, strings.TrimSuffix(call, ", ")+")", "")
		for opt, fits := range optionFitters {
			wrong := takes
			if slices.Contains(fits, of) {
				wrong = ""
			}
			s.must(t, call+"rlock."+opt+")", wrong)
		}
	}

	// Something takes each interface.
	taken := optionsTaken(s.rlock)
	for _, name := range s.rlock.Scope().Names() {
		of, ok := s.rlock.Scope().Lookup(name).(*types.TypeName)
		if !ok || !of.Exported() || !types.IsInterface(of.Type()) || !strings.HasSuffix(name, "Option") {
			continue
		}
		if !taken[name] {
			t.Errorf("nothing takes a %s", name)
		}
	}

	// The table has all that there are.
	members := types.NewMethodSet(types.NewPointer(s.rlock.Scope().Lookup("Client").Type()))
	for i := range members.Len() {
		if name := members.At(i).Obj().Name(); strings.HasPrefix(name, "New") && makers[name] == "" {
			t.Errorf("no snippet has %s", name)
		}
	}
	for _, name := range s.rlock.Scope().Names() {
		f, ok := s.rlock.Scope().Lookup(name).(*types.Func)
		if !ok || !f.Exported() || name == "New" {
			continue
		}
		if strings.HasPrefix(name, "New") && makers[name] == "" {
			t.Errorf("no snippet has %s", name)
		}
		results := f.Signature().Results()
		if results.Len() != 1 || !strings.HasSuffix(results.At(0).Type().String(), "Option") || strings.HasSuffix(results.At(0).Type().String(), "rlock.Option") {
			continue
		}
		known := false
		for opt := range optionFitters {
			known = known || strings.HasPrefix(opt, name+"(")
		}
		if !known {
			t.Errorf("no snippet has %s", name)
		}
	}
}

// optionsTaken are the option interfaces of this package that a function or a method takes.
func optionsTaken(pkg *types.Package) map[string]bool {
	taken := map[string]bool{}
	note := func(f *types.Func) {
		if sig := f.Signature(); f.Exported() && sig.Variadic() {
			last := sig.Params().At(sig.Params().Len() - 1).Type().(*types.Slice).Elem()
			if of, ok := last.(*types.Named); ok {
				taken[of.Obj().Name()] = true
			}
		}
	}
	for _, name := range pkg.Scope().Names() {
		switch of := pkg.Scope().Lookup(name).(type) {
		case *types.Func:
			note(of)
		case *types.TypeName:
			methods := types.NewMethodSet(types.NewPointer(of.Type()))
			for i := range methods.Len() {
				note(methods.At(i).Obj().(*types.Func))
			}
		}
	}
	return taken
}

func TestOptionsOfOtherCallsDoNotCompile(t *testing.T) {
	t.Parallel()
	s := newSnippets(t)
	const acquire, try, wait, none = "Acquire", "Try", "Wait", ""
	seen := map[string]bool{}
	for _, c := range []struct{ method, call, takes string }{
		{"Lock.Lock", "_, _ = lock.Lock(ctx, ", acquire},
		{"Lock.TryLock", "_, _ = lock.TryLock(ctx, ", try},
		{"Locker.Lock", "_, _ = press.At(9).Lock(ctx, ", acquire},
		{"Locker.TryLock", "_, _ = press.At(9).TryLock(ctx, ", try},
		{"ReadLock.Lock", "_, _ = rw.Reader.Lock(ctx, ", acquire},
		{"WriteLock.TryLock", "_, _ = rw.Writer.TryLock(ctx, ", try},
		{"MultiLock.Lock", "_, _ = multi.Lock(ctx, ", acquire},
		{"MultiLock.TryLock", "_, _ = multi.TryLock(ctx, ", try},
		{"Do", "_ = rlock.Do(ctx, lock, fn, ", acquire},
		{"Election.Campaign", `_, _ = election.Campaign(ctx, "me", `, acquire},
		{"DoubleBarrier.Enter", "_, _ = double.Enter(ctx, ", acquire},
		{"DoubleBarrier.Leave", "_ = double.Leave(ctx, lease, ", wait},
		{"PermitSemaphore.Acquire", "_, _ = permits.Acquire(ctx, 1, ", acquire},
		{"PermitSemaphore.TryAcquire", "_, _ = permits.TryAcquire(ctx, 1, ", try},
		{"Semaphore.Acquire", "_ = s.Acquire(ctx, 1, ", wait},
		{"Semaphore.TryAcquire", "_ = s.TryAcquire(ctx, 1, ", none},
		{"CountDownLatch.Wait", "_ = latch.Wait(ctx, ", wait},
		{"Barrier.Wait", "_ = barrier.Wait(ctx, ", wait},
		{"Once.Do", "_, _, _ = once.Do(ctx, result, ", wait},
		{"Once.TryDo", "_, _, _ = once.TryDo(ctx, result, ", none},
	} {
		seen[c.method] = true
		s.must(t, strings.TrimSuffix(c.call, ", ")+")", "")
		for opt, fits := range map[string][]string{
			"WithLease(time.Hour)":   {acquire, try},
			"WithWait(time.Hour)":    {acquire, wait},
			"WithMaxHold(time.Hour)": nil,
			"WithCommandTimeout(1)":  nil,
		} {
			wrong := "as rlock." + c.takes + "Option value in argument to "
			switch {
			case c.takes == none:
				wrong = "too many arguments in call to "
			case slices.Contains(fits, c.takes):
				wrong = ""
			}
			s.must(t, c.call+"rlock."+opt+")", wrong)
		}
	}

	// The table has each call that takes options, but those that all locks have from one type.
	for _, name := range s.rlock.Scope().Names() {
		of, ok := s.rlock.Scope().Lookup(name).(*types.TypeName)
		if !ok || !of.Exported() || name == "Client" {
			continue
		}
		methods := types.NewMethodSet(types.NewPointer(of.Type()))
		for i := range methods.Len() {
			m := methods.At(i)
			f := m.Obj().(*types.Func)
			if f.Exported() && f.Signature().Variadic() && len(m.Index()) == 1 && !seen[name+"."+f.Name()] {
				t.Errorf("no snippet calls %s.%s", name, f.Name())
			}
		}
	}
}

// The compiler names the call of which an option is not one.
func TestCompilerNamesTheCallThatDoesNotTakeAnOption(t *testing.T) {
	t.Parallel()
	s := newSnippets(t)
	for call, method := range map[string]string{
		"_, _ = lock.Lock(ctx, rlock.WithMaxHold(1))":                           "optionOfLock",
		"_, _ = lock.TryLock(ctx, rlock.WithWait(1))":                           "optionOfTryLock",
		"_ = s.Acquire(ctx, 1, rlock.WithLease(1))":                             "optionOfWait",
		`_ = c.NewLock("a", rlock.WithLease(1))`:                                "optionOfNewLock",
		`_ = c.NewFairLock("a", rlock.WithHandOver(1, 1))`:                      "optionOfAnyLock",
		`_ = c.NewSpinLock("a", rlock.WithAging(1))`:                            "optionOfNewSpinLock",
		`_ = c.NewFencedLock("a", rlock.WithAging(1))`:                          "optionOfAnyLock",
		`_ = c.NewReadWriteLock("a", rlock.WithAging(1))`:                       "optionOfNewReadWriteLock",
		`_ = c.NewFairReadWriteLock("a", rlock.WithReaderPreference())`:         "optionOfAnyLock",
		`_ = c.NewPriorityLock("a", rlock.WithHandOver(1, 1))`:                  "optionOfNewPriorityLock",
		`_, _ = rlock.NewRedLock("a", cs, rlock.WithAging(1))`:                  "optionOfNewRedLock",
		"_, _ = rlock.NewMultiLock([]rlock.Locker{lock}, rlock.WithMaxHold(1))": "optionOfNewMultiLock",
		`_ = c.NewPermitSemaphore("a", rlock.WithNonReentrant())`:               "optionOfNewPermitSemaphore",
		`_ = c.NewSemaphore("a", rlock.WithFairness())`:                         "optionOfNewSemaphore",
		`_ = c.NewElection("a", rlock.WithNonReentrant())`:                      "optionOfAnyHold",
		`_ = c.NewOnce("a", time.Hour, rlock.WithRetention(1))`:                 "optionOfAnyHold",
		`_ = c.NewCronJob("a", rlock.WithNonReentrant())`:                       "optionOfNewCronJob",
	} {
		s.must(t, call, "missing method "+method+")")
	}
}

// What else the documentation says of types.
func TestSnippetsOfTypesCompile(t *testing.T) {
	t.Parallel()
	s := newSnippets(t)
	for body, wrong := range map[string]string{
		// A Locker is three methods.
		`var l rlock.Locker = mine{}; _ = rlock.Do(ctx, l, fn)`:        "",
		`_, _ = rlock.NewMultiLock([]rlock.Locker{mine{}, lock})`:      "",
		`var _ rlock.ReleaseRequester = mine{}`:                        "missing method RequestRelease",
		`var l rlock.Locker = lock; _, _ = l.RequestRelease(ctx)`:      "l.RequestRelease undefined",
		`var l rlock.Locker = lock; _, _ = l.(rlock.ReleaseRequester)`: "",
		`for _, l := range []rlock.ReleaseRequester{lock, press, rw.Reader, rw.Writer, multi, election, &rlock.FairLock{}, &rlock.SpinLock{}, &rlock.FencedLock{}, &rlock.RedLock{}} { _, _ = l.RequestRelease(ctx) }`: "",
		`_, _ = rlock.NewMultiLock([]*rlock.Lock{lock, lock}, rlock.WithRound(time.Second))`:                                                                                                                           "",
		`_, _ = rlock.NewMultiLock([]*rlock.ReadLock{&rw.Reader})`:                                                                                                                                                     "",
		`_, _ = rlock.NewMultiLock(lock)`:                  "type *rlock.Lock of lock does not match []L",
		`_, _ = rlock.NewMultiLock([]*rlock.Semaphore{s})`: "L (type *rlock.Semaphore) does not satisfy rlock.Locker (missing method Lock)",

		// A priority is of a caller of a PriorityLock.
		`_, _ = press.At(9).Lock(ctx, rlock.WithLease(time.Hour), rlock.WithWait(0))`: "",
		`_, _ = rlock.NewMultiLock([]rlock.Locker{press.At(9), lock})`:                "",
		`_ = lock.At(9)`: "lock.At undefined",
		`_, _ = press.Lock(ctx, rlock.WithPriority(9))`: "undefined: rlock.WithPriority",

		// Options can be kept, as what they are.
		`o := rlock.WithLease(time.Hour); _, _ = lock.Lock(ctx, o); _, _ = lock.TryLock(ctx, o)`:               "",
		`opts := []rlock.AcquireOption{rlock.WithLease(1), rlock.WithWait(1)}; _, _ = lock.Lock(ctx, opts...)`: "",
		`o := rlock.WithMaxHold(1); _, _ = c.NewLock("a", o), c.NewOnce("a", time.Hour, o)`:                    "",
		`rw.Reader`: "is not used",
		// Nobody but this package makes options.
		`_ = c.NewLock("a", func() {})`: "as rlock.LockOption value",
	} {
		s.must(t, body, wrong)
	}
}
