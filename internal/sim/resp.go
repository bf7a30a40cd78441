package sim

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// elementLen returns the length of the RESP value that b starts with, or 0 if
// it is not complete. Requests are values like any other. Faults hit whole
// requests and whole replies, so the network has to know where they end.
func elementLen(b []byte) int {
	eol := bytes.Index(b, []byte("\r\n"))
	if eol < 1 {
		return 0
	}
	end := eol + 2
	per := 1
	switch b[0] {
	case '$', '=', '!':
		n, _ := strconv.Atoi(string(b[1:eol]))
		if n < 0 {
			return end
		}
		if end += n + 2; end > len(b) {
			return 0
		}
		return end
	case '%', '|':
		per = 2
	case '*', '~', '>':
	default: // the simple types are one line
		return end
	}
	n, _ := strconv.Atoi(string(b[1:eol]))
	for range n * per {
		l := elementLen(b[end:])
		if l == 0 {
			return 0
		}
		end += l
	}
	return end
}

// words returns the bulk and simple strings of one array, at its top level:
// the words of a request, or the kind and channel of a message.
func words(b []byte) []string {
	var out []string
	rest := b[bytes.IndexByte(b, '\n')+1:]
	for len(rest) > 0 {
		n := elementLen(rest)
		if n == 0 {
			break
		}
		head := bytes.IndexByte(rest, '\n') + 1
		if rest[0] == '$' && n > head {
			out = append(out, string(rest[head:n-2]))
		} else {
			out = append(out, string(rest[1:head-2]))
		}
		rest = rest[n:]
	}
	return out
}

// sortChannels sorts the channels of a SUBSCRIBE. After a reset go-redis subscribes again
// in the random order of a map, and the same seed has to give the same run.
func sortChannels(b []byte) []byte {
	if verb(b) != "SUBSCRIBE" {
		return b
	}
	ws := words(b)
	slices.Sort(ws[1:])
	out := strconv.AppendInt([]byte("*"), int64(len(ws)), 10)
	for _, w := range ws {
		out = append(out, "\r\n$"...)
		out = strconv.AppendInt(out, int64(len(w)), 10)
		out = append(out, "\r\n"...)
		out = append(out, w...)
	}
	return append(out, "\r\n"...)
}

// verb returns the command of a request in upper case.
func verb(b []byte) string {
	if w := words(b); len(w) > 0 {
		return strings.ToUpper(w[0])
	}
	return ""
}

// isHandshake reports whether go-redis sends the command when it sets up a
// connection. Faults leave those alone: a client that cannot greet its server
// is irrelevant for locks.
func isHandshake(verb string) bool {
	switch verb {
	case "HELLO", "CLIENT", "AUTH", "SELECT":
		return true
	}
	return false
}

// isSubscription reports whether the command turns its connection into one for
// pub/sub, where replies are no longer paired with requests.
func isSubscription(verb string) bool {
	return strings.HasSuffix(verb, "SUBSCRIBE")
}

// mayRepeat reports whether a second execution of the command, alone and on
// another connection, means the same as the first. Blocking commands would wait
// forever on a connection that nobody closes; parts of a transaction mean
// nothing alone.
func mayRepeat(verb string) bool {
	switch verb {
	case "MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "WAIT", "XREAD", "XREADGROUP":
		return false
	}
	return !strings.HasPrefix(verb, "BL") && !strings.HasPrefix(verb, "BR") && !strings.HasPrefix(verb, "BZ")
}

// encode is the request of the given words.
func encode(words []string) []byte {
	b := strconv.AppendInt([]byte{'*'}, int64(len(words)), 10)
	for _, w := range words {
		b = append(b, "\r\n$"...)
		b = strconv.AppendInt(b, int64(len(w)), 10)
		b = append(b, "\r\n"...)
		b = append(b, w...)
	}
	return append(b, "\r\n"...)
}
