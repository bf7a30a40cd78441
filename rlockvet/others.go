package rlockvet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"time"
)

// transactions reports locks that are taken between the begin of a transaction and its end, in one function.
func (c *checker) transactions(f *function) {
	eachCall(f.body, func(begin *ast.CallExpr) {
		if !c.fromPackage(begin, "database/sql") || !slices.Contains([]string{"Begin", "BeginTx"}, c.callee(begin).Name()) {
			return
		}
		tx, ok := c.grantOf(f, begin)
		if !ok || tx.value == nil {
			return
		}
		for _, r := range c.follow(f, tx, func(n ast.Node) bool { return c.mayEnd(n, tx.value) }) {
			if _, later := r.Node.(*ast.DeferStmt); later || r.ends {
				continue
			}
			eachCall(r.Node, func(call *ast.CallExpr) {
				if c.takesLock(call) {
					c.report(call, InTransaction, "%s inside the transaction of line %d, which reads what was there before the lock, and keeps its rows locked while it waits",
						c.callee(call).Name(), c.line(begin.Pos()))
				}
			})
		}
	})
}

// mayEnd reports whether a node may end a transaction, and not only later: it commits, rolls back, or gives the
// transaction to other code.
func (c *checker) mayEnd(n ast.Node, tx *types.Var) bool {
	if _, later := n.(*ast.DeferStmt); later {
		return false
	}
	for _, id := range c.uses(n, tx) {
		if name, _ := c.method(id); name == "" || name == "Commit" || name == "Rollback" {
			return true
		}
	}
	return false
}

// named are the constructors whose name has to be the same wherever the lock is meant. A Once, a latch or a barrier may
// have a name for each day.
var named = []string{
	"NewLock", "NewFairLock", "NewPriorityLock", "NewSpinLock", "NewFencedLock", "NewReadWriteLock", "NewFairReadWriteLock",
	"NewRedLock", "NewElection", "NewCronJob",
}

// names reports names that are made from the time.
func (c *checker) names(f *function) {
	eachCall(f.body, func(call *ast.CallExpr) {
		if c.fromPackage(call, rlock) && slices.Contains(named, c.callee(call).Name()) && len(call.Args) > 0 &&
			c.fromTime(f, call.Args[0], map[*types.Var]bool{}) {
			c.report(call.Args[0], TimedName, "the name of the lock is made from time.Now, so processes may lock different names")
		}
	})
}

// fromTime reports whether the value of time.Now is in a value, as far as one function shows it.
func (c *checker) fromTime(f *function, e ast.Expr, seen map[*types.Var]bool) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return c.fromTime(f, e.X, seen) || c.fromTime(f, e.Y, seen)
	case *ast.CallExpr:
		return c.callFromTime(f, e, seen)
	case *ast.Ident:
		v := c.local(f, e)
		if v == nil || seen[v] {
			return false
		}
		seen[v] = true
		return slices.ContainsFunc(c.values(f, v), func(e ast.Expr) bool { return c.fromTime(f, e, seen) })
	}
	return false
}

// callFromTime is fromTime for a call: of a conversion, of a method of time.Time, or of what formats its arguments.
func (c *checker) callFromTime(f *function, call *ast.CallExpr, seen map[*types.Var]bool) bool {
	anyArgument := func() bool {
		return slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return c.fromTime(f, e, seen) })
	}
	if c.pass.TypesInfo.Types[call.Fun].IsType() {
		return anyArgument()
	}
	callee := c.callee(call)
	if callee == nil || callee.Pkg() == nil {
		return false
	}
	switch callee.Pkg().Path() {
	case "time":
		if recv := callee.Signature().Recv(); recv != nil {
			return isType(recv.Type(), "time", "Time") && receiver(call) != nil && c.fromTime(f, receiver(call), seen)
		}
		return callee.Name() == "Now"
	case "fmt":
		return strings.HasPrefix(callee.Name(), "Sprint") && anyArgument()
	case "strconv", "strings":
		return anyArgument()
	}
	return false
}

// values are the expressions that a function assigns to a local variable.
func (c *checker) values(f *function, v *types.Var) (found []ast.Expr) {
	pick := func(to, from []ast.Expr) {
		for i, e := range to {
			switch {
			case c.variable(e) != v:
			case len(from) == len(to):
				found = append(found, from[i])
			case len(from) == 1:
				found = append(found, from[0])
			}
		}
	}
	each(f.body, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			pick(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			var to []ast.Expr
			for _, name := range n.Names {
				to = append(to, name)
			}
			pick(to, n.Values)
		}
	})
	return found
}

// waits reports an acquire in the loop of a ticker that may wait for longer than the ticker's period.
func (c *checker) waits(f *function) {
	each(f.body, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if period, ok := c.period(f, n.X); ok {
				c.waitsIn(n.Body, period)
			}
		case *ast.CommClause:
			if period, ok := c.received(f, n.Comm); ok && c.inLoop(f, n) {
				for _, s := range n.Body {
					c.waitsIn(s, period)
				}
			}
		}
	})
}

// received is the period of the ticker from which a statement receives.
func (c *checker) received(f *function, s ast.Stmt) (period time.Duration, ok bool) {
	var from ast.Expr
	switch s := s.(type) {
	case *ast.ExprStmt:
		from = s.X
	case *ast.AssignStmt:
		from = s.Rhs[0]
	}
	if receive, is := from.(*ast.UnaryExpr); is && receive.Op == token.ARROW {
		return c.period(f, receive.X)
	}
	return 0, false
}

// inLoop reports whether a statement of f is in a loop of f.
func (c *checker) inLoop(f *function, n ast.Node) bool {
	for ; n != nil && n != f.node; n = c.parents[n] {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return true
		}
	}
	return false
}

// period is the constant period of the ticker whose channel e is, if the function makes it and never resets it.
func (c *checker) period(f *function, e ast.Expr) (time.Duration, bool) {
	e = ast.Unparen(e)
	if sel, ok := e.(*ast.SelectorExpr); ok && sel.Sel.Name == "C" && isType(c.pass.TypesInfo.TypeOf(sel.X), "time", "Ticker") {
		e = sel.X
	}
	if v := c.local(f, e); v != nil {
		for _, id := range c.uses(f.body, v) {
			if name, _ := c.method(id); name == "Reset" {
				return 0, false
			}
		}
		values := c.values(f, v)
		if len(values) != 1 {
			return 0, false
		}
		e = ast.Unparen(values[0])
	}
	call, ok := e.(*ast.CallExpr)
	if !ok || !c.fromPackage(call, "time") || !slices.Contains([]string{"NewTicker", "Tick"}, c.callee(call).Name()) {
		return 0, false
	}
	return c.duration(call.Args[0])
}

// duration is the value of a constant.
func (c *checker) duration(e ast.Expr) (time.Duration, bool) {
	value := c.pass.TypesInfo.Types[e].Value
	if value == nil {
		return 0, false
	}
	n, exact := constant.Int64Val(constant.ToInt(value))
	return time.Duration(n), exact
}

func (c *checker) waitsIn(body ast.Node, period time.Duration) {
	eachCall(body, func(call *ast.CallExpr) {
		if !c.fromPackage(call, rlock) || c.callee(call).Name() != "WithWait" || len(call.Args) != 1 {
			return
		}
		if wait, ok := c.duration(call.Args[0]); ok && wait > period {
			c.report(call, LongWait, "a wait of %v in the loop of a ticker of %v: a process that waits misses ticks, and then repeats what another has just done", wait, period)
		}
	})
}

// permits reports a Semaphore whose permits the function that takes them gives back by defer: if its process dies, they
// are gone. One made without WithPermits may be shared with Java, and is not reported.
func (c *checker) permits(f *function) {
	released := map[*types.Var]bool{}
	each(f.body, func(n ast.Node) {
		d, ok := n.(*ast.DeferStmt)
		if !ok {
			return
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && c.isMethod(call, "Semaphore", "Release") {
				if v := c.variable(receiver(call)); v != nil {
					released[v] = true
				}
			}
			return true
		})
	})
	eachCall(f.body, func(call *ast.CallExpr) {
		if c.isMethod(call, "Semaphore", "Acquire", "TryAcquire") {
			if v := c.variable(receiver(call)); v != nil && released[v] && c.own[v] {
				c.report(call, LostPermit, "the permits of a Semaphore are gone if this process dies: those of a PermitSemaphore come back")
			}
		}
	})
}
