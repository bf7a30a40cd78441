package protocol

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Pattern is a pattern of Redis: * ? [ab] [^a-z], and \ before a literal character. Its characters are bytes.
type Pattern struct {
	text  string
	least int            // bytes of the shortest text that the pattern matches
	expr  *regexp.Regexp // matches texts in which each byte is converted to a character
}

// ParsePattern parses a pattern. It returns an error if the pattern has no clear meaning.
func ParsePattern(text string) (Pattern, error) {
	expr := []byte(`(?s)\A`)
	least := 0
	for p := text; p != ""; {
		c := p[0]
		p = p[1:]
		least++
		switch c {
		case '*':
			least--
			if p == "" || p[0] != '*' { // several have the meaning of one, and take a long time
				expr = append(expr, ".*"...)
			}
		case '?':
			expr = append(expr, '.')
		case '[':
			class, rest, closed := classIn(p)
			if !closed {
				return Pattern{}, errors.New("it has a [ without a ]")
			}
			expr, p = append(expr, class...), rest
		case '\\':
			if p == "" {
				return Pattern{}, errors.New(`it ends with a \`)
			}
			c, p = p[0], p[1:]
			fallthrough
		default:
			expr = fmt.Appendf(expr, `\x{%x}`, c)
		}
	}
	compiled, err := regexp.Compile(string(expr) + `\z`)
	return Pattern{text, least, compiled}, err
}

// classIn translates a class, without its [, to a regular expression. rest is the pattern after the ].
func classIn(p string) (class []byte, rest string, closed bool) {
	class = []byte("[")
	if strings.HasPrefix(p, "^") {
		class, p = append(class, '^'), p[1:]
	}
	class = append(class, `\x{100}`...) // no byte, but a class of an expression must not be empty
	for p != "" {
		first, last, n := p[0], p[0], 1
		switch {
		case p[0] == ']':
			return append(class, ']'), p[1:], true
		case p[0] == '\\' && len(p) >= 2:
			first, last, n = p[1], p[1], 2
		case len(p) >= 3 && p[1] == '-':
			first, last, n = min(p[0], p[2]), max(p[0], p[2]), 3
		}
		class = fmt.Appendf(class, `\x{%x}-\x{%x}`, first, last)
		p = p[n:]
	}
	return nil, "", false
}

func (p Pattern) matches(text string) bool {
	if len(text) < p.least {
		return false
	}
	characters := make([]rune, len(text))
	for i := range characters {
		characters[i] = rune(text[i])
	}
	return p.expr.MatchString(string(characters))
}

// escape returns a pattern that matches only the text.
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
