package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const (
	width  = 78 // of a line in a block of code, which is indented by two
	intro  = "# Evidence\n\nEach promise of the [README](../README.md#promises) and of [Guarantees](guarantees.md), the tests that hold it, and what they found when they ran last:\n%s, at commit `%s` if a result does not name another. %d promises, %d tests, %d passed, %d did not. CI fails for a promise without a test, and for a test without a run that passed.\n`make evidence` makes this page again, in %.0f minutes on %d cores; each block of figures below has its own command above it. %s\n"
	record = "Faults that such tests have found, each with the test that holds its correction, are in the [track record](maintaining/record.md)."
)

// render makes the page of a run.
func render(promises []Promise, e *Evidence) string {
	var b strings.Builder
	passes, count, section := 0, 0, ""
	for _, r := range e.Tests {
		if r.Result == passed {
			passes++
		}
	}
	var rows strings.Builder
	for _, p := range promises {
		if p.Page != recordFile {
			count++
		}
		if p.Section != section {
			section = p.Section
			title, column := section, "promise"
			switch p.Page {
			case "README.md":
				title = "Promises of the README"
			case recordFile:
				column = "what went wrong once"
			}
			fmt.Fprintf(&rows, "\n## %s\n\n| %s | tests | result |\n|---|---|---|\n", title, column)
		}
		row(&rows, p, e)
	}
	fmt.Fprintf(&b, intro, e.Run.Date, e.Run.Commit, count, len(e.Tests), passes, len(e.Tests)-passes, e.Run.Minutes, e.Run.Cores, record)
	b.WriteString(rows.String())
	run(&b, e)
	figuresOf(&b, promises, e)
	return b.String()
}

func row(b *strings.Builder, p Promise, e *Evidence) {
	var names, results []string
	for _, t := range p.Tests {
		name := "`" + t.Name + "`"
		if t.Folder == "model" {
			name = "`model/check`"
		}
		names = append(names, "["+name+"](../"+t.File+")")
		results = append(results, outcome(e.of(t)))
	}
	text := p.Text
	if p.Where != "" {
		text = p.Where + ": " + text
	}
	fmt.Fprintf(b, "| %s | %s | %s |\n", text, strings.Join(names, "<br>"), strings.Join(results, "<br>"))
}

func outcome(r *Result) string {
	if r == nil {
		return "**no run**"
	}
	text := r.Result
	if text != passed {
		text = "**" + text + "**"
	}
	if r.Skipped > 0 {
		text += fmt.Sprintf(", %d of %d cases", r.Cases, r.Cases+r.Skipped)
	} else if r.Cases > 1 {
		text += fmt.Sprintf(", %d cases", r.Cases)
	}
	text += fmt.Sprintf(", %.1f s", r.Seconds)
	if r.Commit != "" {
		text += ", at `" + r.Commit + "`"
	}
	return text
}

func run(b *strings.Builder, e *Evidence) {
	r := e.Run
	fmt.Fprintf(b, "\n## The run\n\n| what | in this run |\n|---|---|\n")
	for _, line := range [][2]string{
		{"date", r.Date}, {"commit", "`" + r.Commit + "`"}, {"machine", fmt.Sprintf("%s, %d cores", r.CPU, r.Cores)}, {"system", r.OS},
		{"Go", r.Go}, {"go-redis", r.GoRedis}, {"redis-server", r.Redis}, {"minutes", fmt.Sprintf("%.0f", r.Minutes)},
	} {
		fmt.Fprintf(b, "| %s | %s |\n", line[0], line[1])
	}
	fmt.Fprintf(b, "\nAll results are in [`docs/evidence.json`](evidence.json). The seconds of a test are its own, or those of its cases together if that is more.\n")
}

// figuresOf has what the tests wrote, by folder, each below the command that makes it again.
func figuresOf(b *strings.Builder, promises []Promise, e *Evidence) {
	fmt.Fprintf(b, "\n## What the tests counted\n\nThe last lines that each test wrote: seeds, operations, faults that hit, violations. Before the commands, in the root of a clone:\n\n```sh\nexport %s\nexport %s\n```\n",
		strings.Join(environment[:2], " "), strings.Join(environment[2:], " "))
	all := byFolder(promises)
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		var names []string
		var lines strings.Builder
		for _, name := range all[folder] {
			r := e.of(Named{Folder: folder, Name: name})
			if r == nil || len(r.Log) == 0 {
				continue
			}
			names = append(names, name)
			lines.WriteString(name + "\n")
			if r.Cut > 0 {
				fmt.Fprintf(&lines, "  (%d lines before)\n", r.Cut)
			}
			for _, line := range r.Log {
				lines.WriteString(wrapped(columns.ReplaceAllString(line, "  ")))
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(b, "\n```sh\n%s\n```\n\n```text\n%s```\n", command(folder, names), lines.String())
		}
	}
}

// command makes the figures of some tests again.
func command(folder string, names []string) string {
	if folder == "model" {
		return "model/check"
	}
	text := "go test -C " + folder + " -count=1 -timeout=60m -v -run \"^(\\\n" + strings.Join(names, "|\\\n") + ")$\" ."
	return strings.Join(append([]string{text}, arguments[folder]...), " ")
}

var columns = regexp.MustCompile(` {3,}`) // of a table that is too wide

// wrapped breaks a line so that it fits in a block of code.
func wrapped(line string) string {
	var b strings.Builder
	indent := "  "
	rest := []rune(line)
	for len(rest) > width-len(indent) {
		at := width - len(indent)
		for i := at; i > 20; i-- {
			if rest[i] == ' ' {
				at = i
				break
			}
		}
		b.WriteString(indent + strings.TrimRight(string(rest[:at]), " ") + "\n")
		rest = []rune(strings.TrimLeft(string(rest[at:]), " "))
		indent = "    "
	}
	return b.String() + indent + strings.TrimRight(string(rest), " ") + "\n"
}
