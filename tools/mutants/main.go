// Mutants checks that the tests notice mistakes: it puts each mistake of mutants.txt into the code, and runs the test
// that has to fail then. The tree itself is not changed: the compiler, or for a script the test, reads the file with the
// mistake from elsewhere.
// Usage:
//
//	cd tools && go run ./mutants -dir ..               # all of them
//	cd tools && go run ./mutants -dir .. -some 15      # fifteen, chosen by the commit
//	cd tools && go run ./mutants -dir .. -only enter   # where the file, the test or the promise has this text
//	cd tools && go run ./mutants -dir .. -check        # runs no test: does the table fit the tree?
package main

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	dir := flag.String("dir", ".", "folder of the root package")
	some := flag.Int("some", 0, "so many, chosen by the commit, instead of all")
	only := flag.String("only", "", "only where the file, the test or the promise contains this")
	check := flag.Bool("check", false, "check the table only")
	jobs := flag.Int("jobs", 2, "so many tests at a time")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		fail(err)
	}
	all, err := table(root, mutants)
	if err != nil {
		fail(err)
	}
	fmt.Println(census(all))
	if *check {
		return
	}
	if *only != "" {
		all = slices.DeleteFunc(all, func(m mutant) bool {
			return !strings.Contains(m.file+"\n"+m.pkg+" "+m.test+"\n"+m.promise, *only)
		})
	}
	if *some > 0 && *some < len(all) {
		n := commit(root, all)
		all = turn(all, *some, n)
		fmt.Printf("the turn of %x: lines %s\n", n, lines(all))
	}
	if len(all) == 0 {
		fail(errors.New("no mutant is chosen"))
	}
	wrong, err := play(root, all, *jobs)
	if err != nil {
		fail(err)
	}
	if wrong > 0 {
		fail(fmt.Errorf("%d of %d mutants were not noticed", wrong, len(all)))
	}
	fmt.Printf("all %d mutants were noticed\n", len(all))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// commit returns the number that decides whose turn it is: of the commit, or without git of the files.
func commit(root string, all []mutant) (n uint64) {
	out, err := exec.Command("git", "-C", root, "rev-parse", "--short=12", "HEAD").Output()
	if err == nil {
		_, err = fmt.Sscanf(string(out), "%x", &n)
	}
	if err == nil {
		return n
	}
	sum := fnv.New64a()
	for _, m := range all {
		_, _ = io.WriteString(sum, m.text)
	}
	return sum.Sum64()
}

func lines(all []mutant) string {
	var s []string
	for _, m := range all {
		s = append(s, strconv.Itoa(m.line))
	}
	return strings.Join(s, ", ")
}

// turn returns n of all, spread over the table.
func turn(all []mutant, n int, commit uint64) (chosen []mutant) {
	for i := range n {
		from, to := i*len(all)/n, (i+1)*len(all)/n
		chosen = append(chosen, all[from+int(commit%uint64(to-from))])
	}
	return chosen
}
