package documents

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Words that CONTRIBUTING names are in no page: what has two meanings, and what only a translation says.
func TestWordsOfPages(t *testing.T) {
	contributing := read(t, "CONTRIBUTING.md")
	list := sections(contributing, "##")["Words in pages"]
	rows := regexp.MustCompile(`(?m)^\| ([a-z][a-z -]*) \| `).FindAllStringSubmatch(list, -1)
	var words []string
	for _, m := range rows {
		if m[1] != "not" {
			words = append(words, m[1])
		}
	}
	if len(words) < 12 {
		t.Fatalf("the list has %q", words)
	}
	// What a program writes, and what was true when it was written.
	other := []string{"CHANGELOG.md", "docs/benchmarks.md", "bench/RESULTS.md"}
	any := regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)s?\b`)
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
