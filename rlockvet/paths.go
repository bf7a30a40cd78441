package rlockvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// grant is a call that returns a value and an error: the value is there if the error is nil.
type grant struct {
	call  *ast.CallExpr
	value *types.Var // nil if the value is dropped
	err   *types.Var // nil if the error is dropped
}

// grantOf is a call and the local variables of its results; ok if they are assigned to any, or dropped.
func (c *checker) grantOf(f *function, call *ast.CallExpr) (g grant, ok bool) {
	g = grant{call: call}
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
	return g, true
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
	body *ast.BlockStmt
	at   place
	ends func(ast.Node) bool
	// without are the blocks that are also reached without the value: the call did not run, it failed, or the value has
	// ended. A condition there may be about whether there is a value, by a variable such as got or held.
	without map[*cfg.Block]bool
	// informed are the variables of calls that get the error, such as errors.As(err, &refused), or an answer about the
	// grant, such as held.Store(err == nil). A condition that has one of them is about the grant.
	informed map[*types.Var]bool
	seen     map[step]bool
	reached  []reached
	places   map[ast.Node]int // in reached
}

// step is a block, and what is known when it begins.
type step struct {
	block *cfg.Block
	state
}

type state struct {
	fresh bool // the variable of the error still has the error of the grant
	// straight is a path without a use of the value, and without a condition about anything else than the grant.
	straight bool
}

// reached is a node on a path with the value.
type reached struct {
	ast.Node
	ends     bool // the path ends at the node
	straight bool // a straight path leads to the node
	optional bool // the node may run without the value too
}

// follow returns the nodes that may run after a grant, up to those that end the paths. Paths on which the grant has
// failed are left out, and so are those behind a condition that depends on the grant in an unknown way.
func (c *checker) follow(f *function, g grant, ends func(ast.Node) bool) []reached {
	graph := c.graph(f)
	at, ok := find(graph, g.call)
	if !ok {
		return nil
	}
	w := &walk{checker: c, grant: g, body: f.body, at: at, ends: ends, without: map[*cfg.Block]bool{}, informed: map[*types.Var]bool{}}
	w.missing(graph.Blocks[0])
	// The first walk completes without, the second one uses all of it.
	for range 2 {
		w.seen, w.reached, w.places = map[step]bool{}, nil, map[ast.Node]int{}
		w.block(at.block, at.index+1, state{true, true})
	}
	return w.reached
}

func (w *walk) block(b *cfg.Block, from int, s state) {
	answer := either
	for i := from; i < len(b.Nodes); i++ {
		n := b.Nodes[i]
		ends := w.ends(n)
		w.reach(n, ends, s.straight, w.without[b])
		w.inform(n, s.fresh)
		if condition, ok := n.(ast.Expr); ok && !ends && i == len(b.Nodes)-1 && len(b.Succs) == 2 && w.isBool(condition) {
			answer = w.eval(condition, s.fresh)
			if answer == either && w.mentions(condition, s.fresh) {
				w.missing(b.Succs...)
			}
			break
		}
		effect := w.effect(n, s.fresh)
		if ends || effect == derives {
			if again := (place{b, i}) == w.at; !again {
				w.missing(b.Succs...)
			}
			return
		}
		s.fresh = s.fresh && effect != overwrites
		s.straight = s.straight && len(w.uses(n, w.value)) == 0
	}
	w.leave(b, answer, s)
}

func (w *walk) reach(n ast.Node, ends, straight, optional bool) {
	i, ok := w.places[n]
	if !ok {
		i = len(w.reached)
		w.places[n] = i
		w.reached = append(w.reached, reached{Node: n, optional: optional})
	}
	w.reached[i].ends = w.reached[i].ends || ends
	w.reached[i].straight = w.reached[i].straight || straight
}

// leave enters the blocks after b.
func (w *walk) leave(b *cfg.Block, answer answer, s state) {
	switch {
	case answer == yes:
		w.missing(b.Succs[1])
		w.enter(b.Succs[0], s)
	case answer == no:
		w.missing(b.Succs[0])
		w.enter(b.Succs[1], s)
	case answer == related:
		w.missing(b.Succs...)
	case len(b.Succs) > 1 && w.without[b] && w.inScope(b) && !w.isOfWork(b):
	default:
		s.straight = s.straight && len(b.Succs) == 1
		for _, next := range b.Succs {
			w.enter(next, s)
		}
	}
}

func (w *walk) enter(b *cfg.Block, s state) {
	if at := (step{b, s}); !w.seen[at] && !w.followsLastTurn(b) {
		w.seen[at] = true
		w.block(b, 0, s)
	}
}

// followsLastTurn reports whether a block follows a loop that ends the value, and that compares its counter: it may do so
// in its last turn.
func (w *walk) followsLastTurn(b *cfg.Block) bool {
	var counter *types.Var
	var body *ast.BlockStmt
	switch loop := b.Stmt.(type) {
	case *ast.RangeStmt:
		counter, body = w.variable(loop.Key), loop.Body
	case *ast.ForStmt:
		body = loop.Body
		if post, ok := loop.Post.(*ast.IncDecStmt); ok {
			counter = w.variable(post.X)
		}
	}
	return (b.Kind == cfg.KindForDone || b.Kind == cfg.KindRangeDone) && w.call.End() < body.Pos() && w.ends(body) && w.isAbout(body, counter)
}

// isAbout reports whether an if in the body compares the counter, and unlocks in its branch, or jumps.
func (w *walk) isAbout(body *ast.BlockStmt, counter *types.Var) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.IfStmt); ok && len(s.Body.List) > 0 && w.compares(s.Cond, counter) {
			_, jumps := s.Body.List[len(s.Body.List)-1].(*ast.BranchStmt)
			found = found || jumps || w.ends(s.Body)
		}
		return !found
	})
	return found
}

// missing records that blocks begin without the value.
func (w *walk) missing(blocks ...*cfg.Block) {
	for _, b := range blocks {
		if b != w.at.block && !w.without[b] {
			w.without[b] = true
			w.missing(b.Succs...)
		}
	}
}

// inScope reports whether the end of a block is in the scope of the variable. Out of it, nothing can end the value.
func (w *walk) inScope(b *cfg.Block) bool {
	var last ast.Node = b.Stmt
	if len(b.Nodes) > 0 {
		last = b.Nodes[len(b.Nodes)-1]
	}
	return w.value.Parent().Contains(last.Pos()) && w.value.Pos() < last.Pos()
}

// isOfWork reports whether the condition of a block asks for the error of a call that cannot know of the grant, such as
// if err := work(ctx); err != nil: its variables have no use between the grant and the call.
func (w *walk) isOfWork(b *cfg.Block) bool {
	if len(b.Nodes) == 0 {
		return false
	}
	compare, ok := b.Nodes[len(b.Nodes)-1].(*ast.BinaryExpr)
	if !ok {
		return false
	}
	v := w.variable(w.compared(compare))
	if v == nil || !isError(v.Type()) {
		return false
	}
	var from *ast.AssignStmt
	for _, id := range w.uses(w.body, v) {
		if w.isWrite(id) {
			if from != nil {
				return false
			}
			from = w.parents[id].(*ast.AssignStmt)
		}
	}
	if from == nil || from.Pos() < w.call.End() {
		return false
	}
	independent := true
	for _, e := range from.Rhs {
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				x, ok := w.pass.TypesInfo.ObjectOf(id).(*types.Var)
				independent = independent && (!ok || x.IsField() || x == w.value || isContext(x.Type()) || !w.usedBefore(x, from))
			}
			return true
		})
	}
	return independent
}

// usedBefore reports whether a variable has a use between the grant and a statement.
func (w *walk) usedBefore(v *types.Var, s ast.Stmt) bool {
	return slices.ContainsFunc(w.uses(w.body, v), func(id *ast.Ident) bool { return w.call.End() < id.Pos() && id.Pos() < s.Pos() })
}

func (w *walk) isBool(e ast.Expr) bool {
	t := w.pass.TypesInfo.TypeOf(e)
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
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
		isErr := func(e ast.Expr) bool { return fresh && w.err != nil && w.variable(e) == w.err }
		if isErr(e.X) && w.isFailure(e.Y, nil) || isErr(e.Y) && w.isFailure(e.X, nil) {
			return answerOf(e.Op == token.NEQ)
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
			found = found || v != nil && (v == w.value && method == "" || v == w.err && fresh || w.informed[v])
		}
		return true
	})
	return found
}

// effect is what a node that is no condition does with the error of a grant.
type effect int

const (
	nothing    effect = iota
	overwrites        // the variable has another error now
	derives           // something else depends on the grant now
)

func (w *walk) effect(n ast.Node, fresh bool) effect {
	switch n.(type) {
	case *ast.AssignStmt, *ast.ValueSpec, ast.Expr:
		if w.compares(n, w.value) {
			return derives
		}
	}
	uses := w.uses(n, w.err)
	if !fresh || len(uses) == 0 {
		return nothing
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		if slices.ContainsFunc(uses, func(id *ast.Ident) bool { return !w.isWrite(id) }) {
			return derives
		}
		return overwrites
	case *ast.ValueSpec, ast.Expr:
		return derives
	case *ast.ExprStmt:
		if _, call := n.X.(*ast.CallExpr); !call {
			return derives
		}
	}
	return nothing
}

// compares reports whether a node compares a variable, and not only in a function literal.
func (c *checker) compares(n ast.Node, v *types.Var) bool {
	return slices.ContainsFunc(c.uses(n, v), func(id *ast.Ident) bool {
		_, ok := c.parents[id].(*ast.BinaryExpr)
		return ok && !c.inLiteral(id, &function{node: n})
	})
}

// inform adds the variables of the calls in n to informed.
func (w *walk) inform(n ast.Node, fresh bool) {
	eachCall(n, func(call *ast.CallExpr) {
		if !slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
			return fresh && len(w.uses(arg, w.err)) > 0 || w.compares(arg, w.value)
		}) {
			return
		}
		ast.Inspect(call, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if v, ok := w.pass.TypesInfo.ObjectOf(id).(*types.Var); ok && v != w.err && v != w.value && !isContext(v.Type()) {
					w.informed[v] = true
				}
			}
			return true
		})
	})
}
