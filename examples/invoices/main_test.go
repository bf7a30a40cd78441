package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
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
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // they wait for timeouts most of the time
	os.Exit(m.Run())
}

// program runs main against a Redis, and returns what it logs and its exit status.
// It calls each of seen with every line, as it comes.
func program(t *testing.T, addr string, seen ...func(line string)) (out string, status int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_ADDR="+addr)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(log); lines.Scan(); {
		out += lines.Text() + "\n"
		for _, see := range seen {
			see(lines.Text())
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out, cmd.ProcessState.ExitCode()
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
	if status != 1 || !strings.Contains(out, "some may be written: ") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// What was written before Redis went away is not said to be not written.
func TestProgramTellsAnUnconfirmedEnd(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	var written atomic.Bool
	mini.Server().SetPreHook(func(from *server.Peer, cmd string, args ...string) bool {
		if cmd == "SET" && slices.Equal(args, []string{"invoices:last", "3"}) {
			written.Store(true)
		} else if written.Load() { // the release
			from.Close()
			return true
		}
		return false
	})
	out, status := program(t, mini.Addr())
	if status != 0 || !strings.Contains(out, "invoice 3\n") || !strings.Contains(out, "written; the lock is free when its lease is over: ") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// Two programs, and a third after them: each invoice is written once.
func TestProgramIsRightWhenRepeated(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	var logs [2]string
	var running sync.WaitGroup
	for i := range logs {
		running.Go(func() { logs[i], _ = program(t, mini.Addr()) })
	}
	running.Wait()
	third, status := program(t, mini.Addr())
	all := logs[0] + logs[1] + third
	if n := strings.Count(all, "invoice "); n != 3 || status != 0 || third != "" {
		t.Errorf("%d invoices, status %d:\n%s", n, status, all)
	}
}
