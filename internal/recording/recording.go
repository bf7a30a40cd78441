// Package recording draws what a program wrote on a terminal, line by line, for a page. Tests write such drawings.
package recording

import (
	"fmt"
	"slices"
	"strings"
)

// Begin returns the beginning of a drawing in SVG, up to its lines: the frame of a terminal, and the style. A line of the
// drawing is a text whose animation-name is at and its moment, in milliseconds.
//
// Lines appear at their moments and stay until the last one has been shown for some seconds. Then the drawing starts again,
// because a reader may see it long after it was loaded.
func Begin(width, height int, label, classes string, moments []int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">
<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre }
%s%s</style>
<rect width="%d" height="%d" rx="8" fill="#0b1622"/>
<circle cx="18" cy="14" r="5" fill="#ff5f57"/><circle cx="34" cy="14" r="5" fill="#febc2e"/><circle cx="50" cy="14" r="5" fill="#28c840"/>
`, width, height, width, height, label, classes, loop(moments), width, height)
}

func loop(moments []int) string {
	moments = slices.Compact(slices.Sorted(slices.Values(moments)))
	all := moments[len(moments)-1] + 6000
	var b strings.Builder
	fmt.Fprintf(&b, "text { animation: %dms step-end infinite }\n", all)
	for _, at := range moments {
		if at > 0 {
			fmt.Fprintf(&b, "@keyframes at%d { 0%% { opacity: 0 } %.2f%% { opacity: 1 } }\n", at, 100*float64(at)/float64(all))
		}
	}
	return b.String() + "@media (prefers-reduced-motion: reduce) { text { animation: none !important } }\n"
}
