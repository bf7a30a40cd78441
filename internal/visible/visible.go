// Package visible escapes a text of others for a line of an error, a log or a terminal: no character of the result moves
// the cursor, begins a line, changes the order of characters, or is invisible.
package visible

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// unseen are invisible characters that unicode.IsPrint reports as printable: text can be hidden in them.
var unseen = []*unicode.RangeTable{unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point}

// Is reports whether a character is visible: letters of every script, marks, digits, symbols and the space.
func Is(r rune) bool { return unicode.IsPrint(r) && !unicode.In(r, unseen...) }

// Text returns a text with all other characters as escapes of Go, such as \n, \x1b and \u202e. A second call changes
// nothing.
func Text(text string) string { return Cut(text, -1) }

// Cut returns the beginning of Text, at most a number of bytes; with a negative number all of it. It cuts no escape and no
// character.
func Cut(text string, most int) string {
	if plain(text) && (most < 0 || len(text) <= most) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		part := text[i : i+size]
		if r == utf8.RuneError && size == 1 {
			part = fmt.Sprintf(`\x%02x`, part[0])
		} else if !Is(r) {
			part = escape(r)
		}
		if most >= 0 && b.Len()+len(part) > most {
			break
		}
		b.WriteString(part)
		i += size
	}
	return b.String()
}

// plain reports whether a text consists of visible ASCII characters, as most do.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

func escape(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\r':
		return `\r`
	case r == '\t':
		return `\t`
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r <= 0xffff:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}
