package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// curve is a figure of each peer along a measure: a chart, and a table of its points.
type curve struct {
	file, title     string
	measure, metric string
	x, y            string
	scale           float64 // of the figure in the chart
	logX, logY      bool
}

// curves are in the order of the text; those of one measure are one section there.
var curves = []curve{
	{"callers-throughput", "Own keys: pairs a second", "own", "pairs/s", "callers", "pairs/s", 1, true, false},
	{"callers-p99", "Own keys: 99 % of the pairs within", "own", "p99", "callers", "ms", 1e3, true, true},
	{"processes-throughput", "One key, 8 goroutines in each process: hand-overs a second", "processes", "hand-overs/s", "processes", "hand-overs/s", 1, true, false},
	{"processes-p99", "One key: 99 % of the waits within", "processes", "p99", "processes", "ms", 1e3, true, true},
	{"held-bytes", "Held locks: bytes each", "held", "each", "held locks", "bytes", 1, true, true},
	{"held-cores", "Held locks with a lease of 30 s: share of a core", "held", "cores", "held locks", "%", 100, true, true},
	{"waiters-bytes", "Idle waiters on up to 1,000 keys: bytes each", "waiters", "each", "waiters", "bytes", 1, true, true},
	{"waiters-commands", "Idle waiters on up to 1,000 keys: commands a second", "waiters", "commands/s", "waiters", "commands/s", 1, true, false},
	{"delay-p50", "A network that takes time: median of one caller's pairs", "delay, 1 caller", "p50", "round trip of the network, ms", "ms", 1e3, false, false},
	{"delay-throughput", "A network that takes time: pairs a second of 512 callers", "delay, 512 callers", "pairs/s", "round trip of the network, ms", "pairs/s", 1, false, true},
}

var hues = map[string]color.Color{
	pingName:  color.RGBA{A: 255},
	ours:      color.RGBA{R: 200, G: 30, B: 40, A: 255},
	rawName:   color.RGBA{R: 90, G: 90, B: 90, A: 255},
	autoName:  color.RGBA{R: 150, G: 150, B: 150, A: 255},
	batchName: color.RGBA{R: 190, G: 190, B: 190, A: 255},
	bsmName:   color.RGBA{R: 30, G: 110, B: 200, A: 255},
	syncName:  color.RGBA{R: 20, G: 150, B: 130, A: 255},
	rueidisN:  color.RGBA{R: 230, G: 140, B: 20, A: 255},
	redisson:  color.RGBA{R: 130, G: 70, B: 170, A: 255},
}

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }

// band is a line of medians with the range of the rounds at each point.
type band struct {
	plotter.XYs
	plotter.YErrors
}

// draw writes the chart, if there is more than one point.
func (c curve) draw(r *results, dir string) error {
	xs := r.points(c.measure)
	if len(xs) < 2 {
		return nil
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	p.Title.TextStyle.Font.Size, p.Title.Padding = 13, 8
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.TextStyle.Font.Size, legend.Padding = true, true, 9, vg.Points(4)
	p.Add(plotter.NewGrid())
	top := 0.0
	for _, name := range r.peersOf(c.measure) {
		var b band
		for _, x := range xs {
			v := r.get(c.measure, name, x, c.metric)
			low := v.Least
			if v.N == 0 || c.logY && v.Median <= 0 {
				continue
			}
			if c.logY && low <= 0 {
				low = v.Median
			}
			b.XYs = append(b.XYs, plotter.XY{X: x, Y: v.Median * c.scale})
			b.YErrors = append(b.YErrors, struct{ Low, High float64 }{(v.Median - low) * c.scale, (v.Most - v.Median) * c.scale})
			top = max(top, v.Most*c.scale)
		}
		if len(b.XYs) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(b.XYs)
		if err != nil {
			return err
		}
		bars, err := plotter.NewYErrorBars(b)
		if err != nil {
			return err
		}
		line.Color, line.Width = hues[name], vg.Points(1.2)
		if name == ours {
			line.Width = vg.Points(2.4)
		}
		points.Color, points.Shape, points.Radius = hues[name], draw.CircleGlyph{}, vg.Points(2)
		bars.Color, bars.CapWidth = hues[name], vg.Points(3)
		p.Add(bars, line, points)
		legend.Add(name, line, points)
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticksAt(xs))
	if c.logX {
		p.X.Scale = plot.LogScale{}
	}
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, logTicks{}
	} else {
		p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, top*1.05, plainTicks{}
	}
	if top == 0 {
		return nil // log or not, there is nothing to see
	}
	const width, height, beside = 8.4 * vg.Inch, 3.8 * vg.Inch, 1.8 * vg.Inch
	img := vgsvg.New(width, height)
	all := draw.New(img)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	legend.Draw(draw.Crop(all, width-beside+vg.Points(8), 0, 0, -vg.Points(24)))
	p.Draw(draw.Crop(all, vg.Points(6), -beside, vg.Points(4), -vg.Points(4)))
	f, err := os.Create(filepath.Join(dir, c.file+".svg"))
	if err != nil {
		return err
	}
	_, err = img.WriteTo(f)
	return errors.Join(err, f.Close())
}

func ticksAt(xs []float64) (t []plot.Tick) {
	for _, x := range xs {
		t = append(t, plot.Tick{Value: x, Label: short1(x)})
	}
	return t
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

type plainTicks struct{}

func (plainTicks) Ticks(low, high float64) []plot.Tick {
	t := plot.DefaultTicks{}.Ticks(low, high)
	for i := range t {
		if t[i].Label != "" {
			t[i].Label = short1(t[i].Value)
		}
	}
	return t
}

// logTicks labels each power of ten, and what is between as far as there is room.
type logTicks struct{}

func (logTicks) Ticks(low, high float64) (t []plot.Tick) {
	decades := math.Log10(high / low)
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			tick := plot.Tick{Value: v}
			if m == 1 || decades < 2 && (m == 2 || m == 5) {
				tick.Label = short1(v)
			}
			t = append(t, tick)
		}
	}
	return t
}

// knee is where a rate that grows stops to: the first point with nine tenths of the most.
func (r *results) knee(measure, peer, metric string) (x float64, at, most stat) {
	for _, p := range r.points(measure) {
		if v := r.get(measure, peer, p, metric); v.N > 0 && (most.N == 0 || v.Median > most.Median) {
			most = v
		}
	}
	for _, p := range r.points(measure) {
		if v := r.get(measure, peer, p, metric); v.N > 0 && v.Median >= 0.9*most.Median {
			return p, v, most
		}
	}
	return math.NaN(), most, most
}

// wall says what is busy at a point.
func (r *results) wall(measure, peer string, x float64) string {
	server, client := r.get(measure, peer, x, "server core").Median, r.get(measure, peer, x, "client cores").Median
	busy := fmt.Sprintf("the server's thread is busy for %s of the time and the clients use %s of a core", percent(server), percent(client))
	switch cores := r.cores(); {
	case math.IsNaN(server) || math.IsNaN(client):
		return ""
	case server >= 0.85:
		return busy + ": the server is the wall"
	case server+client >= 0.9*cores:
		return busy + fmt.Sprintf(": all %.0f cores of the machine are busy, which is the wall", cores)
	case client >= 0.9 && client > 2*server:
		return busy + ": the clients' work is the wall"
	}
	return busy + ": most of the time is spent on the way"
}

// bends says where the curves of a measure bend, and why, as far as the figures show it.
func (r *results) bends(measure string) (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch {
	case measure == "own" || measure == "processes":
		metric, of := "pairs/s", "callers"
		if measure == "processes" {
			metric, of = "hand-overs/s", "processes"
		}
		for _, p := range r.peersOf(measure) {
			x, at, most := r.knee(measure, p, metric)
			if at.N == 0 || p == batchName {
				continue
			}
			line := fmt.Sprintf("%s: %s %s at %.0f %s, of %s at the most", p, figure(metric, at.Median), metric, x, of, figure(metric, most.Median))
			if w := r.wall(measure, p, x); w != "" {
				line += "; there " + w
			}
			say("%s.", line)
			xs := r.points(measure)
			last := xs[len(xs)-1]
			if v := r.get(measure, p, last, metric); v.N > 0 && v.Median < 0.75*most.Median {
				say("%s falls to %s with %.0f %s.", p, figure(metric, v.Median), last, of)
			}
			for _, x := range xs {
				if v := r.get(measure, p, x, "hung"); v.N > 0 && v.Most > 0 {
					say("%s: with %.0f %s, up to %.0f goroutines got no answer within %v after the end.", p, x, of, v.Most, hang)
				}
			}
		}
	case measure == "held" || measure == "waiters":
		for _, p := range r.peersOf(measure) {
			var all []string
			for _, x := range r.points(measure) {
				v := r.get(measure, p, x, "each")
				if v.N == 0 {
					continue
				}
				text := fmt.Sprintf("%s each at %s", bytesOf(v.Median), thousands(x))
				if got := r.get(measure, p, x, "acquired"); got.N > 0 && got.Median < x {
					text += fmt.Sprintf(" (only %s were acquired within a minute: there it ends)", thousands(got.Median))
				}
				if lost := r.get(measure, p, x, "lost"); lost.N > 0 && lost.Most > 0 {
					text += fmt.Sprintf(" (%.0f lost: the renewals take longer than the lease)", lost.Most)
				}
				all = append(all, text)
			}
			say("%s: %s.", p, strings.Join(all, ", "))
		}
		if measure == "held" {
			say("A fixed part of each process, its connections and timers, weighs on the first points. Renewals grow with the holds, and so does the share of a core.")
			say("The peers stop where each hold has a goroutine or a timer of its own, and the next point would take gigabytes, or more time than a lease.")
		} else {
			say("Each waiter is a goroutine with a stack, whatever the library; the rest is what the library adds.")
		}
	case strings.HasPrefix(measure, "delay"):
		for _, p := range r.peersOf(measure) {
			trips := (r.get(measure, p, 10, "p50").Median - r.get(measure, p, 1, "p50").Median) / 9e-3
			if measure == "delay, 1 caller" && p != pingName && !math.IsNaN(trips) {
				say("%s: each millisecond of the network costs a pair %.1f ms.", p, trips)
			}
		}
	}
	return lines
}

// sections are the measures that have curves, in their order.
func sections() (measures []string) {
	for _, c := range curves {
		if !slices.Contains(measures, c.measure) {
			measures = append(measures, c.measure)
		}
	}
	return measures
}
