package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
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
			page, err := manPage(found)
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(page)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write all pages into this folder")
	return cmd
}

func manPage(cmd *cobra.Command) ([]byte, error) {
	cmd.DisableAutoGenTag = true
	var b bytes.Buffer
	cmd.InitDefaultHelpFlag()
	err := doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Source: "rlock " + version(), Manual: "rlock"}, &b)
	return b.Bytes(), err
}

func writeMan(cmd *cobra.Command, dir string) error {
	page, err := manPage(cmd)
	if err != nil {
		return err
	}
	name := cmd.CommandPath()
	file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".1")
	if err := os.WriteFile(file, page, 0o644); err != nil {
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
