package rlock_test

import (
	"os"
	"strings"
	"testing"
)

// The code on the front page is the body of Example, which runs.
func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	_, body, _ := strings.Cut(read("example_test.go"), "\nfunc Example() {\n")
	_, body, begins := strings.Cut(body, "defer stop()\n\n")
	body, _, ends := strings.Cut(body, "\t// Output:")
	if !begins || !ends {
		t.Fatal("Example has changed its form")
	}
	want := "```go\n" + strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:] + "```"
	if !strings.Contains(read("README.md"), want) {
		t.Errorf("README.md should have this block:\n%s", want)
	}
}
