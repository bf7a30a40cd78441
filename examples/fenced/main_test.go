package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/rlocktest"
)

// recipe returns the blocks of a language in a section of docs/fencing.md.
func recipe(t *testing.T, section, language string) []string {
	text, err := os.ReadFile("../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(rest, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

func TestStaleHolderIsRefused(t *testing.T) {
	t.Parallel()
	blocks := recipe(t, "SQLite", "sql")
	if len(blocks) != 2 || strings.TrimSpace(blocks[0]) != strings.TrimSpace(schema) || strings.TrimSpace(blocks[1]) != strings.TrimSpace(update) {
		t.Errorf("docs/fencing.md has %q", blocks)
	}
	srv := rlocktest.New(t)
	db, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	slow, err := srv.Client().NewLock("account:7").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := srv.Steal("account:7")
	for range 2 { // a holder may write more than once
		if err := deposit(t.Context(), db, next.Token(), 7, 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := deposit(t.Context(), db, slow.Token(), 7, 1000); err == nil || !strings.Contains(err.Error(), "since") {
		t.Errorf("a late write: %v", err)
	}
	var balance int
	if err := db.QueryRow("SELECT balance FROM account WHERE id = 7").Scan(&balance); err != nil || balance != 120 {
		t.Errorf("balance %d, %v; want 120", balance, err)
	}
}

// The statements of PostgreSQL's recipe, which SQLite understands too.
func TestStaleTransactionIsRefusedBySQLite(t *testing.T) {
	t.Parallel()
	blocks := recipe(t, "PostgreSQL", "sql")
	if len(blocks) != 2 {
		t.Fatalf("%q", blocks)
	}
	db, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(blocks[0]); err != nil {
		t.Fatal(err)
	}
	_, insert, _ := strings.Cut(blocks[1], "BEGIN;\n")
	insert, _, _ = strings.Cut(insert, ";")
	for _, c := range []struct{ token, rows int64 }{{5, 1}, {5, 1}, {4, 0}, {6, 1}, {5, 0}} {
		done, err := db.Exec(insert, "account:7", c.token)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := done.RowsAffected(); err != nil || rows != c.rows {
			t.Errorf("token %d: %d rows, %v; want %d", c.token, rows, err, c.rows)
		}
	}
}

// The program itself, to its end.
func TestProgramEnds(_ *testing.T) { main() }
