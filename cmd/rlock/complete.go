package main

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completionTime is how long a shell waits for names. Completion works without them.
const completionTime = time.Second

const mostCompleted = 100

// completable matches names that every shell reads as one word, so that they need no quotes.
var completable = regexp.MustCompile(`^[\pL\pN_][\pL\pM\pN_.:/@%+,=-]*$`)

// completesNames makes shells complete the first argument of commands with the names of held locks.
func (a *app) completesNames(all ...*cobra.Command) {
	for _, cmd := range all {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				if cmd.Flags().Lookup("grace") != nil { // a command follows
					return nil, cobra.ShellCompDirectiveDefault
				}
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.heldNames(begun), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

func (a *app) heldNames(begun string) (names []string) {
	if begun != "" && !completable.MatchString(begun) {
		return nil
	}
	d, err := a.connect("")
	if err != nil {
		return nil
	}
	d.isAway = true // the process ends
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	for f, err := range d.clients[0].Locks(ctx, begun+"*") {
		if err != nil || len(names) == mostCompleted {
			break
		}
		if completable.MatchString(f.Name) && !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	return names
}
