package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newMCP(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "mcp", Short: "Offer locks to coding agents, by the Model Context Protocol",
		Long: "Serves the tools acquire, renew, release, status and list on standard input and output, for agents that share a machine, a repository or a test database. A\n" +
			"hold ends by itself with its lease, also if the agent, or this server, is gone: nothing has to be cleaned up.\n" +
			"In the settings of the agent:  {\"command\": \"rlock\", \"args\": [\"mcp\"], \"env\": {\"REDIS_URL\": \"redis://...\"}}",
		Args: counted(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return a.connected("agent", func(ctx context.Context, d *deployment) error {
				if _, err := d.one("mcp"); err != nil {
					return err
				}
				err := d.tools().Run(ctx, &mcp.StdioTransport{})
				if c := context.Cause(ctx); c != nil {
					return c
				}
				if errors.Is(err, os.ErrClosed) || err != nil && strings.Contains(err.Error(), "EOF") {
					err = nil // the agent has ended
				}
				return err
			})
		},
	}
}

type acquireInput struct {
	Name   string  `json:"name" jsonschema:"the name of the lock: what must not be used by two at a time, such as deploy or port:8080"`
	Holder string  `json:"holder" jsonschema:"who asks, as others should see it, such as claude in worktree fix-login"`
	Reason string  `json:"reason" jsonschema:"what it is for, in a few words"`
	Lease  float64 `json:"lease_seconds,omitempty" jsonschema:"after how many seconds the lock is free if it is not renewed; by default 600, at most 86400"`
	Wait   float64 `json:"wait_seconds,omitempty" jsonschema:"how many seconds to wait if another has it; by default 0, at most 300"`
}

type handleInput struct {
	Handle string  `json:"handle" jsonschema:"the handle that acquire returned, or the latest renew"`
	Lease  float64 `json:"lease_seconds,omitempty" jsonschema:"of renew: after how many seconds from now the lock is free; by default 600"`
}

type nameInput struct {
	Name string `json:"name" jsonschema:"the name of the lock"`
}

type listInput struct {
	Pattern string `json:"pattern,omitempty" jsonschema:"which names, such as deploy:*; by default all"`
}

// An outcome is what acquire, renew and release return: whether it was done, and why not.
type outcome struct {
	Done   bool     `json:"done" jsonschema:"whether it was done; if not, do not touch what the lock protects"`
	Why    string   `json:"why,omitempty" jsonschema:"why it was not done: who holds the lock, for what, and for how long"`
	Grant  *grant   `json:"grant,omitempty"`
	Holder *holding `json:"held_by,omitempty"`
}

type listOutput struct {
	Locks []*holding `json:"locks"`
}

// tools is the server. It keeps nothing: a hold is in Redis, and its handle is with the agent, so another server goes on
// with it.
func (d *deployment) tools() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "rlock", Title: "Locks on Redis", Version: version()}, &mcp.ServerOptions{
		Instructions: "Locks for what only one may use at a time. Acquire before you begin, with a holder and a reason; renew before the lease is over if " +
			"the work takes longer; release when it is done. If acquire is not done, another holds the lock: wait, or do something else. " +
			"If renew is not done, the lock is lost: stop, and look at what you have changed.",
	})
	yes, no := true, false
	mcp.AddTool(s, &mcp.Tool{Name: "acquire", Description: "Take a lock for some time, and get a handle. It is free by itself when the lease is over.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: &no}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in acquireInput) (*mcp.CallToolResult, outcome, error) {
			if strings.TrimSpace(in.Holder) == "" || strings.TrimSpace(in.Reason) == "" {
				return nil, outcome{}, errors.New("say who the holder is, and the reason")
			}
			if in.Wait < 0 || in.Wait > 300 {
				return nil, outcome{}, errors.New("wait_seconds: from 0 to 300")
			}
			of, err := d.of(in.Holder, in.Lease)
			if err != nil {
				return nil, outcome{}, err
			}
			wait := time.Duration(in.Wait * float64(time.Second))
			g, err := of.acquire(ctx, in.Name, plainLock, in.Reason, []rlock.AcquireOption{rlock.WithWait(wait)}, &progress{})
			return d.answer(g, err)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "renew", Description: "Give a hold a new lease. It returns a new handle; the one before is of no use then.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: &no}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in handleInput) (*mcp.CallToolResult, outcome, error) {
			of, err := d.of("", in.Lease)
			if err != nil {
				return nil, outcome{}, err
			}
			g, err := of.renew(ctx, in.Handle)
			return d.answer(g, err)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "release", Description: "Free a lock by its handle. It never frees a lock that another has acquired since.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in handleInput) (*mcp.CallToolResult, outcome, error) {
			_, err := d.release(ctx, in.Handle)
			return d.answer(nil, err)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "status", Description: "Tell who holds a lock, for what, since when, and for how long.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in nameInput) (*mcp.CallToolResult, *holding, error) {
			f, err := d.find(ctx, in.Name, "")
			if err != nil {
				return nil, nil, d.app.failed(err)
			}
			return nil, f.state, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "list", Description: "List the locks that are held.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in listInput) (*mcp.CallToolResult, listOutput, error) {
			all, err := d.list(ctx, in.Pattern)
			if err != nil {
				return nil, listOutput{}, d.app.failed(err)
			}
			return nil, listOutput{Locks: append([]*holding{}, all...)}, nil
		})
	return s
}

// of is the deployment for a call of this holder, with this lease.
func (d *deployment) of(holder string, leaseSeconds float64) (*deployment, error) {
	lease := time.Duration(leaseSeconds * float64(time.Second))
	if leaseSeconds == 0 {
		lease = d.fixed()
	}
	if leaseSeconds < 0 || lease < time.Second || lease > rlock.MaxLease {
		return nil, errors.New("lease_seconds: from 1 to 86400")
	}
	a, of := *d.app, *d
	a.lease = lease
	if holder != "" {
		a.label = printable(holder)
	}
	of.app = &a
	return &of, nil
}

// answer tells an agent what has become of its call. That others hold the lock is an answer; an outage is an error.
func (d *deployment) answer(g *grant, err error) (*mcp.CallToolResult, outcome, error) {
	if err == nil {
		return nil, outcome{Done: true, Grant: g}, nil
	}
	var f *failure
	if !errors.As(err, &f) {
		f = d.app.failed(err)
	}
	if f.busy || f.code == exitLost {
		return nil, outcome{Why: f.text, Holder: f.more}, nil
	}
	return nil, outcome{}, f
}
