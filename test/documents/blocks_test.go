package documents

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	columns = 80 // of the site's text, and half of an editor's window
	tab     = 4  // what the site writes for one
)

// A block fits its column: nobody has to scroll sideways to read a call. Blocks without a language, or of text, have what
// a program wrote, or what it reads and no line break may split: an ACL user, a line of a crontab.
func TestBlocksFitTheirColumn(t *testing.T) {
	t.Parallel()
	n := 0
	for _, page := range slices.Concat(files(t, "README.md"), files(t, "docs/*.md"), files(t, "*/README.md"), files(t, "*/*/README.md")) {
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
