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
)

// The recording on the front page: the lines of a run, each at its time. This writes it anew:
// go test ./examples/quickstart -args -recording.update
var updateRecording = flag.Bool("recording.update", false, "write docs/quickstart.svg")

const recordingFile = "../../docs/quickstart.svg"

var (
	moment  = regexp.MustCompile(`^ *(\d+)ms  `)
	uuids   = regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	numbers = regexp.MustCompile(`\d+`)
	shown   = regexp.MustCompile(`(?m)^<text .*?>(.*)</text>$`)
)

// render draws the lines of a run. The same lines give the same drawing.
func render(lines []string) string {
	const width, height, left, top = 8.4, 19, 16, 34 // of a character, of a line, margins
	longest := 0
	for _, line := range lines {
		longest = max(longest, len([]rune(line)))
	}
	var b strings.Builder
	w, h := int(2*left+width*float64(longest)), top+height*len(lines)+8
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="A run of examples/quickstart">
<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre; animation: appear .01s both }
.title { fill: #82aaff; font-weight: bold }
.told { fill: #ffcb6b }
@keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { text { animation: none } }
</style>
<rect width="%d" height="%d" rx="8" fill="#0b1622"/>
<circle cx="18" cy="14" r="5" fill="#ff5f57"/><circle cx="34" cy="14" r="5" fill="#febc2e"/><circle cx="50" cy="14" r="5" fill="#28c840"/>
`, w, h, w, h, w, h)
	at := 0
	for i, line := range lines {
		class := ""
		if m := moment.FindStringSubmatch(line); m != nil {
			at, _ = strconv.Atoi(m[1])
			if strings.Contains(line, "lost") || strings.Contains(line, "gave up") || strings.Contains(line, "told") {
				class = ` class="told"`
			}
		} else if line != "" && line[0] >= '1' && line[0] <= '9' {
			class = ` class="title"`
		}
		fmt.Fprintf(&b, "<text%s x=\"%d\" y=\"%d\" style=\"animation-delay:%d.%03ds\">%s</text>\n",
			class, left, top+height*(i+1)-6, at/1000, at%1000, html.EscapeString(line))
	}
	b.WriteString("</svg>\n")
	return b.String()
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
	run = append(run, strings.Split(strings.TrimSpace(uuids.ReplaceAllString(out.String(), "$1…")), "\n")...)
	if *updateRecording {
		if err := os.WriteFile(recordingFile, []byte(render(run)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drawing, err := os.ReadFile(recordingFile)
	if err != nil {
		t.Fatal(err)
	}
	var recorded []string
	for _, m := range shown.FindAllStringSubmatch(string(drawing), -1) {
		recorded = append(recorded, html.UnescapeString(m[1]))
	}
	const again = "go test ./examples/quickstart -args -recording.update writes it anew"
	if got, want := shape(recorded), shape(run); !slices.Equal(got, want) {
		t.Errorf("docs/quickstart.svg shows other lines than a run; %s:\n%q\n%q", again, got, want)
	}
	if string(drawing) != render(recorded) {
		t.Errorf("docs/quickstart.svg is not what its lines give; %s", again)
	}
}
