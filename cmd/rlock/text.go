package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

// line writes a line. Names, labels, reasons and errors are texts of others: they must not move the cursor or begin a new
// line.
func line(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(w, visible.Text(fmt.Sprintf(format, args...)))
	return err
}

// printJSON writes a line of JSON, in which each value is exact.
func printJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, visibleJSON(string(text)))
	return err
}

// visibleJSON returns the same JSON with all invisible characters escaped.
func visibleJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case visible.Is(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

// printable makes a label of a text: it keeps the letters of every script, and replaces invisible characters by _.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if !visible.Is(r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, text)
	return visible.Cut(text, rlock.MaxLabelLength)
}

// clip cuts a text of others to a number of columns of a terminal.
func clip(text string, most int) string {
	text = visible.Text(text)
	if columnsOf(text) <= most {
		return text
	}
	left := most - 1
	for i, r := range text {
		if left -= width(r); left < 0 {
			return text[:i] + "…"
		}
	}
	return text
}

// columnsOf returns how many columns a visible text takes on a terminal.
func columnsOf(text string) int {
	n := 0
	for _, r := range text {
		n += width(r)
	}
	return n
}

func width(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// wide has the characters that take two columns: East Asian ones, and pictures.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1100, 0x115f, 1}, {0x231a, 0x231b, 1}, {0x23e9, 0x23f3, 1}, {0x2614, 0x2615, 1}, {0x26a1, 0x26a1, 1}, {0x2705, 0x2705, 1},
		{0x2728, 0x2728, 1}, {0x274c, 0x274c, 1}, {0x2753, 0x2757, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0xa4cf, 1}, {0xa960, 0xa97f, 1},
		{0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff01, 0xff60, 1}, {0xffe0, 0xffe6, 1},
	},
	R32: []unicode.Range32{{0x16fe0, 0x18aff, 1}, {0x1b000, 0x1b2ff, 1}, {0x1f300, 0x1f64f, 1}, {0x1f680, 0x1f6ff, 1}, {0x1f900, 0x1faff, 1}, {0x20000, 0x3fffd, 1}},
}
