package redistest

import (
	"bufio"
	"context"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A ScriptRun is one run of a script on a server.
type ScriptRun struct {
	Script   string   // its text, or SHA
	Keys     []string // keys that it declares
	Commands [][]string
}

var monitored = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Scripts has a server tell each run of a script. The result ends that, and returns the runs.
func (s *Server) Scripts(t testing.TB) (end func() []ScriptRun) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	lines := bufio.NewReader(conn)
	read := func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "" // the test has ended
		}
		return line
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil || !strings.HasPrefix(read(), "+OK") {
		t.Fatalf("MONITOR: %v", err)
	}
	const last = "the last command that is told"
	runs, done := []ScriptRun{}, make(chan struct{})
	go func() {
		defer close(done)
		for line := read(); line != "" && !strings.Contains(line, last); line = read() {
			_, source, _ := strings.Cut(line, " [")
			source, text, _ := strings.Cut(source, "] ")
			var words []string
			for _, quoted := range monitored.FindAllString(text, -1) {
				word, err := strconv.Unquote(quoted)
				if err != nil {
					t.Errorf("MONITOR: %s: %v", line, err)
				}
				words = append(words, word)
			}
			switch command := strings.ToLower(words[0]); {
			case strings.HasSuffix(source, " lua"):
				run := &runs[len(runs)-1]
				run.Commands = append(run.Commands, words)
			case command == "eval" || command == "evalsha":
				n, _ := strconv.Atoi(words[2])
				runs = append(runs, ScriptRun{Script: words[1], Keys: words[3 : 3+n]})
			}
		}
	}()
	return func() []ScriptRun {
		t.Helper()
		if err := s.Client().Echo(context.Background(), last).Err(); err != nil {
			t.Fatal(err)
		}
		<-done
		return runs
	}
}

// KeysOf returns the keys of each of some commands, as a server reports them.
func KeysOf(t testing.TB, rdb redis.UniversalClient, commands [][]string) (all [][]string) {
	t.Helper()
	ctx, pipe := context.Background(), rdb.Pipeline()
	for _, words := range commands {
		args := []any{"command", "getkeys"}
		for _, word := range words {
			args = append(args, word)
		}
		pipe.Do(ctx, args...)
	}
	sent, _ := pipe.Exec(ctx)
	for i, cmd := range sent {
		keys, err := cmd.(*redis.Cmd).StringSlice()
		if err != nil && !strings.Contains(err.Error(), "no key arguments") && len(commands[i]) > 1 {
			t.Fatalf("the keys of %q: %v", commands[i], err)
		}
		all = append(all, keys)
	}
	return all
}

// Declared fails if a script has used a key that it had not declared, unless that may be. names has the names of scripts, by
// text and SHA. It returns which have run.
func Declared(t testing.TB, rdb redis.UniversalClient, runs []ScriptRun, names map[string]string, may func(script, key string) bool) (ran map[string]bool) {
	t.Helper()
	var all [][]string
	for _, run := range runs {
		all = append(all, run.Commands...)
	}
	keys := KeysOf(t, rdb, all)
	ran = map[string]bool{}
	told := map[string]bool{}
	for _, run := range runs {
		name := names[run.Script]
		ran[name] = true
		for _, words := range run.Commands {
			for _, key := range keys[0] {
				what := name + " " + words[0]
				if !slices.Contains(run.Keys, key) && !may(name, key) && !told[what] {
					told[what] = true
					t.Errorf("%s of %q: %q", name, run.Keys, words)
				}
			}
			keys = keys[1:]
		}
	}
	return ran
}
