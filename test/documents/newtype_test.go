package documents

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// The type that CONTRIBUTING.md adds works: in two files and one row, it is granted, refused while it is held, and
// found by Locks under its name.
func TestTypeOfContributingWorks(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tmp, overlay := t.TempDir(), map[string]string{}
	write := func(file, text string) {
		src := filepath.Join(tmp, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(root, file)] = src
	}
	lines := 0
	for _, block := range regexp.MustCompile("(?ms)^<!-- (\\S+\\.go) -->\n```go\n(.*?)^```").FindAllStringSubmatch(read("CONTRIBUTING.md"), -1) {
		file, text := block[1], block[2]
		lines += strings.Count(text, "\n")
		if file == "internal/protocol/kinds.go" {
			const table = "var Kinds = []*Kind{\n"
			text = strings.Replace(read(file), table, table+text, 1)
		}
		write(file, text)
	}
	if len(overlay) != 3 || lines > 40 {
		t.Errorf("%d files, %d lines", len(overlay), lines)
	}
	write("internal/newtype/main.go", `package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

func main() {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	c, err := rlock.New(redis.NewClient(&redis.Options{Addr: m.Addr()}))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	l := c.NewPlainLock("a")
	for range 2 {
		lease, err := l.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := l.TryLock(lease.Context(ctx)); !errors.Is(err, rlock.ErrNotAcquired) {
			log.Fatal("while it is held: ", err)
		}
		for k, err := range c.Locks(ctx, "*") {
			fmt.Println(k.Name, err)
		}
		if err := lease.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
}
`)
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-overlay", file, "./internal/newtype")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "a <nil>\na <nil>\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
