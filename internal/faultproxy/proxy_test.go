package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 5 * time.Second        // for what must happen
	silence  = 100 * time.Millisecond // for what must not
)

// each runs the scenario in both protocols.
func each(t *testing.T, scenario func(t *testing.T, f *fixture)) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			m := miniredis.RunT(t)
			scenario(t, &fixture{T: t, m: m, p: New(t, m.Addr()), protocol: protocol})
		})
	}
}

type fixture struct {
	*testing.T
	m        *miniredis.Miniredis
	p        *Proxy
	protocol int
}

// client gives up after readTimeout and never retries.
func (f *fixture) client(readTimeout time.Duration) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: f.p.Addr(), Protocol: f.protocol, DB: 1,
		MaxRetries: -1, DialerRetries: 1, ReadTimeout: readTimeout,
	})
	f.Cleanup(func() { c.Close() })
	return c
}

// subscribe returns after the confirmation.
func (f *fixture) subscribe(channels ...string) *redis.PubSub {
	f.Helper()
	ps := f.client(patience).Subscribe(context.Background(), channels...)
	f.Cleanup(func() { ps.Close() })
	for range channels {
		if got, err := ps.ReceiveTimeout(context.Background(), patience); err != nil {
			f.Fatalf("subscribe: %v, %v", got, err)
		}
	}
	return ps
}

func (f *fixture) get(key string) string {
	f.Helper()
	v, err := f.m.DB(1).Get(key)
	if err != nil && !errors.Is(err, miniredis.ErrKeyNotFound) {
		f.Fatal(err)
	}
	return v
}

func (f *fixture) wantValue(key, want string) {
	f.Helper()
	if got := f.get(key); got != want {
		f.Fatalf("%s is %q, want %q", key, got, want)
	}
}

// eventually is for what the proxy does after the client has given up.
func (f *fixture) eventually(what string, ok func() bool) {
	f.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("never: %s", what)
		}
	}
}

// on does action to the commands of this name.
func on(name string, action Action) func(Command) Action {
	return func(c Command) Action {
		if c.Name == name {
			return action
		}
		return Pass
	}
}

func named(name string) func(Command) bool {
	return func(c Command) bool { return c.Name == name }
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// raw speaks RESP2 by hand, where a client would be too clever.
type raw struct {
	*fixture
	net.Conn
	r *bufio.Reader
}

func (f *fixture) raw() *raw {
	f.Helper()
	c, err := net.Dial("tcp", f.p.Addr())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	r := &raw{f, c, bufio.NewReader(c)}
	hello := "SELECT 1"
	if f.protocol == 3 {
		hello = "HELLO 3\n" + hello
		defer r.read()
	}
	r.write(hello)
	r.read()
	return r
}

// write sends one command per line, all at once.
func (r *raw) write(lines string) {
	r.Helper()
	var out strings.Builder
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		fmt.Fprintf(&out, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&out, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	if _, err := r.Conn.Write([]byte(out.String())); err != nil {
		r.Fatal(err)
	}
}

func (r *raw) read() string {
	r.Helper()
	r.SetReadDeadline(time.Now().Add(patience))
	got, err := readFrame(r.r)
	if err != nil {
		r.Fatal(err)
	}
	return string(got)
}

func (r *raw) wantReplies(want ...string) {
	r.Helper()
	for i, w := range want {
		if got := r.read(); got != w+"\r\n" {
			r.Fatalf("reply %d is %q, want %q", i, got, w)
		}
	}
}

func (r *raw) wantReset() {
	r.Helper()
	r.SetReadDeadline(time.Now().Add(patience))
	if got, err := readFrame(r.r); !errors.Is(err, syscall.ECONNRESET) {
		r.Fatalf("got %q, %v; want a reset", got, err)
	}
}

func (r *raw) wantSilence() {
	r.Helper()
	r.SetReadDeadline(time.Now().Add(silence))
	if got, err := readFrame(r.r); !isTimeout(err) {
		r.Fatalf("got %q, %v; want nothing", got, err)
	}
}

func TestPassIsTransparentAndRecorded(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c, ctx := f.client(patience), context.Background()
		if got, err := redis.NewScript("return {KEYS[1], 7, false}").Run(ctx, c, []string{"k"}).Slice(); err != nil || len(got) != 3 {
			t.Fatal(got, err)
		}
		sha := redis.NewScript("return {KEYS[1], 7, false}").Hash()
		if n := f.p.Count(func(c Command) bool { return c.IsScript(sha) }); n != 2 {
			t.Fatalf("evalsha and eval are counted as %d", n)
		}
		if f.p.Count(named("select")) != 1 {
			t.Fatalf("no handshake in %v", f.p.Commands())
		}
		f.p.ResetLog()
		if _, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Incr(ctx, "n").Err() }); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(f.p.Commands()); got != `[#1 multi [] #1 incr ["n"] #1 exec []]` {
			t.Fatal(got)
		}
	})
}

func TestSwallowReplyExecutesOnceAndTheClientTimesOut(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("incr", SwallowReply))
		if err := f.client(silence).Incr(context.Background(), "n").Err(); !isTimeout(err) {
			t.Fatalf("got %v, want an i/o timeout", err)
		}
		f.wantValue("n", "1")
	})
}

func TestSwallowReplyKeepsTheConnectionInStep(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		r := f.raw()
		f.p.Handle(on("incr", SwallowReply))
		r.write("INCR n")
		r.wantSilence()
		f.p.Handle(nil)
		r.write("DECR n\nDECR n")
		r.wantReplies(":0", ":-1")
	})
}

func TestResetAfterExecutesOnceAndTheClientSeesAReset(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("incr", ResetAfter))
		if err := f.client(patience).Incr(context.Background(), "n").Err(); !isClosed(err) {
			t.Fatalf("got %v, want a closed connection", err)
		}
		f.wantValue("n", "1")

		r := f.raw()
		r.write("DECR n\nINCR n\nDECR n")
		r.wantReplies(":0")
		r.wantReset()
		f.wantValue("n", "1") // the DECR behind the reset did not run
	})
}

func TestResetBeforeDoesNotExecute(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("incr", ResetBefore))
		if err := f.client(patience).Incr(context.Background(), "n").Err(); !isClosed(err) {
			t.Fatalf("got %v, want a closed connection", err)
		}
		f.wantValue("n", "")

		r := f.raw()
		r.write("DECR n\nINCR n\nDECR n")
		r.wantReplies(":-1")
		r.wantReset()
		f.wantValue("n", "-1")
	})
}

func TestDuplicateExecutesTwiceAndReturnsTheFirstReply(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("incr", Duplicate))
		c, ctx := f.client(patience), context.Background()
		if n, err := c.Incr(ctx, "n").Result(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := c.Decr(ctx, "n").Result(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	})
}

func TestErrorDoesNotExecute(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("incr", Error))
		c, ctx := f.client(patience), context.Background()
		if err := c.Incr(ctx, "n").Err(); !redis.HasErrorPrefix(err, "LOADING") {
			t.Fatal(err)
		}
		f.wantValue("n", "")
		r := f.raw()
		r.write("DECR n\nINCR n\nDECR n")
		r.wantReplies(":-1", DefaultErrorText, ":-2")
	})
}

func TestHeldCommandsRunLateInOrderAndInTheirDatabase(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Handle(on("append", Hold))
		a, b, ctx := f.client(silence), f.client(silence), context.Background()
		for i, c := range []*redis.Client{a, b, a} {
			if err := c.Append(ctx, "s", fmt.Sprint(i)).Err(); !isTimeout(err) {
				t.Fatalf("got %v, want an i/o timeout", err)
			}
		}
		f.wantValue("s", "")
		if n := f.p.Held(); n != 3 {
			t.Fatalf("holds %d", n)
		}
		if n := f.p.Release(); n != 3 {
			t.Fatalf("released %d", n)
		}
		if n := f.p.Held(); n != 0 {
			t.Fatalf("holds %d after their release", n)
		}
		f.wantValue("s", "012")
		if n := f.p.Release(); n != 0 {
			t.Fatalf("released %d once more", n)
		}
	})
}

func TestReplayRunsACommandAgain(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.m.RequireAuth("secret")
		c := redis.NewClient(&redis.Options{Addr: f.p.Addr(), Protocol: f.protocol, DB: 1, Password: "secret", MaxRetries: -1})
		defer c.Close()
		if err := c.Incr(context.Background(), "n").Err(); err != nil {
			t.Fatal(err)
		}
		all := f.p.Commands()
		last := all[len(all)-1]
		if err := f.p.Replay(last); err != nil || last.Name != "incr" {
			t.Fatal(last, err)
		}
		f.wantValue("n", "2")
		f.m.Close()
		if err := f.p.Replay(last); err == nil {
			t.Fatal("replayed to nobody")
		}
	})
}

func TestBlackholeLosesBothDirections(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		ps, idle, busy, ctx := f.subscribe("ch"), f.raw(), f.raw(), context.Background()
		f.p.Blackhole(true)

		if n := f.m.Publish("ch", "lost"); n != 1 {
			t.Fatalf("%d subscribers", n)
		}
		if got, err := ps.ReceiveTimeout(ctx, silence); !isTimeout(err) {
			t.Fatalf("received %v, %v", got, err)
		}
		busy.write("INCR n")
		busy.wantSilence()
		if err := f.client(silence).Incr(ctx, "n").Err(); !isTimeout(err) {
			t.Fatalf("new connection: %v", err)
		}

		f.p.Blackhole(false)
		busy.wantReset()
		idle.write("DECR n")
		idle.wantReplies(":-1") // nothing was executed, and the idle one lives
	})
}

func TestBlackholeHidesThatTheClientHasGone(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		r := f.raw()
		r.write("SUBSCRIBE ch")
		r.read()
		f.p.Blackhole(true)
		r.Close()
		time.Sleep(silence)
		if n := f.m.Publish("ch", "x"); n != 1 {
			t.Fatalf("the server has %d subscribers", n)
		}
		f.p.Blackhole(false)
		f.eventually("the server notices", func() bool { return f.m.Publish("ch", "x") == 0 })
	})
}

func TestRefuseAndListenAgain(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c, old, ctx := f.client(patience), f.raw(), context.Background()
		for range 3 {
			f.p.Refuse(true)
			f.p.Refuse(true)
			if err := c.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("got %v, want refused", err)
			}
			f.p.Refuse(false)
			f.p.Refuse(false)
			f.eventually("connects again", func() bool { return c.Ping(ctx).Err() == nil })
		}
		old.wantReset()
	})
}

func TestRefusedUntilTheEndLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) { f.p.Refuse(true) })
}

func TestResetAllAndUpstream(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		other := miniredis.RunT(t)
		r := f.raw()
		f.p.Upstream(other.Addr())
		r.write("INCR n")
		r.wantReplies(":1")
		f.wantValue("n", "1")
		f.p.ResetAll()
		r.wantReset()
		r = f.raw()
		r.write("INCR n\nINCR n")
		r.wantReplies(":1", ":2")
		f.wantValue("n", "1")
	})
}

func TestUpstreamGoneClosesTheClient(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		r := f.raw()
		f.m.Close()
		r.SetReadDeadline(time.Now().Add(patience))
		if _, err := readFrame(r.r); !isClosed(err) {
			t.Fatal(err)
		}
		if err := f.client(patience).Ping(context.Background()).Err(); !isClosed(err) {
			t.Fatal(err)
		}
	})
}

func TestDropMessagesKeepsEverythingElse(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		ps, ctx := f.subscribe("a", "b"), context.Background()
		receive := func() string {
			t.Helper()
			got, err := ps.ReceiveTimeout(ctx, patience)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%T %v", got, got)
		}
		f.p.DropMessages(true)
		f.m.Publish("a", "lost")
		for _, err := range []error{ps.Ping(ctx), ps.PSubscribe(ctx, "a*"), ps.Unsubscribe(ctx, "b")} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []string{"*redis.Pong Pong", "*redis.Subscription psubscribe: a*", "*redis.Subscription unsubscribe: b"} {
			if got := receive(); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		}
		f.m.Publish("a", "lost too")
		if err := ps.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if got := receive(); got != "*redis.Pong Pong" {
			t.Fatal(got)
		}
		// miniredis sends messages from another goroutine: one may come after
		// the PONG.
		if got, err := ps.ReceiveTimeout(ctx, silence); !isTimeout(err) {
			t.Fatalf("received %v, %v", got, err)
		}
		f.p.DropMessages(false)
		f.m.Publish("b", "nobody")
		f.m.Publish("a", "heard")
		if got := receive(); got != "*redis.Message Message<a: heard>" {
			t.Fatal(got)
		}
	})
}

func TestActionsOnASubscriber(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		r := f.raw()
		mark := "*"
		if f.protocol == 3 {
			mark = ">"
		}
		confirmed := func(channel string, n int) string {
			return fmt.Sprintf("%s3\r\n$9\r\nsubscribe\r\n$1\r\n%s\r\n:%d", mark, channel, n)
		}
		f.p.Handle(func(c Command) Action {
			switch {
			case c.Name == "subscribe" && c.Args[0] == "b":
				return SwallowReply
			case c.Name == "subscribe" && c.Args[0] == "d":
				return ResetAfter
			case c.Name == "subscribe" && c.Args[0] == "f":
				return Error
			}
			return Pass
		})
		// Three confirmations, none for the next two, the error, one.
		r.write("SUBSCRIBE a x y\nSUBSCRIBE b c\nSUBSCRIBE f\nSUBSCRIBE g")
		r.wantReplies(confirmed("a", 1), confirmed("x", 2), confirmed("y", 3), DefaultErrorText, confirmed("g", 6))
		if f.m.Publish("c", "hi") != 1 {
			t.Fatal("the swallowed subscription was not made")
		}
		r.wantReplies(mark + "3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi")
		f.p.Handle(on("ping", SwallowReply))
		r.write("PING")
		r.wantSilence()
		f.p.Handle(on("subscribe", ResetAfter))
		r.write("SUBSCRIBE d e")
		r.wantReset()
	})
}

func TestDelayKeepsOrderAndRunsAfterTheClientHasGone(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		r := f.raw()
		f.p.Delay(func(c Command) time.Duration {
			if c.Name == "append" && c.Args[1] == "1" {
				return 2 * silence
			}
			return 0
		})
		r.write("APPEND s 1\nAPPEND s 2")
		r.wantSilence()
		f.wantValue("s", "")
		r.Close()
		f.eventually("late copies run", func() bool { return f.get("s") == "12" })
	})
}

func TestCloseDoesNotWait(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		f.p.Delay(func(c Command) time.Duration {
			if c.Name == "incr" {
				return time.Hour
			}
			return 0
		})
		f.p.Handle(on("blpop", Hold))
		delayed, blocked, held := f.raw(), f.raw(), f.raw()
		delayed.write("INCR n")
		held.write("BLPOP q 0")
		f.eventually("seen", func() bool { return f.p.Count(named("incr"))+f.p.Count(named("blpop")) == 2 })
		f.p.Handle(nil)
		blocked.write("BLPOP q 0")
		released := make(chan int, 1)
		go func() { released <- f.p.Release() }()
		start := time.Now()
		f.p.Close()
		f.p.Close()
		if d := time.Since(start); d > patience {
			t.Fatalf("took %v", d)
		}
		delayed.wantReset()
		<-released
		f.wantValue("n", "")
	})
}

// TestBigPipeline would hang if any direction waited for another, and shows a
// shifted reply as a wrong number.
func TestBigPipelineKeepsItsRepliesAroundADuplicate(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		const n = 10_000
		f.p.Handle(func(c Command) Action {
			if c.Name == "echo" && c.Args[0] == "5000"+padding {
				return Duplicate
			}
			return Pass
		})
		ctx := context.Background()
		cmds, err := f.client(10*patience).Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range n {
				p.Echo(ctx, fmt.Sprint(i)+padding)
			}
			return nil
		})
		if err != nil || len(cmds) != n {
			t.Fatal(len(cmds), err)
		}
		for i, c := range cmds {
			if got := c.(*redis.StringCmd).Val(); got != fmt.Sprint(i)+padding {
				t.Fatalf("reply %d is %.20q", i, got)
			}
		}
		if got := f.p.Count(named("echo")); got != n {
			t.Fatalf("%d recorded", got)
		}
	})
}

// padding makes the pipeline bigger than the kernel's buffers.
var padding = strings.Repeat("x", 1000)
