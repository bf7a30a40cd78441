package rlockvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// harmless are the methods of a Lease whose call says nothing about its end.
var harmless = []string{"Context", "Deadline", "HoldID", "Name", "ReleaseRequested", "String", "Token"}

// acquires checks the leases that a function takes.
func (c *checker) acquires(f *function) {
	eachCall(f.body, func(call *ast.CallExpr) {
		if c.isLeaseCall(call) {
			if g, ok := c.grantOf(f, call); ok {
				c.lost(f, g)
				c.outer(f, g)
			}
		}
		c.outerOfCallback(f, call)
	})
}

// lost reports a lease that is dropped, or that a path to a return does not unlock. A lease WithLease ends alone, so
// to drop it is a way to say "not again for a minute".
func (c *checker) lost(f *function, g grant) {
	if c.mayEndAlone(g.call) {
		return
	}
	if g.value == nil {
		if !c.expectsFailure(f, g) {
			c.report(g.call, LostLease, "the lease of %s is dropped: nothing can unlock it, and the watchdog renews it", c.callee(g.call).Name())
		}
		return
	}
	for _, id := range c.uses(f.body, g.value) {
		// What a literal does with the lease, and when, is not followed; nor is a pointer to the variable.
		if address, ok := c.parents[id].(*ast.UnaryExpr); c.inLiteral(id, f) || ok && address.Op == token.AND {
			return
		}
	}
	var exit *ast.ReturnStmt
	var lost ast.Node // where another value takes its place
	for _, r := range c.follow(f, g, func(n ast.Node) bool { return c.mayUnlock(f, n, g.value) }) {
		ret, ok := r.Node.(*ast.ReturnStmt)
		switch {
		case ok && !r.ends && (exit == nil || ret.Pos() < exit.Pos()):
			exit = ret
		case r.straight && c.replaces(r.Node, g):
			lost = r.Node
		}
	}
	name := c.callee(g.call).Name()
	switch {
	case exit != nil:
		c.report(g.call, LostLease, "the lease of %s is not unlocked on a path to the end of the function in line %d", name, c.line(exit.Pos()))
	case lost != nil:
		c.report(g.call, LostLease, "the lease of %s is not unlocked on a path to line %d, which overwrites it", name, c.line(lost.Pos()))
	}
}

// mayUnlock reports whether a node may end a lease, give it to other code, or give another value to its variable.
func (c *checker) mayUnlock(f *function, n ast.Node, lease *types.Var) bool {
	return slices.ContainsFunc(c.uses(n, lease), func(id *ast.Ident) bool { return c.isWrite(id) || !c.isHarmless(f, id) })
}

// replaces reports whether a node only gives another value to the variable of a grant. A loop that acquires again at the
// same call may know from a variable of its own that it has no lease.
func (c *checker) replaces(n ast.Node, g grant) bool {
	uses := c.uses(n, g.value)
	again := n.Pos() <= g.call.Pos() && g.call.End() <= n.End()
	return len(uses) > 0 && !again && !slices.ContainsFunc(uses, func(id *ast.Ident) bool { return !c.isWrite(id) })
}

// isHarmless reports whether a use of a lease neither ends it nor gives it to other code, which may end it.
func (c *checker) isHarmless(f *function, id *ast.Ident) bool {
	if compare, ok := c.parents[id].(*ast.BinaryExpr); ok {
		return c.compared(compare) != nil
	}
	name, call := c.method(id)
	if !slices.Contains(harmless, name) {
		return false
	}
	if name != "Context" {
		return true
	}
	// The context of a lease carries it: LeaseFrom returns it where the context arrives. A call is expected not to
	// unlock it, but what is returned or stored may be meant for that.
	if _, argument := c.parents[call].(*ast.CallExpr); argument {
		return true
	}
	v, _ := c.target(call).(*types.Var)
	if v == nil {
		return false
	}
	for _, use := range c.uses(f.body, v) {
		_, argument := c.parents[use].(*ast.CallExpr)
		method, _ := c.method(use)
		if !argument && method == "" && !c.isWrite(use) {
			return false
		}
	}
	return true
}

// unlocks checks the calls of Unlock in a function.
func (c *checker) unlocks(f *function) {
	eachCall(f.body, func(call *ast.CallExpr) {
		if !c.isMethod(call, "Lease", "Unlock") && !c.isMethod(call, "Client", "Unlock") {
			return
		}
		switch p := c.parents[call].(type) {
		case *ast.DeferStmt:
			// deferred reports those that pile up.
			if c.pilesUp(f, p, call) || c.failure(c.parents[p]) != nil && c.fails(p) {
				return
			}
		case *ast.ExprStmt:
			if c.fails(p) {
				return
			}
		case *ast.GoStmt:
		default:
			return
		}
		if !c.asksForLoss(f, call) {
			c.report(call, UnlockError, "the error of Unlock is dropped: it is ErrLeaseLost if the lock was lost before")
		}
	})
	each(f.body, func(n ast.Node) {
		if d, ok := n.(*ast.DeferStmt); ok {
			c.deferred(f, d)
		}
	})
}

// asksForLoss reports whether the function also calls Err of the lease that is unlocked: then it knows of a loss.
func (c *checker) asksForLoss(f *function, unlock *ast.CallExpr) bool {
	v := c.variable(receiver(unlock))
	for _, id := range c.uses(f.body, v) {
		if name, _ := c.method(id); name == "Err" {
			return true
		}
	}
	return false
}

// deferred reports an Unlock that is deferred in a loop.
func (c *checker) deferred(f *function, d *ast.DeferStmt) {
	var body ast.Node = d.Call
	if literal, ok := ast.Unparen(d.Call.Fun).(*ast.FuncLit); ok {
		body = literal.Body
	}
	pilesUp := false
	eachCall(body, func(call *ast.CallExpr) {
		pilesUp = pilesUp || c.isMethod(call, "Lease", "Unlock") && c.pilesUp(f, d, call)
	})
	if pilesUp {
		c.report(d, DeferInLoop, "Unlock is deferred in a loop: each turn keeps its lock until the function returns")
	}
}

// pilesUp reports whether a deferred Unlock is in a loop whose turns work under their locks and then keep them. A turn
// that ends with the defer collects locks, to have all of them after the loop; one that also unlocks without defer has
// the defer for what goes wrong.
func (c *checker) pilesUp(f *function, d *ast.DeferStmt, unlock *ast.CallExpr) bool {
	if !c.repeats(f, d) || c.endsTurn(d) || c.isOnce(d) {
		return false
	}
	for _, id := range c.uses(f.body, c.variable(receiver(unlock))) {
		if name, call := c.method(id); name == "Unlock" && id.Pos() > d.End() && !c.inLiteral(id, f) && c.repeats(f, call) {
			return false
		}
	}
	return true
}

// isOnce reports whether a node in a loop is under a condition such as !leads or lease == nil that the same branch ends:
// it gives its variable another value, so that only one turn gets there.
func (c *checker) isOnce(n ast.Node) bool {
	around, ok := n.(*ast.IfStmt)
	if !ok {
		_, block := n.(*ast.BlockStmt)
		_, deferred := n.(*ast.DeferStmt)
		return (block || deferred) && c.isOnce(c.parents[n])
	}
	var v *types.Var
	switch condition := ast.Unparen(around.Cond).(type) {
	case *ast.UnaryExpr:
		v = c.variable(condition.X)
	case *ast.BinaryExpr:
		v = c.variable(c.compared(condition))
	}
	return v != nil && !isError(v.Type()) && !c.ofTurn(around, v) && slices.ContainsFunc(c.uses(around.Body, v), c.isWrite) || c.isOnce(c.parents[n])
}

// ofTurn reports whether a variable is of one turn of the innermost loop around a node.
func (c *checker) ofTurn(n ast.Node, v *types.Var) bool {
	for ; n != nil; n = c.parents[n] {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return n.Pos() < v.Pos()
		}
	}
	return false
}

// endsTurn reports whether what follows a statement in the body of a loop only stores something.
func (c *checker) endsTurn(n ast.Node) bool {
	for {
		p := c.parents[n]
		switch p := p.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return true
		case *ast.BlockStmt:
			for _, s := range p.List {
				if s.Pos() > n.Pos() && !c.stores(s) {
					return false
				}
			}
		case *ast.IfStmt:
		default:
			return false
		}
		n = p
	}
}

// stores reports whether a statement assigns, and calls nothing but append, methods that make a text, such as String, and
// what says something of a lease.
func (c *checker) stores(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.AssignStmt, *ast.IncDecStmt:
	default:
		return false
	}
	only := true
	ast.Inspect(s, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || c.pass.TypesInfo.Types[call.Fun].IsBuiltin() || c.isMethod(call, "Lease", harmless...) {
			return true
		}
		text := types.Identical(c.pass.TypesInfo.TypeOf(call), types.Typ[types.String])
		only = only && text && len(call.Args) == 0 && receiver(call) != nil
		return only
	})
	return only
}

// repeats reports whether a statement can run twice in one call of its function. A loop that returns after the
// statement, such as one that tries until it has the lock, does not repeat it.
func (c *checker) repeats(f *function, n ast.Node) bool {
	at, ok := find(c.graph(f), n)
	if !ok {
		return false
	}
	seen := map[*cfg.Block]bool{}
	next := slices.Clone(at.block.Succs)
	for len(next) > 0 {
		b := next[len(next)-1]
		next = next[:len(next)-1]
		if b == at.block {
			return true
		}
		if !seen[b] {
			seen[b] = true
			next = append(next, b.Succs...)
		}
	}
	return false
}
