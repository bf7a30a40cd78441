//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/sqltest"
)

// postgres starts a server, and returns a way to run psql.
func postgres(t *testing.T) (psql func(args ...string) *exec.Cmd) {
	dsn := sqltest.Postgres(t)
	return func(args ...string) *exec.Cmd {
		return exec.Command("psql", append([]string{"-d", dsn, "-X", "-v", "ON_ERROR_STOP=1"}, args...)...)
	}
}

// The statements of docs/fencing.md, with two transactions that overlap.
func TestStaleTransactionIsRefusedByPostgreSQL(t *testing.T) {
	locktest.Nightly(t)
	t.Parallel()
	blocks := recipe(t, "PostgreSQL", "sql")
	if len(blocks) != 2 {
		t.Fatalf("%q", blocks)
	}
	psql := postgres(t)
	run := func(sql string) string {
		out, err := psql("-A", "-t", "-c", sql).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	run(blocks[0])
	begin, commit, _ := strings.Cut(blocks[1], "-- Otherwise")
	begin = strings.NewReplacer("$1", "'account:7'", "$2", ":token").Replace(begin)
	_, commit, _ = strings.Cut(commit, "\n")

	// The newer holder has written, and has not committed.
	first := psql("-v", "token=5")
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Process.Kill() })
	fmt.Fprint(in, begin)
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "INSERT") {
	}
	if lines.Text() != "INSERT 0 1" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	// The late one waits for it.
	late := make(chan string, 1)
	go func() {
		cmd := psql("-v", "token=4")
		cmd.Stdin = strings.NewReader(begin + commit)
		text, err := cmd.CombinedOutput()
		if err != nil {
			text = append(text, err.Error()...)
		}
		late <- string(text)
	}()
	for end := time.Now().Add(locktest.Patience); !strings.HasPrefix(run("SELECT count(*) FROM pg_locks WHERE NOT granted"), "1"); {
		if time.Now().After(end) {
			t.Fatal("the late transaction does not wait")
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Fprint(in, commit)
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	if err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	if text := <-late; !strings.Contains(text, "INSERT 0 0\n") {
		t.Errorf("the late transaction: %s", text)
	}
	if token := run("SELECT token FROM fence"); token != "5\n" {
		t.Errorf("the token is %q", token)
	}
}
