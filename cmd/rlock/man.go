package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan(a *app) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "man [COMMAND]...", Short: "Print the manual page of a command, or write all of them",
		Example: "  rlock man | man -l -\n  rlock man --dir /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, left, err := cmd.Root().Find(args)
			if err != nil || len(left) > 0 {
				return usage("there is no command %q", strings.Join(args, " "))
			}
			if dir != "" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
				return writeMan(cmd.Root(), dir)
			}
			_, err = a.stdout.Write(manPage(found))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write all pages into this folder")
	return cmd
}

// manPage returns the manual page of a command, in the language of troff. A library for it brings along a Markdown parser,
// and made the binary 0.3 MB larger.
func manPage(cmd *cobra.Command) []byte {
	cmd.InitDefaultHelpFlag()
	var b bytes.Buffer
	name := manName(cmd)
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"rlock %s\" \"rlock\"\n", troff(strings.ToUpper(name)), troff(version()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", troff(name), troff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", troff(cmd.UseLine()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", strings.ReplaceAll(troff(cmp.Or(cmd.Long, cmd.Short)), "\n\n", "\n.PP\n"))
	manOptions(&b, "OPTIONS", cmd.NonInheritedFlags())
	manOptions(&b, "OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", troff(cmd.Example))
	}
	var related []string
	if cmd.HasParent() {
		related = append(related, manName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			related = append(related, manName(sub))
		}
	}
	for i, name := range related {
		related[i] = ".BR " + troff(name) + " (1)"
	}
	if len(related) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(related, " ,\n"))
	}
	return b.Bytes()
}

func manOptions(b *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
		}
		fmt.Fprintf(b, "\\fB\\-\\-%s\\fR", troff(f.Name))
		if value != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", troff(value))
		}
		if value != "" && f.DefValue != "" && f.DefValue != "0" && f.DefValue != "[]" && !strings.Contains(usage, "(default") {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "\n%s\n", troff(usage))
	})
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// troff returns text as troff shows it: a backslash begins an escape, a minus is a hyphen without one, and a line that begins
// with a dot or a quote is a request.
func troff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

func writeMan(cmd *cobra.Command, dir string) error {
	file := filepath.Join(dir, manName(cmd)+".1")
	if err := os.WriteFile(file, manPage(cmd), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := writeMan(sub, dir); err != nil {
				return err
			}
		}
	}
	return nil
}
