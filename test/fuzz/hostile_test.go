package fuzz

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-rlock/rlock"
)

// hostile is a server that answers each script with the same bytes, whatever they are, and other commands as an old
// Redis would.
type hostile struct{ answer []byte }

// serve answers the commands of a connection until that breaks. It reads on while nobody reads its answers, as a socket would:
// go-redis writes with a mutex held for which its reader waits.
func (h hostile) serve(conn net.Conn) {
	defer conn.Close()
	answers := make(chan []byte, 1000)
	defer close(answers)
	go func() {
		defer conn.Close()
		for answer := range answers {
			if _, err := conn.Write(answer); err != nil || len(answer) == 0 {
				return // closed instead of a reply
			}
		}
	}()
	in := bufio.NewReader(conn)
	for {
		name, err := readName(in)
		if err != nil || len(answers) == cap(answers) {
			return
		}
		switch name {
		case "evalsha", "eval", "evalsha_ro", "eval_ro":
			answers <- h.answer
		case "ping":
			answers <- []byte("+PONG\r\n")
		case "hello", "client":
			answers <- []byte("-ERR unknown command\r\n")
		default:
			answers <- []byte("+OK\r\n")
		}
	}
}

// readName reads a command, and returns its name.
func readName(in *bufio.Reader) (name string, err error) {
	number := func(kind byte) (n int, err error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, fmt.Errorf("%q: %w", line, io.ErrUnexpectedEOF)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	words, err := number('*')
	for i := 0; i < words && err == nil; i++ {
		var n int
		if n, err = number('$'); err != nil {
			break
		}
		word := make([]byte, n+2)
		if _, err = io.ReadFull(in, word); i == 0 {
			name = strings.ToLower(string(word[:n]))
		}
	}
	return name, err
}

// newHostile returns a client of a hostile server, in a bubble.
func newHostile(t *testing.T, answer []byte) *rlock.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", DialerRetries: 1, PoolSize: 100, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go hostile{answer}.serve(theirs)
			return ours, nil
		},
	})
	c, err := rlock.New(rdb, rlock.WithAnonymity())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = rdb.Close()
		time.Sleep(time.Minute) // what is under way ends
	})
	return c
}

// lengths matches the lengths in an answer. Go-redis allocates what a length says, before a byte of it has come: a process
// with a server that says 100 GB dies, whatever its library of locks does. So lengths have five digits at the most.
var lengths = regexp.MustCompile(`([$*%~=!>|][+-]?[0-9]{1,5})[0-9]*`)

// A server that answers scripts with anything causes no panic and no call that hangs, its errors can be told apart, and
// a lock is held only if there is a number in the answer.
func FuzzHostileServer(f *testing.F) {
	for _, answer := range []string{
		":1\r\n", ":946684800000000\r\n", ":0\r\n", ":-1\r\n", ":9223372036854775807\r\n", ":-9223372036854775808\r\n", ":99999999999999999999\r\n", "$-1\r\n", "*-1\r\n", "_\r\n",
		"+OK\r\n", "+1\r\n", "$0\r\n\r\n", "$5\r\n", "$99999999999\r\n", "-ERR\r\n", "-\r\n", "-NOSCRIPT No matching script\r\n", "-MOVED 1 127.0.0.1:2\r\n", "-READONLY\r\n", "-BUSY\r\n",
		"-LOADING\r\n", "-WRONGTYPE\r\n", "-CROSSSLOT\r\n", "-NOREPLICAS\r\n", "!3\r\nERR\r\n", "*0\r\n", "*1\r\n:1\r\n", "*2\r\n:1\r\n:5\r\n", "*2\r\n:0\r\n:30000\r\n",
		"*4\r\n:0\r\n:30000\r\n$1\r\nx\r\n:1\r\n", "*2\r\n:1\r\n$1\r\nx\r\n", "*2\r\n*1\r\n:1\r\n:1\r\n", "*3\r\n:-1\r\n:0\r\n$-1\r\n", "*2\r\n:-3\r\n:9223372036854775807\r\n", "*2\r\n:-7\r\n:0\r\n",
		"*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", "%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n", "=5\r\ntxt:x\r\n", ">2\r\n+a\r\n:1\r\n", "", "\r\n", "x", "*99999\r\n:1\r\n",
	} {
		for which := range len(hostileCalls(nil)) {
			f.Add([]byte(answer), uint8(which))
		}
	}
	f.Fuzz(func(t *testing.T, answer []byte, which uint8) {
		answer = lengths.ReplaceAll(answer, []byte("$1"))
		busy := time.AfterFunc(20*time.Second, func() { panic(fmt.Sprintf("a busy loop after the answer %q", answer)) }) // in real time
		defer busy.Stop()
		synctest.Test(t, func(t *testing.T) {
			calls := hostileCalls(newHostile(t, answer))
			checkHostile(t, answer, calls[int(which)%len(calls)])
		})
	})
}

// hostileCalls are calls of each type, and two that wait.
func hostileCalls(c *rlock.Client) []call {
	return append(callsOf(c, "a"),
		call{"Lock that waits", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewLock("a").Lock(ctx, rlock.WithWait(20*time.Second)))
		}},
		call{"FairLock that waits", func(ctx context.Context) (bool, error) {
			return ofLease(c.NewFairLock("a").Lock(ctx, rlock.WithWait(20*time.Second)))
		}})
}

func checkHostile(t *testing.T, answer []byte, call call) {
	began := time.Now()
	held, err := call.do(bg)
	switch {
	case held && !bytes.ContainsAny(answer, "0123456789"): // each grant has a token, a code or a number of permits
		t.Errorf("%s: held after the answer %q", call.what, answer)
	case !held && err == nil && call.what != "CountDownLatch" && call.what != "Once": // these two may be done already
		t.Errorf("%s: neither held nor an error after the answer %q", call.what, answer)
	case err != nil && !typed(err):
		t.Errorf("%s: the answer %q becomes %v, which is of no kind", call.what, answer, err)
	}
	if passed := time.Since(began); passed > 2*time.Minute {
		t.Errorf("%s: the answer %q took %v", call.what, answer, passed)
	}
}

func TestHostileServerReadsCommands(t *testing.T) {
	in := bufio.NewReader(bytes.NewBufferString("*2\r\n$7\r\nEVALSHA\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nping\r\n"))
	for _, want := range []string{"evalsha", "ping"} {
		if name, err := readName(in); name != want || err != nil {
			t.Errorf("%q, %v; want %q", name, err, want)
		}
	}
	if _, err := readName(in); err == nil {
		t.Error("a command after the end")
	}
}
