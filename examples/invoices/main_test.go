package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/loopback"
)

// With this in its environment, the test binary is the program.
const asProgram = "RLOCK_TEST_INVOICES"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program runs main against a Redis, and returns what it prints and its exit status.
func program(t *testing.T, addr string) (out string, status int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_ADDR="+addr)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func TestProgramTellsBusyFromOutage(t *testing.T) {
	t.Parallel()
	// holding returns a Redis where the lock is held by others, or is not.
	holding := func(t *testing.T, held bool) string {
		mini := miniredis.RunT(t)
		mini.ClockTTL(true)
		if held {
			rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			client, err := rlock.New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.NewLock("invoices").Lock(t.Context(), rlock.WithLease(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		return mini.Addr()
	}
	for _, c := range []struct {
		name   string
		redis  func(t *testing.T) string
		out    string
		status int
	}{
		{"free", func(t *testing.T) string { return holding(t, false) }, "invoice 3\n", 0},
		{"held", func(t *testing.T) string { return holding(t, true) }, "another process writes them: ", 0},
		{"down", func(t *testing.T) string {
			port, err := loopback.Port()
			if err != nil {
				t.Fatal(err)
			}
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		}, "not written: ", 1},
		{"hangs", func(t *testing.T) string { // the kernel accepts, nobody answers
			ln, err := loopback.Listen()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ln.Close() })
			return ln.Addr().String()
		}, "not written: ", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, status := program(t, c.redis(t))
			t.Log(out)
			if status != c.status || !strings.Contains(out, c.out) {
				t.Errorf("status %d; want %d and %q", status, c.status, c.out)
			}
		})
	}
}

func TestProgramTellsALoss(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer rdb.Close()
	client, err := rlock.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for t.Context().Err() == nil {
			if was, err := client.NewLock("invoices").ForceUnlock(t.Context()); was || err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	out, status := program(t, mini.Addr())
	if status != 1 || !strings.Contains(out, "another process may have written some: ") {
		t.Errorf("status %d:\n%s", status, out)
	}
}
