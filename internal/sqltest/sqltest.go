//go:build unix

// Package sqltest runs database servers for tests: PostgreSQL and MariaDB.
//
// A server belongs to the test that started it. It listens on a socket in a folder of its own and on no port, does
// not run as root, and is dead, and waited for, when the test and its cleanups are over. A test is skipped where the
// server is not installed, or fails if the environment has RLOCK_REQUIRE_POSTGRES=1 or RLOCK_REQUIRE_MYSQL=1.
package sqltest

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// patience bounds the wait for a server that starts.
const patience = time.Minute

// Postgres starts a PostgreSQL server, and returns the string with which pgx and lib/pq connect to it.
func Postgres(t testing.TB) (dsn string) {
	t.Helper()
	initdb := find(t, "RLOCK_REQUIRE_POSTGRES", "no PostgreSQL: apt-get install postgresql", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	h := newHome(t)
	data := filepath.Join(h.dir, "data")
	h.run(t, initdb, "-D", data, "-U", "test", "-A", "trust", "-N")
	h.start(t, syscall.SIGQUIT, filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", h.dir,
		"-c", "listen_addresses=", "-c", "fsync=off")
	h.await(t, filepath.Join(h.dir, ".s.PGSQL.5432"))
	return "host=" + h.dir + " user=test dbname=postgres sslmode=disable"
}

// MySQL starts a MariaDB server with a database "test", and returns the string with which go-sql-driver/mysql
// connects to it.
func MySQL(t testing.TB) (dsn string) {
	t.Helper()
	const missing = "no MariaDB: apt-get install mariadb-server"
	install := find(t, "RLOCK_REQUIRE_MYSQL", missing, "mariadb-install-db")
	server := find(t, "RLOCK_REQUIRE_MYSQL", missing, "mariadbd", "/usr/sbin/mariadbd")
	h := newHome(t)
	data, socket := filepath.Join(h.dir, "data"), filepath.Join(h.dir, "s")
	h.run(t, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal")
	h.start(t, syscall.SIGKILL, server, "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking",
		"--pid-file="+filepath.Join(h.dir, "pid"), "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M")
	h.await(t, socket)
	return "root@unix(" + socket + ")/test"
}

// find returns the path of a program: of PATH, or the last that matches one of the patterns.
func find(t testing.TB, require, missing, name string, patterns ...string) string {
	t.Helper()
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv(require) == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return path
}

// home is the folder of a server, and who it runs as.
type home struct {
	dir string
	as  *syscall.Credential // nil: the user of the test
}

func newHome(t testing.TB) *home {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rlock-sql") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &home{dir: dir}
	if os.Getuid() != 0 {
		return h
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	h.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return h
}

func (h *home) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "HOME="+h.dir, "TMPDIR="+h.dir, "LC_ALL=C")
	cmd.SysProcAttr = dieWithParent()
	cmd.SysProcAttr.Credential = h.as
	return cmd
}

func (h *home) run(t testing.TB, name string, args ...string) {
	t.Helper()
	// The kernel sends the parent's death signal when the thread that forked ends: this one stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if out, err := h.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// start runs the server until the end of the test, which sends it a signal: its data are thrown away.
func (h *home) start(t testing.TB, end syscall.Signal, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(h.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := h.command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // as in run, until the server is gone
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(end)
		select {
		case <-done:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s wrote:\n%s", name, text)
		}
	})
}

// await waits until the server listens on its socket.
func (h *home) await(t testing.TB, socket string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
