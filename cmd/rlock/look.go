package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

func newInspect(a *app) *cobra.Command {
	var typ string
	cmd := &cobra.Command{
		Use: "inspect NAME", Short: "Print who holds a lock, since when, and who waits", Args: counted(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.connected("", func(ctx context.Context, d *deployment) error {
				f, err := d.find(ctx, args[0], typ)
				if err != nil {
					return cause(ctx, err)
				}
				if len(f.state.Holders) == 0 && f.state.Permits == 0 && len(d.clients) == 1 {
					f.state.LastRun = d.lastRun(ctx, args[0])
				}
				if a.json {
					printJSON(a.stdout, f.state)
					return nil
				}
				_, err = fmt.Fprint(a.stdout, f.state.sheet(a.width(), time.Now()))
				return err
			})
		},
	}
	addType(cmd.Flags(), &typ)
	return cmd
}

// lastRun returns the latest run of a job of rlock once, or nil.
func (d *deployment) lastRun(ctx context.Context, name string) *lastRun {
	run, known, err := d.clients[0].NewCronJob(name).Last(ctx)
	if err != nil || !known {
		return nil
	}
	l := &lastRun{Tick: run.Scheduled, By: newHolder(run.HoldID, run.Process, false, 0), Token: run.Token, Start: run.Start, End: run.End}
	if run.Err != nil {
		l.Error = plain(run.Err)
	}
	return l
}

// cause returns the signal that has ended a call, or its error.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// sheet returns all details, in lines of at most width columns, except for long names.
func (h *holding) sheet(width int, now time.Time) string {
	var b strings.Builder
	line := func(title, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s%s\n", title, clip(fmt.Sprintf(format, args...), max(width-10, 10)))
	}
	fmt.Fprintf(&b, "%-10s%s\n", "name", visible.Text(h.Name))
	switch {
	case len(h.Holders) == 0 && h.Permits == 0:
		line("state", "free")
	case h.Permits > 0:
		line("type", "%s", h.Type)
		line("state", "%d of %d permits are free", h.Free, h.Permits)
	default:
		line("type", "%s", h.Type)
		line("state", "%s", h.Mode)
	}
	if h.LeftMS > 0 {
		line("lease", "%s left", span(time.Duration(h.LeftMS)*time.Millisecond))
	}
	if h.Token != 0 {
		line("token", "%d", h.Token)
	}
	line("waiting", "%d", h.Waiters)
	if r := h.LastRun; r != nil {
		line("last tick", "%s", r.Tick.Local().Format("2006-01-02 15:04:05"))
		line("run by", "%s", r.By)
		switch {
		case r.End.IsZero() && r.Error == "":
			line("run", "goes on since %s", r.Start.Local().Format("15:04:05"))
		case r.End.IsZero():
			line("run", "%s", r.Error)
		default:
			line("run", "took %s", span(r.End.Sub(r.Start)))
			if r.Error != "" {
				line("error", "%s", r.Error)
			}
		}
	}
	for _, by := range h.Holders {
		line("holder", "%s", by.String())
		line("  hold", "%s", by.HoldID)
		if by.User != "" {
			line("  user", "%s", by.User)
		}
		if by.Reason != "" {
			line("  reason", "%s", by.Reason)
		}
		if !by.Since.IsZero() {
			line("  since", "%s, for %s", by.Since.Local().Format("2006-01-02 15:04:05"), span(now.Sub(by.Since)))
		}
		if by.Permits > 0 {
			line("  permits", "%d", by.Permits)
		}
		if by.Entries > 1 {
			line("  entries", "%d", by.Entries)
		}
	}
	return b.String()
}

// A watchLine is a line of rlock watch --json.
type watchLine struct {
	Time time.Time `json:"time"`
	*holding
}

func newWatch(a *app) *cobra.Command {
	var typ string
	cmd := &cobra.Command{
		Use: "watch NAME", Short: "Print a line for each change of a lock, until it is interrupted", Args: counted(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.connected("", func(ctx context.Context, d *deployment) error {
				f, err := d.find(ctx, args[0], typ)
				if err != nil {
					return cause(ctx, err)
				}
				if f.lock == nil {
					return usage("a semaphore cannot be watched: rlock inspect shows it")
				}
				states, err := f.lock.Watch(ctx)
				if err != nil {
					return err
				}
				for s := range states {
					h := d.holding(ctx, args[0], f.typ, s)
					if ctx.Err() != nil {
						break
					}
					if a.json {
						err = printJSON(a.stdout, watchLine{time.Now().UTC(), h})
					} else {
						err = line(a.stdout, "%s  %s", time.Now().Format("15:04:05.000"), h)
					}
					if err != nil {
						return nil // the output keeps the error
					}
				}
				return context.Cause(ctx)
			})
		},
	}
	addType(cmd.Flags(), &typ)
	return cmd
}

func newWait(a *app) *cobra.Command {
	var (
		w   waiting
		typ string
	)
	cmd := &cobra.Command{
		Use: "wait NAME", Short: "Wait until nobody holds a lock, and do not take it",
		Long: "Waits until nobody holds a lock, and does not take it: another may have it a moment later.",
		Args: counted(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.check(a, cmd.Flags()); err != nil {
				return err
			}
			p := a.newProgress()
			return a.connected("", func(ctx context.Context, d *deployment) error {
				f, err := d.find(ctx, args[0], typ)
				if err != nil {
					return cause(ctx, err)
				}
				if len(f.state.Holders) == 0 {
					return nil
				}
				if f.lock == nil {
					return usage("a semaphore cannot be waited for: rlock sem waits for a permit")
				}
				ctx, stop := d.waits(ctx, p, d.states(args[0], f.lock))
				freed, err := untilFree(ctx, f.lock, &w)
				stop()
				if freed || err != nil {
					return err
				}
				// Check again whether it is held: the last state may be from before an outage.
				current, err := d.find(ctx, args[0], typ)
				if err != nil || len(current.state.Holders) == 0 {
					return cause(ctx, err)
				}
				return &failure{code: a.busyCode(), text: current.state.String(), busy: true, more: current.state}
			}, rlock.WithObserver(p))
		},
	}
	w.add(cmd.Flags())
	addType(cmd.Flags(), &typ)
	return cmd
}

// untilFree waits until a lock is free, or the wait is over.
func untilFree(ctx context.Context, lock freeable, w *waiting) (freed bool, err error) {
	bounded := ctx
	if w.now || w.set {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeoutCause(ctx, w.wait, errWaited)
		defer cancel()
	}
	states, err := lock.Watch(bounded)
	if err != nil {
		return false, err
	}
	for s := range states {
		if !s.Locked() && bounded.Err() == nil {
			return true, nil
		}
	}
	if c := context.Cause(bounded); !errors.Is(c, errWaited) {
		return false, c
	}
	return false, nil
}

var errWaited = errors.New("the wait is over")

func newUnlock(a *app) *cobra.Command {
	var (
		holdID, typ string
		force       bool
	)
	cmd := &cobra.Command{
		Use: "unlock NAME --hold ID | --force", Short: "Take a lock from its holder",
		Long: "Frees a lock although its holder does not. The holder notices with its next renewal; a command of rlock is ended then,\n" +
			"but the next holder may have begun. --hold ID, which rlock inspect shows, touches no newer hold; --force frees\n" +
			"the lock whoever holds it.",
		Args: counted(cobra.ExactArgs(1)), DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if force == (holdID != "") {
				return usage("give either --hold ID, as rlock inspect shows it, or --force")
			}
			return a.connected("", func(ctx context.Context, d *deployment) error {
				f, err := d.find(ctx, args[0], typ)
				if err != nil {
					return cause(ctx, err)
				}
				if f.lock == nil {
					return usage("permits cannot be taken away: they come back when the lease of their holder is over")
				}
				var freed bool
				if force {
					freed, err = f.lock.ForceUnlock(ctx)
				} else {
					freed, err = f.lock.ForceUnlockIf(ctx, holdID)
				}
				switch {
				case err != nil:
					return cause(ctx, err)
				case a.json:
					printJSON(a.stdout, map[string]any{"name": args[0], "freed": freed})
				}
				if !freed {
					text := args[0] + " is not held"
					if !force && len(f.state.Holders) > 0 {
						text = "that hold does not have it: " + f.state.String()
					}
					return &failure{code: exitBusy, text: text}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&holdID, "hold", "", "only if the hold with this `ID` has it")
	cmd.Flags().BoolVar(&force, "force", false, "whoever holds it")
	addType(cmd.Flags(), &typ)
	return cmd
}
