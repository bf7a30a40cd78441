package visible_test

import (
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/visible"
)

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":          "",
		"Jürgen 日本": "Jürgen 日本",
		"рабочий العربية हिन्दी ไทย": "рабочий العربية हिन्दी ไทย",
		"e\u0301 ✓ 🙂 €":              "e\u0301 ✓ 🙂 €",
		`C:\new \x1b "q"`:            `C:\new \x1b "q"`,
		"a\x1b[2Jb":                  `a\x1b[2Jb`,
		"\x07\x00\x7f":               `\x07\x00\x7f`,
		"a\nb\r\tc":                  `a\nb\r\tc`,
		"\u009b31m\u0085":            `\u009b31m\u0085`,
		"\xff\x9b31m":                `\xff\x9b31m`,
		"\u202e\u202a\u2066\u2069":   `\u202e\u202a\u2066\u2069`,
		"\u200e\u200f\u061c\u200b":   `\u200e\u200f\u061c\u200b`,
		"\u2028\u2029\ufeff\u00ad":   `\u2028\u2029\ufeff\u00ad`,
		"\U000e0041\U000e0101\ufe0f": `\U000e0041\U000e0101\ufe0f`, // tags and selectors, in which text can be hidden
		"\u3164\u115f\u00a0\u3000":   `\u3164\u115f\u00a0\u3000`,   // blanks that are letters, and other spaces
		"\ufffd":                     "\ufffd",
	} {
		got := visible.Text(text)
		if got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
		if again := visible.Text(got); again != got {
			t.Errorf("%q, once more: %q", got, again)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abc", 0, ""},
		{"日本", 5, "日"}, {"日本", 6, "日本"},
		{"a\u202eb", 6, "a"}, {"a\u202eb", 7, `a\u202e`}, {"a\u202eb", 8, `a\u202eb`},
		{"ab\xff", 3, "ab"},
		{strings.Repeat("\x1b", 8<<20), 10, `\x1b\x1b`},
	} {
		if got := visible.Cut(c.text, c.most); got != c.want {
			t.Errorf("%.20q in %d bytes is %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
