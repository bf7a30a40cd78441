package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/go-rlock/rlock"
)

// waiting has the options for how long a command waits for its turn, as flock has them.
type waiting struct {
	now  bool
	wait time.Duration
	set  bool
	code int
}

func (w *waiting) add(f *pflag.FlagSet) {
	f.BoolVarP(&w.now, "nonblock", "n", false, "do not wait for others")
	f.VarP((*seconds)(&w.wait), "wait", "w", "wait for others so many seconds at most, 0 is -n")
	f.IntVarP(&w.code, "conflict-exit-code", "E", exitBusy, "exit `status` if others hold it")
}

// check is called when the options are known.
func (w *waiting) check(a *app, f *pflag.FlagSet) error {
	if w.code < 0 || w.code > 255 {
		return usage("-E %d: an exit status is from 0 to 255", w.code)
	}
	a.busy, a.busySet = w.code, f.Changed("conflict-exit-code")
	w.set = f.Changed("wait")
	if w.set && w.now && w.wait > 0 {
		return usage("-n and -w exclude each other")
	}
	return nil
}

func (w *waiting) options() []rlock.AcquireOption {
	switch {
	case w.now || w.set && w.wait == 0:
		return []rlock.AcquireOption{rlock.WithWait(0)}
	case w.set:
		return []rlock.AcquireOption{rlock.WithWait(w.wait)}
	}
	return nil
}

// choice selects the lock that a name stands for.
type choice struct{ shared, exclusive, fair bool }

func (c *choice) add(f *pflag.FlagSet) {
	f.BoolVarP(&c.shared, "shared", "s", false, "the read side of a read-write lock: beside others with -s")
	f.BoolVarP(&c.exclusive, "exclusive", "x", false, "the write side of a read-write lock, whose readers use -s")
	f.BoolVar(&c.fair, "fair", false, "in the order of requests, by a FairLock")
}

func (c *choice) kind() (int, error) {
	switch {
	case c.shared && c.exclusive, c.shared && c.fair, c.exclusive && c.fair:
		return 0, usage("-s, -x and --fair exclude each other")
	case c.shared:
		return readSide, nil
	case c.exclusive:
		return writeSide, nil
	case c.fair:
		return fairLock, nil
	}
	return plainLock, nil
}

// running has the options of commands that run a command under a lease.
type running struct {
	shell   string
	grace   time.Duration
	leave   bool
	verbose bool
}

func (r *running) add(f *pflag.FlagSet) {
	f.StringVarP(&r.shell, "command", "c", "", "run this by the shell, in place of COMMAND")
	f.Var((*seconds)(&r.grace), "grace", "if the lock is lost, seconds from SIGTERM to SIGKILL (default 5, or a third of a shorter lease)")
	f.BoolVarP(&r.leave, "close", "o", false, "leave processes that the command has started and not waited for: they outlive the lock")
	f.BoolVar(&r.verbose, "verbose", false, "say when the lock is held, and for how long it was waited for")
}

// A runTask is a command that was found, and can be started.
type runTask struct {
	path  string
	argv  []string
	line  string // command line of -c
	grace time.Duration
	leave bool
	hold  string // hold under which the command runs
}

// task finds the command before anything is locked.
func (r *running) task(a *app, f *pflag.FlagSet, argv []string) (*runTask, error) {
	t := &runTask{argv: argv, leave: r.leave, grace: min(5*time.Second, a.leaseTime()/3)}
	if f.Changed("grace") {
		t.grace = r.grace
	}
	if t.grace > a.leaseTime()/2 {
		return nil, usage("--grace %v: at most half of the lease, which is %v", t.grace, a.leaseTime())
	}
	switch {
	case f.Changed("command") && len(argv) > 0:
		return nil, usage("-c takes one argument, and %q is left: quote the command", argv[0])
	case f.Changed("command"):
		t.argv, t.line = shellCommand(r.shell), r.shell
	case len(argv) == 0:
		return nil, usage("no command: rlock NAME -- COMMAND [argument]..., or -c 'COMMAND'")
	}
	path, err := exec.LookPath(t.argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, notStarted(t.argv[0], err)
	}
	t.path = path
	return t, nil
}

// label returns the label of the holder in other processes: the name of the command. For a line of a shell it is the first
// word after variables, whose values may be secrets, or the shell if that word is not clear.
func (t *runTask) label() string {
	name := t.argv[0]
	for _, word := range strings.Fields(t.line) {
		if variable.MatchString(word) {
			continue
		}
		if plainWord.MatchString(word) {
			name = word
		}
		break
	}
	return printable(filepath.Base(name))
}

var (
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=[\pL\pN_./:,@%+-]*$`)
	plainWord = regexp.MustCompile(`^[\pL\pM\pN_./+-]+$`)
	urls      = regexp.MustCompile(`\S*://\S*`)
)

// withoutURLs returns the text of an error about options without URLs, which may have a password.
func withoutURLs(err error) string { return urls.ReplaceAllString(plain(err), "URL") }

func notStarted(name string, err error) error {
	code := exitNotRunnable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	var path *fs.PathError
	var looked *exec.Error
	switch {
	case errors.As(err, &looked):
		err = looked.Err
	case errors.As(err, &path):
		err = path.Err
	}
	return &failure{code: code, text: fmt.Sprintf("%s: %v", name, err)}
}

// nameAndCommand splits NAME [options] [--] COMMAND...: options may follow the name, as in flock FILE -c.
func nameAndCommand(f *pflag.FlagSet, args []string) (name string, argv []string, err error) {
	if len(args) == 0 {
		return "", nil, usage("no name of a lock: rlock NAME -- COMMAND [argument]...; rlock help has the commands")
	}
	name, argv = args[0], args[1:]
	if len(argv) > 0 && strings.HasPrefix(argv[0], "-") && argv[0] != "-" {
		if err := f.Parse(argv); err != nil {
			return "", nil, usage("%s (options of the command follow --)", withoutURLs(err))
		}
		argv = f.Args()
	}
	return name, argv, nil
}

func newRun(a *app, use string) *cobra.Command {
	var (
		w                          waiting
		r                          running
		which                      choice
		noFork, unlock, helpWanted bool
	)
	cmd := &cobra.Command{
		Use: use, Args: cobra.ArbitraryArgs, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			name, argv, err := nameAndCommand(f, args)
			if helpWanted, _ = f.GetBool("help"); helpWanted {
				return cmd.Help()
			}
			if err != nil {
				return err
			}
			switch {
			case noFork:
				return usage("-F is not possible: a lock on Redis is renewed by a process, which therefore stays")
			case unlock:
				return usage("-u is not possible: a lock on Redis is no file descriptor; see rlock acquire and rlock release")
			}
			kind, err := which.kind()
			if err != nil {
				return err
			}
			if len(argv) == 0 && !f.Changed("command") && allDigits(name) {
				return usage("%s is a file descriptor, and a lock on Redis is none: see rlock acquire and rlock release", name)
			}
			if err := w.check(a, f); err != nil {
				return err
			}
			t, err := r.task(a, f, argv)
			if err != nil {
				return withHint(err, cmd.Root(), name)
			}
			return a.run(name, kind, &w, t, r.verbose)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.SetNormalizeFunc(synonyms)
	w.add(f)
	r.add(f)
	which.add(f)
	f.BoolVarP(&which.exclusive, "exclusive-too", "e", false, "")
	f.BoolVarP(&noFork, "no-fork", "F", false, "")
	f.BoolVarP(&unlock, "unlock", "u", false, "")
	for _, not := range []string{"exclusive-too", "no-fork", "unlock"} {
		_ = f.MarkHidden(not)
	}
	return cmd
}

// synonyms maps other option names of flock to the names here.
func synonyms(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "timeout":
		name = "wait"
	case "nb", "nonblocking":
		name = "nonblock"
	}
	return pflag.NormalizedName(name)
}

func allDigits(name string) bool { return strings.Trim(name, "0123456789") == "" }

// run is rlock NAME -- COMMAND.
func (a *app) run(name string, kind int, w *waiting, t *runTask, verbose bool) error {
	p := a.newProgress()
	d, err := a.renewed(t, rlock.WithObserver(p))
	if err != nil {
		return err
	}
	defer d.close()
	lock, err := d.lock(name, kind)
	if err != nil {
		return err
	}
	ctx, in := listen()
	started := time.Now()
	bounded, stop := d.waits(ctx, p, d.states(name, lock))
	lease, err := lock.Lock(bounded, w.options()...)
	stop()
	if err != nil {
		return a.notAcquired(bounded, d, name, lock, err)
	}
	if verbose {
		line(a.stderr, "rlock: %s is held after %s, token %d", name, span(time.Since(started)), lease.Token())
	}
	code, err := a.under(d, name, lease, t, in)
	return a.leave(d, name, lease, code, err)
}

// leave unlocks the lease of a command that has ended with this status, or was not started.
func (a *app) leave(d *deployment, name string, lease *rlock.Lease, code int, err error) error {
	unlocked := lease.Unlock(context.Background())
	d.isAway = errors.Is(unlocked, rlock.ErrUnreachable)
	switch {
	case err != nil:
		return err
	case errors.Is(unlocked, rlock.ErrUnconfirmed):
		a.say("%s: Redis did not confirm the release: it is free when its lease is over, in %s at most", name, span(a.leaseTime()))
	case unlocked != nil:
		return lostWhile(name, plain(unlocked))
	}
	return ended(code)
}

func lostWhile(name, cause string) error {
	return &failure{code: exitLost, text: fmt.Sprintf("%s was lost while the command ran: %s", name, cause)}
}

// say writes a line that is no failure.
func (a *app) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if a.json {
		printJSON(a.stderr, map[string]string{"message": text})
		return
	}
	line(a.stderr, "rlock: %s", text)
}

// Variables in the environment of a command, about its hold and the holds around it.
const (
	holdVariable  = "RLOCK_HOLD_ID"
	outerVariable = "RLOCK_OUTER_HOLD_IDS"
)

// environment returns the environment of the command.
func environment(name string, lease *rlock.Lease, lostFD int) []string {
	env := make([]string, 0, len(os.Environ())+5)
	outer := ""
	for _, v := range os.Environ() {
		switch name, value, _ := strings.Cut(v, "="); name {
		case holdVariable, outerVariable:
			outer += " " + value
		case "RLOCK_NAME", "RLOCK_TOKEN", "RLOCK_LOST_FD":
		default:
			env = append(env, v)
		}
	}
	env = append(env, "RLOCK_NAME="+name, holdVariable+"="+lease.HoldID())
	if outer = strings.TrimSpace(outer); outer != "" {
		env = append(env, outerVariable+"="+outer)
	}
	if token := lease.Token(); token != 0 {
		env = append(env, fmt.Sprintf("RLOCK_TOKEN=%d", token))
	}
	if lostFD >= 0 {
		env = append(env, fmt.Sprintf("RLOCK_LOST_FD=%d", lostFD))
	}
	return env
}
