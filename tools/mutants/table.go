package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutants has a paragraph for each mistake, below the promise that it breaks:
//
//	promise: as a row or a line of docs/guarantees.md has it
//
//	file
//	 a line of context, if it is needed to find the place
//	-a line as it stands
//	+what is put in its place
//	package test
//
// The word "hangs" after the test permits that it hangs with the mistake, and does not fail.
// Leading space of a line does not count.
//
//go:embed mutants.txt
var mutants string

// mutant is a mistake, the promise that it breaks, and the test that has to notice.
type mutant struct {
	line      int // of its paragraph in mutants.txt
	promise   string
	file      string
	pkg, test string
	mayHang   bool // the test may hang instead of failing
	instead   []string
	text      string // of file, with the mistake
}

// table reads the text of mutants.txt, and puts each mistake into the text of its file.
func table(root, text string) (all []mutant, err error) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		return nil, err
	}
	var promise string
	line := 1
	for paragraph := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		if named, is := strings.CutPrefix(lines[0], "promise: "); is {
			if promise = named; strings.Count(string(page), promise) == 0 {
				return nil, fmt.Errorf("line %d: docs/guarantees.md does not promise %q", line, promise)
			}
		} else if !strings.HasPrefix(lines[0], "#") {
			m, err := parse(root, lines)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			m.line, m.promise = line, promise
			all = append(all, m)
		}
		line += len(lines) + 1
	}
	return all, nil
}

func parse(root string, lines []string) (m mutant, err error) {
	if len(lines) < 3 {
		return m, fmt.Errorf("a mutant has a file, a change and a test")
	}
	var is bool
	m.file = lines[0]
	last := lines[len(lines)-1]
	last, m.mayHang = strings.CutSuffix(last, " hangs")
	if m.pkg, m.test, is = strings.Cut(last, " "); !is || !strings.HasPrefix(m.test, "^Test") {
		return m, fmt.Errorf("%q is not a package and a test that begins with ^Test", lines[len(lines)-1])
	}
	var old, put []string
	for _, l := range lines[1 : len(lines)-1] {
		switch text := strings.TrimSpace(l[1:]); l[0] {
		case ' ':
			old, put = append(old, text), append(put, text)
		case '-':
			old = append(old, text)
		case '+':
			put, m.instead = append(put, text), append(m.instead, text)
		default:
			return m, fmt.Errorf("%q begins with neither a space nor - nor +", l)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return m, err
	}
	m.text, err = replaced(strings.Split(string(text), "\n"), old, put)
	if err != nil {
		return m, fmt.Errorf("%s: %w", m.file, err)
	}
	return m, nil
}

// replaced returns the text with put instead of old, which it has once.
func replaced(text, old, put []string) (string, error) {
	at := -1
	for i := 0; i+len(old) <= len(text); i++ {
		same := true
		for j := range old {
			same = same && strings.TrimSpace(text[i+j]) == old[j]
		}
		if !same {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("it has %q twice, at lines %d and %d", old, at+1, i+1)
		}
		at = i
	}
	if at < 0 {
		return "", fmt.Errorf("it does not have %q", old)
	}
	return strings.Join(append(append(append([]string{}, text[:at]...), put...), text[at+len(old):]...), "\n"), nil
}

// census counts what the table has.
func census(all []mutant) string {
	promises, lua := map[string]bool{}, 0
	for _, m := range all {
		promises[m.promise] = true
		if strings.HasSuffix(m.file, ".lua") {
			lua++
		}
	}
	return fmt.Sprintf("%d mutants, %d in Lua and %d in Go, of %d promises", len(all), lua, len(all)-lua, len(promises))
}
