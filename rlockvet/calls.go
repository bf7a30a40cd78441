package rlockvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// function is a declared or a literal function, without the literals inside it.
type function struct {
	node ast.Node
	body *ast.BlockStmt
}

// function is the function that n declares; nil if it declares none.
func (c *checker) function(n ast.Node) *function {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body != nil {
			return &function{n, n.Body}
		}
	case *ast.FuncLit:
		return &function{n, n.Body}
	}
	return nil
}

// each calls visit for the nodes of n, but not for what is inside function literals.
func each(n ast.Node, visit func(ast.Node)) {
	ast.Inspect(n, func(inner ast.Node) bool {
		if inner == nil {
			return false
		}
		if _, literal := inner.(*ast.FuncLit); literal && inner != n {
			return false
		}
		visit(inner)
		return true
	})
}

// eachCall calls visit for the calls of a function, but not for those inside its function literals.
func eachCall(n ast.Node, visit func(*ast.CallExpr)) {
	each(n, func(inner ast.Node) {
		if call, ok := inner.(*ast.CallExpr); ok {
			visit(call)
		}
	})
}

// callee is the function or method that is called, in terms of its declaration; nil if that is unknown.
func (c *checker) callee(call *ast.CallExpr) *types.Func {
	f, _ := typeutil.Callee(c.pass.TypesInfo, call).(*types.Func)
	return f
}

// fromPackage reports whether a call is of a function or method that the package declares.
func (c *checker) fromPackage(call *ast.CallExpr, path string) bool {
	f := c.callee(call)
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == path
}

// isType reports whether t is the type with this name, or a pointer to it.
func isType(t types.Type, path, name string) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == name && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == path
}

// isMethod reports whether a call is of one of these methods of a type of rlock.
func (c *checker) isMethod(call *ast.CallExpr, typ string, names ...string) bool {
	f := c.callee(call)
	if f == nil || f.Signature().Recv() == nil || !isType(f.Signature().Recv().Type(), rlock, typ) {
		return false
	}
	for _, name := range names {
		if f.Name() == name {
			return true
		}
	}
	return false
}

// isLeaseCall reports whether a call is of a function of rlock that returns a lease and an error.
func (c *checker) isLeaseCall(call *ast.CallExpr) bool {
	if !c.fromPackage(call, rlock) {
		return false
	}
	results := c.callee(call).Signature().Results()
	return results.Len() == 2 && isType(results.At(0).Type(), rlock, "Lease") && isError(results.At(1).Type())
}

// takesLock reports whether a call may wait for a lock or for permits, or take them.
func (c *checker) takesLock(call *ast.CallExpr) bool {
	if c.isLeaseCall(call) || c.isMethod(call, "Semaphore", "Acquire", "TryAcquire") {
		return true
	}
	f := c.callee(call)
	return f != nil && f.Name() == "Do" && f.Signature().Recv() == nil && c.fromPackage(call, rlock)
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func isContext(t types.Type) bool { return isType(t, "context", "Context") }

// hasOption reports whether an option of a call is a call of this function of rlock.
func (c *checker) hasOption(call *ast.CallExpr, name string) bool {
	for _, arg := range call.Args {
		if option, ok := ast.Unparen(arg).(*ast.CallExpr); ok && c.fromPackage(option, rlock) && c.callee(option).Name() == name {
			return true
		}
	}
	return false
}

// mayEndAlone reports whether the lease of a call is WithLease, or may be, because an option is not written in place.
func (c *checker) mayEndAlone(call *ast.CallExpr) bool {
	if call.Ellipsis.IsValid() || c.hasOption(call, "WithLease") {
		return true
	}
	for _, arg := range call.Args {
		if _, ok := ast.Unparen(arg).(*ast.CallExpr); ok {
			continue
		}
		named, ok := types.Unalias(c.pass.TypesInfo.TypeOf(arg)).(*types.Named)
		if ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == rlock && strings.HasSuffix(named.Obj().Name(), "Option") {
			return true
		}
	}
	return false
}

// variable is the variable, or the field, that an expression names; nil for any other expression.
func (c *checker) variable(e ast.Expr) *types.Var {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v, _ := c.pass.TypesInfo.ObjectOf(e).(*types.Var)
		return v
	case *ast.SelectorExpr:
		v, _ := c.pass.TypesInfo.ObjectOf(e.Sel).(*types.Var)
		return v
	}
	return nil
}

// local is the variable that an identifier names, if the body of f declares it.
func (c *checker) local(f *function, e ast.Expr) *types.Var {
	if id, ok := ast.Unparen(e).(*ast.Ident); ok {
		if v := c.variable(id); v != nil && f.body.Pos() <= v.Pos() && v.Pos() < f.body.End() {
			return v
		}
	}
	return nil
}

// receiver is the expression before the name of the method that is called; nil for a function.
func receiver(call *ast.CallExpr) ast.Expr {
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return sel.X
	}
	return nil
}

// target is the variable or field that gets the result of a call; nil if that is none.
func (c *checker) target(call *ast.CallExpr) types.Object {
	var to ast.Expr
	switch p := c.parents[call].(type) {
	case *ast.AssignStmt:
		if len(p.Lhs) == len(p.Rhs) {
			to = p.Lhs[indexOf(p.Rhs, call)]
		}
	case *ast.ValueSpec:
		if len(p.Names) == len(p.Values) {
			to = p.Names[indexOf(p.Values, call)]
		}
	case *ast.KeyValueExpr:
		to = p.Key
	}
	if to == nil {
		return nil
	}
	if v := c.variable(to); v != nil {
		return v
	}
	return nil
}

func indexOf(list []ast.Expr, e ast.Expr) int {
	for i := range list {
		if list[i] == e {
			return i
		}
	}
	return 0
}

// uses returns the identifiers in n that name v, also inside function literals.
func (c *checker) uses(n ast.Node, v *types.Var) (found []*ast.Ident) {
	ast.Inspect(n, func(inner ast.Node) bool {
		if id, ok := inner.(*ast.Ident); ok && v != nil && c.pass.TypesInfo.ObjectOf(id) == v {
			found = append(found, id)
		}
		return true
	})
	return found
}

// inLiteral reports whether a node of f is inside one of its function literals.
func (c *checker) inLiteral(n ast.Node, f *function) bool {
	for n = c.parents[n]; n != nil && n != f.node; n = c.parents[n] {
		if _, ok := n.(*ast.FuncLit); ok {
			return true
		}
	}
	return false
}

// isWrite reports whether an identifier is the target of an assignment.
func (c *checker) isWrite(id *ast.Ident) bool {
	assign, ok := c.parents[id].(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, to := range assign.Lhs {
		if to == ast.Expr(id) {
			return true
		}
	}
	return false
}

// method is the name of the method of v that is called where id is; "" if it is another use.
func (c *checker) method(id *ast.Ident) (name string, call *ast.CallExpr) {
	sel, ok := c.parents[id].(*ast.SelectorExpr)
	if !ok || sel.X != ast.Expr(id) {
		return "", nil
	}
	if call, ok := c.parents[sel].(*ast.CallExpr); ok && call.Fun == ast.Expr(sel) {
		return sel.Sel.Name, call
	}
	return "", nil
}

// isNil reports whether e is nil.
func (c *checker) isNil(e ast.Expr) bool {
	return c.pass.TypesInfo.Types[ast.Unparen(e)].IsNil()
}

// compared returns the operand that a comparison compares with nil; nil if it does not.
func (c *checker) compared(e *ast.BinaryExpr) ast.Expr {
	switch {
	case e.Op != token.EQL && e.Op != token.NEQ:
		return nil
	case c.isNil(e.Y):
		return e.X
	case c.isNil(e.X):
		return e.Y
	}
	return nil
}
