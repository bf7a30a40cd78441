package faultproxy

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"io"
	"slices"
	"strings"
	"testing"
)

var frames = []string{
	"+OK\r\n", "-ERR no\r\n", ":-12\r\n", "_\r\n", "#t\r\n", ",3.14\r\n", "(12345678901234567890\r\n",
	"$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "$4\r\na\r\nb\r\n", "=8\r\ntxt:some\r\n", "!5\r\nERR x\r\n",
	"*0\r\n", "*-1\r\n", "*2\r\n:1\r\n$1\r\na\r\n", "*2\r\n*1\r\n:1\r\n*2\r\n$-1\r\n_\r\n",
	"~2\r\n:1\r\n:2\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
	"|1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+a\r\n+b\r\n:1\r\n",
}

func TestReadFrameReturnsEachTypeWhole(t *testing.T) {
	// In one stream, so that a frame that ends early or late breaks the next.
	r := bufio.NewReader(strings.NewReader(strings.Join(frames, "")))
	for _, want := range frames {
		got, err := readFrame(r)
		if err != nil || string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	if _, err := readFrame(r); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
}

func TestReadFrameRejectsGarbage(t *testing.T) {
	for _, in := range []string{"x\r\n", "\r\n", "+OK\n", "$3\r\nabcd\r\n", "$x\r\n", "*-2\r\n", "$99999999999\r\n", "*1\r\n"} {
		if got, err := readFrame(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("%q: read %q", in, got)
		}
	}
}

func TestReadCommand(t *testing.T) {
	in := "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n" + "\r\n" + "*0\r\n" + "PING hello\r\n" + "*1\r\n$4\r\nquit\r\n"
	r := bufio.NewReader(strings.NewReader(in))
	for _, want := range []Command{
		{Name: "set", Args: []string{"k", "a\r\nb"}, Raw: []byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n")},
		{Name: "ping", Args: []string{"hello"}, Raw: []byte("PING hello\r\n")},
		{Name: "quit", Raw: []byte("*1\r\n$4\r\nquit\r\n")},
	} {
		got, err := readCommand(r)
		if err != nil || got.Name != want.Name || !slices.Equal(got.Args, want.Args) || !bytes.Equal(got.Raw, want.Raw) {
			t.Fatalf("got %v %q, %v; want %v", got, got.Raw, err, want)
		}
	}
}

func TestIsScriptKnowsHashAndText(t *testing.T) {
	const text = "return 1"
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	for _, c := range []Command{
		{Name: "evalsha", Args: []string{sha, "0"}},
		{Name: "evalsha_ro", Args: []string{strings.ToUpper(sha), "0"}},
		{Name: "eval", Args: []string{text, "0"}},
	} {
		if !c.IsScript(sha) {
			t.Errorf("%v is not seen", c)
		}
	}
	for _, c := range []Command{
		{Name: "evalsha"},
		{Name: "eval", Args: []string{"return 2", "0"}},
		{Name: "get", Args: []string{sha}},
	} {
		if c.IsScript(sha) {
			t.Errorf("%v is taken for it", c)
		}
	}
}

func TestKindOf(t *testing.T) {
	for in, want := range map[string]string{
		">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n": "message",
		"*3\r\n+SUBSCRIBE\r\n$1\r\nc\r\n:1\r\n":         "subscribe",
		"*1\r\n:1\r\n":                                  "",
		"*0\r\n":                                        "",
	} {
		if got := kindOf([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, s := range frames {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readFrame(bufio.NewReader(bytes.NewReader(in)))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(in, got) {
			t.Fatalf("%q is no prefix of %q", got, in)
		}
		kindOf(got)
	})
}
