package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const (
	width     = 78 // of a line in a block of code, which is indented by two
	openLines = 24 // of a block of code; a longer one is folded

	mostColumns = 6  // of a table, behind its first
	longCell    = 40 // is in a table of its own

	intro  = "# Evidence\n\nEach promise of the [README](../README.md#promises) and of [Guarantees](guarantees.md), the tests that hold it, and what they found when they ran last:\n%s, at commit `%s` if a result does not name another. %d promises, %d tests, %d passed, %d did not. CI fails for a promise without a test, and for a test without a run that passed. \"3 planted\": three [planted mistakes](#planted-mistakes) break the promise.\n`make evidence` makes this page again, in %.0f minutes on %d cores; each block of figures below has its own command above it. %s\n"
	record = "Faults that such tests have found, each with the test that holds its correction, are in the [track record](maintaining/record.md)."
)

// render makes the page of a run.
func render(promises []Promise, e *Evidence) string {
	var b strings.Builder
	passes, tests, count, section := 0, 0, 0, ""
	for _, r := range e.Tests {
		if r.Folder == planted.Folder {
			continue
		}
		if tests++; r.Result == passed {
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
	fmt.Fprintf(&b, intro, e.Run.Date, e.Run.Commit, count, tests, passes, tests-passes, e.Run.Minutes, e.Run.Cores, record)
	b.WriteString(rows.String())
	run(&b, e)
	mistakes(&b, e)
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
	if p.Planted > 0 {
		names = append(names, fmt.Sprintf("%d planted", p.Planted))
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
	if r.Date != "" {
		text += ", " + r.Date
	}
	if r.With != "" {
		text += ", with " + r.With
	}
	return text
}

func run(b *strings.Builder, e *Evidence) {
	rows := append([][2]string{{"date", e.Run.Date}, {"commit", "`" + e.Run.Commit + "`"}}, e.Run.rows()...)
	fmt.Fprintf(b, "\n## The run\n\n| what | in this run |\n|---|---|\n")
	for _, row := range append(rows, [2]string{"minutes", fmt.Sprintf("%.0f", e.Run.Minutes)}) {
		fmt.Fprintf(b, "| %s | %s |\n", row[0], row[1])
	}
	fmt.Fprintf(b, "\nAll results are in [`docs/evidence.json`](evidence.json). The seconds of a test are its own, or those of its cases together if that is more.\n")
}

// mistakes has what came of the mistakes of mutants.txt.
func mistakes(b *strings.Builder, e *Evidence) {
	r, figures := e.of(planted), ""
	if r != nil {
		figures = figuresIn(r)
		r = &Result{Result: r.Result, Seconds: r.Seconds, Commit: cmp.Or(r.Commit, e.Run.Commit), Date: cmp.Or(r.Date, e.Run.Date), With: r.With}
	}
	fmt.Fprintf(b, "\n## Planted mistakes\n\nEach mistake of [the table](../%s) is put into the code, and a test has to notice it ([how](maintaining/tests.md#planted-mistakes)). The last run of all: %s.\n\n```sh\n%s\n```\n",
		mutantsFile, outcome(r), command(planted.Folder, nil))
	b.WriteString(figures)
}

// figuresOf has what the tests wrote, by folder, each below the command that makes it again.
func figuresOf(b *strings.Builder, promises []Promise, e *Evidence) {
	fmt.Fprintf(b, "\n## What the tests counted\n\nThe lines that each test wrote: seeds, operations, faults that hit, violations. [Tests](maintaining/tests.md#histories) has what the columns of `check` mean. Before the commands, in the root of a clone:\n\n```sh\nexport %s\nexport %s\n```\n",
		strings.Join(environment[:2], " "), strings.Join(environment[2:], " "))
	all := byFolder(promises)
	delete(all, planted.Folder)
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		var names []string
		var text strings.Builder
		for _, name := range all[folder] {
			if r := e.of(Named{Folder: folder, Name: name}); r != nil && len(r.Log) > 0 {
				names = append(names, name)
				fmt.Fprintf(&text, "\n**%s**: %s\n%s", name, outcome(r), figuresIn(r))
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(b, "\n```sh\n%s\n```\n%s", command(folder, names), text.String())
		}
	}
}

// figuresIn returns the lines of a test as a block of code, which is folded if it is long, and its rows as a table.
func figuresIn(r *Result) string {
	var rows [][]string
	var lines []string
	if r.Cut > 0 {
		lines = append(lines, fmt.Sprintf("(%d lines are left out, or not whole)", r.Cut))
	}
	for _, line := range r.Log {
		if isRow(line) {
			rows = append(rows, strings.Split(line[2:len(line)-2], " | "))
		} else {
			lines = append(lines, line)
		}
	}
	text := ""
	if len(lines) > 0 {
		text = "\n```text\n"
		for _, line := range lines {
			text += wrapped(line)
		}
		text += "```\n"
	}
	if len(lines) > openLines {
		text = fmt.Sprintf("\n<details markdown=\"1\">\n<summary>%d lines</summary>\n%s\n</details>\n", len(lines), text)
	}
	return text + tables(rows)
}

// tables shows rows, of which the first has the names of the columns, as tables that a page is wide enough for: each has the
// first column and some of the others. A column of long texts has a table of its own.
func tables(rows [][]string) string {
	at := func(row []string, column int) string {
		if column < len(row) {
			return row[column]
		}
		return ""
	}
	columns := 0
	for _, row := range rows {
		columns = max(columns, len(row))
	}
	var short []int
	var long [][]int
	for column := 1; column < columns; column++ {
		if slices.ContainsFunc(rows, func(row []string) bool { return len(at(row, column)) > longCell }) {
			long = append(long, []int{column})
		} else {
			short = append(short, column)
		}
	}
	count := max(1, (len(short)+mostColumns-1)/mostColumns)
	split := slices.Collect(slices.Chunk(short, max(1, (len(short)+count-1)/count)))
	var b strings.Builder
	for _, table := range append(split, long...) {
		b.WriteString("\n")
		for i, row := range rows {
			b.WriteString("| " + cells.Replace(row[0]) + " |")
			for _, column := range table {
				b.WriteString(" " + cells.Replace(at(row, column)) + " |")
			}
			b.WriteString("\n")
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(table)+1) + "|\n")
			}
		}
	}
	return b.String()
}

// cells shows the text of a table as it is.
var cells = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "|", `\|`, `\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`)

// command makes the figures of some tests again.
func command(folder string, names []string) string {
	if c := commands[folder]; c != nil {
		return "(cd " + folder + " && " + strings.Join(c, " ") + ")"
	}
	text := "go test -C " + folder + " -count=1 -timeout=60m -v -run \"^(\\\n" + strings.Join(names, "|\\\n") + ")$\" ."
	return strings.Join(append([]string{text}, arguments[folder]...), " ")
}

var columns = regexp.MustCompile(` {3,}`)

// wrapped breaks a line so that it fits in a block of code.
func wrapped(line string) string {
	if len([]rune(line)) > width-2 {
		line = columns.ReplaceAllString(line, "  ")
	}
	var b strings.Builder
	indent, goesOn := "  ", ""
	if playsAgain(line) { // a shell reads it as one line
		goesOn = ` \`
	}
	rest := []rune(line)
	for len(rest) > width-len(indent) {
		at := width - len(indent)
		for i := at; i > 20; i-- {
			if rest[i] == ' ' {
				at = i
				break
			}
		}
		b.WriteString(indent + strings.TrimRight(string(rest[:at]), " ") + goesOn + "\n")
		rest = []rune(strings.TrimLeft(string(rest[at:]), " "))
		indent = "    "
	}
	return b.String() + indent + strings.TrimRight(string(rest), " ") + "\n"
}
