package migrating

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each program of the page is a file of this folder, and each file is on the page.
func TestThePageShowsTheFiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\r\n", "\n")
	shown := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```go[^\n]*\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		shown[block[1]] = true
	}
	var files []string
	for _, pattern := range []string{"*/before/*.go", "*/after/*.go", "transition/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(string(code), "\r\n", "\n"); !shown[text] {
			t.Errorf("docs/migrating.md does not show %s as it is", file)
		} else {
			delete(shown, text)
		}
	}
	// The rest is beside Java. It is checked with the other pages: each block without a title compiles.
	for _, title := range regexp.MustCompile("(?ms)^```go title[^\n]*\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		if shown[title[1]] {
			t.Errorf("no file has this block:\n%s", title[1])
		}
	}
}
