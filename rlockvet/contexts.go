package rlockvet

import (
	"go/ast"
	"go/types"
	"slices"
)

// silent are the methods of a Lease whose results say nothing about a loss.
var silent = []string{"Deadline", "HoldID", "Name", "String"}

// outer reports work with the context that was passed to the acquire, where nothing asks the lease whether it is lost
// before Unlock does. A section that has the lease's context may use the outer one on purpose, for what has to be done
// after a loss too: only -anycontext reports that. Work that also runs without the lock needs none.
func (c *checker) outer(f *function, g grant) {
	if g.value == nil || len(g.call.Args) == 0 {
		return
	}
	ctx := c.contextOf(g.call)
	if ctx == nil || c.rewritten(f, ctx, g.call) || !c.anyContext && !c.unasked(f, g.value) {
		return
	}
	reported := false
	section := c.follow(f, g, func(n ast.Node) bool { return c.unlocksIn(n, g.value) })
	// A path that calls a method of the lease has it, although an error that fell through may have led there too.
	hasLease := slices.ContainsFunc(section, func(r reached) bool {
		return r.optional && slices.ContainsFunc(c.uses(r.Node, g.value), func(id *ast.Ident) bool {
			method, _ := c.method(id)
			return method != ""
		})
	})
	for _, r := range section {
		if _, later := r.Node.(*ast.DeferStmt); later || r.optional && !hasLease {
			continue
		}
		eachCall(r.Node, func(call *ast.CallExpr) {
			if arg := c.works(call, ctx); arg != nil && (!reported || c.anyContext) {
				reported = true
				c.reportContext(arg, call)
			}
		})
	}
}

// unlocksIn reports whether a node unlocks or detaches a lease, and not only later.
func (c *checker) unlocksIn(n ast.Node, lease *types.Var) (found bool) {
	if _, later := n.(*ast.DeferStmt); later {
		return false
	}
	eachCall(n, func(call *ast.CallExpr) {
		found = found || c.isMethod(call, "Lease", "Unlock", "Detach") && c.variable(receiver(call)) == lease
	})
	return found
}

func (c *checker) reportContext(arg ast.Expr, call *ast.CallExpr) {
	c.report(arg, OuterContext, "%s continues if the lock is lost: %s is the context from outside, not that of the lease", c.callee(call).Name(), types.ExprString(arg))
}

// contextOf is the variable from which a call gets its context: one with a context, or the r of r.Context(). It is nil for
// another expression.
func (c *checker) contextOf(call *ast.CallExpr) *types.Var {
	for _, arg := range call.Args {
		if v := c.contextIn(arg); v != nil {
			return v
		}
	}
	return nil
}

func (c *checker) contextIn(e ast.Expr) *types.Var {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if v := c.variable(e); v != nil && isContext(v.Type()) {
			return v
		}
	case *ast.CallExpr:
		if f := c.callee(e); f != nil && f.FullName() == "(*net/http.Request).Context" {
			if r, ok := receiver(e).(*ast.Ident); ok {
				return c.variable(r)
			}
		}
	}
	return nil
}

// rewritten reports whether a variable is assigned to after a node, so that it may be the context of the lease then.
func (c *checker) rewritten(f *function, v *types.Var, after ast.Node) bool {
	for _, id := range c.uses(f.body, v) {
		if id.Pos() > after.Pos() && c.isWrite(id) {
			return true
		}
	}
	return false
}

// unasked reports whether a lease is only unlocked, and asked for what says nothing about a loss.
func (c *checker) unasked(f *function, lease *types.Var) bool {
	unlocked := false
	for _, id := range c.uses(f.body, lease) {
		name, _ := c.method(id)
		switch {
		case c.isWrite(id) || c.pass.TypesInfo.Defs[id] == lease || slices.Contains(silent, name):
		case name == "Unlock":
			unlocked = true
		default:
			return false
		}
	}
	return unlocked
}

// works is the argument by which a call works with a context: it takes ctx, and returns an error, by which the end of a
// context is reported. Calls that report nothing (log lines, metrics), that derive a context, or that are of rlock, whose
// acquires may wait for another lock with any context, are no work under the lock.
func (c *checker) works(call *ast.CallExpr, ctx *types.Var) ast.Expr {
	f := c.callee(call)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() == rlock || f.Pkg().Path() == "context" || f.Pkg().Path() == "log/slog" {
		return nil
	}
	results, fails := f.Signature().Results(), false
	for v := range results.Variables() {
		if isContext(v.Type()) {
			return nil
		}
		fails = fails || isError(v.Type())
	}
	if !fails {
		return nil
	}
	for _, arg := range call.Args {
		if c.contextIn(arg) == ctx {
			return arg
		}
	}
	return nil
}

// outerOfCallback is outer for the function that Do, Once.Do, CronJob.Do or Election.Run calls under the lock: it
// reports one that has no use for the context that it gets, but works with the one from outside.
func (c *checker) outerOfCallback(f *function, call *ast.CallExpr) {
	if !c.fromPackage(call, rlock) {
		return
	}
	ctx := c.contextOf(call)
	if ctx == nil || c.rewritten(f, ctx, call) {
		return
	}
	for _, arg := range call.Args {
		literal, ok := ast.Unparen(arg).(*ast.FuncLit)
		if !ok || len(literal.Type.Params.List) == 0 {
			continue
		}
		first := literal.Type.Params.List[0]
		if !isContext(c.pass.TypesInfo.TypeOf(first.Type)) || !c.anyContext && (c.isUsed(literal, first) || c.hasLease(literal)) {
			continue
		}
		reported := false
		eachCall(literal.Body, func(inner *ast.CallExpr) {
			if arg := c.works(inner, ctx); arg != nil && (!reported || c.anyContext) {
				reported = true
				c.reportContext(arg, inner)
			}
		})
	}
}

// isUsed reports whether the body of a literal uses a parameter.
func (c *checker) isUsed(literal *ast.FuncLit, parameter *ast.Field) bool {
	for _, name := range parameter.Names {
		if v, ok := c.pass.TypesInfo.Defs[name].(*types.Var); ok && len(c.uses(literal.Body, v)) > 0 {
			return true
		}
	}
	return false
}

// hasLease reports whether a literal uses a lease from outside, by which it may learn of a loss.
func (c *checker) hasLease(literal *ast.FuncLit) (found bool) {
	ast.Inspect(literal.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			v, _ := c.pass.TypesInfo.ObjectOf(id).(*types.Var)
			found = found || v != nil && isType(v.Type(), rlock, "Lease")
		}
		return true
	})
	return found
}
