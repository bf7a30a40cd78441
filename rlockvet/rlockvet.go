// Package rlockvet reports mistakes in code that uses rlock: leases that are never unlocked, work that goes on after a
// loss, errors of Unlock that are dropped. Each finding links to its section of
// https://go-rlock.github.io/rlock/latest/vet/, with the wrong lines and the right ones.
//
// The command rlockvet runs alone or by go vet -vettool, the package golangci as a plugin of golangci-lint. [Analyzer] is
// for other drivers.
//
// The analyzer checks one function at a time, and reports only what it can follow there. It skips a package that does
// not import rlock, not even through other packages.
package rlockvet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/cfg"
)

// The categories of the findings are also the anchors of their sections, and what -skip takes.
const (
	LostLease     = "lost-lease"
	OuterContext  = "outer-context"
	UnlockError   = "unlock-error"
	DeferInLoop   = "defer-in-loop"
	InTransaction = "in-transaction"
	TimedName     = "timed-name"
	LongWait      = "long-wait"
	LostPermit    = "lost-permit"
)

// Categories are all categories, in the order of the page.
var Categories = []string{LostLease, OuterContext, UnlockError, DeferInLoop, InTransaction, TimedName, LongWait, LostPermit}

const (
	page  = "https://go-rlock.github.io/rlock/latest/vet/"
	rlock = "github.com/go-rlock/rlock"
)

// UnknownCategoryError is the error of -skip for a word that is no category.
type UnknownCategoryError struct{ Category string }

func (e *UnknownCategoryError) Error() string {
	return fmt.Sprintf("rlockvet: no category %q; the categories are %s", e.Category, strings.Join(Categories, ", "))
}

// categories is a flag: a list of categories, separated by commas.
type categories []string

func (c *categories) String() string { return strings.Join(*c, ",") }

func (c *categories) Set(list string) error {
	var chosen []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.Contains(Categories, name) {
			return &UnknownCategoryError{name}
		}
		chosen = append(chosen, name)
	}
	*c = chosen
	return nil
}

// settings are the flags of an Analyzer.
type settings struct {
	skip       categories
	tests      bool
	anyContext bool
}

// Analyzer reports mistakes in code that uses rlock. Its flags are
//   - skip: categories that are not reported, separated by commas;
//   - tests: files of tests too, which drop leases and errors on purpose;
//   - anycontext: each use of the outer context under a lock, also where the section uses the context of the lease.
var Analyzer = New()

// New returns an Analyzer with flags of its own.
func New() *analysis.Analyzer {
	set := &settings{}
	a := &analysis.Analyzer{
		Name: "rlockvet",
		Doc: "report mistakes in code that uses rlock\n\n" +
			"Leases that are never unlocked, the outer context under a lock, errors of Unlock that are dropped, Unlock deferred in a loop, " +
			"locks inside a transaction, names made from the time, waits that outlast a ticker, permits that die with a process.",
		URL: page,
		Run: func(pass *analysis.Pass) (any, error) { return nil, run(pass, set) },
	}
	a.Flags.Var(&set.skip, "skip", "`categories` that are not reported: "+strings.Join(Categories, ", "))
	a.Flags.BoolVar(&set.tests, "tests", false, "report findings in files of tests too")
	a.Flags.BoolVar(&set.anyContext, "anycontext", false, "report each use of the outer context under a lock")
	return a
}

// checker checks one package.
type checker struct {
	*settings
	pass    *analysis.Pass
	parents map[ast.Node]ast.Node
	decls   map[*types.Func]*ast.FuncDecl
	graphs  map[ast.Node]*cfg.CFG // by function; nil while it is made
	// own are the variables and fields with a Semaphore made WithPermits in this package.
	own   map[types.Object]bool
	found map[finding]bool // what is reported
}

type finding struct {
	at       token.Pos
	category string
}

func run(pass *analysis.Pass, set *settings) error {
	// The library itself is not a user of it.
	if pass.Pkg.Path() == rlock || !reaches(pass.Pkg, rlock, map[*types.Package]bool{}) {
		return nil
	}
	c := &checker{
		settings: set, pass: pass, parents: map[ast.Node]ast.Node{}, decls: map[*types.Func]*ast.FuncDecl{},
		graphs: map[ast.Node]*cfg.CFG{}, own: map[types.Object]bool{}, found: map[finding]bool{},
	}
	for _, file := range pass.Files {
		c.index(file)
	}
	for _, file := range pass.Files {
		if !set.tests && strings.HasSuffix(pass.Fset.File(file.Pos()).Name(), "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if f := c.function(n); f != nil {
				c.check(f)
			}
			return true
		})
	}
	return nil
}

// reaches reports whether a package imports another, directly or not.
func reaches(from *types.Package, path string, seen map[*types.Package]bool) bool {
	for _, p := range from.Imports() {
		if p.Path() == path {
			return true
		}
		if !seen[p] {
			seen[p] = true
			if reaches(p, path, seen) {
				return true
			}
		}
	}
	return false
}

// index records the parent of each node of a file, its functions, and the semaphores that it makes.
func (c *checker) index(file *ast.File) {
	var above []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		if len(above) > 0 {
			c.parents[n] = above[len(above)-1]
		}
		above = append(above, n)
		if d, ok := n.(*ast.FuncDecl); ok && d.Body != nil {
			if f, ok := c.pass.TypesInfo.Defs[d.Name].(*types.Func); ok {
				c.decls[f] = d
			}
		}
		if call, ok := n.(*ast.CallExpr); ok && c.isMethod(call, "Client", "NewSemaphore") && c.hasOption(call, "WithPermits") {
			if target := c.target(call); target != nil {
				c.own[target] = true
			}
		}
		return true
	})
}

func (c *checker) check(f *function) {
	c.acquires(f)
	c.unlocks(f)
	c.transactions(f)
	c.names(f)
	c.waits(f)
	c.permits(f)
}

// report reports a mistake, once: two acquires may come to the same one.
func (c *checker) report(at ast.Node, category, format string, args ...any) {
	this := finding{at.Pos(), category}
	if slices.Contains(c.skip, category) || c.found[this] {
		return
	}
	c.found[this] = true
	c.pass.Report(analysis.Diagnostic{
		Pos: at.Pos(), End: at.End(), Category: category, URL: page + "#" + category,
		Message: fmt.Sprintf(format, args...) + ": " + page + "#" + category,
	})
}

// line is the number of the line of a position.
func (c *checker) line(pos token.Pos) int { return c.pass.Fset.Position(pos).Line }
