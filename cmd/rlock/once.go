package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

func newOnce(a *app) *cobra.Command {
	var (
		r        running
		per      time.Duration
		spec     string
		takeover bool
	)
	cmd := &cobra.Command{
		Use: "once [NAME] --per PERIOD | --cron SPEC [options] -- COMMAND...", DisableFlagsInUseLine: true,
		Short: "Run a command once for each tick of a schedule, in the whole fleet",
		Long: "For a command that cron, or another scheduler, starts on each machine: it runs on one of them for each tick. The schedule is that\n" +
			"of the scheduler: --per 1m has a tick with each minute, in UTC; --cron takes the five fields of crontab, in the local\n" +
			"time or that of CRON_TZ=. Where it does not run, the exit status is 0. A run that a crash breaks off is lost, unless\n" +
			"--takeover has the others wait for the run and repeat it, once. Without NAME the command line is the name.",
		Example: "  REDIS_URL=redis://redis.internal:6379\n  PATH=/usr/local/bin:/usr/bin:/bin\n  * * * * *  rlock once report --per 1m -- /usr/local/bin/report",
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			name, argv, err := beforeDash(cmd, args, false)
			if err != nil {
				return err
			}
			if f.Changed("per") == f.Changed("cron") {
				return usage("give either --per PERIOD or --cron SPEC: the schedule by which it is started")
			}
			next := rlock.Every(per).Next
			if f.Changed("cron") {
				if next, err = crontab(spec); err != nil {
					return usage("--cron: %v", err)
				}
			}
			tick, err := rlock.ScheduledTime(time.Now(), next)
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
			var opts []rlock.CronJobOption
			if takeover {
				opts = append(opts, rlock.WithTakeover())
			}
			if two := 2 * next(tick).Sub(tick); two > rlock.DefaultRetention {
				opts = append(opts, rlock.WithRetention(min(two, rlock.MaxKeep)))
			}
			return a.once(name, tick, opts, t, r.verbose)
		},
	}
	f := cmd.Flags()
	r.add(f)
	f.Var((*seconds)(&per), "per", "the period, such as 1m or 24h")
	f.StringVar(&spec, "cron", "", "a schedule as in crontab, such as '*/5 * * * *'")
	f.BoolVar(&takeover, "takeover", false, "wait while another runs it, and run it if that one dies")
	return cmd
}

// crontab returns the schedule of five fields. It means the same as in cron, also in the nights in which the clocks change.
func crontab(spec string) (next func(after time.Time) time.Time, err error) {
	schedule, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, err
	}
	if fields, ok := schedule.(*cron.SpecSchedule); ok {
		zone := fields.Location
		fields.Location = time.Local // of the argument, to robfig/cron
		return rlock.InZone(fields.Next, zone), nil
	}
	return schedule.Next, nil
}

// nameOf returns the name of a job without --name: the same for the same command line.
func nameOf(t *runTask) string {
	sum := sha256.Sum256([]byte(strings.Join(t.argv, "\x00")))
	return fmt.Sprintf("%s-%x", printable(filepath.Base(t.argv[0])), sum[:16])
}

func (a *app) once(name string, tick time.Time, opts []rlock.CronJobOption, t *runTask, verbose bool) error {
	d, err := a.renewed(t)
	if err != nil {
		return err
	}
	defer d.close()
	c, err := d.one("rlock once")
	if err != nil {
		return err
	}
	ctx, in := listen()
	code := 0
	var lost error // why the lease was lost, or the command not started
	bounded, stop := d.patient(ctx, true)
	defer stop()
	run, err := c.NewCronJob(name, opts...).Do(bounded, tick, func(ctx context.Context) error {
		stop()
		lease, _ := rlock.LeaseFrom(ctx)
		if code, lost = a.under(d, name, lease, t, in); lost != nil {
			return lost
		}
		if code != 0 {
			return fmt.Errorf("exit status %d", code)
		}
		return nil
	})
	switch {
	case lost != nil:
		return lost
	case run.Here && errors.Is(err, rlock.ErrUnconfirmed):
		a.say("%s: Redis did not confirm that it has run", name)
	case run.Here && errors.Is(err, rlock.ErrLeaseLost):
		return lostWhile(name, plain(err))
	case run.Here:
	case err != nil:
		return cause(bounded, err)
	case verbose:
		a.say("%s of %s: run by %s", name, tick.Format(time.RFC3339), newHolder(run.HoldID, run.Process, false, 0))
	}
	return ended(code)
}
