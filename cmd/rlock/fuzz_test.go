//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// parsesOnly replaces what the commands do by a check of their arguments.
func parsesOnly(cmd *cobra.Command, ran *int) {
	for _, sub := range cmd.Commands() {
		parsesOnly(sub, ran)
	}
	if cmd.RunE == nil {
		return
	}
	cmd.ValidArgsFunction = nil // it would connect
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		*ran++
		if cmd.Name() == "run" || cmd.Name() == "rlock" {
			_, _, err := nameAndCommand(cmd.Flags(), args)
			return err
		}
		return nil
	}
}

// Arguments are taken or are a usage error, in one line that says why, without a password.
func FuzzArguments(f *testing.F) {
	for _, line := range []string{"", "a -- true", "run -w 3 a true", "--lease -1 a true", "--lease 1e300 a true", "-E 999999999999999999999 a true", "acquire a --lease 10m", "sem a --permits 99999999999999",
		"--redis redis://me:s3cret@h:1 a true", "--redis=::s3cret a", "elect --", "-w NaN a true", "list --json x y z", "help run", "completion bash", "--label \x00\xff a true", "once a --per 1h -- x", "check --prefix {", "-- --", "unlock"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, " ")
		if len(args) > 0 && strings.HasPrefix(args[0], "__") {
			t.Skip("a command of cobra, for the completion of names in a shell")
		}
		var text bytes.Buffer
		a := &app{stdout: &output{file: os.NewFile(^uintptr(0), "none")}, stderr: &text}
		ran := 0
		root := newRoot(a)
		parsesOnly(root, &ran)
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.Execute()
		if ran > 1 {
			t.Errorf("%q runs %d commands", args, ran)
		}
		if err == nil {
			return
		}
		switch f := a.failure(err); {
		case f.code != exitUsage && (f.code != exitInternal || ran > 0):
			t.Errorf("%q ends with status %d: %v", args, f.code, err)
		case f.text == "" || strings.Contains(f.text, "\n"):
			t.Errorf("%q is explained by %q", args, f.text)
		case strings.Contains(f.text, "://me:s3cret@"): // of a URL; what is none cannot be recognized
			t.Errorf("%q: a password is shown: %q", args, f.text)
		}
	})
}

// A URL is read, or is a usage error. Neither the error nor the address shows a part of the password.
func FuzzURL(f *testing.F) {
	for _, scheme := range []string{"redis", "rediss", "unix", "redis-cluster", "redis-sentinel", "http", ""} {
		for _, in := range []string{"", "@", "/", "?", "#", "%", "%2F", ":", " ", "%zz", "[", "\x00", ","} {
			f.Add(scheme, in, "h:1/0")
			f.Add(scheme, in, "h:1,k:2?master=m&read_timeout=x")
		}
	}
	f.Fuzz(func(t *testing.T, scheme, in, rest string) {
		const head, tail = "Zq9head", "Zq9tail" // of the password
		if strings.Contains(scheme+in+rest, "Zq9") {
			return
		}
		raw := scheme + "://me:" + head + in + tail + "@" + rest
		rdb, address, err := open(raw)
		shown := address
		switch fail := (*failure)(nil); {
		case err == nil:
			rdb.Close()
		case !errors.As(err, &fail) || fail.code != exitUsage || rdb != nil:
			t.Errorf("%q: %v", raw, err)
		default:
			shown = fail.text
		}
		if strings.Contains(shown, "Zq9") && !strings.HasPrefix(scheme, "unix") { // its path is what it is
			t.Errorf("%q shows a part of the password: %q", raw, shown)
		}
	})
}

// denied is a go-redis hook in place of a Redis that permits nothing.
type denied struct{}

type denial string

func (d denial) Error() string { return string(d) }
func (denial) RedisError()     {}

const noPermission denial = "NOPERM this user has no permissions"

func (denied) DialHook(next redis.DialHook) redis.DialHook { return next }

func (denied) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(noPermission)
		return noPermission
	}
}

func (denied) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(noPermission)
		}
		return noPermission
	}
}

// Whatever an agent sends, each line of the answer is a message of JSON-RPC, no tool says that it has done what Redis
// refuses, and the server answers what follows.
func FuzzMCP(f *testing.F) {
	call := func(tool, args string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
	}
	for _, line := range []string{"", "x", "{}", "[]", "[1]", "null", `{"jsonrpc":"2.0"}`, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":7,"result":{}}`,
		call("acquire", `{"name":"a","holder":"h","reason":"r"}`), call("acquire", `{"name":"","holder":" ","reason":"","lease_seconds":1e308,"wait_seconds":-1}`), call("renew", `{"handle":"rlock2-AAAA"}`), call("release", `{"handle":7}`),
		call("status", `{"name":"{"}`), call("list", `{"pattern":"[","cursor":"=="}`), call("nothing", "{}"), call("list", "[]"), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, `[` + call("list", "{}") + `,` + call("list", "{}") + `]`} {
		f.Add([]byte(line))
	}
	f.Setenv("REDIS_URL", "redis://127.0.0.1:1")
	f.Fuzz(func(t *testing.T, lines []byte) {
		a := &app{stderr: io.Discard, connectTimeout: time.Second}
		d, err := a.connect("agent")
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		d.rdbs[0].AddHook(denied{})
		in, input := io.Pipe()
		output, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- d.tools().Run(t.Context(), newStdio(in, out))
			out.Close()
		}()
		go func() {
			_, _ = io.WriteString(input, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"f","version":"1"}}}`+"\n")
			_, _ = input.Write(append(lines, '\n'))
			_, _ = io.WriteString(input, `{"jsonrpc":"2.0","id":"the last","method":"ping"}`+"\n")
		}()
		late := time.AfterFunc(30*time.Second, func() { out.CloseWithError(errors.New("no answer to the last request")) })
		defer late.Stop()
		answers := bufio.NewReader(output)
		for last := false; !last; {
			line, err := answers.ReadBytes('\n')
			if err != nil {
				t.Fatalf("after %q: %v", lines, err)
			}
			last = checkAnswer(t, lines, line)
		}
		input.Close()
		go func() { _, _ = io.Copy(io.Discard, answers) }()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Fatalf("the server goes on after the end of its input: %q", lines)
		}
	})
}

// checkAnswer checks a line of the server, and reports whether it is the answer to the last request.
func checkAnswer(t *testing.T, lines, line []byte) (last bool) {
	var answer struct {
		Version string          `json:"jsonrpc"`
		ID      any             `json:"id"`
		Method  string          `json:"method"`
		Error   json.RawMessage `json:"error"`
		Result  *struct {
			IsError bool `json:"isError"`
			Content struct {
				Done bool `json:"done"`
			} `json:"structuredContent"`
		} `json:"result"`
	}
	if err := json.Unmarshal(line, &answer); err != nil || answer.Version != "2.0" || answer.Method == "" && (answer.Error == nil) == (answer.Result == nil) {
		t.Errorf("after %q: the answer %q is no message: %v", lines, line, err)
	}
	if answer.Result != nil && answer.Result.Content.Done {
		t.Errorf("after %q: it is done although Redis refuses everything: %q", lines, line)
	}
	return answer.ID == "the last"
}
