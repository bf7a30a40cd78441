package documents

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	columns = 80 // of the site's text, and half of an editor's window
	tab     = 4  // what the site writes for one
)

// pages are those with code: of the root, of the site, and of each module.
func pages(t *testing.T) []string {
	return slices.Concat(files(t, "*.md"), files(t, "docs/*.md"), files(t, "*/README.md"), files(t, "*/*/README.md"))
}

// A block fits its column: nobody has to scroll sideways to read a call. Blocks without a language, or of text, have what
// a program wrote, or what it reads and no line break may split: an ACL user, a line of a crontab.
func TestBlocksFitTheirColumn(t *testing.T) {
	t.Parallel()
	n := 0
	for _, page := range pages(t) {
		language, inside := "", false
		for i, line := range strings.Split(read(t, page), "\n") {
			if mark, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "```"); ok {
				inside = !inside
				language, _, _ = strings.Cut(mark, " ")
				continue
			}
			if !inside || language == "" || language == "text" {
				continue
			}
			n++
			if width := utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tab-1); width > columns {
				t.Errorf("%s, line %d has %d columns, more than %d: %s", page, i+1, width, columns, line)
			}
		}
		if inside {
			t.Errorf("%s: a block does not end", page)
		}
	}
	if n < 1000 {
		t.Errorf("%d lines of code were found", n)
	}
}

// elsewhere are the languages whose blocks other tests check, with the only page that they know; "" stands for all.
var elsewhere = map[string]string{
	"go":      "",                // readme_test.go compiles it
	"java":    "",                // interop compiles it
	"yaml":    "",                // cmd/rlock parses it
	"mermaid": "",                // the site draws it
	"text":    "",                // what a program writes
	"sql":     "docs/fencing.md", // examples/fenced and adapters/fence run it
	"lua":     "docs/fencing.md", // examples/fenced runs it
}

// A block that a reader copies is whole: JSON, XML, units of systemd, and lines for a shell. No block is in a language
// that no test checks.
func TestBlocksParse(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	n := map[string]int{}
	for _, page := range pages(t) {
		for _, block := range regexp.MustCompile("(?ms)^```(\\w+)\\b[^\n]*\n(.*?)^```").FindAllStringSubmatch(read(t, page), -1) {
			n[block[1]]++
			var err error
			switch block[1] {
			case "json":
				err = json.Unmarshal([]byte(block[2]), new(any))
			case "xml":
				err = xml.Unmarshal([]byte(block[2]), new(struct{}))
			case "ini":
				err = unit(block[2])
			case "sh":
				cmd := exec.CommandContext(t.Context(), shell, "-n")
				cmd.Stdin = strings.NewReader(block[2])
				var out []byte
				if out, err = cmd.CombinedOutput(); err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
			default:
				if only, ok := elsewhere[block[1]]; !ok || only != "" && only != filepath.ToSlash(page) {
					err = fmt.Errorf("no test checks a block of %s there", block[1])
				}
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", page, err, block[2])
			}
		}
	}
	if n["json"] < 2 || n["xml"] < 1 || n["ini"] < 1 || n["sh"] < 20 {
		t.Errorf("blocks that were found: %v", n)
	}
}

// unit reports what is wrong with a unit of systemd: its lines are sections, and settings in them.
func unit(text string) error {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || line[0] == '#':
		case regexp.MustCompile(`^\[(Unit|Service|Install|Timer)\]$`).MatchString(line):
			section = line
		case section == "" || !regexp.MustCompile(`^[A-Z][A-Za-z]*=\S.*$`).MatchString(line) || strings.HasSuffix(line, " "):
			return fmt.Errorf("no setting of a section: %q", line)
		}
	}
	return nil
}
