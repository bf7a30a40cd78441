//go:build unix

package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	flockRow  = regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`]*flock[^`]*)` \\| `([^`]+)` \\|$")
	flockFile = regexp.MustCompile(`/var/lock/(\w+)\.lock`)
)

// The lines of the page, and those of flock beside them, do the same.
func TestLinesOfFlock(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("there is no flock to compare with")
	}
	_, section, _ := strings.Cut(read(t, "../../docs/cli.md"), "## Your flock line")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := flockRow.FindAllStringSubmatch(section, -1)
	if len(rows) != 12 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row[1], func(t *testing.T) {
			t.Parallel()
			file := flockFile.FindStringSubmatch(row[2])
			for _, held := range []bool{false, true} {
				if held && file == nil {
					continue // the script is its own lock
				}
				flock := flockLine{tool: toolAt(t, ""), line: strings.ReplaceAll(row[2], "/var/lock/", "")}
				tl, _ := newTool(t)
				rlock := flockLine{tool: tl, line: row[3]}
				if held {
					flock.holder, rlock.holder = "flock "+file[1]+".lock", "rlock "+file[1]
					if file[1] == "prices" {
						rlock.holder = "rlock -x prices"
					}
				}
				f, r := flock.play(), rlock.play()
				if f.out != r.out || f.code != r.code || f.out == "" && f.code == 0 {
					t.Errorf("held: %v\n%s\n%v\n%s\n%v", held, row[2], f, row[3], r)
				}
			}
		})
	}
}

// A flockLine is a line of the table, in a folder with what it runs.
type flockLine struct {
	*tool
	line   string
	holder string // the beginning of a line that has the lock meanwhile; empty: it is free
}

func (l flockLine) play() result {
	t := l.t
	t.Helper()
	for _, name := range []string{"report", "read-prices", "write-prices", "move", "build", "upload"} {
		write(t, l.path(name), "#!/bin/sh\necho "+name+" runs\nexit 3\n")
	}
	write(t, l.path("import"), "#!/bin/sh\nexec cat\n")
	write(t, l.path("list"), "one\ntwo\n")
	if strings.Contains(l.line, "$0") {
		write(t, l.path("script"), "#!/bin/sh\n"+l.line+"\necho \"alone with $1\"\nexit 5\n")
		return l.sh("./script it")
	}
	if l.holder == "" {
		return l.sh(l.line)
	}
	holder := l.begin(l.command("/bin/sh", "-c", l.holder+" sh -c 'echo > held; while [ ! -e free ]; do sleep 0.02; done'"))
	l.eventually("the lock is held", func() bool { return exists(l.path("held")) })
	s := l.begin(l.command("/bin/sh", "-c", l.line))
	if !strings.Contains(l.line, " -n") && !strings.Contains(l.line, " -w") { // it waits
		write(t, l.path("free"), "")
		l.finish(holder)
		return l.finish(s)
	}
	r := l.finish(s)
	write(t, l.path("free"), "")
	l.finish(holder)
	return r
}
