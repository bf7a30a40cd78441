package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/types/typeutil"
)

// rule names the functions of one kind of lock. A function is known by its full name, such as
// (*github.com/go-redsync/redsync/v4.Mutex).LockContext.
type rule struct {
	kind    kind
	acquire *regexp.Regexp
	release *regexp.Regexp // nil for ofFunc
}

// kind is how a program gives a lock back.
type kind string

const (
	ofMutex kind = "mutex" // the acquire returns an error, and a method of the same value releases
	ofLease kind = "lease" // the acquire returns a value too, which has a method that releases, or is an argument of the release
	ofFunc  kind = "func"  // the acquire returns a function that releases
)

// helper is the package that the ported programs use: ported.Lock is a lock of rlock.
const helper = "vetpublic.invalid/ported"

const (
	helperModule = "module " + helper + "\n\ngo 1.25\n\nrequire github.com/go-rlock/rlock v0.0.0\n"
	// Its functions are never called: they only have the types that make a ported program compile.
	helperSource = `package ported

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock"
)

type Lease = rlock.Lease

// Lock stands for the lock that a function of another library takes with these arguments.
func Lock(...any) *rlock.Lock { return nil }

// Background stands for the context of a call that has none.
func Background() context.Context { return context.Background() }

// As gives a lease to code that wants the value of another library.
func As[T any](*rlock.Lease) (value T) { return value }

// Of is a value of another library that says something about a lease, which it does not get.
func Of[T any](string) (value T) { return value }

// From is a lease that comes from elsewhere.
func From(any) *rlock.Lease { return nil }

// Join is what a release returns that gets an error.
func Join(err, unlock error) error { return errors.Join(err, unlock) }

// Both is what a release with two results returns.
func Both(err error) (bool, error) { return err == nil, err }
`
)

// ported is what the porting of a package did.
type ported struct {
	files  map[string][]byte // by name, only those that are changed
	locks  int               // the calls that take a lock of rlock now
	left   []token.Position  // the calls that it could not port
	silent map[string]bool   // file:line of each release that has no error in the original program
}

// port makes the calls of a package that take and release locks calls of rlock. All lines keep their numbers.
func port(p *packages.Package, rules []rule) (*ported, error) {
	out := &ported{files: map[string][]byte{}, silent: map[string]bool{}}
	for _, file := range p.Syntax {
		name := p.Fset.File(file.Pos()).Name()
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f := &porter{Package: p, rules: rules, file: file, text: text, out: out, parents: map[ast.Node]ast.Node{}, imports: map[string]string{}}
		f.index()
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				f.function(fn)
			}
		}
		if len(f.edits) == 0 {
			continue
		}
		if out.files[name], err = f.apply(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

// porter ports one file.
type porter struct {
	*packages.Package
	rules   []rule
	file    *ast.File
	text    []byte
	out     *ported
	parents map[ast.Node]ast.Node
	imports map[string]string // the name of each package that is imported for the port, by path
	edits   []edit
	names   int
}

type edit struct {
	from, to token.Pos
	text     string
}

func (f *porter) index() {
	var above []ast.Node
	ast.Inspect(f.file, func(n ast.Node) bool {
		if n == nil {
			above = above[:len(above)-1]
			return true
		}
		if len(above) > 0 {
			f.parents[n] = above[len(above)-1]
		}
		above = append(above, n)
		return true
	})
}

func (f *porter) replace(from, to token.Pos, text string) {
	f.edits = append(f.edits, edit{from, to, text})
}

func (f *porter) insert(at token.Pos, text string) { f.replace(at, at, text) }

func (f *porter) source(from, to token.Pos) string {
	tf := f.Fset.File(f.file.Pos())
	return string(f.text[tf.Offset(from):tf.Offset(to)])
}

func (f *porter) sourceOf(n ast.Node) string { return f.source(n.Pos(), n.End()) }

// apply returns the text of the file with all edits.
func (f *porter) apply() ([]byte, error) {
	imports := "; import vetported " + strconv.Quote(helper)
	for _, path := range slices.Sorted(maps.Keys(f.imports)) {
		imports += "; import " + f.imports[path] + " " + strconv.Quote(path)
	}
	f.insert(f.file.Name.End(), imports)
	slices.SortStableFunc(f.edits, func(a, b edit) int { return int(a.from - b.from) })
	tf := f.Fset.File(f.file.Pos())
	var out []byte
	at := 0
	for _, e := range f.edits {
		from, to := tf.Offset(e.from), tf.Offset(e.to)
		if from < at {
			return nil, fmt.Errorf("line %d: two edits of one place", tf.Line(e.from))
		}
		out = append(out, f.text[at:from]...)
		out = append(out, e.text...)
		at = to
		if strings.Count(string(f.text[from:to]), "\n") != strings.Count(e.text, "\n") {
			return nil, fmt.Errorf("line %d: an edit changes the number of lines", tf.Line(e.from))
		}
	}
	return append(out, f.text[at:]...), nil
}

// acquire is a call that takes a lock, in a statement that can be ported.
type acquire struct {
	rule *rule
	call *ast.CallExpr
	// assign is the statement with the results; nil if the call is an operand of the condition of around.
	assign *ast.AssignStmt
	around *ast.IfStmt // the if that has the call in its init or condition; nil for a statement alone
	value  int         // the index of the lease in the results; -1 for a mutex
	lease  *ast.Ident  // the variable of the lease; nil for a mutex, and if it is dropped
	name   string      // the variable of the lease of a mutex
	hoist  bool        // the function declares it, not the statement
}

func (f *porter) ruleOf(call *ast.CallExpr, is func(*rule, string) bool) *rule {
	fn, ok := typeutil.Callee(f.TypesInfo, call).(*types.Func)
	if !ok {
		return nil
	}
	name := fn.Origin().FullName()
	for i := range f.rules {
		if is(&f.rules[i], name) {
			return &f.rules[i]
		}
	}
	return nil
}

func (f *porter) acquires(call *ast.CallExpr) *rule {
	return f.ruleOf(call, func(r *rule, name string) bool { return r.acquire.MatchString(name) })
}

func (f *porter) releases(call *ast.CallExpr) *rule {
	return f.ruleOf(call, func(r *rule, name string) bool { return r.release != nil && r.release.MatchString(name) })
}

// function ports the locks that one function takes and releases.
func (f *porter) function(fn *ast.FuncDecl) {
	var mutexes, leases []*acquire
	var releases []*ast.CallExpr
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f.releases(call) != nil {
			releases = append(releases, call)
		}
		if r := f.acquires(call); r != nil {
			switch a := f.acquireOf(r, call); {
			case a == nil:
				f.leave(call)
			case r.kind == ofMutex:
				mutexes = append(mutexes, a)
			default:
				leases = append(leases, a)
			}
		}
		return true
	})
	f.leases(fn, leases)
	f.mutexes(fn, mutexes, releases)
}

func (f *porter) leave(call *ast.CallExpr) {
	f.out.left = append(f.out.left, f.Fset.Position(call.Pos()))
}

// acquireOf is the acquire of a call; nil if its statement has no form that can be ported.
func (f *porter) acquireOf(r *rule, call *ast.CallExpr) *acquire {
	results := f.TypesInfo.TypeOf(call)
	a := &acquire{rule: r, call: call, value: -1}
	n := 1
	if tuple, ok := results.(*types.Tuple); ok {
		n = tuple.Len()
		for i := range n - 1 {
			_, isFunc := tuple.At(i).Type().Underlying().(*types.Signature)
			if r.kind == ofFunc && isFunc || r.kind == ofLease && !isContext(tuple.At(i).Type()) && !isBool(tuple.At(i).Type()) {
				a.value = i
				break
			}
		}
	}
	if (a.value < 0) != (r.kind == ofMutex) || r.kind == ofMutex && n != 1 {
		return nil
	}
	switch p := f.parents[call].(type) {
	case *ast.AssignStmt:
		if len(p.Rhs) != 1 || len(p.Lhs) != n {
			return nil
		}
		a.assign = p
		if around, ok := f.parents[p].(*ast.IfStmt); ok {
			a.around = around
		} else if !f.inList(p) {
			return nil
		}
		if _, ok := p.Lhs[n-1].(*ast.Ident); !ok {
			return nil
		}
		if a.value >= 0 {
			id, ok := p.Lhs[a.value].(*ast.Ident)
			if !ok {
				return nil
			}
			if id.Name != "_" {
				a.lease = id
			}
		}
	case *ast.BinaryExpr:
		around, ok := f.parents[p].(*ast.IfStmt)
		if !ok || n != 1 || around.Init != nil || p.X != ast.Expr(call) {
			return nil
		}
		a.around = around
	default:
		return nil
	}
	if a.around != nil && (n > 2 || r.kind == ofMutex && !f.inList(a.around)) {
		return nil
	}
	return a
}

// inList reports whether a statement is in a list of statements, so that another may be put before it.
func (f *porter) inList(s ast.Stmt) bool {
	switch f.parents[s].(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

func isContext(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == "Context" && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "context"
}

func isBool(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// contextOf is the argument of a call that is a context; nil if it has none.
func (f *porter) contextOf(call *ast.CallExpr) ast.Expr {
	for _, arg := range call.Args {
		if t := f.TypesInfo.TypeOf(arg); t != nil && isContext(t) {
			return arg
		}
	}
	return nil
}

func (f *porter) contextText(call *ast.CallExpr) string {
	if ctx := f.contextOf(call); ctx != nil {
		return f.sourceOf(ctx)
	}
	return "vetported.Background()"
}

// take rewrites the call that takes a lock, such as m.LockContext(ctx, key), to vetported.Lock(m.LockContext, key).Lock(ctx).
func (f *porter) take(call *ast.CallExpr) {
	f.out.locks++
	f.insert(call.Fun.Pos(), "vetported.Lock(")
	f.replace(call.Lparen, call.Lparen+1, ", ")
	ctx := f.contextOf(call)
	for i, arg := range call.Args {
		if arg != ctx {
			continue
		}
		f.replace(arg.Pos(), arg.End(), "")
		if i+1 < len(call.Args) {
			comma := arg.End() + token.Pos(strings.IndexByte(f.source(arg.End(), call.Args[i+1].Pos()), ','))
			f.replace(comma, comma+1, "")
		} else if i > 0 {
			comma := call.Args[i-1].End() + token.Pos(strings.IndexByte(f.source(call.Args[i-1].End(), arg.Pos()), ','))
			f.replace(comma, comma+1, "")
		}
	}
	if call.Ellipsis.IsValid() {
		f.replace(call.Ellipsis, call.Ellipsis+3, "")
	}
	name := "Lock"
	if fn := typeutil.Callee(f.TypesInfo, call); strings.Contains(fn.Name(), "Try") {
		name = "TryLock"
	}
	f.replace(call.Rparen, call.Rparen+1, ")."+name+"("+f.contextText(call)+")")
}

// release rewrites the call that releases a lock to an Unlock of a lease. results is the number of its results.
func (f *porter) release(call *ast.CallExpr, lease string) {
	unlock := lease + ".Unlock(" + f.contextText(call) + ")"
	results := 0
	switch t := f.TypesInfo.TypeOf(call).(type) {
	case *types.Tuple:
		results = t.Len()
	case nil:
	default:
		results = 1
	}
	lines := strings.Repeat("\n", strings.Count(f.sourceOf(call), "\n"))
	if around := f.parents[call]; results == 0 && !isUsed(around) {
		at := f.Fset.Position(call.Pos())
		f.out.silent[fmt.Sprintf("%s:%d", at.Filename, at.Line)] = true
	} else if p, ok := around.(*ast.AssignStmt); ok && results == 2 && f.sourceOf(p.Lhs[0]) == "_" {
		f.replace(p.Lhs[0].Pos(), p.Lhs[1].Pos(), "")
		results = 1
	}
	for _, arg := range call.Args {
		if t := f.TypesInfo.TypeOf(arg); t != nil && types.AssignableTo(t, types.Universe.Lookup("error").Type()) {
			f.replace(call.Pos(), arg.Pos(), "vetported.Join(")
			f.replace(arg.End(), call.End(), ", "+unlock+")")
			return
		}
	}
	if results == 2 && isUsed(f.parents[call]) {
		unlock = "vetported.Both(" + unlock + ")"
	}
	f.replace(call.Pos(), call.End(), unlock+lines)
}

// isUsed reports whether what is around a call uses its results.
func isUsed(around ast.Node) bool {
	switch around.(type) {
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt:
		return false
	}
	return true
}

// leases ports the acquires that return a lease or a function, with all uses of its variable.
func (f *porter) leases(fn *ast.FuncDecl, all []*acquire) {
	byVariable := map[*types.Var][]*acquire{}
	var variables []*types.Var
	for _, a := range all {
		if a.lease == nil {
			f.assignLease(a)
			continue
		}
		v, _ := f.TypesInfo.ObjectOf(a.lease).(*types.Var)
		if byVariable[v] == nil {
			variables = append(variables, v)
		}
		byVariable[v] = append(byVariable[v], a)
	}
	for _, v := range variables {
		acquires := byVariable[v]
		if !f.leaseVariable(fn, v, acquires) {
			for _, a := range acquires {
				f.leave(a.call)
			}
		}
	}
}

// leaseVariable makes a variable one of a lease of rlock; it reports false, and changes nothing, if it cannot.
func (f *porter) leaseVariable(fn *ast.FuncDecl, v *types.Var, acquires []*acquire) bool {
	if v.Pos() < fn.Body.Pos() || fn.Body.End() <= v.Pos() {
		return false
	}
	if !f.hasText(v.Type()) {
		return false
	}
	isAcquire := func(n ast.Node) bool {
		return slices.ContainsFunc(acquires, func(a *acquire) bool { return n == a.assign })
	}
	var edits []func()
	portable := true
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok || f.TypesInfo.ObjectOf(id) != v {
			return true
		}
		switch p := f.parents[id].(type) {
		case *ast.ValueSpec:
			if len(p.Names) != 1 || len(p.Values) != 0 {
				portable = false
				return true
			}
			edits = append(edits, func() { f.replace(p.Type.Pos(), p.Type.End(), "*vetported.Lease") })
			return true
		case *ast.AssignStmt:
			if slices.Contains(p.Lhs, ast.Expr(id)) {
				i := slices.Index(p.Lhs, ast.Expr(id))
				switch {
				case isAcquire(p):
				case len(p.Lhs) != len(p.Rhs) || p.Tok == token.DEFINE:
					portable = false
				case !f.TypesInfo.Types[p.Rhs[i]].IsNil():
					edits = append(edits, func() {
						f.insert(p.Rhs[i].Pos(), "vetported.From(")
						f.insert(p.Rhs[i].End(), ")")
					})
				}
				return true
			}
		case *ast.CallExpr:
			if p.Fun == ast.Expr(id) || f.releases(p) != nil {
				edits = append(edits, func() { f.release(p, v.Name()) })
				return true
			}
		case *ast.SelectorExpr:
			call, isCall := f.parents[p].(*ast.CallExpr)
			switch {
			case isCall && call.Fun == ast.Expr(p) && f.releases(call) != nil:
				edits = append(edits, func() { f.release(call, v.Name()) })
			case isCall && call.Fun == ast.Expr(p) && isContext(f.TypesInfo.TypeOf(call)):
				edits = append(edits, func() { f.replace(p.End(), call.End(), "("+f.contextText(acquires[0].call)+")") })
			default:
				edits = append(edits, func() { f.replace(id.Pos(), id.End(), "vetported.Of["+f.typeText(v.Type())+"]("+v.Name()+".HoldID())") })
			}
			return true
		case *ast.BinaryExpr:
			other := p.X
			if other == ast.Expr(id) {
				other = p.Y
			}
			if basic, ok := other.(*ast.BasicLit); ok && basic.Value == `""` {
				edits = append(edits, func() { f.replace(basic.Pos(), basic.End(), "nil") })
				return true
			}
			if f.TypesInfo.Types[other].IsNil() {
				return true
			}
		}
		edits = append(edits, func() { f.replace(id.Pos(), id.End(), "vetported.As["+f.typeText(v.Type())+"]("+v.Name()+")") })
		return true
	})
	if !portable {
		return false
	}
	for _, e := range edits {
		e()
	}
	for _, a := range acquires {
		f.assignLease(a)
	}
	return true
}

// assignLease rewrites the statement that gets a lease. What else the call returns is derived from the lease after it.
func (f *porter) assignLease(a *acquire) {
	lhs := a.assign.Lhs
	isNew := func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return ok && f.TypesInfo.Defs[id] != nil
	}
	lease, err := lhs[a.value], lhs[len(lhs)-1]
	tok := a.assign.Tok.String()
	if !isNew(lease) && !isNew(err) {
		tok = "="
	}
	f.replace(lhs[0].Pos(), a.assign.TokPos+token.Pos(len(a.assign.Tok.String())), f.sourceOf(lease)+", "+f.sourceOf(err)+" "+tok)
	after := ""
	for i, e := range lhs[:len(lhs)-1] {
		if i == a.value || f.sourceOf(e) == "_" {
			continue
		}
		tok := "="
		if isNew(e) {
			tok = ":="
		}
		t := f.TypesInfo.TypeOf(e)
		name := f.sourceOf(lease)
		switch {
		case isContext(t):
			after += "; " + f.sourceOf(e) + " " + tok + " " + name + ".Context(" + f.contextText(a.call) + ")"
		case isBool(t):
			after += "; " + f.sourceOf(e) + " " + tok + " " + name + " != nil"
		default:
			after += "; " + f.sourceOf(e) + " " + tok + " vetported.Of[" + f.typeText(t) + "](" + name + ".HoldID())"
		}
	}
	f.take(a.call)
	f.insert(a.call.End(), after)
}

// hasText reports whether this file can name a type.
func (f *porter) hasText(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return !ok || named.Obj().Exported() || named.Obj().Pkg() == nil || named.Obj().Pkg() == f.Types
}

// typeText is the source of a type. The file imports what it needs.
func (f *porter) typeText(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p == f.Types {
			return ""
		}
		if f.imports[p.Path()] == "" {
			f.imports[p.Path()] = fmt.Sprintf("vetimport%d", len(f.imports)+1)
		}
		return f.imports[p.Path()]
	})
}

// mutexes ports the acquires after which the lock is its own handle: each one whose release is in the same function gets
// a variable with a lease.
func (f *porter) mutexes(fn *ast.FuncDecl, all []*acquire, releases []*ast.CallExpr) {
	byKey := map[string][]*acquire{}
	var keys []string
	for _, a := range all {
		key := f.receiver(a.call) + f.argument(a.call)
		if byKey[key] == nil {
			keys = append(keys, key)
		}
		byKey[key] = append(byKey[key], a)
	}
	for _, key := range keys {
		acquires := byKey[key]
		var ends []*ast.CallExpr
		for _, r := range releases {
			if receiver := f.receiver(r); receiver+f.argument(r) == key || receiver == key { // such as m.Lock() and m.UnlockWith(err)
				ends = append(ends, r)
			}
		}
		if len(ends) == 0 {
			for _, a := range acquires {
				f.leave(a.call)
			}
			continue
		}
		f.mutex(fn, acquires, ends)
	}
}

// receiver and argument are what an acquire and its release have in common: the value before the name of the method, and
// the first argument that is no context, if the acquire has one.
func (f *porter) receiver(call *ast.CallExpr) string {
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return f.sourceOf(sel.X)
	}
	return ""
}

func (f *porter) argument(call *ast.CallExpr) string {
	for _, arg := range call.Args {
		if t := f.TypesInfo.TypeOf(arg); t == nil || !isContext(t) {
			return " " + f.sourceOf(arg)
		}
	}
	return ""
}

func (f *porter) mutex(fn *ast.FuncDecl, acquires []*acquire, ends []*ast.CallExpr) {
	// The acquire of each release: the last one before it whose variable would be in scope.
	of := map[*ast.CallExpr]*acquire{}
	used := map[*acquire]bool{}
	for _, end := range ends {
		for _, a := range acquires {
			if f.scope(a).Pos() <= end.Pos() && end.End() <= f.scope(a).End() && a.call.End() < end.Pos() {
				of[end] = a
			}
		}
		used[of[end]] = true
	}
	hoist := used[nil] || len(used) != len(acquires)
	shared := f.newName("vetLease")
	for _, a := range acquires {
		a.hoist, a.name = hoist, shared
		if !hoist {
			a.name = f.newName("vetLease")
		}
	}
	if hoist {
		f.insert(fn.Body.Lbrace+1, "var "+shared+" *vetported.Lease; ")
	}
	for _, end := range ends {
		name := shared
		if !hoist {
			name = of[end].name
		}
		f.release(end, name)
	}
	for _, a := range acquires {
		f.assignMutex(a)
	}
}

func (f *porter) newName(prefix string) string {
	f.names++
	return fmt.Sprintf("%s%d", prefix, f.names)
}

// scope is the list of statements with the acquire.
func (f *porter) scope(a *acquire) ast.Node {
	if a.around != nil {
		return f.parents[a.around]
	}
	return f.parents[a.assign]
}

// assignMutex rewrites the statement that locks, so that it gets a lease:
//
//	err := m.Lock()                  lease, err := vetported.Lock(m.Lock).Lock(...)
//	if err := m.Lock(); err != nil   lease, err1 := vetported.Lock(m.Lock).Lock(...); if err1 != nil
//	if m.Lock() != nil               lease, err1 := vetported.Lock(m.Lock).Lock(...); if err1 != nil
func (f *porter) assignMutex(a *acquire) {
	declare, tok := "", ":="
	if a.hoist {
		tok = "="
	}
	defer f.take(a.call)
	if a.assign == nil {
		err := f.newName("vetErr")
		if a.hoist {
			declare = "var " + err + " error; "
		}
		f.replace(a.around.If, a.call.Pos(), declare+a.name+", "+err+" "+tok+" ")
		f.insert(a.call.End(), "; if "+err)
		return
	}
	err := a.assign.Lhs[len(a.assign.Lhs)-1].(*ast.Ident)
	obj := f.TypesInfo.Defs[err]
	if a.around == nil {
		switch {
		case a.hoist && obj != nil:
			declare = "var " + err.Name + " error; "
		case !a.hoist && obj == nil && err.Name != "_":
			declare, tok = "var "+a.name+" *vetported.Lease; ", "="
		}
		if !a.hoist && err.Name == "_" {
			tok = ":="
		}
		f.replace(a.assign.Pos(), a.call.Pos(), declare+a.name+", "+err.Name+" "+tok+" ")
		return
	}
	name := err.Name
	switch {
	case obj != nil:
		name = f.newName("vetErr")
		if a.hoist {
			declare = "var " + name + " error; "
		}
		ast.Inspect(a.around, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id != err && f.TypesInfo.ObjectOf(id) == obj {
				f.replace(id.Pos(), id.End(), name)
			}
			return true
		})
	case !a.hoist:
		declare, tok = "var "+a.name+" *vetported.Lease; ", "="
	}
	f.replace(a.around.If, a.call.Pos(), declare+a.name+", "+name+" "+tok+" ")
	f.replace(a.call.End(), a.around.Cond.Pos(), "; if ")
}
