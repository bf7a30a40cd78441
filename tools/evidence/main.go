// Evidence runs the tests that docs/guarantees.md names for each promise, writes what they found to docs/evidence.json,
// and makes docs/evidence.md of that. Usage:
//
//	cd tools && go run ./evidence -dir ..          runs all tests, in an hour; writes both files
//	cd tools && go run ./evidence -dir .. -only P  runs the tests that P matches, as in "test/quorum/T", and keeps the other results
//	cd tools && go run ./evidence -dir .. -page    writes the page of the last run again
//	cd tools && go run ./evidence -dir .. -check   runs nothing; fails for a promise without a run that passed
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

const (
	resultsFile = "docs/evidence.json"
	pageFile    = "docs/evidence.md"
	recordFile  = "docs/maintaining/record.md"
	mutantsFile = "tools/mutants/mutants.txt"
)

func main() {
	dir := flag.String("dir", ".", "folder of the repository")
	checks := flag.Bool("check", false, "run nothing, and fail for a promise without a run that passed")
	page := flag.Bool("page", false, "run nothing, and write the page of the last run")
	only := flag.String("only", "", "run the tests whose folder and name, such as test/quorum/TestX, match this expression")
	flag.Parse()
	var err error
	var faults []string
	switch {
	case *checks:
		faults, err = check(*dir)
	case *page:
		err = writePage(*dir)
	default:
		err = evidence(*dir, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, fault := range faults {
		fmt.Println(fault)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// evidence runs the tests of all promises, or of some of them, and writes what they found. A run of some keeps the rest of
// the last run, and says where it differs.
func evidence(dir, only string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	promises, err := parse(dir)
	if err != nil {
		return err
	}
	last, err := load(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all := byFolder(promises)
	e := begin(describe(dir), last, all, only != "")
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		names := slices.DeleteFunc(all[folder], func(name string) bool { return !wanted.MatchString(folder + "/" + name) })
		if len(names) == 0 {
			continue
		}
		if err := e.run(dir, folder, names); err != nil {
			return err
		}
		if err := e.save(dir); err != nil { // after each folder: a run may be ended
			return err
		}
	}
	return writePage(dir)
}

func (e *Evidence) save(dir string) error {
	text, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, resultsFile), append(text, '\n'), 0o644)
}

func load(dir string) (*Evidence, error) {
	text, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		return &Evidence{}, err
	}
	var e Evidence
	return &e, json.Unmarshal(text, &e)
}

func writePage(dir string) error {
	promises, err := parse(dir)
	if err != nil {
		return err
	}
	e, err := load(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, pageFile), []byte(render(promises, e)), 0o644)
}

// check returns what is wrong, a line each: promises without a test, tests that do not exist, that did not run or did not
// pass, figures that are cut or cannot be played again, and a page that another run, or a hand, has written.
func check(dir string) (faults []string, err error) {
	say := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	promises, err := parse(dir)
	if err != nil {
		return nil, err
	}
	found, err := scan(dir)
	if err != nil {
		return nil, err
	}
	e, err := load(dir)
	if err != nil {
		return nil, err
	}
	all := Promise{Page: "tools/evidence", Text: "mistakes are noticed", Tests: []Named{planted}}
	for _, p := range append(promises, all) {
		if len(p.Tests) == 0 {
			say("%s: no test is named: %s", p.Page, p.Text)
		}
		for _, t := range p.Tests {
			switch result := e.of(t); {
			case t != planted && !found[t.File][t.Name]:
				say("%s: %s has no %s: %s", p.Page, t.File, t.Name, p.Text)
			case result == nil:
				say("%s: %s of %s has no run (make evidence): %s", p.Page, t.Name, t.Folder, p.Text)
			case result.Result != passed:
				say("%s: the last run of %s of %s: %s: %s", p.Page, t.Name, t.Folder, result.Result, p.Text)
			case result.Cut > 0:
				say("%s: %d lines of %s of %s are cut: %s", p.Page, result.Cut, t.Name, t.Folder, p.Text)
			case result.lacksSeed():
				say("%s: %s of %s does not say with which seed it ran: %s", p.Page, t.Name, t.Folder, p.Text)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		return nil, err
	}
	if len(faults) == 0 && string(text) != render(promises, e) {
		say("%s is not the page of %s (go run ./evidence -page, in tools)", pageFile, resultsFile)
	}
	return faults, nil
}
