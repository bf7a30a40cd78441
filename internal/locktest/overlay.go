package locktest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Overlay is the flag with which a go command, which the test runs in any folder, sees files that are not there, or
// have another text there: root is the repository's, and files has texts by paths below it.
func Overlay(t testing.TB, root string, files map[string]string) (flag string) {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, text := range files {
		replace[filepath.Join(root, path)] = write(fmt.Sprintf("%d.go", len(replace)), []byte(text))
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	return "-overlay=" + write("overlay.json", list)
}
