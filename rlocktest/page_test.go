package rlocktest_test

import (
	"os"
	"strings"
	"testing"
)

// The page on testing shows tests that are run here.
func TestPageShowsTheExamples(t *testing.T) {
	page := text(t, "../docs/testing.md")
	for _, file := range []string{"example_synctest_test.go", "example_loseat_test.go", "example_loseat_synctest_test.go", "example_verify_test.go", "example_miniredis_test.go"} {
		if !strings.Contains(page, "```go\n"+text(t, file)+"```\n") {
			t.Errorf("docs/testing.md should have %s as a block", file)
		}
	}
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// The page of patterns has the right form for each wrong program that LoseAt finds.
func TestPatternsNameTheWrongPrograms(t *testing.T) {
	page := text(t, "../docs/patterns.md")
	for program := range wrong {
		if !strings.Contains(page, "\n| "+program+" | ") {
			t.Errorf("docs/patterns.md has no row for %q", program)
		}
	}
}
