//go:build unix

package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
)

// The picture of docs/fencing.md is of one run, whose values are beside this test. This writes both anew:
// go test ./lostupdates -args -update
var update = flag.Bool("update", false, "write docs/lostupdates.svg and testdata/run.txt")

const (
	picture  = "../../../docs/lostupdates.svg"
	recorded = "testdata/run.txt"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		return
	}
	locktest.Main(m)
}

func TestOnlyTheFenceLosesNoUpdate(t *testing.T) {
	t.Parallel()
	var runs []result
	for _, fenced := range []bool{false, true} {
		r, err := count(t.Context(), fenced)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(r)
		if len(r.values) != processes*updates || r.stopped < processes {
			t.Errorf("%d updates, %d holders stopped", len(r.values), r.stopped)
		}
		if (r.lost() > 0) == fenced {
			t.Errorf("fence %v: %d updates are lost", fenced, r.lost())
		}
		runs = append(runs, r)
	}
	if *update {
		if err := os.WriteFile(recorded, []byte(record(runs[0])+record(runs[1])), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(picture, []byte(draw(runs)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The picture shows the recorded run, and the page the figures of it.
func TestPictureIsThatOfTheRun(t *testing.T) {
	t.Parallel()
	if *update {
		t.Skip("it is being written")
	}
	text, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	var runs []result
	for line := range strings.Lines(string(text)) {
		var r result
		for i, field := range strings.Fields(line) {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			switch i {
			case 0:
				r.stopped = n
			case 1:
				r.refused = n
			case 2:
				r.final = n
			default:
				r.values = append(r.values, n)
			}
		}
		r.fenced = len(runs) == 1
		runs = append(runs, r)
	}
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
	svg, err := os.ReadFile(picture)
	if err != nil || string(svg) != draw(runs) {
		t.Errorf("docs/lostupdates.svg is not what its run gives, %v: go test ./lostupdates -args -update", err)
	}
	page, err := os.ReadFile("../../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if !strings.Contains(string(page), "\n"+r.String()+"\n") {
			t.Errorf("docs/fencing.md does not have this line: %s", r)
		}
	}
}

func record(r result) string {
	return strings.Trim(fmt.Sprint(append([]int{r.stopped, r.refused, r.final}, r.values...)), "[]") + "\n"
}

// draw draws the value of the counter after each update.
func draw(runs []result) string {
	const width, height, left, top, right, bottom = 720, 400, 56, 44, 24, 48
	most := 1
	for _, r := range runs {
		most = max(most, len(r.values), slices.Max(r.values))
	}
	x := func(n int) float64 { return left + float64(n)*(width-left-right)/float64(most) }
	y := func(n int) float64 { return height - bottom - float64(n)*(height-top-bottom)/float64(most) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="A counter after each of %d updates, by processes that are stopped beyond their lease: without the fence it falls back each time, and ends at %d; with the fence it ends at %d">
<style>
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
rect { fill: #1e2129 } text { fill: #d5d8df } line { stroke: #353a45 }
[stroke="#cf222e"] { stroke: #ff7b72 } [stroke="#1a7f37"] { stroke: #56d364 }
[style="fill: #cf222e"] { fill: #ff7b72 !important } [style="fill: #1a7f37"] { fill: #56d364 !important }
}
</style>
<rect width="%d" height="%d" rx="8" fill="#ffffff"/>
`, width, height, width, height, len(runs[0].values), runs[0].final, runs[1].final, width, height)
	for n := 0; n <= most; n += 20 {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#d8dee4"/>`+"\n", x(0), y(n), x(most), y(n))
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end">%d</text>`+"\n", x(0)-8, y(n)+5, n)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%d</text>`+"\n", x(n), y(0)+20, n)
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">updates that their process takes for done</text>`+"\n", x(most/2), height-8)
	fmt.Fprintf(&b, `<text x="%d" y="26" font-weight="bold">the counter</text>`+"\n", 16)
	for i, r := range runs {
		color := []string{"#cf222e", "#1a7f37"}[i]
		points := []string{fmt.Sprintf("%.1f,%.1f", x(0), y(0))}
		for n, value := range r.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(n+1), y(value)))
		}
		fmt.Fprintf(&b, `<polyline stroke="%s" points="%s"/>`+"\n", color, strings.Join(points, " "))
		text := fmt.Sprintf("without the fence: %d of %d are lost", r.lost(), len(r.values))
		if r.fenced {
			text = fmt.Sprintf("with the fence: %d are lost", r.lost())
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" style="fill: %s">%s</text>`+"\n", x(0)+24, 62+22*(1-i), color, text)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
