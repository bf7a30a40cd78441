// Command rlock runs commands under locks on Redis, as flock(1) does under
// locks on a file, but for all machines that share the Redis.
//
//	rlock invoices -- ./write-invoices
//
// The locks are the locks of package rlock: a Go or Java program that uses a
// lock of the same name is kept out too. See README.md, and rlock help.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	os.Exit(execute(os.Args[1:]))
}

// execute is the whole program, but for the end of its process.
func execute(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case guardCommand:
			return guard(args[1:])
		case execCommand:
			return execLater(args[1:])
		}
	}
	redis.SetLogger(silent{})                               // the command reports each error once
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a write then returns an error, and the command cleans up
	a := &app{stdout: &output{file: os.Stdout}, stderr: os.Stderr}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(os.Stderr)
	code := a.report(root.Execute())
	if a.fatal != nil {
		dieBy(a.fatal)
	}
	return code
}

func newRoot(a *app) *cobra.Command {
	root := newRun(a, "rlock [options] NAME [--] COMMAND [argument]...")
	root.Short = "Run commands under locks on Redis, as flock does under a lock on a file"
	root.Long = strings.TrimSpace(`
rlock runs a command while it holds a lock on Redis: on one machine at a time,
wherever it is started. The lock is renewed while the command runs. If it is
lost, the command and its process group are ended before another can start.

Redis is that of --redis, or of REDIS_URL, or redis://localhost:6379. Without
any, "rlock demo" shows what a lock does. A lock with the name of a command
below needs "rlock run NAME".

EXIT STATUS: that of the command; 128 + n if signal n ended it; 1 (or -E) if
others hold the lock; 64 for wrong arguments; 65 if the name is in use for other
data; 69 if Redis gives no answer; 74 if what it prints cannot be written; 75 if
the lock was lost meanwhile; 77 if the user of Redis may not do this; 126 and
127 if the command cannot be started.`)
	root.Version = version()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = false
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", withoutURLs(err)) })
	a.addGlobal(root)
	run := newRun(a, "run [options] NAME [--] COMMAND [argument]...")
	run.Short = "Run a command while holding a lock; the default"
	root.AddCommand(run)
	for _, add := range commands {
		root.AddCommand(add(a))
	}
	narrow(root)
	a.completesNames(root)
	for _, cmd := range root.Commands() {
		if named[cmd.Name()] {
			a.completesNames(cmd)
		}
	}
	return root
}

// narrow makes the help of commands fit in 80 columns. A template of cobra would do that too, but text/template calls methods by
// their names: with it, the linker keeps each exported method of all types, and the program is twice as large.
func narrow(root *cobra.Command) {
	usual := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		var text bytes.Buffer
		out := cmd.OutOrStderr()
		cmd.SetOut(&text)
		err := usual(cmd)
		cmd.SetOut(out)
		wrapped := text.String()
		for _, f := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
			wide, narrow := strings.TrimSpace(f.FlagUsages()), strings.TrimSpace(f.FlagUsagesWrapped(79))
			wrapped = strings.Replace(wrapped, wide, narrow, 1)
		}
		_, failed := out.Write([]byte(wrapped))
		return cmp.Or(err, failed)
	})
	for _, cmd := range root.Commands() {
		cmd.Long = filled(cmd.Long)
		for _, sub := range cmd.Commands() {
			sub.Long = filled(sub.Long)
		}
	}
}

// filled breaks a text into lines of less than 80 columns.
func filled(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 79:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// commands has the commands other than run, each in a separate file.
var commands = []func(*app) *cobra.Command{
	newAcquire, newRenew, newRelease, newWait, newSem, newOnce, newElect,
	newList, newInspect, newWatch, newTop, newUI, newUnlock, newCheck, newQuorum,
	newDemo, newMCP, newMan, newVersion,
}

// named are the commands whose first argument is the name of a lock.
var named = map[string]bool{"run": true, "acquire": true, "wait": true, "sem": true, "once": true, "elect": true, "inspect": true, "watch": true, "unlock": true, "check": true}

// addGlobal adds the options that all commands have.
func (a *app) addGlobal(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringArrayVar(&a.urls, "redis", nil, "`URL` of Redis; several, each a master of its own, make a RedLock (default $REDIS_URL)")
	f.StringVar(&a.prefix, "prefix", "", "put before the name of each lock, as WithPrefix does")
	f.StringVar(&a.label, "label", "", "who holds the lock, as shown to others (default: the command)")
	f.Var((*seconds)(&a.lease), "lease", "how long Redis keeps the lock without renewal, in seconds or as 2m (default 30; 10m for acquire and renew)")
	a.connectTimeout = defaultConnectTimeout
	f.Var((*seconds)(&a.connectTimeout), "connect-timeout", "seconds to the first answer of Redis, 0 is without end; later outages are waited out")
	f.BoolVar(&a.json, "json", false, "JSON, an object a line")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing of a lock that others hold")
	f.IntVar(&a.quorum, "quorum", 0, "votes that a RedLock needs, while nodes are replaced (default: a majority)")
	f.BoolVar(&a.quarantine, "quarantine", false, "keep nodes of a RedLock that have restarted from voting: all users of the lock give it")
}

// silent drops what go-redis logs.
type silent struct{}

func (silent) Printf(_ context.Context, _ string, _ ...any) {}

// report writes an error to standard error, and returns the exit status.
func (a *app) report(err error) int {
	outcome := a.failure(err)
	if failed := a.stdout.failed(); failed != nil && (outcome == nil || outcome.text == "" || errors.Is(err, failed)) {
		outcome = unprinted(failed)
	}
	switch {
	case outcome == nil:
		return 0
	case outcome.text == "" || outcome.busy && a.quiet:
	case a.json:
		printJSON(a.stderr, outcome)
	default:
		line(a.stderr, "rlock: %s", outcome.text)
	}
	return outcome.code
}
