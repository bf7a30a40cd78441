//go:build unix

package main

import (
	"flag"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/go-rlock/rlock/internal/recording"
)

// The recording on the page: commands that are run, and what they print, each at its time. This writes it anew:
// go test -run TestRecording . -args -recording.update
var updateRecording = flag.Bool("recording.update", false, "write docs/cli.svg")

const recordingFile = "../../docs/cli.svg"

// A shot is a line of the recording, and when it appears.
type shot struct {
	at    time.Duration
	text  string
	typed bool
}

var drawnText = regexp.MustCompile(`(?m)^<text.*?>(.*)</text>$`)

// record runs what the recording shows.
func record(t *testing.T) (all []shot) {
	tl, _ := newTool(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var s *started
	a := &app{}
	say := func(typed bool, text string) {
		for _, other := range []struct{ is, shown string }{ // not the machine and the user of whoever records
			{fmt.Sprintf("@%s:%d", host, s.Process.Pid), "@web-3:4121"}, {"@" + host, "@web-3"}, {"pid " + fmt.Sprint(s.Process.Pid), "pid 4121"},
			{"  user    " + a.person(), "  user    ann"},
		} {
			text = swapped(text, other.is, other.shown)
		}
		all = append(all, shot{time.Since(begun), text, typed})
	}
	enter := func(line string) {
		time.Sleep(700 * time.Millisecond) // for who reads
		say(true, "$ "+line)
	}
	out := func(r result) {
		for line := range strings.Lines(r.out + r.err) {
			for _, part := range folded(strings.TrimSuffix(line, "\n")) {
				say(false, part)
			}
		}
	}
	write(t, tl.path("write-invoices"), "#!/bin/sh\necho \"writes invoices, with token $RLOCK_TOKEN\"\necho > running\nwhile [ ! -e free ]; do sleep 0.02; done\n")
	write(t, tl.path("back-up"), "#!/bin/sh\nexit 0\n")
	s = tl.start("invoices", "--label", "billing", "--", "./write-invoices")
	enter("rlock invoices --label billing -- ./write-invoices &")
	tl.eventually("it runs", func() bool { return exists(tl.path("running")) })
	out(tl.sh(`echo "writes invoices, with token $(rlock inspect invoices --json | sed 's/.*"token":\([0-9]*\).*/\1/')"`))
	enter("rlock -n invoices -- ./write-invoices; echo $?")
	out(tl.sh("rlock -n invoices -- ./write-invoices 2>&1; echo $?"))
	enter("h=$(rlock acquire deploy --holder ann --reason 'release 4.2')")
	h := strings.TrimSpace(tl.want(0, "acquire", "deploy", "--holder", "ann", "--reason", "release 4.2").out)
	enter("rlock top")
	out(tl.want(0, "top", "--once"))
	enter("rlock inspect deploy")
	out(tl.want(0, "inspect", "deploy"))
	enter("rlock release \"$h\" && rlock deploy -- echo mine")
	tl.want(0, "release", h)
	out(tl.want(0, "deploy", "--", "echo", "mine"))
	write(t, tl.path("free"), "")
	if r := tl.finish(s); r.code != 0 {
		t.Error(r)
	}
	return all
}

// swapped replaces a text, and keeps the columns after it.
func swapped(line, is, shown string) string {
	before, after, found := strings.Cut(line, is)
	if !found {
		return line
	}
	more := len(shown) - len(is)
	if room := len(after) - len(strings.TrimLeft(after, " ")); more > 0 && room > more {
		after = after[more:]
	} else if more < 0 && room > 1 {
		after = strings.Repeat(" ", -more) + after
	}
	return before + shown + after
}

const recordedColumns = 92

// folded breaks a line between words.
func folded(line string) (parts []string) {
	for len([]rune(line)) > recordedColumns {
		at := strings.LastIndex(line[:recordedColumns], " ")
		if at <= 0 {
			break
		}
		parts = append(parts, line[:at])
		line = "    " + line[at+1:]
	}
	return append(parts, line)
}

func drawn(all []shot) string {
	const width, height, left, top = 8.4, 19, 16, 34 // of a character, of a line, margins
	var b strings.Builder
	w, h := int(math.Ceil(2*left+width*recordedColumns)), top+height*len(all)+8
	moments := []int{0}
	for _, s := range all {
		moments = append(moments, int(s.at.Milliseconds()))
	}
	b.WriteString(recording.Begin(w, h, "A recording of rlock on a terminal", ".typed { fill: #82aaff; font-weight: bold }\n", moments))
	for i, s := range all {
		class := ""
		if s.typed {
			class = ` class="typed"`
		}
		fmt.Fprintf(&b, "<text%s x=\"%d\" y=\"%d\" style=\"animation-name:at%d\">%s</text>\n", class, left, top+height*(i+1)-6, s.at.Milliseconds(), html.EscapeString(s.text))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// outline is what two recordings have in common: the commands, and how each line begins.
func outline(lines []string) (all []string) {
	for _, line := range lines {
		words := strings.Fields(regexp.MustCompile(`\d+`).ReplaceAllString(line, "0"))
		if strings.HasPrefix(line, "    ") {
			continue // the rest of a long line
		}
		most := 2
		if strings.HasPrefix(line, "  ") {
			most = 1 // an id, or a time
		}
		all = append(all, strings.Join(words[:min(most, len(words))], " "))
	}
	return all
}

func TestRecordingShowsWhatHappens(t *testing.T) {
	t.Parallel()
	all := record(t)
	if *updateRecording {
		if err := os.WriteFile(recordingFile, []byte(drawn(all)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var now, before []string
	for _, s := range all {
		now = append(now, s.text)
	}
	for _, m := range drawnText.FindAllStringSubmatch(read(t, recordingFile), -1) {
		before = append(before, html.UnescapeString(m[1]))
	}
	if a, b := outline(now), outline(before); !slices.Equal(a, b) {
		t.Errorf("docs/cli.svg shows something else: see -recording.update\n%q\n%q", a, b)
	}
}

// Each block of YAML on the pages of the repository is one value, and no key is there twice.
func TestYAMLOfTheDocumentsParses(t *testing.T) {
	t.Parallel()
	blocks := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../*/README.md", "../../*/*/README.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatal(pattern, err)
		}
		for _, page := range pages {
			for _, m := range regexp.MustCompile("(?ms)^```ya?ml\n(.*?)^```").FindAllStringSubmatch(read(t, page), -1) {
				blocks++
				var value map[string]any
				if err := yaml.Unmarshal([]byte(m[1]), &value); err != nil || len(value) == 0 {
					t.Errorf("%s: %v\n%s", page, err, m[1])
				}
			}
		}
	}
	if blocks == 0 {
		t.Error("no block was found")
	}
}

// The commands on the pages have the options that they are shown with, also those in a unit of systemd and in a pod.
func TestCommandsOfThePagesAreRight(t *testing.T) {
	t.Parallel()
	shown := 0
	check := func(page string, words []string) {
		shown++
		a := &app{}
		cmd, args, err := newRoot(a).Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err != nil {
			t.Errorf("%s: %q: %v", page, words, err)
		}
	}
	for _, page := range []string{"../../docs/cli.md", "../../README.md", "README.md"} {
		for _, m := range regexp.MustCompile("(?m)^(?:\\w+=\\$\\()?(rlock [^)#|>\n]*)").FindAllStringSubmatch(read(t, page), -1) {
			words := strings.Fields(strings.NewReplacer(`"`, "", `'`, "", "$(", "x ").Replace(m[1]))
			if words[1] == "invoices:" || strings.HasSuffix(words[0], ":") {
				continue
			}
			check(page, words)
		}
		for _, m := range regexp.MustCompile(`(?m)^ExecStart=/\S*/(rlock .*)$`).FindAllStringSubmatch(read(t, page), -1) {
			check(page, strings.Fields(m[1]))
		}
		for _, m := range regexp.MustCompile(`(?m)\bcommand: (\[.*?\])`).FindAllStringSubmatch(read(t, page), -1) {
			var words []string
			if err := yaml.Unmarshal([]byte(m[1]), &words); err != nil || len(words) < 2 || words[0] != "rlock" {
				t.Errorf("%s: %s: %v", page, m[0], err)
				continue
			}
			check(page, words)
		}
	}
	if shown < 10 {
		t.Errorf("%d commands were found", shown)
	}
}
