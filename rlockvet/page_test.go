package rlockvet_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock/rlockvet"
)

// silent is a test for analysistest, which fails at each finding without a want. The lines of the page have none.
type silent struct{}

func (silent) Errorf(string, ...any) {}

// The lines of docs/vet.md that are wrong are reported, each in the function of its category, and the right ones are not.
func TestLinesOfThePage(t *testing.T) {
	results := analysistest.Run(silent{}, ".", rlockvet.New(), "./testdata/page")
	if len(results) != 1 || results[0].Err != nil {
		t.Fatal(results)
	}
	pass := results[0].Pass
	name := pass.Fset.Position(pass.Files[0].Package).Filename
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	lines := strings.Split(string(text), "\n")
	where := func(line int) string {
		for _, d := range pass.Files[0].Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && pass.Fset.Position(f.Pos()).Line <= line && line <= pass.Fset.Position(f.End()).Line {
				return strings.ToLower(f.Name.Name)
			}
		}
		return ""
	}
	for i, line := range lines {
		if strings.HasSuffix(line, "// wrong") {
			want = append(want, where(i+1)+": "+line)
		}
	}
	for _, d := range results[0].Diagnostics {
		got = append(got, strings.ReplaceAll(d.Category, "-", "")+": "+lines[pass.Fset.Position(d.Pos).Line-1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) != len(rlockvet.Categories) {
		t.Errorf("reported:\n%s\nwrong:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Each category has its section, to which findings link, in the order of Categories.
func TestEachCategoryHasItsSection(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "vet.md"))
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		headings = append(headings, m[1])
	}
	if !slices.Equal(headings, rlockvet.Categories) {
		t.Errorf("sections %q", headings)
	}
	if n := strings.Count(string(text), "\n"); n > 135 {
		t.Errorf("%d lines", n)
	}
}
