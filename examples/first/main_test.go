package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// With this in its environment, the test binary is the program.
const asProgram = "RLOCK_TEST_FIRST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Two programs at once have the lock one after the other, with tokens that grow.
func TestTwoProgramsTakeTurns(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := &lines{}
	var programs []*exec.Cmd
	for range 2 {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), asProgram+"=1", "REDIS_ADDR="+mini.Addr())
		cmd.Stderr = log.file(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, cmd)
	}
	for _, cmd := range programs {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	text := log.text(t)
	// Who is granted the lock may say so before the other says that it has freed it, but not before it does.
	tokens := regexp.MustCompile(`has the lock, token (\d+)`).FindAllStringSubmatch(text, -1)
	if len(tokens) != 2 || strings.Count(text, "has freed it") != 2 || tokens[0][1] >= tokens[1][1] {
		t.Errorf("the programs have not taken turns:\n%s", text)
	}
}

// lines is a file to which both programs append.
type lines struct{ path string }

func (l *lines) file(t *testing.T) *os.File {
	if l.path == "" {
		l.path = t.TempDir() + "/log"
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (l *lines) text(t *testing.T) string {
	text, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
