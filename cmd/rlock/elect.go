package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newElect(a *app) *cobra.Command {
	var (
		r     running
		value string
	)
	cmd := &cobra.Command{
		Use: "elect [NAME] [options] -- COMMAND [argument]...", DisableFlagsInUseLine: true,
		Short: "Run a command on the leader of a fleet",
		Long: "For a command that is started on each machine and is to run on one: it runs while this machine leads. If the leadership is\n" +
			"lost, the command is ended, and started again when this machine leads again. When the command ends by itself, so\n" +
			"does rlock, with its exit status, and the next machine leads. Without NAME the command line is the name.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			name, argv, err := beforeDash(cmd, args, false)
			if err != nil {
				return err
			}
			t, err := r.task(a, f, argv)
			if err != nil {
				return err
			}
			if name == "" {
				name = nameOf(t)
			}
			if value == "" {
				host, _ := os.Hostname()
				value = fmt.Sprintf("%s:%d", host, os.Getpid())
			}
			return a.elect(name, value, t, r.verbose)
		},
	}
	f := cmd.Flags()
	r.add(f)
	f.StringVar(&value, "value", "", "what Election.Leader tells others, such as an address (default: host and pid)")
	return cmd
}

func (a *app) elect(name, value string, t *runTask, verbose bool) error {
	p := a.newProgress()
	d, err := a.renewed(t, rlock.WithObserver(p))
	if err != nil {
		return err
	}
	defer d.close()
	c, err := d.one("rlock elect")
	if err != nil {
		return err
	}
	ctx, in := listen()
	election := c.NewElection(name)
	for {
		code := 0
		var failed error
		bounded, stop := d.waits(ctx, p, d.states(name, election))
		err := election.Run(bounded, value, func(ctx context.Context) error {
			stop()
			lease, _ := rlock.LeaseFrom(ctx)
			if verbose {
				a.say("%s: leads, token %d", name, lease.Token())
			}
			code, failed = a.under(d, name, lease, t, in)
			var f *failure
			if errors.As(failed, &f) && f.code == exitLost && !in.requested() {
				a.say("%s; it waits to lead again", f.text)
			}
			return failed
		})
		stop()
		var f *failure
		switch lost := errors.As(failed, &f) && f.code == exitLost; {
		case lost && in.requested():
			return failed
		case lost && errors.Is(err, failed):
			continue // the command was ended before the end of the lease: it leads no more
		case failed != nil:
			return failed
		case errors.Is(err, rlock.ErrNotRun):
			return cause(bounded, err)
		case errors.Is(err, rlock.ErrUnconfirmed):
			a.say("%s: Redis did not confirm that it leads no more", name)
		case err != nil:
			return cause(bounded, err)
		}
		return ended(code)
	}
}
