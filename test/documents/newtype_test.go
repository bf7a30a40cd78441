package documents

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// The type that docs/maintaining/adding-a-type.md adds works: in two files and one row, it is granted, refused while it is held, and
// found by Locks under its name.
func TestTypeThatThePageAddsWorks(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	const root = "../.."
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	files, lines := map[string]string{}, 0
	for _, block := range regexp.MustCompile("(?ms)^<!-- (\\S+\\.go) -->\n```go\n(.*?)^```").FindAllStringSubmatch(read("docs/maintaining/adding-a-type.md"), -1) {
		file, text := block[1], block[2]
		lines += strings.Count(text, "\n")
		if file == "internal/protocol/kinds.go" {
			const table = "var Kinds = []*Kind{\n"
			text = strings.Replace(read(file), table, table+text, 1)
		}
		files[file] = text
	}
	if len(files) != 3 || lines > 40 {
		t.Errorf("%d files, %d lines", len(files), lines)
	}
	files["internal/newtype/main.go"] = `package main

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
`
	cmd := exec.CommandContext(t.Context(), "go", "run", locktest.Overlay(t, root, files), "./internal/newtype")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "a <nil>\na <nil>\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
