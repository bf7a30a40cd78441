package rlock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func readText(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// The programs on the first pages are those of examples, which have their tests.
func TestPagesShowTheExamples(t *testing.T) {
	t.Parallel()
	for page, example := range map[string]string{"README.md": "examples/invoices/main.go", "docs/index.md": "examples/first/main.go",
		"docs/operations.md": "examples/shutdown/main.go"} {
		_, program, _ := strings.Cut(readText(t, example), "\npackage main\n")
		want := "```go\npackage main\n" + program + "```\n"
		if !strings.Contains(readText(t, page), want) {
			t.Errorf("%s should have this block:\n%s", page, want)
		}
	}
}

// Each block of Go in README.md and in docs is a whole file, and compiles as it stands; or it stands, but for
// its indentation, in the file of the tree that the line above it names, as a comment.
func TestCodeInTheDocumentsCompiles(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	block := regexp.MustCompile("(?ms)^(?:<!-- (\\S+) -->\n)?```go *\n(.*?)^```")
	// The type checker finds what the compiler does not accept. To run the compiler for each block took four times as
	// long as all else that this package's tests compute.
	set, files, imports := token.NewFileSet(), []*ast.File{}, map[string]bool{}
	for _, page := range append(pages, "README.md") {
		for i, code := range block.FindAllStringSubmatch(readText(t, page), -1) {
			if file := code[1]; file != "" {
				if !strings.Contains(dedented(readText(t, file)), "\n"+dedented(code[2])) {
					t.Errorf("%s, Go block %d is not in %s:\n%s", page, i+1, file, code[2])
				}
				continue
			}
			file, err := parser.ParseFile(set, fmt.Sprintf("%s, Go block %d", page, i+1), code[2], parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			files = append(files, file)
			for _, spec := range file.Imports {
				imports[strings.Trim(spec.Path.Value, "\"")] = true
			}
		}
	}
	if len(files) == 0 {
		t.Fatal("no block of Go was found")
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(readText(t, "go.mod"))
	if version == nil {
		t.Fatal("go.mod does not say for which version of Go the module is")
	}
	check := types.Config{GoVersion: "go" + version[1], Importer: compiled(t, set, slices.Collect(maps.Keys(imports))...), Error: func(err error) { t.Error(err) }}
	for _, file := range files {
		_, _ = check.Check("block", set, []*ast.File{file}, nil)
	}
}

func dedented(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
