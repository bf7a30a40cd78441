package documents

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wordsNotUsed returns the words that CONTRIBUTING names, what has two meanings and what only a translation says, as an
// expression, and the section that lists them.
func wordsNotUsed(t *testing.T) (any *regexp.Regexp, list string) {
	t.Helper()
	list = sections(read(t, "CONTRIBUTING.md"), "##")["Words in pages and comments"]
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z][a-z -]*) \| `).FindAllStringSubmatch(list, -1) {
		if m[1] != "not" {
			words = append(words, m[1])
		}
	}
	if len(words) < 12 {
		t.Fatalf("the list has %q", words)
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)s?\b`), list
}

// No page has a word that CONTRIBUTING names.
func TestWordsOfPages(t *testing.T) {
	any, list := wordsNotUsed(t)
	// What a program writes, and what was true when it was written.
	other := []string{"CHANGELOG.md", "docs/benchmarks.md", "docs/evidence.md", "bench/RESULTS.md"}
	n := 0
	for _, page := range slices.Concat(files(t, "*.md"), files(t, "*/*.md"), files(t, "*/*/*.md")) {
		if slices.Contains(other, page) {
			continue
		}
		n++
		text := read(t, page)
		if page == "CONTRIBUTING.md" {
			text = strings.Replace(text, list, "", 1)
		}
		for i, line := range strings.Split(text, "\n") {
			if m := any.FindString(line); m != "" {
				t.Errorf("%s, line %d: %q is one of the words that CONTRIBUTING names", page, i+1, m)
			}
		}
	}
	if n < 40 {
		t.Errorf("%d pages", n)
	}
}

// Comments of the code that users and maintainers read, which is not in tests, follow three rules: they have no word that
// CONTRIBUTING names, except the name of something in their package; the comment of a function begins with its name; and
// a comment behind a field stands alone, so it neither begins in the middle of a sentence nor ends there.
func TestCommentsOfCode(t *testing.T) {
	const root = "../.."
	any, _ := wordsNotUsed(t)
	middle := regexp.MustCompile(`^(and|or|of these|of them|those|the same)\b|,$`)
	packages := map[string][]*ast.File{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(name, ".") && name != ".." || name == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], parsed)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	comments := 0
	for _, all := range packages {
		names := map[string]bool{}
		for _, file := range all {
			ast.Inspect(file, func(n ast.Node) bool {
				if id, is := n.(*ast.Ident); is {
					names[id.Name] = true
				}
				return true
			})
		}
		for _, file := range all {
			for _, group := range file.Comments {
				comments++
				for _, c := range group.List {
					for _, m := range any.FindAllString(c.Text, -1) {
						if !names[m] {
							t.Errorf("%v: %q is one of the words that CONTRIBUTING names: %s", files.Position(c.Pos()), m, c.Text)
						}
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Doc != nil && !strings.HasPrefix(n.Doc.Text(), n.Name.Name) {
						t.Errorf("%v: the comment of %s begins with another word", files.Position(n.Pos()), n.Name.Name)
					}
				case *ast.Field:
					if n.Comment != nil && middle.MatchString(strings.TrimSpace(n.Comment.Text())) {
						t.Errorf("%v: this comment is a part of a sentence: %s", files.Position(n.Pos()), n.Comment.Text())
					}
				}
				return true
			})
		}
	}
	if comments < 3000 {
		t.Errorf("found %d comments only", comments)
	}
}

// The comments of scripts have no such word either, except as a name in the script.
func TestCommentsOfScripts(t *testing.T) {
	any, _ := wordsNotUsed(t)
	scripts, err := filepath.Glob("../../scripts/*/*.lua")
	if err != nil || len(scripts) < 100 {
		t.Fatal(len(scripts), err)
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		code := regexp.MustCompile(`--.*`).ReplaceAllString(string(text), "")
		for i, line := range strings.Split(string(text), "\n") {
			if _, comment, is := strings.Cut(line, "--"); is {
				if m := any.FindString(comment); m != "" && !regexp.MustCompile(`\b`+m+`\b`).MatchString(code) {
					t.Errorf("%s:%d: %q is one of the words that CONTRIBUTING names: %s", script, i+1, m, comment)
				}
			}
		}
	}
}
