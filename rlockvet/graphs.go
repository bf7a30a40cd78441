package rlockvet

import (
	"go/ast"
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/cfg"
)

// graph is the control flow of a function. It is made here, not by the analyzer ctrlflow, because that one has facts:
// with them a driver has to analyze each package that the program depends on. Without them, a function of another
// package that never returns is only known by its name, such as os.Exit and log.Fatal.
func (c *checker) graph(f *function) *cfg.CFG {
	if g, ok := c.graphs[f.node]; ok {
		return g
	}
	c.graphs[f.node] = nil // a recursive function returns, as far as that is known here
	g := cfg.New(f.body, c.mayReturn)
	c.graphs[f.node] = g
	return g
}

// mayReturn reports whether the function that is called may return.
func (c *checker) mayReturn(call *ast.CallExpr) bool {
	if id, ok := ast.Unparen(call.Fun).(*ast.Ident); ok && c.pass.TypesInfo.Uses[id] == types.Universe.Lookup("panic") {
		return false
	}
	if c.afterFatal(call) {
		return false
	}
	f := c.callee(call)
	if f == nil {
		return true
	}
	if neverReturns(f) {
		return false
	}
	if declared := c.decls[f]; declared != nil {
		g := c.graph(c.function(declared))
		return g == nil || !g.NoReturn()
	}
	return true
}

// afterFatal reports whether a call is the last one of a chain such as log.Fatal().Err(err).Msg("text") of zerolog.
func (c *checker) afterFatal(call *ast.CallExpr) bool {
	before, ok := receiver(call).(*ast.CallExpr)
	if !ok {
		return false
	}
	f := c.callee(before)
	return f != nil && (f.Name() == "Fatal" || f.Name() == "Panic") || c.afterFatal(before)
}

// never are the names of functions that never return, such as Exit, Fatalf and PanicContext, but not Panics.
var never = regexp.MustCompile(`^(Exit|Fatal|FailNow|Goexit|Panic)(f|ln|w)?([A-Z]|$)`)

// neverReturns reports whether a function never returns, by its name. A name such as FatalIf or PanicOnError is of one
// that does, and so is ExitCode, by its result.
func neverReturns(f *types.Func) bool {
	name := f.Name()
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case strings.Contains(name, "If"), strings.Contains(name, "On"):
		return false
	case begins("Fail") && !begins("FailNow"):
		return inTestPackage(f)
	case name == "Skip", name == "Skipf", name == "SkipNow":
		return inTestPackage(f) || isOfTest(f)
	}
	return never.MatchString(name) && (f.Signature().Results().Len() == 0 || begins("FailNow"))
}

// inTestPackage reports whether the package of a function is testify's require or Ginkgo: what fails or skips there
// also ends the test, unlike Fail of the package testing.
func inTestPackage(f *types.Func) bool {
	return f.Pkg() != nil && (f.Pkg().Name() == "require" || f.Pkg().Name() == "ginkgo")
}

// isOfTest reports whether a function is a method of a test, such as *testing.T or an interface with some of its methods.
func isOfTest(f *types.Func) bool {
	recv := f.Signature().Recv()
	if recv == nil {
		return false
	}
	failNow, _, _ := types.LookupFieldOrMethod(recv.Type(), true, f.Pkg(), "FailNow")
	return failNow != nil
}
