package protocol

import (
	"errors"
	"strings"
)

// Patterns are those of Redis: * ? [ab] [^a-z], and \ before a character that stands for itself.

// escape makes a text a pattern that it alone matches.
func escape(text string) string {
	var out strings.Builder
	for i := range len(text) {
		if strings.IndexByte(`*?[]^-\`, text[i]) >= 0 {
			out.WriteByte('\\')
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// CheckPattern reports why a pattern has no clear meaning.
func CheckPattern(pattern string) error {
	for p := pattern; p != ""; {
		switch {
		case p == `\`:
			return errors.New(`it ends with a \`)
		case p[0] == '\\':
			p = p[2:]
		case p[0] == '[':
			var closed bool
			if _, p, closed = class(p, 0); !closed {
				return errors.New("it has a [ without a ]")
			}
		default:
			p = p[1:]
		}
	}
	return nil
}

// matches reports whether a text matches a pattern that CheckPattern accepts.
func matches(pattern, text string) bool {
	retry, from := "", -1 // after the latest *, and where it was tried last
	rest := text
	for {
		ok := false
		switch {
		case pattern == "":
			ok = rest == ""
			if ok {
				return true
			}
		case pattern[0] == '*':
			pattern = pattern[1:]
			retry, from = pattern, len(text)-len(rest)
			continue
		case rest == "":
		case pattern[0] == '?':
			pattern, rest, ok = pattern[1:], rest[1:], true
		case pattern[0] == '[':
			in, after, _ := class(pattern, rest[0])
			if ok = in; ok {
				pattern, rest = after, rest[1:]
			}
		default:
			if pattern[0] == '\\' {
				pattern = pattern[1:]
			}
			if ok = pattern[0] == rest[0]; ok {
				pattern, rest = pattern[1:], rest[1:]
			}
		}
		if ok {
			continue
		}
		if from < 0 || from == len(text) {
			return false
		}
		from++
		pattern, rest = retry, text[from:]
	}
}

// class reports whether a character is in the class with which a pattern begins, what follows the
// class, and whether it has an end.
func class(pattern string, c byte) (in bool, rest string, closed bool) {
	p := pattern[1:]
	not := strings.HasPrefix(p, "^")
	if not {
		p = p[1:]
	}
	for p != "" {
		switch {
		case p[0] == ']':
			return in != not, p[1:], true
		case p[0] == '\\' && len(p) >= 2:
			in = in || p[1] == c
			p = p[2:]
		case len(p) >= 3 && p[1] == '-':
			low, high := min(p[0], p[2]), max(p[0], p[2])
			in = in || low <= c && c <= high
			p = p[3:]
		default:
			in = in || p[0] == c
			p = p[1:]
		}
	}
	return false, "", false
}
