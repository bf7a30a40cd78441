package documents

import (
	"encoding/json"
	"os/exec"
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

// A block that a reader copies is whole: JSON, and lines for a shell. readme_test.go has the blocks of Go compiled.
func TestBlocksParse(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	n := map[string]int{}
	for _, page := range pages(t) {
		for _, block := range regexp.MustCompile("(?ms)^```(json|sh)\n(.*?)^```").FindAllStringSubmatch(read(t, page), -1) {
			n[block[1]]++
			if block[1] == "json" {
				if !json.Valid([]byte(block[2])) {
					t.Errorf("%s: this is not JSON:\n%s", page, block[2])
				}
				continue
			}
			cmd := exec.CommandContext(t.Context(), shell, "-n")
			cmd.Stdin = strings.NewReader(block[2])
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", page, err, out, block[2])
			}
		}
	}
	if n["json"] < 2 || n["sh"] < 20 {
		t.Errorf("blocks that were found: %v", n)
	}
}
