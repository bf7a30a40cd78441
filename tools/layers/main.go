// Layers checks a house rule that a compiler does not: packages import only what is below them. It also prints the
// longest function of the root, and the one with the most branches, where each counts as often as it is deep. Usage:
//
//	cd tools && go run ./layers -dir ..
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// house has the packages that the root is made of, by layer. Each imports what is in the layers above its own in
// this list, and nothing else.
var house = [][]string{
	{"internal/seam", "internal/visible"},
	{"internal/clock", "internal/oplock"},
	{"internal/wire"},
	{"internal/notify"},
	{"internal/pubsub"},
	{"internal/protocol"},
	{"internal/handle", "internal/timers", "internal/wait", "internal/watch"},
	{"internal/presence"},
	{"internal/quorum"},
	{"."},
}

func main() {
	dir := flag.String("dir", ".", "folder of the root package")
	flag.Parse()
	root, err := load(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	long, nested := functions(root)
	fmt.Printf("longest function: %s; most branches: %s\n", long, nested)
	wrong := upwards(root)
	for _, what := range wrong {
		fmt.Println(what)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

func load(dir string) (*packages.Package, error) {
	all, err := packages.Load(&packages.Config{
		Dir:  dir,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
	}, ".")
	if err != nil {
		return nil, err
	}
	for _, err := range all[0].Errors {
		return nil, err
	}
	return all[0], nil
}

// upwards returns what is wrong with the imports of the root, and of what it imports of this module.
func upwards(root *packages.Package) (wrong []string) {
	layers := map[string]int{}
	for i, layer := range house {
		for _, dir := range layer {
			layers[strings.TrimSuffix(root.PkgPath+"/"+dir, "/.")] = i
		}
	}
	seen := map[string]bool{}
	var visit func(p *packages.Package)
	visit = func(p *packages.Package) {
		if seen[p.PkgPath] {
			return
		}
		seen[p.PkgPath] = true
		at, ok := layers[p.PkgPath]
		if !ok {
			wrong = append(wrong, p.PkgPath+" has no place in the house")
		}
		for _, path := range slices.Sorted(maps.Keys(p.Imports)) {
			if !strings.HasPrefix(path, root.PkgPath+"/") {
				continue
			}
			visit(p.Imports[path])
			if below, ok := layers[path]; ok && below >= at {
				wrong = append(wrong, fmt.Sprintf("%s imports %s, which is not below it", p.PkgPath, path))
			}
		}
	}
	visit(root)
	for path := range layers {
		if !seen[path] {
			wrong = append(wrong, path+" has a place in the house, and the root does not import it")
		}
	}
	return wrong
}

// functions returns the longest function of a package, and the one with the most branches.
func functions(p *packages.Package) (long, nested string) {
	var lines, branches int
	for _, f := range p.Syntax {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				name = types.ExprString(fn.Recv.List[0].Type) + "." + name
			}
			if n := p.Fset.Position(fn.End()).Line - p.Fset.Position(fn.Pos()).Line + 1; n > lines {
				lines, long = n, fmt.Sprintf("%s, %d lines", name, n)
			}
			if n := branchesOf(fn.Body); n > branches {
				branches, nested = n, fmt.Sprintf("%s, %d", name, n)
			}
		}
	}
	return long, nested
}

// branchesOf counts the branches of a function: each if, for, switch and select as 1 and the number of those that
// it is in.
func branchesOf(body *ast.BlockStmt) (n int) {
	var open []bool // for each node that the walk is in: whether it is a branch
	depth := 0
	ast.Inspect(body, func(node ast.Node) bool {
		if node == nil {
			if open[len(open)-1] {
				depth--
			}
			open = open[:len(open)-1]
			return true
		}
		branch := false
		switch node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
			branch = true
			n += 1 + depth
			depth++
		}
		open = append(open, branch)
		return true
	})
	return n
}
