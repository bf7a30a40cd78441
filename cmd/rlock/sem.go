package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newSem(a *app) *cobra.Command {
	var (
		w       waiting
		r       running
		permits int
		fair    bool
		set     bool
		remove  bool
	)
	cmd := &cobra.Command{
		Use: "sem NAME --permits N [options] -- COMMAND [argument]...", DisableFlagsInUseLine: true,
		Short: "Run a command beside at most N - 1 others",
		Long: "Runs a command while it holds one of N permits. All users of the name give the same N; --fair, if one gives it, all do.\n" +
			"Options follow NAME, and the command follows --.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			name, argv, err := beforeDash(cmd, args, true)
			if err != nil {
				return err
			}
			if remove {
				if len(argv) > 0 || f.Changed("permits") || set {
					return usage("--delete deletes the permits, and takes none but --fair beside it")
				}
				return a.deletePermits(name, fair)
			}
			if !f.Changed("permits") || permits < 1 || permits > rlock.MaxPermits {
				return usage("--permits N: how many may run, from 1 to %d", rlock.MaxPermits)
			}
			if err := w.check(a, f); err != nil {
				return err
			}
			if set {
				if len(argv) > 0 {
					return usage("--set sets how many there are, and runs nothing")
				}
				return a.setPermits(name, permits, fair)
			}
			t, err := r.task(a, f, argv)
			if err != nil {
				return err
			}
			return a.sem(name, permits, fair, &w, t)
		},
	}
	f := cmd.Flags()
	w.add(f)
	r.add(f)
	f.IntVar(&permits, "permits", 0, "how many may run beside each other")
	f.BoolVar(&fair, "fair", false, "in the order of requests")
	f.BoolVar(&set, "set", false, "only set how many may run; otherwise the number that the first has given stays")
	f.BoolVar(&remove, "delete", false, "only delete the permits: who has any loses them")
	return cmd
}

// beforeDash splits [NAME] -- COMMAND...; with -c there is no dash.
func beforeDash(cmd *cobra.Command, args []string, named bool) (name string, argv []string, err error) {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	}
	switch {
	case dash > 1:
		return "", nil, usage("%q: put -- before the command", args[1])
	case dash == 0 && named:
		return "", nil, usage("no name: %s", cmd.Use)
	}
	return strings.Join(args[:dash], ""), args[dash:], nil
}

func (a *app) sem(name string, permits int, fair bool, w *waiting, t *runTask) error {
	p := a.newProgress()
	d, err := a.renewed(t, rlock.WithObserver(p))
	if err != nil {
		return err
	}
	defer d.close()
	sem, err := d.pool(name, permits, fair)
	if err != nil {
		return err
	}
	ctx, in := listen()
	bounded, stop := d.waits(ctx, p, func(ctx context.Context) (*holding, error) {
		s, err := sem.State(ctx)
		return d.permits(ctx, name, s), err
	})
	lease, err := sem.Acquire(bounded, 1, w.options()...)
	stop()
	switch {
	case err != nil && bounded.Err() == nil && errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable):
		s, failed := sem.State(ctx)
		if failed != nil {
			return failed
		}
		h := d.permits(ctx, name, s)
		return &failure{code: a.busyCode(), text: h.taken(), busy: true, more: h}
	case err != nil:
		return cause(bounded, err)
	}
	code, err := a.under(d, name, lease, t, in)
	return a.leave(d, name, lease, code, err)
}

func (d *deployment) pool(name string, permits int, fair bool) (*rlock.PermitSemaphore, error) {
	c, err := d.one("rlock sem")
	if err != nil {
		return nil, err
	}
	opts := []rlock.PermitSemaphoreOption{rlock.WithPermits(permits)}
	if fair {
		opts = append(opts, rlock.WithFairness())
	}
	return c.NewPermitSemaphore(name, opts...), nil
}

func (a *app) setPermits(name string, permits int, fair bool) error {
	return a.connected("", func(ctx context.Context, d *deployment) error {
		sem, err := d.pool(name, permits, fair)
		if err != nil {
			return err
		}
		if err := sem.SetPermits(ctx, permits); err != nil {
			return cause(ctx, err)
		}
		return nil
	})
}

func (a *app) deletePermits(name string, fair bool) error {
	return a.connected("", func(ctx context.Context, d *deployment) error {
		sem, err := d.pool(name, 1, fair)
		if err != nil {
			return err
		}
		was, err := sem.Delete(ctx)
		switch {
		case err != nil:
			return cause(ctx, err)
		case a.json:
			printJSON(a.stdout, map[string]any{"name": name, "deleted": was})
		}
		if !was {
			return &failure{code: exitBusy, text: name + " has no permits"}
		}
		return nil
	})
}

// taken returns a text with the holders of a semaphore's permits.
func (h *holding) taken() string {
	var names []string
	for _, by := range h.Holders[:min(3, len(h.Holders))] {
		names = append(names, by.String())
	}
	text := h.Name + " has no free permit"
	if len(names) > 0 {
		text += ": held by " + strings.Join(names, ", ")
	}
	if len(h.Holders) > len(names) {
		text += ", and others"
	}
	return text
}
