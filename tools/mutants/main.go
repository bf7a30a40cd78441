// Mutants checks that the tests notice mistakes: it puts each mistake of mutants.txt into the code, and runs the test
// that has to fail then. The tree itself is not changed: the compiler reads the file with the mistake from elsewhere.
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
	"sync"
	"time"
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
	if wrong := play(root, all, *jobs); wrong > 0 {
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

// play runs the test of each mutant, and returns how many were not noticed. Before it trusts a
// test that fails it sees it pass without the mistake, once for each test.
func play(root string, all []mutant, jobs int) (wrong int) {
	tmp, err := os.MkdirTemp("", "rlock-mutants-")
	if err != nil {
		fail(err)
	}
	defer os.RemoveAll(tmp)
	var (
		mu      sync.Mutex
		work    sync.WaitGroup
		slots   = make(chan struct{}, jobs)
		healthy = passing(root, tmp, all)
	)
	for _, m := range all {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			err := healthy[m.pkg+m.test]()
			if err == nil {
				err = m.noticed(root)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				wrong++
				fmt.Printf("NOT NOTICED  line %d, %s: %v\n", m.line, m.file, err)
				return
			}
			fmt.Printf("noticed in %4.1fs  %s: %s\n", time.Since(began).Seconds(), m.file, m.test)
		})
	}
	work.Wait()
	return wrong
}

// passing returns, by package and test, what runs the test without a mistake. Each package is built once.
func passing(root, tmp string, all []mutant) map[string]func() error {
	binary, healthy := map[string]func() error{}, map[string]func() error{}
	for _, m := range all {
		file := filepath.Join(tmp, strings.NewReplacer(".", "_", "/", "_").Replace(m.pkg)+".test")
		if binary[m.pkg] == nil {
			binary[m.pkg] = sync.OnceValue(func() error {
				cmd := exec.Command("go", "test", "-c", "-vet=off", "-o", file, m.pkg)
				cmd.Dir = root
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w\n%s", m.pkg, err, out)
				}
				return nil
			})
		}
		build := binary[m.pkg]
		if healthy[m.pkg+m.test] == nil {
			healthy[m.pkg+m.test] = sync.OnceValue(func() error {
				if err := build(); err != nil {
					return err
				}
				cmd := exec.Command(file, "-test.timeout=90s", "-test.run", m.test)
				cmd.Dir = filepath.Join(root, m.pkg)
				if out, failed := run(cmd, m); failed {
					return fmt.Errorf("%s %s fails without a mistake:\n%s", m.pkg, m.test, out)
				}
				return nil
			})
		}
	}
	return healthy
}

// noticed returns nil if the test fails, for no other reason than the mistake.
func (m mutant) noticed(root string) error {
	tmp, err := os.MkdirTemp("", "rlock-mutant-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	changed := filepath.Join(tmp, filepath.Base(m.file))
	overlay := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(changed, []byte(m.text), 0o600); err != nil {
		return err
	}
	replace := fmt.Sprintf("{\"Replace\": {%q: %q}}", filepath.Join(root, m.file), changed)
	if err := os.WriteFile(overlay, []byte(replace), 0o600); err != nil {
		return err
	}
	cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-timeout=90s", "-overlay", overlay, "-run", m.test, m.pkg)
	cmd.Dir = root
	out, failed := run(cmd, m)
	switch {
	case !failed:
		return fmt.Errorf("%s %s passes with %q", m.pkg, m.test, strings.Join(m.instead, "; "))
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return fmt.Errorf("it does not compile:\n%s", out)
	case !strings.Contains(out, "--- FAIL") && !strings.Contains(out, "panic: "):
		return fmt.Errorf("no test failed:\n%s", out)
	}
	return nil
}

// run runs the test of m. A run of no test has failed.
func run(cmd *exec.Cmd, m mutant) (out string, failed bool) {
	cmd.Env = append(os.Environ(), "RLOCK_REQUIRE_REDIS=1")
	if m.pkg == "./internal/sim" { // few seeds show few mistakes
		cmd.Env = append(cmd.Env, "RLOCK_THOROUGH=1")
	}
	text, err := cmd.CombinedOutput()
	out = string(text)
	if err == nil && strings.Contains(out, "no tests to run") {
		return "there is no such test", true
	}
	if last := 4000; len(out) > last {
		out = out[:last]
	}
	return out, err != nil
}
