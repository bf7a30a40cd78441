package rlock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
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
	// The blocks never touch the tree: the compiler is told of folders that are not there.
	files, dirs, where := map[string]string{}, []string{}, map[string]string{}
	for _, page := range append(pages, "README.md") {
		for i, code := range block.FindAllStringSubmatch(readText(t, page), -1) {
			if file := code[1]; file != "" {
				if !strings.Contains(dedented(readText(t, file)), "\n"+dedented(code[2])) {
					t.Errorf("%s, Go block %d is not in %s:\n%s", page, i+1, file, code[2])
				}
				continue
			}
			name := fmt.Sprintf("block%d", len(dirs)+1)
			// Also of a test, which then needs no binary. A program would be linked, and that takes most of the time.
			files["internal/"+name+"/"+name+".go"] = strings.Replace(code[2], "package main\n", "package "+name+"\n", 1)
			dirs = append(dirs, "./internal/"+name)
			where[name] = fmt.Sprintf("%s, Go block %d", page, i+1)
		}
	}
	if len(dirs) == 0 {
		t.Fatal("no block of Go was found")
	}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", os.DevNull, locktest.Overlay(t, ".", files)}, dirs...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s%v", err, out, where)
	}
}

func dedented(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
