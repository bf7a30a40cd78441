// Layers checks the house rules that a compiler does not: how many files of the root know each other in a
// circle, and that packages import only what is below them. A file knows another if it uses anything that is
// declared there. It also prints the longest function of the root, and the one with the most branches, where each
// counts as often as it is deep. Usage:
//
//	cd tools && go run ./layers -dir .. [-cycle 4] [-v]
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// house has the packages that the root is made of, by layer. Each imports what is in the layers above its own in
// this list, and nothing beside it.
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
	cycle := flag.Int("cycle", 3, "most files in one circle")
	verbose := flag.Bool("v", false, "print which file knows which")
	flag.Parse()
	root, err := load(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	knows := filesOf(root)
	if *verbose {
		for _, file := range slices.Sorted(maps.Keys(knows)) {
			fmt.Println(file, "knows", strings.Join(slices.Sorted(maps.Keys(knows[file])), " "))
		}
	}
	circle := largestCycle(knows)
	fmt.Printf("largest circle: %d of %d files: %s\n", len(circle), len(knows), strings.Join(circle, " "))
	long, nested := functions(root)
	fmt.Printf("longest function: %s; most branches: %s\n", long, nested)
	wrong := upwards(root)
	for _, what := range wrong {
		fmt.Println(what)
	}
	if len(circle) > *cycle {
		fmt.Printf("allowed are %d files in a circle\n", *cycle)
	}
	if len(circle) > *cycle || len(wrong) > 0 {
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

// filesOf returns which files of a package know which others.
func filesOf(p *packages.Package) map[string]map[string]bool {
	name := func(pos token.Pos) string { return filepath.Base(p.Fset.Position(pos).Filename) }
	knows := map[string]map[string]bool{}
	for _, f := range p.Syntax {
		knows[name(f.Pos())] = map[string]bool{}
	}
	for id, obj := range p.TypesInfo.Uses {
		if obj == nil || obj.Pkg() != p.Types || !obj.Pos().IsValid() {
			continue
		}
		if from, to := name(id.Pos()), name(obj.Pos()); from != to && knows[to] != nil {
			knows[from][to] = true
		}
	}
	return knows
}

// largestCycle returns the largest set of files of which each knows each other one, if
// only by way of others.
func largestCycle(knows map[string]map[string]bool) (largest []string) {
	reaches := map[string]map[string]bool{}
	for from := range knows {
		seen := map[string]bool{}
		next := []string{from}
		for len(next) > 0 {
			file := next[len(next)-1]
			next = next[:len(next)-1]
			for to := range knows[file] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		reaches[from] = seen
	}
	for _, file := range slices.Sorted(maps.Keys(knows)) {
		var circle []string
		for other := range reaches[file] {
			if reaches[other][file] {
				circle = append(circle, other)
			}
		}
		if len(circle) > len(largest) {
			largest = circle
		}
	}
	slices.Sort(largest)
	return largest
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
