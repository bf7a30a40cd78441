//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/locktest"
)

// postgres starts a server that listens on a socket in a folder of its own only, and returns a
// way to run psql.
func postgres(t *testing.T) (psql func(args ...string) *exec.Cmd) {
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has them
	if path, err := exec.LookPath("initdb"); err == nil && len(bins) == 0 {
		bins = append(bins, path)
	}
	if len(bins) == 0 {
		if os.Getenv("RLOCK_REQUIRE_POSTGRES") == "1" {
			t.Fatal("no PostgreSQL: apt-get install postgresql")
		}
		t.Skip("no PostgreSQL: apt-get install postgresql")
	}
	bin := filepath.Dir(bins[len(bins)-1])
	dir, err := os.MkdirTemp("/tmp", "rlock-pg") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// It does not run as root.
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, as
		cmd.Env = append(os.Environ(), "HOME="+dir, "LC_ALL=C")
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := command("initdb", "-D", data, "-U", "test", "-A", "trust", "-N").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := command("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // at once: its data are thrown away
		_ = server.Wait()
	})
	psql = func(args ...string) *exec.Cmd {
		return command("psql", append([]string{"-h", dir, "-U", "test", "-d", "postgres", "-X", "-v", "ON_ERROR_STOP=1"}, args...)...)
	}
	for end := time.Now().Add(locktest.Patience); ; time.Sleep(50 * time.Millisecond) {
		if out, err := psql("-c", "SELECT 1").CombinedOutput(); err == nil {
			return psql
		} else if time.Now().After(end) {
			t.Fatalf("%v\n%s", err, out)
		}
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
