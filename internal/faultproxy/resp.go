package faultproxy

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxBulk is Redis' own default for proto-max-bulk-len. A longer one means
// that the stream is out of step, and is better reported than waited for.
const maxBulk = 512 << 20

var errProtocol = errors.New("faultproxy: not RESP")

// Command is one command as a client sent it.
type Command struct {
	Name string   // lower case
	Args []string // without the name
	Raw  []byte   // the bytes as they arrived; not to be changed
	Conn int      // number of the client connection, from 1 in order of accept

	// setup is what came before on the same connection and decides what the
	// command means: a late copy must run as the same user, in the same
	// database and protocol.
	setup [][]byte
}

// IsScript reports whether the command runs the script with this SHA1, by
// hash or by text, in the read-only form too.
func (c Command) IsScript(sha string) bool {
	if len(c.Args) == 0 {
		return false
	}
	switch c.Name {
	case "evalsha", "evalsha_ro":
		return strings.EqualFold(c.Args[0], sha)
	case "eval", "eval_ro":
		sum := sha1.Sum([]byte(c.Args[0]))
		return strings.EqualFold(hex.EncodeToString(sum[:]), sha)
	}
	return false
}

// String is for failure messages.
func (c Command) String() string {
	return fmt.Sprintf("#%d %s %q", c.Conn, c.Name, c.Args)
}

// isSetup reports whether a command changes the meaning of later commands.
func (c Command) isSetup() bool {
	return c.Name == "hello" || c.Name == "auth" || c.Name == "select"
}

// confirmations is how many frames of kind c.Name the server answers with, 0
// for a command that has one ordinary reply. An unsubscribe without channels
// gets as many as there are subscriptions, which only the server knows; it
// counts as one, the others pass by.
func (c Command) confirmations() int {
	if !isConfirmation(c.Name) {
		return 0
	}
	return max(1, len(c.Args))
}

// subscribes reports whether the command makes its connection a subscriber.
func (c Command) subscribes() bool {
	return c.Name == "subscribe" || c.Name == "psubscribe" || c.Name == "ssubscribe"
}

func isConfirmation(kind string) bool {
	switch kind {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return true
	}
	return false
}

func isMessage(kind string) bool {
	return kind == "message" || kind == "pmessage" || kind == "smessage"
}

// readCommand reads one command, as an array of bulk strings or inline. It
// skips empty ones, which have no reply.
func readCommand(r *bufio.Reader) (Command, error) {
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return Command{}, err
		}
		raw := bytes.NewBuffer(line)
		var words []string
		if line[0] == '*' {
			words, err = readWords(r, raw, line)
			if err != nil {
				return Command{}, err
			}
		} else {
			words = strings.Fields(string(line))
		}
		if len(words) == 0 {
			continue
		}
		return Command{Name: strings.ToLower(words[0]), Args: words[1:], Raw: raw.Bytes()}, nil
	}
}

func readWords(r *bufio.Reader, raw *bytes.Buffer, head []byte) ([]string, error) {
	n, err := length(head)
	if err != nil {
		return nil, err
	}
	var words []string
	for range n {
		line, err := readLine(r, raw)
		if err != nil {
			return nil, err
		}
		if line[0] != '$' {
			return nil, errProtocol
		}
		size, err := length(line)
		if err != nil || size < 0 {
			return nil, errProtocol
		}
		start := raw.Len()
		if err := readBlob(r, raw, size); err != nil {
			return nil, err
		}
		words = append(words, string(raw.Bytes()[start:start+size]))
	}
	return words, nil
}

// readFrame reads one reply or push of RESP2 or RESP3 and returns its bytes.
// An attribute is part of the frame it precedes. Streamed aggregates are not
// read: no server sends them.
func readFrame(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	if err := copyFrame(r, &raw); err != nil {
		return nil, err
	}
	return raw.Bytes(), nil
}

func copyFrame(r *bufio.Reader, raw *bytes.Buffer) error {
	// pending counts the frames still to read: nesting needs no recursion, as
	// only the number of elements matters.
	for pending := 1; pending > 0; pending-- {
		line, err := readLine(r, raw)
		if err != nil {
			return err
		}
		switch line[0] {
		case '+', '-', ':', '_', '#', ',', '(':
		case '$', '=', '!':
			n, err := length(line)
			if err != nil {
				return err
			}
			if n >= 0 { // -1 is the null of RESP2
				if err := readBlob(r, raw, n); err != nil {
					return err
				}
			}
		case '*', '~', '>':
			n, err := length(line)
			if err != nil {
				return err
			}
			pending += max(n, 0)
		case '%':
			n, err := length(line)
			if err != nil {
				return err
			}
			pending += 2 * max(n, 0)
		case '|':
			n, err := length(line)
			if err != nil {
				return err
			}
			pending += 2*max(n, 0) + 1 // the frame it belongs to follows
		default:
			return errProtocol
		}
	}
	return nil
}

// readLine appends one line to raw and returns it, ending in CRLF.
func readLine(r *bufio.Reader, raw *bytes.Buffer) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	raw.Write(line)
	return line, nil
}

// readBlob appends n bytes and their CRLF to raw. It grows with the bytes that
// arrive, not with the length that was claimed.
func readBlob(r *bufio.Reader, raw *bytes.Buffer, n int) error {
	if _, err := io.CopyN(raw, r, int64(n)+2); err != nil {
		return err
	}
	if !bytes.HasSuffix(raw.Bytes(), []byte("\r\n")) {
		return errProtocol
	}
	return nil
}

func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if err != nil || n < -1 || n > maxBulk {
		return 0, errProtocol
	}
	return n, nil
}

// kindOf is the first element of a push or pub/sub array in lower case, "" if
// the frame does not start with a string.
func kindOf(frame []byte) string {
	_, rest, _ := bytes.Cut(frame, []byte("\r\n"))
	if len(rest) == 0 || (rest[0] != '$' && rest[0] != '+') {
		return ""
	}
	line, next, _ := bytes.Cut(rest, []byte("\r\n"))
	if line[0] == '$' {
		line, _, _ = bytes.Cut(next, []byte("\r\n"))
	} else {
		line = line[1:]
	}
	return strings.ToLower(string(line))
}

func isError(frame []byte) bool { return frame[0] == '-' || frame[0] == '!' }
