// Layers counts what the house rules bound: how many files of a package know each other
// in a circle, and how long its files are. A file knows another if it uses anything that
// is declared there. Usage:
//
//	cd tools && go run ./layers -dir .. [-cycle 8] [-lines 450] [-v]
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("dir", ".", "folder of the package")
	cycle := flag.Int("cycle", 8, "most files in one circle")
	lines := flag.Int("lines", 450, "longest file outside tests, in any package below the folder")
	verbose := flag.Bool("v", false, "print which file knows which")
	flag.Parse()
	knows, err := read(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *verbose {
		for _, file := range slices.Sorted(maps.Keys(knows)) {
			fmt.Println(file, "knows", strings.Join(slices.Sorted(maps.Keys(knows[file])), " "))
		}
	}
	ok := true
	circle := largestCycle(knows)
	fmt.Printf("largest circle: %d of %d files: %s\n", len(circle), len(knows), strings.Join(circle, " "))
	ok = ok && len(circle) <= *cycle
	file, n, err := longest(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Printf("longest file: %s, %d lines\n", file, n)
	ok = ok && n <= *lines
	if !ok {
		fmt.Printf("allowed are %d files and %d lines\n", *cycle, *lines)
		os.Exit(1)
	}
}

// read returns which files of a package know which others.
func read(dir string) (map[string]map[string]bool, error) {
	all, err := packages.Load(&packages.Config{
		Dir:  dir,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
	}, ".")
	if err != nil {
		return nil, err
	}
	p := all[0]
	for _, err := range p.Errors {
		return nil, err
	}
	name := func(pos token.Pos) string { return filepath.Base(p.Fset.Position(pos).Filename) }
	knows := map[string]map[string]bool{}
	for _, f := range p.Syntax {
		knows[name(f.Pos())] = map[string]bool{}
	}
	note := func(at token.Pos, obj types.Object) {
		if obj == nil || obj.Pkg() != p.Types || !obj.Pos().IsValid() {
			return
		}
		if from, to := name(at), name(obj.Pos()); from != to && knows[to] != nil {
			knows[from][to] = true
		}
	}
	for id, obj := range p.TypesInfo.Uses {
		note(id.Pos(), obj)
	}
	return knows, nil
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

// longest returns the longest Go file outside tests below a folder.
func longest(dir string) (file string, most int, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if n := bytes.Count(text, []byte("\n")); n > most {
			file, most = path, n
		}
		return err
	})
	return file, most, err
}
