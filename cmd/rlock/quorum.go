package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newQuorum(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "quorum", Short: "Look after the nodes of a RedLock", Args: counted(cobra.NoArgs),
		Long: "Looks after the independent masters of a RedLock: --redis once for each, or several URLs in REDIS_URL.",
		RunE: func(*cobra.Command, []string) error { return usage("quorum init, quorum status or quorum replace") },
	}
	var longest time.Duration
	initial := &cobra.Command{
		Use: "init", Short: "Let all nodes of a new deployment vote at once", Args: counted(cobra.NoArgs),
		Long: "For RedLocks with --quarantine (WithRestartQuarantine): a new deployment does not vote for the longest lease, unless this is called,\n" +
			"once. No process may have held any RedLock on these nodes within that time.",
		RunE: func(*cobra.Command, []string) error {
			a.quarantine = true
			return a.withNodes(func(ctx context.Context, d *deployment, lock *rlock.RedLock) error {
				if err := lock.BootstrapNodes(ctx); err != nil {
					return cause(ctx, err)
				}
				return a.printNodes(d, make([]rlock.Finding, 0))
			}, longest)
		},
	}
	status := &cobra.Command{
		Use: "status", Short: "Tell which nodes may vote", Args: counted(cobra.NoArgs),
		Long: "Prints a line for each node. Exit status: 0 if all can vote, 1 if a quorum can, 69 if fewer can.",
		RunE: func(*cobra.Command, []string) error {
			return a.withNodes(func(ctx context.Context, d *deployment, lock *rlock.RedLock) error {
				report, err := d.clients[0].Check(ctx, lock)
				if err != nil {
					return cause(ctx, err)
				}
				return a.printNodes(d, report.Findings)
			}, longest)
		},
	}
	for _, sub := range []*cobra.Command{initial, status} {
		sub.Flags().Var((*seconds)(&longest), "longest-lease", "that of WithLongestLease, if the RedLocks have one")
	}
	var old, fresh string
	replace := &cobra.Command{
		Use: "replace --old URL --new URL", Short: "Check a new node, and tell how to put it in place of another", Args: counted(cobra.NoArgs), DisableFlagsInUseLine: true,
		Long: "Checks that a new node is empty and fit, and prints the two deployments that put it in place of another. It changes nothing: the\n" +
			"nodes of a RedLock are what its users name.",
		RunE: func(*cobra.Command, []string) error {
			return a.withNodes(func(ctx context.Context, d *deployment, _ *rlock.RedLock) error {
				return a.replaceNode(ctx, d, old, fresh)
			}, 0)
		},
	}
	replace.Flags().StringVar(&old, "old", "", "the `URL` of the node that leaves, as in --redis")
	replace.Flags().StringVar(&fresh, "new", "", "the `URL` of the node that comes")
	cmd.AddCommand(initial, status, replace)
	return cmd
}

// withNodes calls f with the nodes, and a RedLock that stands for all of them.
func (a *app) withNodes(f func(ctx context.Context, d *deployment, lock *rlock.RedLock) error, longest time.Duration) error {
	return a.connected("rlock", func(ctx context.Context, d *deployment) error {
		if len(d.clients) < 2 {
			return usage("a RedLock has several nodes: give --redis once for each, or several URLs in REDIS_URL")
		}
		var opts []rlock.RedLockOption
		if longest != 0 {
			opts = append(opts, rlock.WithLongestLease(longest))
		}
		lock, err := d.redLock("rlock", opts...)
		if err != nil {
			return err
		}
		return f(ctx, d, lock)
	})
}

// printNodes prints a line for each node, with what is wrong with it.
func (a *app) printNodes(d *deployment, findings []rlock.Finding) error {
	able := 0
	for i, u := range d.urls {
		var wrong []rlock.Finding
		stops := false
		for _, f := range findings {
			if f.Node == "" || f.Node == d.address(i) || strings.HasSuffix(f.Node, "("+d.address(i)+")") {
				wrong = append(wrong, f)
				stops = stops || f.Code == "unreachable" || f.Code == "refused" || f.Code == "replica" || f.Code == "version" || f.Code == "acl"
			}
		}
		if !stops {
			able++
		}
		if a.json {
			printJSON(a.stdout, struct {
				Node     string          `json:"node"`
				Votes    bool            `json:"votes"`
				Findings []rlock.Finding `json:"findings,omitempty"`
			}{redacted(u), !stops, wrong})
			continue
		}
		line(a.stdout, "%s  %s", redacted(u), map[bool]string{true: "votes", false: "does not vote"}[!stops])
		for _, f := range wrong {
			line(a.stdout, "  %s", strings.ReplaceAll(f.String(), "\n", " "))
		}
	}
	switch need := a.needed(len(d.urls)); {
	case able < need:
		return &failure{code: exitUnavailable, text: fmt.Sprintf("%d of %d nodes can vote, and %d are needed", able, len(d.urls), need)}
	case able < len(d.urls):
		return ended(exitBusy)
	}
	return nil
}

func (a *app) needed(nodes int) int {
	if a.quorum != 0 {
		return a.quorum
	}
	return nodes/2 + 1
}

// address returns a node's name in a finding.
func (d *deployment) address(i int) string {
	if c, ok := d.rdbs[i].(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// redacted returns a URL that was parsed before, without user, password and parameters.
func redacted(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "?"
	}
	if u.User != nil {
		u.User = url.User("...")
	}
	if secret(u.Query()) {
		u.RawQuery = "..."
	}
	return u.String()
}

func (a *app) replaceNode(ctx context.Context, d *deployment, old, fresh string) error {
	at := slices.Index(d.urls, old)
	switch {
	case old == "" || fresh == "":
		return usage("give --old URL and --new URL")
	case at < 0:
		return usage("--old is none of the nodes: give it as in --redis")
	case slices.Contains(d.urls, fresh):
		return usage("--new is one of the nodes already")
	}
	own := *a
	own.urls = []string{fresh}
	own.quorum, own.quarantine = 0, false
	node, err := own.connect("rlock")
	if err != nil {
		return err
	}
	defer node.close()
	report, err := node.clients[0].Check(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	code := 0
	for _, f := range report.Findings {
		if f.Code != "pool" {
			a.finding(f, true)
			code = max(code, findingCode(f))
		}
	}
	if code != 0 {
		return &failure{code: code, text: redacted(fresh) + " is not fit"}
	}
	for _, pattern := range []string{a.prefix + "rlock:red:*", "{" + a.prefix + "*:rlock:red*"} {
		it := node.rdbs[0].Scan(ctx, 0, pattern, 1000).Iterator()
		if it.Next(ctx) {
			return &failure{code: exitBusy, text: fmt.Sprintf("%s is not empty: it has votes of other RedLocks, such as %q", redacted(fresh), it.Val())}
		}
		if err := it.Err(); err != nil {
			return &failure{code: exitUnavailable, text: redacted(fresh) + ": " + plain(err)}
		}
	}
	nodes := slices.Clone(d.urls)
	nodes[at] = fresh
	n := len(nodes)
	// Two users may name different nodes, n+1 in all. Their quorums together must be more than that number.
	first := n + 2 - a.needed(n)
	if a.json {
		printJSON(a.stdout, map[string]any{"nodes": n, "quorum": first, "then": a.needed(n)})
		return nil
	}
	var args []string
	for _, u := range nodes {
		args = append(args, "--redis "+redacted(u))
	}
	line(a.stdout, "%s is empty and fit. Two deployments put it in place of %s:", redacted(fresh), redacted(old))
	line(a.stdout, "1. all users name  %s --quorum %d", strings.Join(args, " "), first)
	line(a.stdout, "   wait until each does, and the longest lease is over")
	line(a.stdout, "2. all users name  %s --quorum %d", strings.Join(args, " "), a.needed(n))
	return nil
}
