package telemetry

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-rlock/rlock"
)

const (
	// MostLabels is how many labels there are by default.
	MostLabels = 200
	// Other is the label of all locks above that.
	Other = "other"
	// longestLabel bounds labels, in bytes: a name may be 64 KiB long.
	longestLabel = 128
)

// Labels gives each lock a label, from a bounded number of labels.
type Labels struct {
	labelOf func(e rlock.Event) string // nil means Collapse
	most    int

	mu    sync.RWMutex // guards known
	known map[string]string
}

// NewLabels returns labels that a function makes of events; nil means Collapse.
func NewLabels(labelOf func(e rlock.Event) string, most int) *Labels {
	return &Labels{labelOf: labelOf, most: most, known: map[string]string{}}
}

// Of returns the label of a lock. It is always the same for the same lock: when there are enough labels, a new one is never
// added, so its locks stay Other.
func (l *Labels) Of(e rlock.Event) string {
	if l.labelOf == nil {
		var buf [longestLabel]byte
		key := appendCollapsed(buf[:0], e.Lock)
		l.mu.RLock()
		label, ok := l.known[string(key)]
		full := len(l.known) >= l.most
		l.mu.RUnlock()
		switch {
		case ok:
			return label
		case full:
			return Other
		}
		return l.add(string(key))
	}
	key := shortened(l.made(e))
	l.mu.RLock()
	label, ok := l.known[key]
	l.mu.RUnlock()
	if ok {
		return label
	}
	return l.add(key)
}

// made calls the user's function, and returns Other if it panics. Without that, the end of a hold might be counted, but not
// its beginning.
func (l *Labels) made(e rlock.Event) (label string) {
	defer func() {
		if recover() != nil {
			label = Other
		}
	}()
	return l.labelOf(e)
}

func (l *Labels) add(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if label, ok := l.known[key]; ok {
		return label
	}
	if len(l.known) >= l.most {
		return Other
	}
	key = strings.Clone(key) // it may be a part of a long name
	l.known[key] = key
	return key
}

// shortened makes a label of any text.
func shortened(s string) string {
	if len(s) > longestLabel {
		s = s[:longestLabel]
	}
	return strings.ToValidUTF8(s, "") // also where a rune was cut
}

// Name labels a lock with its name.
func Name(e rlock.Event) string { return e.Lock }

// Collapse makes a label of a name: UUIDs, runs of at least eight hexadecimal digits, and other
// numbers become asterisks.
func Collapse(name string) string {
	var buf [longestLabel]byte
	return string(appendCollapsed(buf[:0], name))
}

// shortestHex is the shortest run of hexadecimal digits that counts as one.
const shortestHex = 8

// appendCollapsed appends at most longestLabel bytes, of valid UTF-8.
func appendCollapsed(b []byte, name string) []byte {
	for i := 0; i < len(name); {
		if n := identifier(name[i:]); n > 0 {
			if len(b) == longestLabel {
				break
			}
			b = append(b, '*')
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(name[i:])
		if r != utf8.RuneError || n > 1 { // else it is not valid
			if len(b)+n > longestLabel {
				break
			}
			b = append(b, name[i:i+n]...)
		}
		i += n
	}
	return b
}

// identifier returns the length of the UUID, the long hexadecimal number or the decimal number at the beginning of s, or 0.
func identifier(s string) int {
	const uuid = 36
	hex := hexRun(s)
	if hex == 8 && len(s) >= uuid && s[8] == '-' && hexRun(s[9:]) == 4 && s[13] == '-' && hexRun(s[14:]) == 4 &&
		s[18] == '-' && hexRun(s[19:]) == 4 && s[23] == '-' && hexRun(s[24:]) >= 12 {
		return 24 + hexRun(s[24:])
	}
	if hex >= shortestHex {
		return hex
	}
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

func hexRun(s string) (n int) {
	for n < len(s) && isHex(s[n]) {
		n++
	}
	return n
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
