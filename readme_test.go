package rlock_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	// The blocks never touch the tree: the compiler is told of folders that are not there.
	overlay, dirs := map[string]string{}, []string{}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	tmp, where := t.TempDir(), map[string]string{}
	for _, page := range append(pages, "README.md") {
		for i, code := range block.FindAllStringSubmatch(readText(t, page), -1) {
			if file := code[1]; file != "" {
				if !strings.Contains(dedented(readText(t, file)), "\n"+dedented(code[2])) {
					t.Errorf("%s, Go block %d is not in %s:\n%s", page, i+1, file, code[2])
				}
				continue
			}
			name := fmt.Sprintf("block%d", len(dirs)+1)
			file := name + ".go" // also of a test, which then needs no binary
			src := filepath.Join(tmp, file)
			// A program would be linked, too, and that takes most of the time.
			text := strings.Replace(code[2], "package main\n", "package "+name+"\n", 1)
			if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay[filepath.Join(root, "internal", name, file)] = src
			dirs = append(dirs, "./internal/"+name)
			where[name] = fmt.Sprintf("%s, Go block %d", page, i+1)
		}
	}
	if len(dirs) == 0 {
		t.Fatal("no block of Go was found")
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", os.DevNull, "-overlay", list}, dirs...)...).CombinedOutput()
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
