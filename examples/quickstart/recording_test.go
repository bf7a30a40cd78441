package main

import (
	"context"
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/recording"
)

// The recording on the front page: the lines of a run, each at its time. This writes it anew:
// go test ./examples/quickstart -args -recording.update
var updateRecording = flag.Bool("recording.update", false, "write docs/quickstart.svg")

const recordingFile = "../../docs/quickstart.svg"

var (
	moment  = regexp.MustCompile(`^ *(\d+)ms  `)
	process = regexp.MustCompile(`quickstart(?:\.test)?(?:\.exe)?@\S+ \(pid \d+\)`) // of this machine
	uuids   = regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	numbers = regexp.MustCompile(`\d+`)
	shown   = regexp.MustCompile(`(?m)^<text( class="more\b)?.*?>(.*)</text>$`)
)

// classes are the colors of titles, and of lines about a lock that was not acquired or was lost.
const classes = ".title { fill: #82aaff; font-weight: bold }\n.lost { fill: #ffcb6b }\n"

// A line of a run is a moment, a name and what is said. What does not fit goes on below that.
const columns, said = 92, 20

// wrapped breaks a line between words.
func wrapped(line string) (parts []string) {
	for len(line) > columns {
		at := strings.LastIndex(line[:columns+1], " ")
		if at <= said {
			break
		}
		parts = append(parts, line[:at])
		line = strings.Repeat(" ", said) + line[at+1:]
	}
	return append(parts, line)
}

// recorded are the lines of a drawing.
func recorded(drawing string) (lines []string) {
	for _, m := range shown.FindAllStringSubmatch(drawing, -1) {
		text := html.UnescapeString(m[2])
		if m[1] != "" {
			lines[len(lines)-1] += " " + strings.TrimPrefix(text, strings.Repeat(" ", said))
		} else {
			lines = append(lines, text)
		}
	}
	return lines
}

// render draws the lines of a run. The same lines give the same drawing.
func render(lines []string) string {
	const width, height, left, top = 8.4, 19, 16, 34 // of a character, of a line, margins
	longest, rows := 0, 0
	for _, line := range lines {
		for _, part := range wrapped(line) {
			longest, rows = max(longest, len([]rune(part))), rows+1
		}
	}
	var body strings.Builder
	w, h := int(2*left+width*float64(longest)), top+height*rows+8
	at, row := 0, 0
	moments := []int{0}
	for _, line := range lines {
		class := ""
		if m := moment.FindStringSubmatch(line); m != nil {
			at, _ = strconv.Atoi(m[1])
			if strings.Contains(line, "lost") || strings.Contains(line, "gave up") {
				class = "lost"
			}
		} else if line != "" && line[0] >= '1' && line[0] <= '9' {
			class = "title"
		}
		moments = append(moments, at)
		for part, text := range wrapped(line) {
			row++
			names := class
			if part > 0 {
				names = strings.TrimSpace("more " + class)
			}
			if names != "" {
				names = fmt.Sprintf(" class=%q", names)
			}
			fmt.Fprintf(&body, "<text%s x=\"%d\" y=\"%d\" style=\"animation-name:at%d\">%s</text>\n",
				names, left, top+height*row-6, at, html.EscapeString(text))
		}
	}
	return recording.Begin(w, h, "A run of examples/quickstart", classes, moments) + body.String() + "</svg>\n"
}

// shape is what two runs have in common: whose lines there are, and how they begin.
func shape(lines []string) []string {
	var all []string
	for _, line := range lines {
		words := strings.Fields(numbers.ReplaceAllString(moment.ReplaceAllString(line, ""), "0"))
		all = append(all, strings.Join(words[:min(3, len(words))], " "))
	}
	slices.Sort(all)
	return all
}

func TestRecordingIsOfThisProgram(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := start(ctx, &out, ""); err != nil {
		t.Fatal(err)
	}
	run := []string{"$ go run ./examples/quickstart"}
	text := process.ReplaceAllString(strings.TrimSpace(out.String()), "quickstart@host (pid 4121)")
	run = append(run, strings.Split(uuids.ReplaceAllString(text, "$1…"), "\n")...)
	if *updateRecording {
		if err := os.WriteFile(recordingFile, []byte(render(run)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drawing, err := os.ReadFile(recordingFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := recorded(string(drawing))
	const again = "go test ./examples/quickstart -args -recording.update writes it anew"
	if got, want := shape(lines), shape(run); !slices.Equal(got, want) {
		t.Errorf("docs/quickstart.svg shows other lines than a run; %s:\n%q\n%q", again, got, want)
	}
	if string(drawing) != render(lines) {
		t.Errorf("docs/quickstart.svg is not what its lines give; %s", again)
	}
	// On a slow machine a run may not have found that out in time.
	if !strings.Contains(strings.Join(lines, "\n"), "; held by quickstart@host (pid 4121), ") {
		t.Errorf("docs/quickstart.svg does not name the process that holds the lock; %s", again)
	}
}
