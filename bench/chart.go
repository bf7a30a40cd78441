package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is a drawing of lines with their names at their ends: rlock in color, the others in grey. It has a dark form.
type chart struct {
	title, x, y string
	logX, logY  bool
	xs          []float64 // the ticks of the x-axis
	lines       []chartLine
}

type chartLine struct {
	name   string
	points []chartPoint
}

type chartPoint struct{ x, median, least, most float64 }

// chartStyle is for both forms. A browser that shows an image takes the form that the system has.
const chartStyle = `.bg{fill:#fff}text{font:15px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#333}
.grid{stroke:#e3e3e3}.peer{stroke:#8c8c8c;stroke-width:1.4}.own{stroke:#c8202c;stroke-width:3}.peer,.own,.lead{fill:none}
.lead{stroke:#bbb;stroke-dasharray:1 3}.dot{fill:#8c8c8c}.owndot{fill:#c8202c}.ownname{fill:#c8202c;font-weight:600}.mid{text-anchor:middle}.end{text-anchor:end}
@media(prefers-color-scheme:dark){.bg{fill:#1e2129}text{fill:#d5d8df}.grid{stroke:#353a45}.peer{stroke:#9a9ea8}.dot{fill:#9a9ea8}
.own{stroke:#ff6b6b}.owndot,.ownname{fill:#ff6b6b}.lead{stroke:#666}}`

// The frame of the lines in the drawing, and the least distance of two names: narrow, so that a phone, which shrinks it to
// its width, still shows letters that can be read.
const (
	chartWidth, chartHeight                      = 614, 380
	chartLeft, chartRight, chartTop, chartBottom = 62, 228, 26, 52
	chartNames                                   = 18
)

// dashes tell the lines of the peers apart where they cross.
var dashes = map[string]string{autoName: "7 3", batchName: "2 3", bsmName: "9 3 2 3", syncName: "4 4", rueidisN: "1 2", redisson: "12 4", pingName: "12 4 2 4"}

// svg draws the chart; "" if there is nothing but zeros to show.
func (c chart) svg() string {
	low, high := math.Inf(1), 0.0
	for _, l := range c.lines {
		for _, p := range l.points {
			low, high = min(low, p.least), max(high, p.most)
		}
	}
	if high <= 0 || len(c.xs) < 2 {
		return ""
	}
	if !c.logY {
		low, high = 0, high*1.05
	}
	along := func(v, from, to float64, log bool) float64 {
		if log {
			v, from, to = math.Log(v), math.Log(from), math.Log(to)
		}
		return (v - from) / (to - from)
	}
	x := func(v float64) float64 {
		return chartLeft + 8 + along(v, c.xs[0], c.xs[len(c.xs)-1], c.logX)*(chartWidth-chartLeft-chartRight-8)
	}
	y := func(v float64) float64 {
		return chartHeight - chartBottom - along(v, low, high, c.logY)*(chartHeight-chartTop-chartBottom)
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		chartWidth, chartHeight, chartWidth, chartHeight, html.EscapeString(c.title))
	p("<style>%s</style>\n<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>", chartStyle)
	for _, v := range ticks(low, high, c.logY) {
		p(`<path class="grid" d="M%d %.1fH%d"/><text class="end" x="%d" y="%.1f">%s</text>`, chartLeft, y(v), chartWidth-chartRight, chartLeft-6, y(v)+4, short1(v))
	}
	last := math.Inf(-1)
	for _, v := range c.xs {
		p(`<path class="grid" d="M%.1f %dV%d"/>`, x(v), chartTop, chartHeight-chartBottom)
		if x(v)-last > 40 { // room for its number
			p(`<text class="mid" x="%.1f" y="%d">%s</text>`, x(v), chartHeight-chartBottom+20, short1(v))
			last = x(v)
		}
	}
	p(`<text class="mid" x="%d" y="%d">%s</text>`, (chartLeft+chartWidth-chartRight)/2, chartHeight-10, html.EscapeString(c.x))

	type name struct {
		text, class string
		x, y, at    float64 // the end of the line, and where the name stands
	}
	var names []name
	lines := slices.Clone(c.lines) // rlock is drawn last, above the others
	slices.SortStableFunc(lines, func(a, b chartLine) int { return cmp.Compare(len(a.class()), len(b.class())) * -1 })
	for _, l := range lines {
		var path strings.Builder
		for j, at := range l.points {
			path.WriteString(cmp.Or(map[bool]string{true: "M"}[j == 0], "L") + fmt.Sprintf("%.1f %.1f", x(at.x), y(at.median)))
			p(`<path class="%s" style="stroke-width:1;opacity:.5" d="M%.1f %.1fV%.1f"/>`, l.class(), x(at.x), y(at.least), y(at.most))
		}
		p(`<path class="%s" stroke-dasharray="%s" d="%s"/>`, l.class(), cmp.Or(dashes[l.name], "none"), path.String())
		for _, at := range l.points {
			p(`<circle class="%s" cx="%.1f" cy="%.1f" r="2.5"/>`, map[bool]string{true: "owndot", false: "dot"}[l.name == ours], x(at.x), y(at.median))
		}
		end := l.points[len(l.points)-1]
		names = append(names, name{l.name + "  " + short1(rounded(end.median)), map[bool]string{true: "ownname"}[l.name == ours], x(end.x), y(end.median), y(end.median)})
	}
	slices.SortStableFunc(names, func(a, b name) int { return cmp.Compare(a.y, b.y) })
	for i := range names { // downwards as far as they need, and up again from the bottom
		names[i].at = max(names[i].at, chartTop+4)
		if i > 0 {
			names[i].at = max(names[i].at, names[i-1].at+chartNames)
		}
	}
	bottom := float64(chartHeight - chartBottom) // the numbers of the x-axis are below
	for i := len(names) - 1; i >= 0; i-- {
		names[i].at = min(names[i].at, bottom)
		bottom = names[i].at - chartNames
	}
	for _, n := range names {
		p(`<path class="lead" d="M%.1f %.1fL%d %.1f"/><text class="%s" x="%d" y="%.1f">%s</text>`, n.x+4, n.y, chartWidth-chartRight+18, n.at, n.class,
			chartWidth-chartRight+21, n.at+5, html.EscapeString(n.text))
	}
	p(`<text x="6" y="%d">%s</text>`, chartTop-9, html.EscapeString(c.y))
	p("</svg>")
	return b.String()
}

func (l chartLine) class() string {
	if l.name == ours {
		return "own"
	}
	return "peer"
}

// rounded has three digits.
func rounded(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return r
}

func short1(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// ticks are four to eight round numbers, or the powers of ten.
func ticks(low, high float64, log bool) (t []float64) {
	if log {
		decades := math.Log10(high / low)
		for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= low && v <= high && (m == 1 || decades < 2) {
					t = append(t, rounded(v))
				}
			}
		}
		return t
	}
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{5, 2} {
		if high/(step*m) >= 4 {
			step *= m
			break
		}
	}
	for v := 0.0; v <= high; v += step {
		t = append(t, rounded(v))
	}
	return t
}
