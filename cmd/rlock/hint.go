package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// meant maps words of other programs to commands of this one.
var meant = map[string]string{
	"list": "ls", "ps": "ls", "locks": "ls", "holders": "ls", "status": "inspect", "show": "inspect", "info": "inspect", "get": "inspect", "state": "inspect",
	"lock": "acquire", "take": "acquire", "free": "unlock", "steal": "unlock", "force-unlock": "unlock", "rm": "unlock", "delete": "unlock",
	"extend": "renew", "semaphore": "sem", "leader": "elect", "election": "elect", "cron": "once", "ping": "check", "doctor": "check", "exec": "run",
	"redlock": "quorum", "init": "quorum", "monitor": "watch", "follow": "watch", "agent": "mcp",
}

// withHint adds a hint to the error of a command that cannot be run: the word that was read as the name of a lock may be
// meant as a command of this program.
func withHint(err error, root *cobra.Command, name string) error {
	var f *failure
	command := commandNear(root, name)
	if command == "" || !errors.As(err, &f) || f.code == exitNotRunnable {
		return err
	}
	return &failure{code: f.code, text: f.text + fmt.Sprintf("; %s was taken for the name of a lock: did you mean rlock %s?", name, command)}
}

// commandNear returns the command that a word probably means, or "".
func commandNear(root *cobra.Command, word string) string {
	if command, ok := meant[word]; ok {
		return command
	}
	most := min(2, len(word)/3) // most changes of letters
	for _, cmd := range root.Commands() {
		if d := distance(word, cmd.Name()); d > 0 && d <= most {
			return cmd.Name()
		}
	}
	return ""
}

// distance returns how many letters have to be inserted, removed, replaced, or swapped with the next one to change a to b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
		for j := range rows[i] {
			switch {
			case i == 0:
				rows[i][j] = j
				continue
			case j == 0:
				continue
			}
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
