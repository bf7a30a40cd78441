//go:build unix

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An agent is a client of the protocol, with a server of its own.
type agent struct {
	t       *testing.T
	session *mcp.ClientSession
}

func newAgent(t *testing.T, tl *tool) *agent {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "tests", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: tl.command("rlock", "mcp"), TerminateDuration: patience}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return &agent{t, session}
}

// call returns what a tool has answered, and whether that is an error.
func (a *agent) call(tool string, args map[string]any, answer any) (text string, isError bool) {
	a.t.Helper()
	r, err := a.session.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	if !r.IsError && answer != nil {
		structured, err := json.Marshal(r.StructuredContent)
		if err == nil {
			err = json.Unmarshal(structured, answer)
		}
		if err != nil {
			a.t.Fatalf("%s: %v in %s", tool, err, text)
		}
	}
	return text, r.IsError
}

func (a *agent) acquire(args map[string]any) (o outcome) {
	a.t.Helper()
	if text, failed := a.call("acquire", args, &o); failed {
		a.t.Fatal(text)
	}
	return o
}

func TestAgents(t *testing.T) {
	t.Parallel()
	tl, srv := newTool(t)
	one, two := newAgent(t, tl), newAgent(t, tl)
	if got, want := one.session.InitializeResult().ProtocolVersion, mcp.SupportedProtocolVersions()[0]; got != want {
		t.Errorf("it speaks version %s of the protocol, and not %s", got, want)
	}
	listed, err := one.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"acquire", "list", "release", "renew", "status"}) {
		t.Error(names)
	}

	first := one.acquire(map[string]any{"name": "deploy", "holder": "claude in fix-login", "reason": "release 4.2"})
	if !first.Done || first.Grant.Handle == "" || first.Grant.Token == 0 {
		t.Fatalf("%+v", first)
	}
	busy := two.acquire(map[string]any{"name": "deploy", "holder": "codex", "reason": "tests", "wait_seconds": 0.1})
	if busy.Done || busy.Holder == nil || busy.Holder.Holders[0].Reason != "release 4.2" {
		t.Errorf("%+v", busy)
	}
	has(t, busy.Why, "deploy is held by claude in fix-login@", `for "release 4.2"`, "of its lease left")

	var renewed, old, done outcome
	two.call("renew", map[string]any{"handle": first.Grant.Handle, "lease_seconds": 120}, &renewed) // another server, the same agent
	if !renewed.Done || renewed.Grant.Handle == first.Grant.Handle {
		t.Fatalf("%+v", renewed)
	}
	one.call("release", map[string]any{"handle": first.Grant.Handle}, &old)
	if old.Done || !strings.Contains(old.Why, "nothing was changed") {
		t.Errorf("%+v", old)
	}
	var state holding
	one.call("status", map[string]any{"name": "deploy"}, &state)
	if len(state.Holders) != 1 || state.Holders[0].Label != "claude in fix-login" || state.LeftMS > 120_000 {
		t.Errorf("%+v", state)
	}
	var all listOutput
	one.call("list", map[string]any{}, &all)
	if len(all.Locks) != 1 || all.Locks[0].Name != "deploy" {
		t.Errorf("%+v", all)
	}
	one.call("release", map[string]any{"handle": renewed.Grant.Handle}, &done)
	if !done.Done {
		t.Errorf("%+v", done)
	}

	// The lease ends by itself; the handle then frees nothing, whoever has the lock.
	short := one.acquire(map[string]any{"name": "port", "holder": "a", "reason": "r", "lease_seconds": 1})
	next := two.acquire(map[string]any{"name": "port", "holder": "b", "reason": "r", "wait_seconds": 60})
	if !next.Done || next.Grant.Token <= short.Grant.Token {
		t.Errorf("%+v", next)
	}
	for _, tool := range []string{"renew", "release"} {
		for _, handle := range []string{short.Grant.Handle, "-"} { // which is no standard input here: that has the protocol
			var o outcome
			if one.call(tool, map[string]any{"handle": handle}, &o); o.Done {
				t.Errorf("%s %s: %+v", tool, handle, o)
			}
		}
	}
	tl.want(exitBusy, "-n", "port", "true")

	for _, wrong := range []map[string]any{
		{"name": "x", "holder": "", "reason": "r"}, {"name": "x", "holder": "a", "reason": " "}, {"name": "x", "reason": "r"},
		{"name": "", "holder": "a", "reason": "r"}, {"name": "x", "holder": "a", "reason": "r", "lease_seconds": -1},
		{"name": "x", "holder": "a", "reason": "r", "lease_seconds": 90_000}, {"name": "x", "holder": "a", "reason": "r", "wait_seconds": 301},
	} {
		r, err := one.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "acquire", Arguments: wrong})
		if err == nil && !r.IsError {
			t.Errorf("%v: %+v", wrong, r)
		}
	}
	// An outage does not read like a held lock.
	srv.Kill()
	for tool, args := range map[string]map[string]any{"acquire": {"name": "x", "holder": "a", "reason": "r"}, "status": {"name": "port"}, "release": {"handle": next.Grant.Handle}} {
		if text, failed := one.call(tool, args, nil); !failed || !strings.Contains(text, "no lock from Redis") {
			t.Errorf("%s: %v %s", tool, failed, text)
		}
	}
}

func TestAgentHasNoRedLock(t *testing.T) {
	t.Parallel()
	toolAt(t, "redis://127.0.0.1:1 redis://127.0.0.1:2").want(exitUsage, "mcp")
	toolAt(t, "").want(exitUsage, "mcp", "x")
}
