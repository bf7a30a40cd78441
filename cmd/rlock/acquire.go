package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
)

// defaultLease is that of a hold that no process renews: a shell, or an agent, that is gone has it for so long.
const defaultLease = 10 * time.Minute

// adoptTime is for the holder before, if it is a process that lives: one that has given its handle away answers at once.
const adoptTime = 5 * time.Second

// A grant is a hold without a process, as it is printed.
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
		Example: "  h=$(rlock acquire deploy --reason 'release 4.2') || exit\n  ...\n  h=$(rlock renew \"$h\")\n  ...\n  rlock release \"$h\"",
		Args:    counted(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.check(a, cmd.Flags()); err != nil {
				return err
			}
			kind, err := which.kind()
			if err != nil {
				return err
			}
			p := a.newProgress()
			return a.connected(a.person(), func(ctx context.Context, d *deployment) error {
				g, err := d.acquire(ctx, args[0], kind, reason, w.options(), p)
				if err != nil {
					return err
				}
				if err := a.granted(g); err != nil { // nobody knows the handle
					_, released := d.release(context.Background(), g.Handle)
					return errors.Join(err, released)
				}
				return nil
			}, rlock.WithObserver(p))
		},
	}
	f := cmd.Flags()
	w.add(f)
	which.add(f)
	f.StringVar(&reason, "reason", "", "what others are told it is held for")
	f.StringVar(&a.label, "holder", "", "what others are told who holds it (default: the user)")
	return cmd
}

// person is who holds a lock without a command.
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
		printJSON(a.stdout, g)
		return nil
	}
	_, err := fmt.Fprintln(a.stdout, g.Handle)
	return err
}

// fixed is the lease of a hold without a process.
func (d *deployment) fixed() time.Duration {
	if d.app.lease > 0 {
		return d.app.lease
	}
	return defaultLease
}

// acquire takes a lock, and leaves it in Redis for whoever has the handle.
func (d *deployment) acquire(ctx context.Context, name string, kind int, reason string, opts []rlock.AcquireOption, p *progress) (*grant, error) {
	if _, err := d.one("acquire"); err != nil {
		return nil, err
	}
	lock, err := d.lock(name, kind)
	if err != nil {
		return nil, err
	}
	stop := p.show(ctx, d.states(name, lock))
	lease, err := lock.Lock(ctx, append(opts, rlock.WithLease(d.fixed()))...)
	stop()
	if err != nil {
		return nil, d.app.notAcquired(ctx, d, name, lock, err)
	}
	return d.detach(name, lease, d.newNote(d.app.person(), lease, reason))
}

// detach ends the part of this process in a hold.
func (d *deployment) detach(name string, lease *rlock.Lease, n note) (*grant, error) {
	g := &grant{Name: name, HoldID: lease.HoldID(), Token: lease.Token(), Expires: lease.Deadline().UTC().Truncate(time.Millisecond)}
	var err error
	g.Handle, err = lease.Detach(context.Background())
	if err != nil && !errors.Is(err, rlock.ErrUnconfirmed) { // then the handle is good unless the hold was lost
		return nil, err
	}
	n.Hold, n.PID = g.HoldID, 0
	left := time.Until(g.Expires)
	d.writeNote(g.HoldID, n, left)
	d.writeNote(handleKey(g.Handle), n, left)
	return g, nil
}

// handleKey is where the note of a handle is, which does not tell its hold id.
func handleKey(handle string) string {
	return fmt.Sprintf("handle:%x", sha256.Sum256([]byte(handle)))[:39]
}

// handleOf is the handle that a command is given; - is the first line of standard input.
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

// adopt takes a hold over by its handle. What for is for the error.
func (d *deployment) adopt(ctx context.Context, handle, what string) (*rlock.Lease, note, error) {
	c, err := d.one(what)
	if err != nil {
		return nil, note{}, err
	}
	handle = strings.TrimSpace(handle)
	lease, err := c.Adopt(ctx, handle, rlock.WithLease(d.fixed()), rlock.WithWait(adoptTime))
	switch {
	case context.Cause(ctx) != nil && err != nil:
		return nil, note{}, context.Cause(ctx)
	case errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable):
		return nil, note{}, &failure{code: exitLost, text: plain(err) + ": nothing was changed"}
	case err != nil:
		return nil, note{}, err
	}
	n := d.notes(ctx, []string{handleKey(handle)})[handleKey(handle)]
	if n.Hold != "" {
		d.writeNote(n.Hold, n, 0)
		d.writeNote(handleKey(handle), n, 0)
	}
	return lease, n, nil
}

func newRenew(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "renew HANDLE", Short: "Give a hold the time of --lease again, and print its new handle",
		Long: "Gives a hold the time of --lease again (default 10 minutes), and prints a new handle; the one before is of no use\n" +
			"then. - reads the handle from standard input. Exit status 75: the hold has ended, and nothing was changed.",
		Args: counted(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			handle, err := handleOf(args[0])
			if err != nil {
				return err
			}
			return a.connected(a.person(), func(ctx context.Context, d *deployment) error {
				g, err := d.renew(ctx, handle)
				if err != nil {
					return err
				}
				return a.granted(g)
			})
		},
	}
}

func (d *deployment) renew(ctx context.Context, handle string) (*grant, error) {
	lease, n, err := d.adopt(ctx, handle, "renew")
	if err != nil {
		return nil, err
	}
	if n.Hold == "" { // it was made by a program, or its note is gone
		n = d.newNote(d.app.person(), lease, "")
	}
	return d.detach(d.without(lease.Name()), lease, n)
}

// without is a name without the prefix.
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

func (d *deployment) release(ctx context.Context, handle string) (name string, err error) {
	lease, _, err := d.adopt(ctx, handle, "release")
	if err != nil {
		return "", err
	}
	return d.without(lease.Name()), lease.Unlock(context.Background())
}
