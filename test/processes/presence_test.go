package processes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func clientKey(prefix string, c *rlock.Client) string { return prefix + "rlock:client:" + c.ID()[:21] }

// here is how this process is shown with a label.
func here(label string) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s@%s (pid %d)", label, host, os.Getpid())
}

// sets counts SETs and GETRANGEs.
type sets struct{ set, read atomic.Int64 }

func (n *sets) hook() redis.Hook {
	count := func(cmd redis.Cmder) {
		switch cmd.Name() {
		case "set":
			n.set.Add(1)
		case "getrange":
			n.read.Add(1)
		}
	}
	return &locktest.ScriptHook{
		One: func(cmd redis.Cmder, next func() error) error { count(cmd); return next() },
		Pipe: func(cmds []redis.Cmder, next func() error) error {
			for _, cmd := range cmds {
				count(cmd)
			}
			return next()
		},
	}
}

// The key says which process it is, from the first hold on. A client that only asks has none.
func TestClientIntroducesItselfWithItsFirstHold(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := b.NewClient(t, rlock.WithPrefix("app:"), rlock.WithLabel("billing"))
		asks := b.NewClient(t, rlock.WithPrefix("app:"))
		key := clientKey("app:", c)
		lease := locktest.MustLock(t, c.NewLock("stock"))
		var text string
		locktest.Eventually(t, "it has introduced itself", func() bool {
			text = rdb.Get(bg, key).Val()
			return text != ""
		})
		var got struct {
			Label, Program, Host string
			PID                  int
			Started              time.Time
		}
		host, _ := os.Hostname()
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Label != "billing" || got.Host != host || got.PID != os.Getpid() ||
			!strings.Contains(os.Args[0], got.Program) || got.Program == "" || time.Since(got.Started) > time.Hour || got.Started.IsZero() {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if ttl := rdb.PTTL(bg, key).Val(); ttl <= 0 || ttl > 10*time.Minute {
			t.Errorf("it lasts for %v", ttl)
		}
		if _, err := asks.NewLock("stock").TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
			t.Error(err)
		}
		locktest.MustState(t, asks.NewLock("stock"))
		if err := asks.Close(); err != nil {
			t.Error(err)
		}
		if n := rdb.Exists(bg, clientKey("app:", asks)).Val(); n != 0 {
			t.Error("a client that holds nothing has a key")
		}
		locktest.MustUnlock(t, lease)
	})
}

func TestClientThatWaitsIntroducesItself(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb, c := b.Client(t), b.NewClient(t)
	held := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	next := locktest.Begin(t, bg, c.NewLock("a"))
	locktest.Eventually(t, "it has", func() bool { return rdb.Exists(bg, clientKey("", c)).Val() == 1 })
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, next.Held())
}

// The key is written again each three minutes or so while the client is in use, whatever has become of it; once for
// many holds; and not by an idle client.
func TestIntroductionIsRepeatedWhileTheClientIsInUse(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb, clock, n := b.Client(t), &locktest.Clock{}, &sets{}
	mine := b.Client(t)
	mine.AddHook(n.hook())
	c := locktest.NewClient(t, mine, clock.Option())
	there := func() bool { return rdb.Exists(bg, clientKey("", c)).Val() == 1 }
	var leases []*rlock.Lease
	for i := range 100 {
		leases = append(leases, locktest.MustLock(t, c.NewLock(fmt.Sprint("lock", i)), rlock.WithLease(10*time.Hour)))
	}
	locktest.Eventually(t, "it is there", there)
	for range 3 {
		clock.Rest(t) // a SET that minutes pass without an answer is sent again
		if err := rdb.FlushAll(bg).Err(); err != nil {
			t.Fatal(err)
		}
		clock.Forward(200 * time.Second)
		locktest.Eventually(t, "it is there after a flush", there)
	}
	if got := n.set.Load(); got != 4 {
		t.Errorf("%d SETs in ten minutes", got)
	}
	for _, lease := range leases {
		_ = lease.Unlock(bg)
	}
	rdb.Del(bg, clientKey("", c))
	for range 10 {
		clock.Forward(5 * time.Minute)
	}
	later := locktest.MustLock(t, c.NewLock("later"))
	locktest.Eventually(t, "it is there again", there)
	locktest.MustUnlock(t, later)
	if got := n.set.Load(); got > 6 {
		t.Errorf("%d SETs, though the client was idle for most of an hour", got)
	}
}

// Short holds, one after the other, cost no more than one write in three minutes.
func TestShortHoldsIntroduceTheClientOnce(t *testing.T) {
	t.Parallel()
	b, n := locktest.OnMiniredis(t), &sets{}
	rdb := b.Client(t)
	rdb.AddHook(n.hook())
	l := locktest.NewClient(t, rdb).NewLock("a")
	began := time.Now()
	for range 500 {
		locktest.Pair(t, l)
	}
	if got, most := n.set.Load(), 2+int64(time.Since(began)/(170*time.Second)); got > most {
		t.Errorf("%d SETs, want at most %d", got, most)
	}
}

// refusals calls TryLock until the error names the process of the holder, and returns that error.
func refusals(t *testing.T, l rlock.Locker) *rlock.Error {
	t.Helper()
	var e *rlock.Error
	locktest.Eventually(t, "the error names the process", func() bool {
		_, err := l.TryLock(bg)
		if !errors.Is(err, rlock.ErrNotAcquired) || !errors.As(err, &e) {
			t.Fatal(err)
		}
		return e.Process != rlock.Process{}
	})
	return e
}

// Whoever is refused, or inspects a lock, is told which process holds it.
func TestHolderIsNamedByItsProcess(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		holder, other := b.NewClient(t, rlock.WithLabel("billing")), b.NewClient(t)
		for _, k := range locktest.Types {
			l, asks := k.Blocker(holder, k.Name), k.Open(other, k.Name)
			lease := locktest.MustLock(t, l)
			e := refusals(t, asks)
			if e.Process.String() != here("billing") || e.HolderID != lease.HoldID() {
				t.Errorf("%s: %+v", k.Name, e)
			}
			if text := e.Error(); !strings.Contains(text, "not acquired: held by "+here("billing")+", ") || !strings.HasSuffix(text, "s of its lease left") {
				t.Errorf("%s: %v", k.Name, e)
			}
			s := locktest.MustState(t, asks)
			if len(s.Holders) != 1 || s.Holders[0].Process != e.Process {
				t.Errorf("%s: %+v", k.Name, s)
			}
			_, err := asks.Lock(bg, rlock.WithWait(200*time.Millisecond))
			if errors.Is(err, rlock.ErrNotAcquired) && !strings.Contains(err.Error(), "; held by "+here("billing")+", ") {
				t.Errorf("%s: %v", k.Name, err)
			}
			ctx, cancel := context.WithCancel(bg)
			states, err := asks.Watch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s := <-states; len(s.Holders) != 1 || s.Holders[0].Process != e.Process {
				t.Errorf("%s: a watch shows %+v", k.Name, s)
			}
			cancel()
			locktest.MustUnlock(t, lease)
		}
		election := holder.NewElection("job")
		lease, err := election.Campaign(bg, "value")
		if err != nil {
			t.Fatal(err)
		}
		if l, err := other.NewElection("job").Leader(bg); err != nil || l.Process.String() != here("billing") {
			t.Errorf("%+v, %v", l, err)
		}
		locktest.MustUnlock(t, lease)
		permits := locktest.MustSetPermits(t, holder.NewPermitSemaphore("permits"), 1)
		if lease, err = permits.Acquire(bg, 1); err != nil {
			t.Fatal(err)
		}
		_, err = other.NewPermitSemaphore("permits").TryAcquire(bg, 1)
		if e := new(rlock.Error); !errors.As(err, &e) || e.Process.String() != here("billing") || !strings.Contains(err.Error(), "; held by "+here("billing")) {
			t.Errorf("%v", err)
		}
		state, err := other.NewPermitSemaphore("permits").State(bg)
		if err != nil || len(state.Holders) != 1 || state.Holders[0].Process.String() != here("billing") {
			t.Errorf("%+v, %v", state, err)
		}
		locktest.MustUnlock(t, lease)
		locktest.MustLock(t, holder.NewLock("{m}2"))
		_, err = locktest.MultiLockOf(t, other, "{m}1", "{m}2").TryLock(bg)
		if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "held by "+here("billing")) {
			t.Errorf("%v", err)
		}
		_, err = locktest.MultiLockOf(t, other, "{m}2", "m").Lock(bg, rlock.WithWait(time.Second))
		if e := new(rlock.Error); !errors.As(err, &e) || e.Process.String() != here("billing") {
			t.Errorf("%v", err)
		}
	})
}

// The home of a RedLock, on whose server its key is, may be another node for each process: all nodes are asked.
func TestHolderOfARedLockIsNamed(t *testing.T) {
	t.Parallel()
	var servers []*locktest.Backend
	for range 3 {
		servers = append(servers, locktest.OnMiniredis(t))
	}
	clients := func(order ...int) (all []*rlock.Client) {
		for _, i := range order {
			all = append(all, servers[i].NewClient(t, rlock.WithLabel("billing")))
		}
		return all
	}
	mine, theirs := clients(0, 1, 2), clients(2, 0, 1)
	lease := locktest.MustLock(t, locktest.NewRedLock(t, "a", mine, rlock.WithNodeTimeout(5*time.Second)))
	e := refusals(t, locktest.NewRedLock(t, "a", theirs, rlock.WithNodeTimeout(5*time.Second)))
	if e.Process.String() != here("billing") {
		t.Errorf("%+v", e)
	}
	for i, b := range servers {
		if n := b.Client(t).Exists(bg, clientKey("", mine[0])).Val(); n == 1 != (i == 0) {
			t.Errorf("node %d has %d such keys", i, n)
		}
	}
	locktest.MustUnlock(t, lease)
}

// What is under the key may be anything.
func TestInvalidIntroductionIsIgnored(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 100_000)
	for name, content := range map[string]any{
		"empty": "", "no JSON": "hello", "binary": "\x00\xff\xfe{\"host\":\"a\"}", "a number": "7", "null": "null", "a list": `["a"]`,
		"another type": `{"host":7,"pid":"a"}`, "huge": strings.Repeat("x", 8<<20), "long host": `{"host":"` + long + `"}`, "deep": strings.Repeat("[", 5000),
		"no host": `{"label":"a"}`, "negative pid": `{"host":"a","pid":-1}`, "huge pid": `{"host":"a","pid":1e300}`, "no time": `{"host":"a","started":"yesterday"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				unknown(t, b, func(rdb redis.UniversalClient, key string) error { return rdb.Set(bg, key, content, 0).Err() })
			})
		})
	}
	t.Run("a hash", func(t *testing.T) {
		t.Parallel()
		locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
			unknown(t, b, func(rdb redis.UniversalClient, key string) error { return rdb.HSet(bg, key, "host", "a").Err() })
		})
	})
	t.Run("a forged line of a log", func(t *testing.T) {
		t.Parallel()
		b := locktest.OnMiniredis(t)
		holder, other := b.NewClient(t, rlock.WithAnonymity()), b.NewClient(t)
		locktest.MustLock(t, holder.NewLock("a"))
		forged := `{"label":"a\nERROR \u202e` + strings.Repeat("é", 100) + `","host":"b\u0000\r\n","pid":7,"started":"2026-11-23T14:41:00Z"}`
		b.Client(t).Set(bg, clientKey("", holder), forged, 0)
		e := refusals(t, other.NewLock("a"))
		want := rlock.Process{Label: `a\nERROR \u202e` + strings.Repeat("é", 24), Host: `b\x00\r\n`, PID: 7, Started: time.Date(2026, 11, 23, 14, 41, 0, 0, time.UTC)}
		if e.Process != want || strings.ContainsAny(e.Error(), "\r\n\x00\u202e") || len(e.Process.Label) > rlock.MaxLabelLength {
			t.Errorf("%+q", e.Process)
		}
	})
}

// unknown checks that a holder is shown by its id where its key has something else.
func unknown(t *testing.T, b *locktest.Backend, write func(rdb redis.UniversalClient, key string) error) {
	t.Helper()
	holder, other := b.NewClient(t, rlock.WithAnonymity()), b.NewClient(t)
	lease := locktest.MustLock(t, holder.NewLock("a"))
	if err := write(b.Client(t), clientKey("", holder)); err != nil {
		t.Fatal(err)
	}
	l := other.NewLock("a")
	if s := locktest.MustState(t, l); len(s.Holders) != 1 || s.Holders[0] != (rlock.Holder{HoldID: lease.HoldID(), Count: 1}) {
		t.Errorf("%+v", s)
	}
	_, err := l.TryLock(bg)
	var e *rlock.Error
	if !errors.As(err, &e) || e.Process != (rlock.Process{}) || !strings.Contains(err.Error(), "not acquired: held by "+lease.HoldID()+", ") {
		t.Errorf("%v", err)
	}
}

// A loop of refusals asks once who the holder is; or every two seconds, if that does not say so.
func TestRefusalsInALoopAskOnceForTheHolder(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for _, anonymous := range []bool{false, true} {
			var opts []rlock.Option
			if anonymous {
				opts = append(opts, rlock.WithAnonymity())
			}
			holder, n, name := b.NewClient(t, opts...), &sets{}, fmt.Sprint("lock", anonymous)
			rdb := b.Client(t)
			rdb.AddHook(n.hook())
			l := locktest.NewClient(t, rdb).NewLock(name)
			locktest.MustLock(t, holder.NewLock(name))
			if !anonymous {
				refusals(t, l)
			}
			before, began := n.read.Load(), time.Now()
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for range 100 {
						if _, err := l.TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			most := int64(0)
			if anonymous {
				most = 1 + int64(time.Since(began)/(2*time.Second))
			}
			if got := n.read.Load() - before; got > most {
				t.Errorf("anonymous %v: 1,000 refusals have asked %d times, want at most %d", anonymous, got, most)
			}
		}
	})
}

// Holds of Java, and those of its own client, are not asked for; and an anonymous client neither says
// who it is nor asks.
func TestHoldersOfJavaAndOfTheClientAreNotRequested(t *testing.T) {
	t.Parallel()
	b, n := locktest.OnMiniredis(t), &sets{}
	rdb := b.Client(t)
	rdb.AddHook(n.hook())
	c := locktest.NewClient(t, rdb, rlock.WithLabel("billing"))
	rdb.HSet(bg, "java", "1f3c9ad2-1111-4222-8333-444455556666:42", 1)
	rdb.PExpire(bg, "java", time.Hour)
	if _, err := c.NewLock("java").TryLock(bg); !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "held by 1f3c9ad2-1111-4222-8333-444455556666:42, ") {
		t.Error(err)
	}
	lease := locktest.MustLock(t, c.NewLock("own"))
	_, err := c.NewLock("own").TryLock(bg)
	if e := new(rlock.Error); !errors.As(err, &e) || e.Process.String() != here("billing") || !strings.Contains(err.Error(), "held by this client ("+lease.HoldID()+"), "+here("billing")+", ") {
		t.Errorf("%v", err)
	}
	if got := n.read.Load(); got != 0 {
		t.Errorf("it has asked %d times", got)
	}
	before := n.set.Load()
	silent := locktest.NewClient(t, rdb, rlock.WithAnonymity())
	locktest.MustLock(t, silent.NewLock("silent"))
	_, err = silent.NewLock("own").TryLock(bg)
	if e := new(rlock.Error); !errors.As(err, &e) || e.Process != (rlock.Process{}) {
		t.Errorf("%v", err)
	}
	if s := locktest.MustState(t, silent.NewLock("silent")); s.Holders[0].Process != (rlock.Process{}) {
		t.Errorf("%+v", s)
	}
	locktest.Stop(silent)
	if b.Client(t).Exists(bg, clientKey("", silent)).Val() != 0 || n.read.Load() != 0 || n.set.Load() > before+1 { // c's own may have been late
		t.Error("an anonymous client says who it is, or asks")
	}
}

// A look for the process that gets no answer delays a refusal for a moment only, and changes nothing else.
func TestRefusalDoesNotNeedTheAnswerWhoTheHolderIs(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	lease := locktest.MustLock(t, b.NewClient(t).NewLock("a"))
	c, proxy, _ := b.Faulty(t, rlock.WithCommandTimeout(locktest.Patient), rlock.WithUnlockTimeout(time.Second))
	proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
		if cmd.Name == "getrange" {
			return faultproxy.SwallowReply
		}
		return faultproxy.Pass
	})
	for range 3 {
		_, err := c.NewLock("a").TryLock(bg)
		locktest.WantErr(t, err, rlock.ErrNotAcquired, nil, rlock.ErrUnreachable)
		if !strings.Contains(err.Error(), "held by "+lease.HoldID()+", ") {
			t.Error(err)
		}
	}
	if s := locktest.MustState(t, c.NewLock("a")); s.Holders[0].HoldID != lease.HoldID() {
		t.Errorf("%+v", s)
	}
	if proxy.Count(func(cmd faultproxy.Command) bool { return cmd.Name == "getrange" }) == 0 {
		t.Error("it has not asked")
	}
}

// A user who may not write the key, or not read that of others, has locks all the same. The log says so
// once.
func TestLocksNeedNoPermissionForTheKeyOfAClient(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">password", "+@all", "-client|setname", "~lock:*", "~{lock:*", "&*", "~rlock:clock").Err(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	clock := &locktest.Clock{}
	open := func(opts ...rlock.Option) *rlock.Client {
		return locktest.NewClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "app", "password" }), opts...)
	}
	logged := open(rlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), clock.Option())
	other := open()
	var leases []*rlock.Lease
	for i := range 3 {
		leases = append(leases, locktest.MustLock(t, logged.NewLock(fmt.Sprint("lock:", i)), rlock.WithLease(10*time.Hour)))
		clock.Forward(2 * time.Minute)
	}
	_, err := other.NewLock("lock:0").TryLock(bg)
	if !errors.Is(err, rlock.ErrNotAcquired) || !strings.Contains(err.Error(), "held by "+leases[0].HoldID()) {
		t.Error(err)
	}
	next := locktest.Begin(t, bg, other.NewLock("lock:0"))
	locktest.Eventually(t, "it listens, on a connection without a name", func() bool {
		return len(admin.PubSubChannels(bg, "*").Val()) > 0
	})
	for _, lease := range leases {
		locktest.MustUnlock(t, lease)
	}
	locktest.MustUnlock(t, next.Held())
	if err := logged.Close(); err != nil {
		t.Error(err)
	}
	text := log.String()
	if strings.Count(text, "does not permit the client to say who it is") != 1 || !strings.Contains(text, logged.ID()) {
		t.Errorf("the log:\n%s", text)
	}
}

func TestLogSaysTheIDOfAClientOnce(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var log bytes.Buffer
	c := b.NewClient(t, rlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), rlock.WithLabel("billing"))
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=INFO") || !strings.Contains(text, "client.id="+c.ID()) || !strings.Contains(text, "label=billing") {
		t.Errorf("the log: %s", text)
	}
}

// CLIENT LIST tells whose connections those are that a client opens by itself.
func TestSubscribedConnectionsHaveAName(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	program := filepath.Base(os.Args[0])
	for name, test := range map[string]struct {
		opts  []rlock.Option
		redis func(o *redis.Options)
		want  string
	}{
		"label":     {[]rlock.Option{rlock.WithLabel("billing é 1")}, func(*redis.Options) {}, "rlock:billing___1"},
		"program":   {nil, func(*redis.Options) {}, "rlock:" + program},
		"RESP2":     {[]rlock.Option{rlock.WithLabel("two")}, func(o *redis.Options) { o.Protocol = 2 }, "rlock:two"},
		"own name":  {[]rlock.Option{rlock.WithLabel("three")}, func(o *redis.Options) { o.ClientName = "mine" }, "mine"},
		"anonymous": {[]rlock.Option{rlock.WithAnonymity(), rlock.WithLabel("four")}, func(*redis.Options) {}, ""},
	} {
		lease := locktest.MustLock(t, locktest.NewClient(t, s.Client()).NewLock(name))
		next := locktest.Begin(t, bg, locktest.NewClient(t, s.Client(test.redis), test.opts...).NewLock(name))
		listens := "" // the line of its connection
		locktest.Eventually(t, "it listens", func() bool {
			for line := range strings.Lines(admin.ClientList(bg).Val()) {
				if strings.Contains(line, " sub=1 ") && strings.Contains(line, " name="+test.want+" ") {
					listens = line
				}
			}
			return listens != ""
		})
		locktest.MustUnlock(t, lease)
		lease = next.Held()
		for line := range strings.Lines(admin.ClientList(bg).Val()) {
			if strings.Contains(line, " name=rlock:") && !strings.Contains(line, " sub=") {
				t.Errorf("%s: %s", name, line)
			}
		}
		locktest.MustUnlock(t, lease)
	}
}

// The Observer has it from the error of the acquire.
func TestAcquireEndNamesTheHolder(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var last atomic.Pointer[rlock.Error]
	c := b.NewClient(t, rlock.WithObserver(endsTo(func(e rlock.AcquireEvent) {
		var refused *rlock.Error
		errors.As(e.Err, &refused)
		last.Store(refused)
	})))
	locktest.MustLock(t, b.NewClient(t, rlock.WithLabel("billing")).NewLock("a"))
	refusals(t, c.NewLock("a"))
	if e := last.Load(); e == nil || e.Process.String() != here("billing") {
		t.Errorf("%+v", e)
	}
}

// endsTo is an Observer of the ends of acquires.
type endsTo func(e rlock.AcquireEvent)

func (endsTo) AcquireStart(ctx context.Context, _ rlock.StartEvent) context.Context { return ctx }
func (f endsTo) AcquireEnd(_ context.Context, e rlock.AcquireEvent)                 { f(e) }
func (endsTo) Lost(context.Context, rlock.LossEvent)                                {}
func (endsTo) Unlocked(context.Context, rlock.UnlockEvent)                          {}
