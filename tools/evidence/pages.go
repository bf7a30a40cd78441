package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Promise is a row of a page, with the tests that it names.
type Promise struct {
	Page    string
	Section string
	Text    string
	Where   string // the type or topology that it is about; mostly empty
	Tests   []Named
	Planted int // mistakes of mutants.txt that break it
}

// Named is a test that a page names, or the check of a model.
type Named struct {
	Folder string // from the root, with slashes
	Name   string
	File   string
}

var (
	testLink  = regexp.MustCompile("\\[`((?:Test|Fuzz)\\w+)`\\]\\(([^)\\s#]+_test\\.go)\\)")
	modelLink = regexp.MustCompile(`\]\(([^)\s]*model/\w+\.pml)\)`)
	numbered  = regexp.MustCompile(`^\d+\. `)
)

// parse returns the promises of README.md and docs/guarantees.md, and the faults of the track record, each of
// which promises that it does not come back.
func parse(dir string) (promises []Promise, err error) {
	for _, page := range []struct {
		name string
		text int // the column of what is promised
	}{{"README.md", 0}, {"docs/guarantees.md", 0}, {recordFile, 2}} {
		content, err := os.ReadFile(filepath.Join(dir, page.name))
		if err != nil {
			return nil, err
		}
		found := promisesOf(page.name, string(content), page.text)
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no promises", page.name)
		}
		promises = append(promises, found...)
	}
	text, err := os.ReadFile(filepath.Join(dir, mutantsFile))
	if err != nil {
		return nil, err
	}
	mistakes := mistakesOf(string(text))
	for i, p := range promises {
		promises[i].Planted = mistakes[p.Text]
	}
	return promises, nil
}

// mistakesOf counts the paragraphs of mutants.txt below each promise.
func mistakesOf(text string) map[string]int {
	count, promise := map[string]int{}, ""
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if named, is := strings.CutPrefix(paragraph, "promise: "); is {
			promise = named
		} else if !strings.HasPrefix(paragraph, "#") {
			count[promise]++
		}
	}
	return count
}

// promisesOf returns the rows of the tables of a page whose last column is "shown by", and the numbered lines below
// the heading "Promises".
func promisesOf(page, content string, column int) (promises []Promise) {
	section, table := "", false
	for line := range strings.Lines(content) {
		line = strings.TrimSpace(line)
		p := Promise{Page: page, Section: section}
		switch title, heading := strings.CutPrefix(line, "## "); {
		case heading:
			section = title
			continue
		case section == "Promises" && numbered.MatchString(line):
			text, _, _ := strings.Cut(line, " [`Test")
			p.Text = numbered.ReplaceAllString(text, "")
		case !strings.HasPrefix(line, "| "):
			table = table && strings.HasPrefix(line, "|")
			continue
		case strings.HasSuffix(line, "| shown by |"):
			table = true
			continue
		case !table:
			continue
		default:
			cells := strings.Split(strings.Trim(line, "| "), " | ")
			p.Text = cells[min(column, len(cells)-1)]
			if column == 0 && len(cells) == 3 {
				p.Where = cells[1]
			}
		}
		p.Tests = named(page, line)
		promises = append(promises, p)
	}
	return promises
}

// named returns the tests and models that a line of a page links.
func named(page, line string) (all []Named) {
	for _, m := range testLink.FindAllStringSubmatch(line, -1) {
		file := path.Join(path.Dir(page), m[2])
		all = append(all, Named{path.Dir(file), m[1], file})
	}
	for _, m := range modelLink.FindAllStringSubmatch(line, -1) {
		all = append(all, Named{"model", modelCheck, path.Join(path.Dir(page), m[1])})
	}
	return all
}

// scan returns the names of the tests of each file of the repository, in all modules, and the check of each model.
func scan(dir string) (found map[string]map[string]bool, err error) {
	found = map[string]map[string]bool{}
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		file, _ := filepath.Rel(dir, name)
		file = filepath.ToSlash(file)
		switch base := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir():
			if file != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "vendor") {
				return fs.SkipDir
			}
		case strings.HasSuffix(base, ".pml"):
			found[file] = map[string]bool{modelCheck: true}
		case strings.HasSuffix(base, "_test.go"):
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			found[file] = map[string]bool{}
			for _, decl := range parsed.Decls {
				if f, is := decl.(*ast.FuncDecl); is && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
					found[file][f.Name.Name] = true
				}
			}
		}
		return nil
	})
	return found, err
}
