// Package documents has the tests of README.md and docs/: their links, and that what they promise is tested.
package documents

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// files are those of the repository that a pattern matches, named as from its root.
func files(t *testing.T, pattern string) []string {
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(found) == 0 {
		t.Fatal(pattern, found, err)
	}
	for i := range found {
		if found[i], err = filepath.Rel(root, found[i]); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func read(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	tested  = regexp.MustCompile("^`((?:Test|Example)\\w*)`$")
)

// anchors are the names of the headings of a page, as the repository and the site make them.
func anchors(text string) map[string]bool {
	found, times := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		title := link.ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsNumber(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, title)
		if n := times[name]; n > 0 {
			found[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			found[name] = true
		}
		times[name]++
	}
	return found
}

// Each link to a file, a heading or a test of this repository leads there.
func TestLinksOfTheDocumentsHold(t *testing.T) {
	t.Parallel()
	links := 0
	headings := map[string]map[string]bool{} // of a file
	for _, page := range slices.Concat(files(t, "*.md"), files(t, "*/*.md"), files(t, "*/*/*.md")) {
		text := read(t, page)
		// Code is no link; but the text of a link may be code.
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target := m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(target, "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
			}
			if info, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: %s is not there", page, target)
				continue
			} else if info.IsDir() {
				continue
			}
			linked := read(t, file)
			if headings[file] == nil {
				headings[file] = anchors(linked)
			}
			if anchor != "" && filepath.Ext(file) == ".md" && !headings[file][anchor] {
				t.Errorf("%s: %s has no heading #%s", page, file, anchor)
			}
			if name := tested.FindStringSubmatch(m[1]); name != nil && !strings.Contains(linked, "\nfunc "+name[1]+"(") {
				t.Errorf("%s: %s has no %s", page, file, name[1])
			}
		}
	}
	if links == 0 {
		t.Fatal("no link was found")
	}
}

// A link says what it leads to: the title of a page or what is there, not the name of its file. Files without a title have
// theirs in backquotes.
func TestLinksHaveWords(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^[\w./-]+\.[a-z]+$`)
	written := []string{"CHANGELOG.md", "docs/benchmarks.md", "bench/RESULTS.md"} // when it was true, or by bench/
	links := 0
	for _, page := range slices.Concat(files(t, "*.md"), files(t, "*/*.md"), files(t, "*/*/*.md")) {
		if slices.Contains(written, filepath.ToSlash(page)) {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, page), ""), -1) {
			links++
			if name.MatchString(m[1]) {
				t.Errorf("%s: the text of this link is the name of a file: %s", page, m[0])
			}
		}
	}
	if links < 300 {
		t.Errorf("%d links were found", links)
	}
}

// The first page leads to each other one.
func TestIndexLinksEachPage(t *testing.T) {
	t.Parallel()
	linked := map[string]bool{"docs/index.md": true}
	for _, m := range link.FindAllStringSubmatch(read(t, "docs/index.md"), -1) {
		page, _, _ := strings.Cut(m[2], "#")
		linked["docs/"+page] = true
	}
	for _, page := range files(t, "docs/*.md") {
		if !linked[filepath.ToSlash(page)] {
			t.Errorf("docs/index.md has no link to %s", page)
		}
	}
}

var image = regexp.MustCompile(`!\[(.*?)\]\(([^)\s]+)\)`)

// A drawing is in the tree and says in words what it shows, on the page and in itself. Of Mermaid only sequences are drawn
// by the site (tools/site/sequences.py): it fetches no script from elsewhere.
func TestDrawingsHaveWords(t *testing.T) {
	t.Parallel()
	drawings := 0
	for _, page := range append(files(t, "docs/*.md"), "README.md") {
		text := read(t, page)
		if strings.Count(text, "```mermaid") != strings.Count(text, "```mermaid\nsequenceDiagram\n") {
			t.Errorf("%s has a chart in Mermaid that is no sequence", page)
		}
		for _, m := range image.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[2], "://") { // badges
				continue
			}
			if len(strings.Fields(m[1])) < 2 {
				t.Errorf("%s: %s has no words beside it", page, m[2])
			}
			file := filepath.Join(filepath.Dir(page), filepath.FromSlash(m[2]))
			if strings.Contains(m[2], "benchmarks/") { // a chart, whose figures are in a table
				continue
			}
			if strings.HasSuffix(file, ".png") { // a screenshot
				if png := read(t, file); !strings.HasPrefix(png, "\x89PNG") || len(png) > 200_000 {
					t.Errorf("%s: %s is no PNG, or has %d bytes", page, file, len(png))
				}
				continue
			}
			drawings++
			svg := read(t, file)
			if !strings.Contains(svg, ` role="img" aria-label`) || strings.Contains(svg, "href=") || strings.Contains(svg, "<script") {
				t.Errorf("%s: %s has no label, or needs another file", page, file)
			}
		}
	}
	if drawings < 3 {
		t.Errorf("%d drawings were found", drawings)
	}
}

// tests returns how many links to tests or programs a text has.
func tests(text string) (n int) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if tested.MatchString(m[1]) || strings.Contains(m[2], "../examples/") || strings.HasPrefix(m[2], "examples/") {
			n++
		}
	}
	return n
}

// sections splits a page at its headings of one level.
func sections(text, level string) map[string]string {
	parts := map[string]string{}
	for _, part := range strings.Split("\n"+fence.ReplaceAllString(text, ""), "\n"+level+" ")[1:] {
		title, body, _ := strings.Cut(part, "\n")
		parts[title] = body
	}
	return parts
}

// A promise without a test that shows it is none; and the twenty questions have answers that lead on.
func TestPromisesNameTheirTestsAndAnswersLeadOn(t *testing.T) {
	t.Parallel()
	rows := 0
	for title, section := range sections(read(t, "docs/guarantees.md"), "##") {
		for i, line := range strings.Split(section, "\n") {
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what") {
				continue
			}
			rows++
			if tests(line) == 0 {
				t.Errorf("docs/guarantees.md, %s, line %d names no test: %s", title, i, line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("docs/guarantees.md has %d rows", rows)
	}
	answers := sections(read(t, "docs/faq.md"), "##")
	for question, answer := range answers {
		leads := false
		for _, m := range link.FindAllStringSubmatch(answer, -1) {
			if tested.MatchString(m[1]) {
				t.Errorf("docs/faq.md: %q names %s; tests are in docs/guarantees.md", question, m[1])
			}
			leads = leads || !strings.Contains(m[2], "://")
		}
		if !leads {
			t.Errorf("docs/faq.md: %q leads to no page and no example", question)
		}
	}
	if len(answers) < 20 {
		t.Errorf("docs/faq.md answers %d questions", len(answers))
	}
	for title, section := range sections(read(t, "docs/failures.md"), "##") {
		if tests(section) == 0 && title != "In one table" {
			t.Errorf("docs/failures.md: %q names no test", title)
		}
	}
}

// Each error that a program can ask for has a row with its cause and what to do.
func TestEachSentinelHasARow(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/errors.md")
	names := 0
	for _, name := range files(t, "*.go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, spec := range vars.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if !strings.HasPrefix(name.Name, "Err") {
						continue
					}
					names++
					if row := regexp.MustCompile("(?m)^\\| `" + name.Name + "`[^|]*\\|[^|]*\\w[^|]*\\|[^|]*\\w[^|]*\\|$"); !row.MatchString(text) {
						t.Errorf("docs/errors.md has no row of three cells for %s", name.Name)
					}
				}
			}
		}
	}
	if names < 20 {
		t.Errorf("%d errors were found", names)
	}
}

// Each type is on a page in one form: what it is for, its call, and what can go wrong.
func TestEachTypeHasItsSection(t *testing.T) {
	t.Parallel()
	pages := map[string]string{}
	for _, page := range []string{"docs/locks.md", "docs/synchronizers.md"} {
		for title, section := range sections(read(t, page), "##") {
			pages[title] = section
		}
	}
	pages["RedLock"] = read(t, "docs/redlock.md")
	pages["CronJob"] = read(t, "docs/cron.md")
	shown := map[string]string{} // the code of the calls
	for _, page := range []string{"docs/locks.md", "docs/synchronizers.md", "docs/redlock.md", "docs/cron.md"} {
		for _, part := range strings.Split(read(t, page), "\n## ") {
			title, _, _ := strings.Cut(part, "\n")
			switch page {
			case "docs/redlock.md":
				title = "RedLock"
			case "docs/cron.md":
				title = "CronJob"
			}
			_, code, ok := strings.Cut(part, "**Call.**")
			_, code, found := strings.Cut(code, "```go\n")
			if code, _, ends := strings.Cut(code, "```"); ok && found && ends {
				shown[title] = code
			}
		}
	}
	made := regexp.MustCompile(`(?m)^func (?:\(c \*Client\) )?New(\w+)(?:\[.*?\])?\(.*\) (?:\*|\(\*)(\w+)`)
	types := 0
	for _, file := range files(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range made.FindAllStringSubmatch(read(t, file), -1) {
			types++
			section, ok := pages[m[1]]
			if !ok {
				t.Errorf("no section for %s", m[1])
			}
			for _, part := range []string{"**What for.**", "**Call.**", "**What can go wrong.**"} {
				if strings.Count(section, part) != 1 {
					t.Errorf("%s: the section should have %s once", m[1], part)
				}
			}
			// The call is whole: what is called is made, and each brace has its other half.
			call := shown[m[1]]
			if !strings.Contains(call, "New"+m[1]+"(") || strings.Count(call, "{") != strings.Count(call, "}") || calls[m[1]] == nil {
				t.Errorf("%s: the call is not whole:\n%s", m[1], call)
			}
		}
	}
	for _, page := range []string{"README.md", "docs/comparison.md"} {
		said := regexp.MustCompile(`(?m)^\| (?:types|kinds of locks) \|.*\| (\d+)\b[^|]*\|$`).FindStringSubmatch(read(t, page))
		if said == nil || said[1] != fmt.Sprint(types) {
			t.Errorf("%s should say that there are %d types: %q", page, types, said)
		}
	}
}

// The front page is short, complete, and in one order: what it is, a few lines of code, why, what it is not for, which
// type, and then the proof. A word has a letter or a digit.
func TestReadmeIsShortAndComplete(t *testing.T) {
	t.Parallel()
	text := read(t, "README.md")
	count := func(text string) int { return len(regexp.MustCompile(`\S*\w\S*`).FindAllString(text, -1)) }
	prose := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	if lines, words := strings.Count(text, "\n"), count(prose); lines > 160 || words > 800 {
		t.Errorf("%d lines, and %d words without the code; 160 and 800 are the bounds", lines, words)
	}
	_, program, _ := strings.Cut(text, "\n```go\n")
	program, _, _ = strings.Cut(program, "```\n")
	if lines := strings.Count(program, "\n"); lines > 15 {
		t.Errorf("the first block has %d lines; want 15 at most", lines)
	}
	last := 0
	for _, part := range []string{"\n[![", "\n```go\n", "docs/quickstart.svg", "\n**Why not ", "\n## Start\n", "go get ", "\n## What it is not for\n", "\n## Which type\n", "\n## Promises\n",
		"\n## What goes wrong\n", "\n## Numbers\n", "\n## Comparison\n", "\n## Links\n"} {
		at := strings.Index(text, part)
		if at < last {
			t.Errorf("%q is not there, or not in its place", part)
		}
		last = max(last, at)
	}
	parts := sections(text, "##")
	promises := regexp.MustCompile(`(?m)^\d\. .*$`).FindAllString(parts["Promises"], -1)
	if len(promises) != 5 {
		t.Errorf("%d promises; want 5", len(promises))
	}
	for _, promise := range promises {
		if tests(promise) == 0 {
			t.Errorf("no test shows this: %s", promise)
		}
	}
	for title, rows := range map[string]int{"What goes wrong": 5, "Numbers": 4, "Comparison": 5} {
		cells := regexp.MustCompile(`(?m)^\| (.*) \|$`).FindAllStringSubmatch(parts[title], -1)
		if len(cells) != rows+1 { // with the head
			t.Errorf("%s: %d rows; want %d", title, len(cells)-1, rows)
		}
		columns := 0
		for i, row := range cells {
			all := strings.Split(row[1], "|")
			if i == 0 {
				columns = len(all)
				continue
			}
			for _, cell := range all {
				if len(all) != columns || strings.TrimSpace(cell) == "" {
					t.Errorf("%s: an empty cell: %s", title, row[0])
				}
			}
		}
	}
	if !strings.Contains(parts["Numbers"], " 2026") {
		t.Error("the numbers have no date")
	}
}

// What a coding agent reads before each task is short.
func TestAgentsFileIsShort(t *testing.T) {
	t.Parallel()
	if lines := strings.Count(read(t, "AGENTS.md"), "\n"); lines > 40 {
		t.Errorf("AGENTS.md has %d lines; 40 is the bound", lines)
	}
}

// The Maven coordinates on the page are those that the tests beside Redisson run with.
func TestMavenCoordinatesAreThoseOfTheTests(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`<redisson\.version>(.*)</redisson\.version>`).FindStringSubmatch(read(t, "interop/java/pom.xml"))
	if version == nil {
		t.Fatal("interop/java/pom.xml has no version of Redisson")
	}
	if page := read(t, "docs/redisson.md"); !strings.Contains(page, "<artifactId>redisson</artifactId>\n  <version>"+version[1]+"</version>") {
		t.Errorf("docs/redisson.md should have version %s", version[1])
	}
}
