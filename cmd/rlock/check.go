package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newCheck(a *app) *cobra.Command {
	var typ string
	cmd := &cobra.Command{
		Use: "check [NAME]...", Short: "Tell whether locks would work, and what to do if not",
		Long: "Asks Redis whether the locks with these names would work: its version, role, eviction policy, memory, clock, and what the user\n" +
			"of Redis may do. It takes no lock. A line is a finding, with its remedy. Exit status: 0 if there is none, 69 if Redis\n" +
			"does not answer, 77 if the user may not do something, else 1.",
		RunE: func(_ *cobra.Command, args []string) error {
			return a.connected("rlock", func(ctx context.Context, d *deployment) error {
				if len(args) == 0 {
					args = []string{"rlock"}
				}
				var locks []interface{ Name() string }
				for _, name := range args {
					switch at := slices.IndexFunc(kinds, func(k kind) bool { return k.option == typ }); {
					case len(d.clients) > 1:
						lock, err := d.redLock(name)
						if err != nil {
							return err
						}
						locks = append(locks, lock)
					case typ == semaphoreOption:
						locks = append(locks, d.clients[0].NewPermitSemaphore(name))
					case at >= 0:
						locks = append(locks, kinds[at].newLock(d.clients[0], name))
					case typ == "":
						locks = append(locks, d.clients[0].NewLock(name))
					default:
						return usage("--type %s: there are %s", typ, kindOptions())
					}
				}
				report, err := d.clients[0].Check(ctx, locks...)
				if err != nil {
					return cause(ctx, err)
				}
				code := 0
				for _, f := range report.Findings {
					a.finding(f, true)
					code = max(code, findingCode(f))
				}
				for _, f := range report.Unseen {
					a.finding(f, false)
				}
				if code == 0 && !a.json {
					line(a.stdout, "ok")
				}
				return ended(code)
			})
		},
	}
	cmd.Flags().StringVar(&typ, "type", "", "the type of the locks: "+kindOptions())
	return cmd
}

// findingCode returns the exit status for a finding. Of several findings the highest counts.
func findingCode(f rlock.Finding) int {
	switch {
	case f.Code == "unreachable":
		return exitUnavailable
	case f.Code == "acl", f.Code == "refused" && forbidden(fmt.Errorf("%s", f.Problem)):
		return exitRefused
	}
	return 1
}

func (a *app) finding(f rlock.Finding, wrong bool) {
	if a.json {
		printJSON(a.stdout, struct {
			Code    string `json:"code"`
			Node    string `json:"node,omitempty"`
			Problem string `json:"problem"`
			Remedy  string `json:"remedy,omitempty"`
			Unseen  bool   `json:"unseen,omitempty"` // it may be right or wrong
		}{f.Code, f.Node, f.Problem, f.Remedy, !wrong})
		return
	}
	text := strings.ReplaceAll(f.String(), "\n", " ")
	if !wrong {
		text = "not seen: " + text
	}
	line(a.stdout, "%s", text)
}
