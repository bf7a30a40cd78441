package rlockvet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/cfg"
)

// grant is a call that returns a value and an error: the value is there if the error is nil.
type grant struct {
	call  *ast.CallExpr
	value *types.Var // nil if the value is dropped
	err   *types.Var // nil if the error is dropped
	// around are variables of the conditions around the call. A later condition that has one of them may be about the
	// same question, which a path alone does not show.
	around map[types.Object]bool
}

// grantOf is a call and the local variables of its results; ok if they are assigned to any, or dropped.
func (c *checker) grantOf(f *function, call *ast.CallExpr) (g grant, ok bool) {
	g = grant{call: call, around: c.guards(f, call)}
	var to []ast.Expr
	switch p := c.parents[call].(type) {
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt:
		return g, true
	case *ast.AssignStmt:
		to = p.Lhs
	case *ast.ValueSpec:
		for _, name := range p.Names {
			to = append(to, name)
		}
	}
	if len(to) != 2 {
		return g, false
	}
	if id, blank := to[0].(*ast.Ident); !blank || id.Name != "_" {
		if g.value = c.local(f, to[0]); g.value == nil {
			return g, false
		}
	}
	if id, plain := to[1].(*ast.Ident); plain && id.Name != "_" {
		g.err = c.variable(id)
	} else if !plain {
		return g, false
	}
	c.addTargets(f, g)
	c.addFlags(f, g)
	return g, true
}

// addTargets adds the variables that errors.As sets from the error of a grant: they are nil if the error is.
func (c *checker) addTargets(f *function, g grant) {
	eachCall(f.body, func(call *ast.CallExpr) {
		if g.err == nil || !c.fromPackage(call, "errors") || len(call.Args) != 2 || c.variable(call.Args[0]) != g.err {
			return
		}
		if address, ok := ast.Unparen(call.Args[1]).(*ast.UnaryExpr); ok {
			if v := c.variable(address.X); v != nil {
				g.around[v] = true
			}
		}
	})
}

// addFlags adds the variables that are assigned to under a condition about a grant, such as got = true.
func (c *checker) addFlags(f *function, g grant) {
	each(f.body, func(n ast.Node) {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return
		}
		if around := c.guards(f, assign); !around[g.err] && !around[g.value] {
			return
		}
		for _, to := range assign.Lhs {
			if v := c.variable(to); v != nil && v != g.err && v != g.value {
				g.around[v] = true
			}
		}
	})
}

// guards are the variables in the conditions around a node.
func (c *checker) guards(f *function, n ast.Node) map[types.Object]bool {
	found := map[types.Object]bool{}
	add := func(e ast.Node) {
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if v, ok := c.pass.TypesInfo.ObjectOf(id).(*types.Var); ok {
					found[v] = true
				}
			}
			return true
		})
	}
	for ; n != nil && n != f.node; n = c.parents[n] {
		switch p := c.parents[n].(type) {
		case *ast.IfStmt:
			if n != ast.Node(p.Init) && n != ast.Node(p.Cond) {
				add(p.Cond)
			}
		case *ast.ForStmt:
			if p.Cond != nil && n == ast.Node(p.Body) {
				add(p.Cond)
			}
		case *ast.CaseClause:
			for _, e := range p.List {
				add(e)
			}
		case *ast.SwitchStmt:
			if p.Tag != nil {
				add(p.Tag)
			}
		}
	}
	return found
}

// place is a node in a graph.
type place struct {
	block *cfg.Block
	index int
}

// find is the smallest node of a graph that contains n.
func find(graph *cfg.CFG, n ast.Node) (at place, ok bool) {
	var best ast.Node
	for _, b := range graph.Blocks {
		for i, node := range b.Nodes {
			if node.Pos() <= n.Pos() && n.End() <= node.End() && (best == nil || node.End()-node.Pos() < best.End()-best.Pos()) {
				best, at = node, place{b, i}
			}
		}
	}
	return at, best != nil
}

// walk follows the paths on which the value of a grant is there.
type walk struct {
	*checker
	grant
	visit func(ast.Node) bool // false ends the path
	seen  map[step]bool
}

// step is a block, and whether the variable of the error still has the error of the grant.
type step struct {
	block *cfg.Block
	fresh bool
}

// follow calls visit for each node that may run after a grant, until it returns false. Paths on which the grant has
// failed are left out, and so are those behind a condition that depends on the grant in an unknown way.
func (c *checker) follow(f *function, g grant, visit func(ast.Node) bool) {
	at, ok := find(c.graph(f), g.call)
	if !ok {
		return
	}
	w := &walk{c, g, visit, map[step]bool{}}
	w.block(at.block, at.index+1, true)
}

func (w *walk) block(b *cfg.Block, from int, fresh bool) {
	for i := from; i < len(b.Nodes); i++ {
		n := b.Nodes[i]
		if condition, ok := n.(ast.Expr); ok && i == len(b.Nodes)-1 && len(b.Succs) == 2 && w.isBool(condition) {
			if w.visit(n) {
				w.branch(b, condition, fresh)
			}
			return
		}
		if fresh {
			switch w.effect(n) {
			case overwrites:
				fresh = false
			case derives:
				return
			}
		}
		if !w.visit(n) {
			return
		}
	}
	for _, next := range b.Succs {
		w.enter(next, fresh)
	}
}

func (w *walk) enter(b *cfg.Block, fresh bool) {
	if s := (step{b, fresh}); !w.seen[s] {
		w.seen[s] = true
		w.block(b, 0, fresh)
	}
}

func (w *walk) isBool(e ast.Expr) bool {
	t := w.pass.TypesInfo.TypeOf(e)
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

func (w *walk) branch(b *cfg.Block, condition ast.Expr, fresh bool) {
	switch w.eval(condition, fresh) {
	case yes:
		w.enter(b.Succs[0], fresh)
	case no:
		w.enter(b.Succs[1], fresh)
	case either:
		w.enter(b.Succs[0], fresh)
		w.enter(b.Succs[1], fresh)
	}
}

// answer is what is known about a condition.
type answer int

const (
	either  answer = iota
	yes            // it is true
	no             // it is false
	related        // it depends on the grant in an unknown way
)

func (w *walk) eval(e ast.Expr, fresh bool) answer {
	switch e := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		switch a := w.eval(e.X, fresh); {
		case e.Op == token.NOT && a == yes:
			return no
		case e.Op == token.NOT && a == no:
			return yes
		case e.Op == token.NOT:
			return a
		}
	case *ast.BinaryExpr:
		switch e.Op {
		case token.LAND:
			return both(w.eval(e.X, fresh), w.eval(e.Y, fresh), no)
		case token.LOR:
			return both(w.eval(e.X, fresh), w.eval(e.Y, fresh), yes)
		}
		if operand := w.compared(e); operand != nil {
			switch v := w.variable(operand); {
			case v == nil:
			case v == w.value:
				return answerOf(e.Op == token.NEQ)
			case v == w.err && fresh:
				return answerOf(e.Op == token.EQL)
			}
		}
	case *ast.CallExpr:
		// errors.Is(err, nil) is the only way in which these are true of nil.
		if fresh && w.fromPackage(e, "errors") && len(e.Args) == 2 && w.variable(e.Args[0]) == w.err && w.err != nil && !w.isNil(e.Args[1]) {
			return no
		}
	}
	if w.mentions(e, fresh) {
		return related
	}
	return either
}

// both joins two answers: one that decides is enough.
func both(x, y, decides answer) answer {
	switch {
	case x == decides || y == decides:
		return decides
	case x == related || y == related:
		return related
	case x == y:
		return x
	}
	return either
}

func answerOf(is bool) answer {
	if is {
		return yes
	}
	return no
}

// mentions reports whether a condition has a variable of the grant, or one that the grant depends on.
func (w *walk) mentions(e ast.Expr, fresh bool) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			v, _ := w.pass.TypesInfo.ObjectOf(id).(*types.Var)
			method, _ := w.method(id)
			found = found || v != nil && (v == w.value && method == "" || v == w.err && fresh || w.around[v])
		}
		return true
	})
	return found
}

// effect is what a node does with the error of a grant.
type effect int

const (
	nothing    effect = iota
	overwrites        // the variable has another error now
	derives           // something else depends on the error now
)

func (w *walk) effect(n ast.Node) effect {
	uses := w.uses(n, w.err)
	if len(uses) == 0 {
		return nothing
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		is := nothing
		for _, id := range uses {
			if !w.isWrite(id) {
				return derives
			}
			is = overwrites
		}
		return is
	case *ast.ValueSpec, ast.Expr:
		return derives
	case *ast.ExprStmt:
		if _, call := n.X.(*ast.CallExpr); !call {
			return derives
		}
	}
	return nothing
}
