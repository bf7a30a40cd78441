package rlockvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/cfg"
)

// expectsFailure reports whether a grant is only made to see that it fails: the test or the program ends if it does not.
func (c *checker) expectsFailure(f *function, g grant) bool {
	at, ok := find(c.graph(f), g.call)
	if !ok || g.err == nil {
		return false
	}
	if at.index+1 < len(at.block.Nodes) && c.requiresFailure(at.block.Nodes[at.index+1], g.err) {
		return true
	}
	if len(at.block.Succs) != 2 {
		return false
	}
	w := &walk{checker: c, grant: g}
	last := len(at.block.Nodes) - 1
	condition, ok := at.block.Nodes[last].(ast.Expr)
	if !ok || !w.isBool(condition) {
		return false
	}
	for _, n := range at.block.Nodes[at.index+1 : last] {
		if w.effect(n, true) != nothing {
			return false
		}
	}
	answer := w.eval(condition, true)
	if answer == related && c.negatesCall(condition) {
		answer = yes // such as !isTaken(err)
	}
	return answer == yes && endsInDeadEnds(at.block.Succs[0], map[*cfg.Block]bool{})
}

// requiresFailure reports whether a statement ends the test if err is nil: it calls Error, ErrorIs or the like of testify's require.
func (c *checker) requiresFailure(n ast.Node, err *types.Var) bool {
	s, ok := n.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	callee := c.callee(call)
	if callee == nil || callee.Pkg() == nil || callee.Pkg().Name() != "require" ||
		!strings.HasPrefix(callee.Name(), "Error") && !strings.HasPrefix(callee.Name(), "EqualError") {
		return false
	}
	isErr := func(e ast.Expr) bool { return c.variable(e) == err }
	return slices.ContainsFunc(call.Args, isErr) && !slices.ContainsFunc(call.Args, c.isNil)
}

func (c *checker) negatesCall(e ast.Expr) bool {
	not, ok := ast.Unparen(e).(*ast.UnaryExpr)
	if !ok || not.Op != token.NOT {
		return false
	}
	_, ok = ast.Unparen(not.X).(*ast.CallExpr)
	return ok
}

// isDeadEnd reports whether the last call of a block never returns.
func isDeadEnd(b *cfg.Block) bool { return len(b.Succs) == 0 && b.Return() == nil }

// endsInDeadEnds reports whether each path from a block comes to a call that never returns. What may run forever does not; a
// range ends. open has the blocks of the path, true, and those that are known, false.
func endsInDeadEnds(b *cfg.Block, open map[*cfg.Block]bool) bool {
	if isOpen, seen := open[b]; seen {
		return !isOpen || b.Kind == cfg.KindRangeLoop
	}
	if len(b.Succs) == 0 {
		return isDeadEnd(b)
	}
	open[b] = true
	for _, next := range b.Succs {
		if !endsInDeadEnds(next, open) {
			return false
		}
	}
	open[b] = false
	return true
}

// fails reports whether the statements after an Unlock end in a failure anyway: then nobody takes the work for done under
// the lock, whatever Unlock returns.
func (c *checker) fails(unlock ast.Stmt) bool {
	block, ok := c.parents[unlock].(*ast.BlockStmt)
	if !ok {
		return false
	}
	switch last := block.List[len(block.List)-1].(type) {
	case *ast.ExprStmt:
		call, ok := last.X.(*ast.CallExpr)
		if !ok || c.mayReturn(call) {
			return false
		}
		callee := c.callee(call)
		return callee == nil || !strings.HasPrefix(callee.Name(), "Exit") && callee.Name() != "Goexit"
	case *ast.ReturnStmt:
		known := c.failure(block)
		if len(last.Results) == 0 {
			return known != nil && isError(known.Type())
		}
		return c.isFailure(last.Results[len(last.Results)-1], known)
	}
	return false
}

// failure is the variable that is an error in the whole block, because an if asks for that; nil if there is none.
func (c *checker) failure(block ast.Node) *types.Var {
	around, ok := c.parents[block].(*ast.IfStmt)
	if !ok || block != ast.Node(around.Body) {
		return nil
	}
	compare, ok := ast.Unparen(around.Cond).(*ast.BinaryExpr)
	if !ok || compare.Op != token.NEQ {
		return nil
	}
	v := c.variable(c.compared(compare))
	for _, id := range c.uses(block, v) {
		if c.isWrite(id) {
			return nil
		}
	}
	return v
}

// isFailure reports whether an expression is an error that is not nil: a new one, one of a package, or one made from known.
func (c *checker) isFailure(e ast.Expr, known *types.Var) bool {
	t := c.pass.TypesInfo.TypeOf(e)
	if t == nil || !isError(t) {
		return false
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		callee := c.callee(e)
		return callee != nil && (callee.FullName() == "errors.New" || callee.FullName() == "fmt.Errorf") || len(c.uses(e, known)) > 0
	case *ast.Ident, *ast.SelectorExpr:
		v := c.variable(e)
		return v != nil && (v == known || v.Pkg() != nil && v.Parent() == v.Pkg().Scope())
	}
	return false
}
