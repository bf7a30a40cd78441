package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/handle"
	"github.com/go-rlock/rlock/internal/visible"
)

// defaultLease is the lease of a hold that no process renews: how long a shell or an agent that is gone keeps the lock.
const defaultLease = 10 * time.Minute

// A grant is a hold without a process, in the form that is printed.
type grant struct {
	Name    string    `json:"name"`
	Handle  string    `json:"handle"`
	HoldID  string    `json:"hold_id"`
	Token   int64     `json:"token,omitempty"`
	Expires time.Time `json:"expires"`
}

func newAcquire(a *app) *cobra.Command {
	var (
		w      waiting
		which  choice
		reason string
	)
	cmd := &cobra.Command{
		Use: "acquire NAME", Short: "Take a lock, and print a handle for renew and release",
		Long: "Takes a lock for the time of --lease (default 10 minutes), and prints a handle. No process renews it: it ends by\n" +
			"itself, unless rlock renew is called before. Whoever has the handle can release the lock: keep it as a secret.",
		Example: "  h=$(rlock acquire deploy --reason 'release 4.2') || exit\n  ...\n  rlock renew \"$h\" || exit\n  ...\n  rlock release \"$h\"",
		Args:    counted(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.check(a, cmd.Flags()); err != nil {
				return err
			}
			kind, err := which.kind()
			if err == nil {
				err = checkReason(reason)
			}
			if err != nil {
				return err
			}
			p := a.newProgress()
			return a.connected(a.person(), func(ctx context.Context, d *deployment) error {
				g, err := d.acquire(ctx, args[0], kind, reason, w.options(), p)
				if err != nil {
					return err
				}
				if err := a.granted(g); err != nil { // the handle was not printed
					text := "the handle could not be printed, and the lock was given back: " + plain(err)
					if _, failed := d.release(context.Background(), g.Handle); failed != nil {
						text = fmt.Sprintf("the handle could not be printed: %s; %s is held until the lease is over, in %s: it could not be given back: %s",
							plain(err), g.Name, span(time.Until(g.Expires)), plain(failed))
					}
					return &failure{code: exitOutput, text: text}
				}
				return nil
			}, rlock.WithObserver(p))
		},
	}
	f := cmd.Flags()
	w.add(f)
	which.add(f)
	f.StringVar(&reason, "reason", "", "why it is held, as shown to others")
	f.StringVar(&a.label, "holder", "", "who holds it, as shown to others (default: the user)")
	return cmd
}

// checkReason refuses a reason that other commands would not show.
func checkReason(reason string) error {
	if n := columnsOf(visible.Text(reason)); n > longestReason {
		return usage("the reason is too long: %d characters, and at most %d", n, longestReason)
	}
	return nil
}

// person returns the name of the holder of a lock that is held without a command.
func (a *app) person() string {
	if a.label != "" {
		return a.label
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return printable(u.Username)
	}
	return "rlock"
}

func (a *app) granted(g *grant) error {
	if a.json {
		return printJSON(a.stdout, g)
	}
	return line(a.stdout, "%s", g.Handle)
}

// fixed returns the lease of a hold without a process.
func (d *deployment) fixed() time.Duration {
	if d.app.lease > 0 {
		return d.app.lease
	}
	return defaultLease
}

// acquire takes a lock, and leaves it in Redis for anyone who has the handle.
func (d *deployment) acquire(ctx context.Context, name string, kind int, reason string, opts []rlock.AcquireOption, p *progress) (*grant, error) {
	if _, err := d.one("acquire"); err != nil {
		return nil, err
	}
	lock, err := d.lock(name, kind)
	if err != nil {
		return nil, err
	}
	ctx, stop := d.waits(ctx, p, d.states(name, lock))
	lease, err := lock.Lock(ctx, append(opts, rlock.WithLease(d.fixed()))...)
	stop()
	if err != nil {
		return nil, d.app.notAcquired(ctx, d, name, lock, err)
	}
	return d.detach(name, lease, d.newNote(d.app.person(), lease.Token(), reason))
}

// detach ends the lease in this process, and leaves the hold in Redis.
func (d *deployment) detach(name string, lease *rlock.Lease, n note) (*grant, error) {
	g := &grant{Name: name, HoldID: lease.HoldID(), Token: lease.Token(), Expires: lease.Deadline().UTC().Truncate(time.Millisecond)}
	var err error
	g.Handle, err = lease.Detach(context.Background())
	if errors.Is(err, rlock.ErrUnconfirmed) && !d.good(g.Handle) {
		return nil, &failure{code: d.app.failed(err).code, text: fmt.Sprintf("it is not known whether the handle is good: %s; %s may be held until the lease is over, in %s",
			plain(err), g.Name, span(time.Until(g.Expires)))}
	} else if err != nil && !errors.Is(err, rlock.ErrUnconfirmed) {
		return nil, err
	}
	d.writeNoteOf(g, n)
	return g, nil
}

// knownTime is how long acquire waits for Redis to confirm its handle, after a Detach that was not confirmed.
const knownTime = 10 * time.Second

// good waits until Redis confirms a handle, after a Detach that was not confirmed. The library repeats the Detach.
func (d *deployment) good(handle string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), knownTime)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if d.clients[0].Extend(ctx, handle, time.Second) == nil { // it never shortens a hold
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// writeNoteOf writes the note of a hold without a process.
func (d *deployment) writeNoteOf(g *grant, n note) {
	n.Hold, n.PID = g.HoldID, 0
	d.writeNote(g.HoldID, n, time.Until(g.Expires))
}

// handleOf returns the handle in an argument; - means the first line of standard input.
func handleOf(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	handle, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && handle == "" {
		return "", usage("no handle on standard input")
	}
	return handle, nil
}

// notHeld returns the error of a command about a handle. maybe is what may have happened if Redis has not answered.
func notHeld(ctx context.Context, err error, maybe string) error {
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, rlock.ErrUnreachable):
		return fmt.Errorf("%w: %s", err, maybe)
	case errors.Is(err, rlock.ErrNotHeld):
		return &failure{code: exitLost, text: plain(err) + ": nothing was changed"}
	}
	return err
}

func newRenew(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "renew HANDLE", Short: "Give a hold the time of --lease again",
		Long: "Makes a hold last for the time of --lease from now (default 10 minutes). It never shortens it, and may be\n" +
			"repeated after any error: the handle stays the same. - reads it from standard input.\n" +
			"Exit status 75: the hold has ended, and nothing was changed.",
		Args: counted(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			handle, err := handleOf(args[0])
			if err != nil {
				return err
			}
			return a.connected(a.person(), func(ctx context.Context, d *deployment) error {
				g, err := d.renew(ctx, handle)
				if err != nil || !a.json {
					return err
				}
				return printJSON(a.stdout, g)
			})
		},
	}
}

func (d *deployment) renew(ctx context.Context, text string) (*grant, error) {
	c, err := d.one("renew")
	if err != nil {
		return nil, err
	}
	text = strings.TrimSpace(text)
	expires := time.Now().Add(d.fixed())
	if err := c.Extend(ctx, text, d.fixed()); err != nil {
		return nil, notHeld(ctx, err, "the hold may last longer than before, or not")
	}
	h, err := handle.Parse(text)
	if err != nil {
		return nil, err
	}
	g := &grant{Name: d.without(h.Name), Handle: text, HoldID: h.HoldID, Expires: expires.UTC().Truncate(time.Millisecond)}
	if n, ok := d.notes(ctx, []string{g.HoldID})[g.HoldID]; ok {
		g.Token = n.Token
		d.keepNote(g.HoldID, d.fixed())
	} else { // the hold was made by a program, or its note is gone
		d.writeNoteOf(g, d.newNote(d.app.person(), 0, ""))
	}
	return g, nil
}

// without returns a name without the prefix.
func (d *deployment) without(name string) string { return strings.TrimPrefix(name, d.app.prefix) }

func newRelease(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "release HANDLE", Short: "Free a lock that rlock acquire has taken",
		Long: "Frees the lock of a handle; - reads it from standard input. A handle whose hold has ended frees nothing, whoever\n" +
			"has the lock now: exit status 75.",
		Args: counted(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			handle, err := handleOf(args[0])
			if err != nil {
				return err
			}
			return a.connected(a.person(), func(ctx context.Context, d *deployment) error {
				name, err := d.release(ctx, handle)
				if err == nil && a.json {
					printJSON(a.stdout, map[string]any{"name": name, "released": true})
				}
				return err
			})
		},
	}
}

func (d *deployment) release(ctx context.Context, text string) (name string, err error) {
	c, err := d.one("release")
	if err != nil {
		return "", err
	}
	text = strings.TrimSpace(text)
	if err := c.Unlock(ctx, text); err != nil {
		return "", notHeld(ctx, err, "the lock may be free, or not: repeat it")
	}
	h, err := handle.Parse(text)
	if err != nil {
		return "", err
	}
	d.writeNote(h.HoldID, note{}, 0)
	return d.without(h.Name), nil
}
