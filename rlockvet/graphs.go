package rlockvet

import (
	"go/ast"
	"go/types"
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
	f := c.callee(call)
	if f == nil {
		return true
	}
	for _, prefix := range []string{"Exit", "Fatal", "FailNow", "Goexit", "Panic"} {
		if strings.HasPrefix(f.Name(), prefix) {
			return false
		}
	}
	if declared := c.decls[f]; declared != nil {
		g := c.graph(c.function(declared))
		return g == nil || !g.NoReturn()
	}
	return true
}
