package quorum

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The tables of the package comment are those that the code uses.
func TestTablesOfVotesAreThoseOfThePackageComment(t *testing.T) {
	t.Parallel()
	names := []string{"none", "older", "untold", "amid", "sole", "found", "newer"}
	kinds := map[string]seen{"kept": kept, "idle": idle, "late": late, "anew": anew, "silent": silent, "-": unseen, "age": unseen}
	text, err := os.ReadFile("vote.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(string(text), "\npackage quorum")
	var rows [][]string // the lines of tables, without their titles
	for line := range strings.Lines(comment) {
		if line, ok := strings.CutPrefix(line, "//\t"); ok {
			rows = append(rows, strings.Fields(strings.ReplaceAll(line, "by its age", "age")))
		}
	}
	rows = rows[len(names)+1:] // what the states mean, and their names
	for e := range eventKinds {
		cells := rows[e][len(rows[e])-len(names):]
		for s, cell := range cells {
			want := state(slices.Index(names, cell))
			if cell == "." {
				want = state(s)
			}
			if moves[e][s] != want {
				t.Errorf("row %v, %s: %v", rows[e], names[s], moves[e][s])
			}
		}
	}
	for s, row := range rows[int(eventKinds)+1:] {
		got := shows[s]
		for k, what := range []seen{got.continuous, got.fresh, got.silence, got.release} {
			if row[0] != names[s] || kinds[row[k+1]] != what {
				t.Errorf("row %v, column %d: %v", row, k, what)
			}
		}
	}
}
