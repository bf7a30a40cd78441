package rlock_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented is the package as go doc and an IDE see it, with the methods that types get from what they embed.
func documented(t *testing.T) *doc.Package {
	t.Helper()
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, of := range names {
		if !strings.HasSuffix(of.Name(), ".go") || strings.HasSuffix(of.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, of.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(set, files, "github.com/go-rlock/rlock")
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// sources are the files of the package, one after the other.
func sources(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	return string(all)
}

func TestEverythingExportedHasAComment(t *testing.T) {
	t.Parallel()
	pkg := documented(t)
	seen := map[string]bool{}
	functions := func(of string, all []*doc.Func) {
		for _, f := range all {
			seen[of+f.Name] = true
			if !strings.HasPrefix(f.Doc, f.Name+" ") {
				t.Errorf("the comment of %s%s is %q", of, f.Name, f.Doc)
			}
		}
	}
	values := func(of string, all []*doc.Value) {
		for _, v := range all {
			if of == "" && v.Doc == "" { // those of a type are what its comment is about
				t.Errorf("%v have no comment", v.Names)
			}
		}
	}
	functions("", pkg.Funcs)
	values("", pkg.Consts)
	values("", pkg.Vars)
	for _, of := range pkg.Types {
		if !strings.HasPrefix(of.Doc, of.Name+" ") {
			t.Errorf("the comment of type %s is %q", of.Name, of.Doc)
		}
		functions("", of.Funcs)
		functions(of.Name+".", of.Methods)
		values(of.Name, of.Consts)
		values(of.Name, of.Vars)
		for _, spec := range of.Decl.Specs {
			made, ok := spec.(*ast.TypeSpec).Type.(*ast.InterfaceType)
			if !ok {
				continue
			}
			for _, m := range made.Methods.List {
				if len(m.Names) > 0 && m.Names[0].IsExported() && m.Doc == nil && m.Comment == nil {
					t.Errorf("%s.%s has no comment", of.Name, m.Names[0])
				}
			}
		}
	}
	// go doc does not list what a type has from Inspection, so its comment says where that is.
	all, inspected := sources(t), 0
	for _, of := range pkg.Types {
		source := regexp.MustCompile(`(?m)^type ` + of.Name + ` struct\{ (locker|inspected) \}$`)
		if !source.MatchString(all) {
			continue
		}
		inspected++
		if !strings.Contains(of.Doc, "[Inspection]") {
			t.Errorf("the comment of type %s does not name Inspection", of.Name)
		}
	}
	if inspected < 11 {
		t.Errorf("only %d types were found to have an Inspection", inspected)
	}
	for _, promoted := range []string{"Lock.Lock", "ReadLock.TryLock", "Inspection.Watch"} {
		if !seen[promoted] {
			t.Errorf("%s was not looked at", promoted)
		}
	}
}

// A reader of all of it should not give up: what is long has its place in docs/.
func TestDocumentationIsShort(t *testing.T) {
	t.Parallel()
	const bound = 1700
	out, err := exec.Command("go", "doc", "-all", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(out), "\n"); lines >= bound || lines < bound/2 {
		t.Errorf("go doc -all . prints %d lines: say less in a comment and link to the page that has the rest, until there are fewer than %d", lines, bound)
	}
}

func TestCommentsLinkToPagesAndTheirHeadings(t *testing.T) {
	t.Parallel()
	const site = "https://go-rlock.github.io/rlock/"
	config, err := os.ReadFile("mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), "\nsite_url: "+site+"\n") {
		t.Errorf("mkdocs.yml publishes the pages elsewhere than at %s", site)
	}
	out, err := exec.Command("go", "doc", "-all", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if at := regexp.MustCompile(`docs/\w+\.md`).FindString(string(out)); at != "" {
		t.Errorf("a comment names %s, which is no link on pkg.go.dev", at)
	}
	links := regexp.MustCompile(regexp.QuoteMeta(site)+`latest/([a-z-]+)/(?:#([a-z0-9-]+))?`).FindAllStringSubmatch(string(out), -1)
	if all := strings.Count(string(out), site); len(links) != all || all < 20 {
		t.Errorf("%d of the %d links to the site are to a page of the latest version", len(links), all)
	}
	for _, link := range links {
		page, err := os.ReadFile(path.Join("docs", link[1]+".md"))
		if err != nil {
			t.Errorf("%s: %v", link[0], err)
		} else if link[2] != "" && !hasHeading(string(page), link[2]) {
			t.Errorf("%s: the page has no such heading", link[0])
		}
	}
}

// hasHeading reports whether a page has a heading with this anchor, as mkdocs.yml has them made.
func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		if anchor == strings.ReplaceAll(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(heading, ""), " ", "-") {
			return true
		}
	}
	return false
}
