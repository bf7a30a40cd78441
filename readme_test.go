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
	for page, example := range map[string]string{"docs/index.md": "examples/first/main.go",
		"docs/operations.md": "examples/shutdown/main.go"} {
		_, program, _ := strings.Cut(readText(t, example), "\npackage main\n")
		want := "```go\npackage main\n" + program + "```\n"
		if !strings.Contains(readText(t, page), want) {
			t.Errorf("%s should have this block:\n%s", page, want)
		}
	}
}

// Each block of Go in README.md, in docs and in the README of another module is a whole file, and compiles as it stands; or it
// stands in a file of the tree that is compiled: the one that the line above names, as a comment, or the examples of the README's
// module, which cannot be imported here.
func TestCodeInTheDocumentsCompiles(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"README.md", "docs/*.md", "*/README.md", "adapters/*/README.md", "cmd/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, found, err)
		}
		pages = append(pages, found...)
	}
	block := regexp.MustCompile("(?ms)^(?:<!-- (\\S+) -->\n)?```go(?: title=\"[^\"\n]*\")?\n(.*?)^```$")
	// The type checker finds what the compiler does not accept. To run the compiler for each block took four times as
	// long as all else that this package's tests compute.
	set, files, imports := token.NewFileSet(), []*ast.File{}, map[string]bool{}
	for _, page := range pages {
		text := readText(t, page)
		blocks := block.FindAllStringSubmatch(text, -1)
		if n := strings.Count(text, "```go"); n != len(blocks) {
			t.Errorf("%s has %d blocks of Go, of which %d can be read", page, n, len(blocks))
		}
		for i, code := range blocks {
			stored := code[1]
			if dir := filepath.Dir(page); stored == "" && dir != "." && dir != "docs" {
				stored = filepath.Join(dir, "example_test.go")
			}
			if stored != "" {
				if source := readText(t, stored); filepath.Ext(stored) != ".go" || strings.Contains(source, "//go:build") || !stands(code[2], source) {
					t.Errorf("%s, Go block %d is not in %s, or that is not compiled:\n%s", page, i+1, stored, code[2])
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

var importLine = regexp.MustCompile(`(?m)^import (\w+ ".*")$`)

// stands reports whether the lines of a block are lines of a file, but for the space in them. Between lines of three points, and
// after an import, others may come, but the order is that of the file.
func stands(block, file string) bool {
	rest := words(file)
	for part := range strings.SplitSeq(words(importLine.ReplaceAllString(block, "$1\n...")), "\n...\n") {
		_, after, ok := strings.Cut(rest, "\n"+strings.Trim(part, "\n")+"\n")
		if !ok {
			return false
		}
		rest = "\n" + after
	}
	return true
}

// words returns a text without the space around its lines, their words and empty lines.
func words(text string) string {
	lines := []string{""}
	for line := range strings.SplitSeq(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 0 {
			lines = append(lines, strings.Join(fields, " "))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// What is between points is in its order, and whole.
func TestBlocksStandInFiles(t *testing.T) {
	t.Parallel()
	const file = "package p\n\nimport (\n\tx \"a/x\"\n)\n\nfunc f() {\n\ta := x.A()\n\n\tb := 1   // one\n\tc(a, b)\n}\n"
	for block, want := range map[string]bool{
		"a := x.A()\nb := 1 // one\n":              true,
		"import x \"a/x\"\n\na := x.A()\n":         true,
		"import x \"a/y\"\n\na := x.A()\n":         false,
		"a := x.A()\n...\nc(a, b)\n":               true,
		"\ta := x.A()\n\t...\n":                    false, // there is nothing after it
		"c(a, b)\n...\na := x.A()\n":               false,
		"a := x.A()\nc(a, b)\n":                    false,
		"a := x.A() b := 1 // one\n":               false,
		"b := 1\n":                                 false,
		"a := x.A()\n...\na := x.A()\nb := 1\n":    false,
		"func f() {\n...\nb := 1 // one\n...\n}\n": true,
	} {
		if got := stands(block, file); got != want {
			t.Errorf("%q: %v", block, got)
		}
	}
}

// The table of types has all of them, what each costs, and which Java has too.
func TestTypesInTheReadme(t *testing.T) {
	t.Parallel()
	inside := map[string]float64{}
	for _, c := range costs {
		inside[c.name] = c.inside
	}
	for _, c := range counting {
		inside[c.name] = c.inside
	}
	java := readText(t, "docs/redisson.md")
	rows := regexp.MustCompile("(?m)^\\| \\[`(\\w+)`\\].* \\| *(✔?) *\\| (\\d+) \\|$").FindAllStringSubmatch(readText(t, "README.md"), -1)
	for _, row := range rows {
		name, most := row[1], -1.0
		for _, cost := range map[string][]string{
			"ReadWriteLock": {"ReadLock", "WriteLock"}, "FairReadWriteLock": {"fair ReadLock", "fair WriteLock"}, "MultiLock": {"MultiLock of three in a slot"},
			"RedLock": {redLockCost}, "CronJob": {"CronJob that runs"}, "Once": {"Once that runs, with its NewOnce"}, "PermitSemaphore": {permitCost},
			"Semaphore": {"Semaphore: Acquire and Release"}, "CountDownLatch": {"CountDownLatch: TrySetCount and CountDown"},
			"Barrier": {"Barrier: Set and Lift"}, "DoubleBarrier": {"DoubleBarrier of one, Enter and Unlock"},
		}[name] {
			most = max(most, inside[cost])
		}
		if most < 0 {
			most = inside[name]
		}
		if row[3] != fmt.Sprint(most) {
			t.Errorf("%s costs %v", row[0], most)
		}
		if name != "RedLock" && (row[2] != "") != strings.Contains(java, "`New"+name+"(") {
			t.Errorf("%s: Java has it: %v", row[0], row[2] == "")
		}
	}
	if len(rows) != 17 {
		t.Errorf("%d types; want 17", len(rows))
	}
}
