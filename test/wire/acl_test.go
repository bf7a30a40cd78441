package wire

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

const aclPage = "../../docs/acl.md"

var updateACL = flag.Bool("acl.update", false, "write the users of docs/acl.md anew")

// aclType is a type of lock as an operator sees it: what a user of it needs.
type aclType struct {
	name string // the heading in docs/acl.md
	keys string // and channels
	// commands beside EVAL, EVALSHA and those in its scripts
	commands []string
	nodes    int // servers; 0 is 1
	open     func(c []*rlock.Client, name string) []rlock.Locker
	opts     []rlock.Option
	use      func(t *testing.T, sent *aclSent, mine, theirs *rlock.Client) // instead of open
	asks     bool                                                          // holders are asked to release it
	turns    bool                                                          // a release can make a waiter of another client the holder
	slow     bool                                                          // it waits for leases to end, and is left to .ci/run
	// queues opens a lock whose release makes the next waiter of the client the holder.
	queues func(c *rlock.Client, name string) locktest.AnyLock
}

const aclLock = "~app:* ~{app:* &redisson_lock__channel:{app:*"

var aclTypes = []aclType{
	{name: "Lock", keys: aclLock, commands: pubsub, turns: true,
		open: func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewLock(name)} }},
	{name: "FencedLock", keys: aclLock + " ~redisson_lock_token:{app:*", commands: append([]string{"get"}, pubsub...), turns: true,
		open: func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewFencedLock(name)} }},
	{name: "SpinLock", keys: "~app:* ~{app:*",
		open: func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewSpinLock(name)} }},
	{name: "FairLock", keys: aclLock + " ~redisson_lock_queue:{app:* ~redisson_lock_timeout:{app:*", commands: pubsub,
		open:   func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewFairLock(name)} },
		queues: func(c *rlock.Client, name string) locktest.AnyLock { return c.NewFairLock(name) }},
	{name: "ReadWriteLock", slow: true, keys: "~app:* ~{app:* &redisson_rwlock:{app:*", commands: pubsub,
		open: func(c []*rlock.Client, name string) []rlock.Locker {
			l := c[0].NewReadWriteLock(name)
			plain := c[0].NewReadWriteLock(name+" of Redisson's kind", rlock.WithReaderPreference())
			return []rlock.Locker{l.Writer, l.Reader, plain.Writer, plain.Reader}
		}},
	{name: "FairReadWriteLock", keys: "~app:* ~{app:* &{app:*", commands: pubsub,
		open: func(c []*rlock.Client, name string) []rlock.Locker {
			l := c[0].NewFairReadWriteLock(name)
			return []rlock.Locker{l.Writer, l.Reader}
		},
		queues: func(c *rlock.Client, name string) locktest.AnyLock { return locktest.FairWrite(c, name) }},
	{name: "PriorityLock", keys: "~app:* ~{app:* &{app:*", commands: pubsub,
		open:   func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewPriorityLock(name)} },
		queues: func(c *rlock.Client, name string) locktest.AnyLock { return c.NewPriorityLock(name) }},
	{name: "Election", keys: "~app:* ~{app:* &{app:*", commands: pubsub,
		open: func(c []*rlock.Client, name string) []rlock.Locker {
			return []rlock.Locker{locktest.Electing{Election: c[0].NewElection(name)}}
		}},
	{name: "PermitSemaphore", keys: "~app:* ~{app:* &redisson_sc:{app:*", commands: pubsub, use: usePermits()},
	{name: "PermitSemaphore with WithFairness", keys: "~app:* ~{app:* &{app:*", commands: pubsub, use: usePermits(rlock.WithFairness())},
	{name: "Once", keys: "~app:* ~{app:* &{app:*", commands: pubsub, use: aclUseOnce},
	{name: "CronJob", keys: "~app:* ~{app:* &{app:*", commands: pubsub, use: aclUseCron},
	{name: "DoubleBarrier", keys: "~app:* ~{app:* &{app:*", commands: pubsub, use: aclUseDoubleBarrier},
	// In a cluster each slot's members are released by themselves, and a Lock that is alone there stands by.
	{name: "MultiLock of Locks", keys: aclLock + " &redisson_lock__channel:app:*", commands: append([]string{"getdel", "pubsub|numsub"}, pubsub...), turns: true,
		open: func(c []*rlock.Client, name string) []rlock.Locker {
			l, err := rlock.NewMultiLock([]rlock.Locker{c[0].NewLock("{x}" + name), c[0].NewLock("{x}2" + name), c[0].NewLock("other " + name)})
			if err != nil {
				panic(err)
			}
			return []rlock.Locker{l}
		}},
	{name: "RedLock", nodes: 3, keys: "~{app:* ~app:rlock:red:* ~app:rlock:client:* &{app:*", commands: pubsub,
		open: aclRedLock()},
	{name: "RedLock with WithRestartQuarantine", slow: true, nodes: 3, keys: "~{app:* ~app:rlock:red:* ~app:rlock:client:* &{app:*", commands: append([]string{"info", "config|get"}, pubsub...),
		opts: []rlock.Option{rlock.WithWatchdogLease(30 * time.Second)},                        // the clocks may differ by a part of it
		open: aclRedLock(rlock.WithRestartQuarantine(), rlock.WithNodeTimeout(5*time.Second))}, // all three nodes have to vote
	{name: "Lock with WithFailoverQuarantine", slow: true, keys: aclLock, commands: append([]string{"info"}, pubsub...),
		opts: []rlock.Option{rlock.WithFailoverQuarantine(rlock.DefaultWatchdogLease), rlock.WithWatchdogLease(rlock.DefaultWatchdogLease)},
		open: func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewLock(name)} }},
	{name: "Semaphore", keys: "~app:* ~{app:* &redisson_sc:{app:*", commands: pubsub, use: aclSemaphore},
	{name: "CountDownLatch", keys: "~app:* ~{app:* &redisson_countdownlatch__channel__{app:*", commands: pubsub, use: aclLatch},
	{name: "Barrier", keys: "~{app:* &{app:*", commands: pubsub, use: aclBarrier},
	{name: "Lock with RequestRelease", keys: aclLock + " &{app:*", commands: pubsub, asks: true, turns: true,
		open: func(c []*rlock.Client, name string) []rlock.Locker { return []rlock.Locker{c[0].NewLock(name)} }},
}

// pubsub is what a subscribed connection sends; PING shows that it is alive, and it has a name.
var pubsub = []string{"client|setname", "ping", "subscribe", "unsubscribe", "publish"}

func aclRedLock(opts ...rlock.RedLockOption) func(c []*rlock.Client, name string) []rlock.Locker {
	return func(c []*rlock.Client, name string) []rlock.Locker {
		l, err := rlock.NewRedLock(name, c, opts...)
		if err != nil {
			panic(err)
		}
		return []rlock.Locker{l}
	}
}

// The users of docs/acl.md may do what the types need, and no command more: they
// are made exactly as they stand there.
func TestUsersOfTheACLPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(aclPage)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, k := range aclTypes {
		t.Run(k.name, func(t *testing.T) {
			if !*updateACL {
				if k.slow {
					locktest.Thorough(t)
				}
				t.Parallel()
			}
			servers := redistest.StartMasters(t, max(k.nodes, 1))
			if *updateACL {
				for _, s := range servers {
					aclDo(t, s.Client(), "ACL SETUSER app on >password +@all ~* &*")
				}
				sent := aclUse(t, k, servers)
				line := fmt.Sprintf("ACL SETUSER app on >password %s +%s", k.keys, strings.Join(aclCommands(t, k, sent), " +"))
				block := regexp.MustCompile("(?s)(\n## " + regexp.QuoteMeta(k.name) + "\n.*?```\n)[^`]*(\n```)")
				if !block.MatchString(text) {
					t.Fatalf("no section with a block of code")
				}
				text = block.ReplaceAllString(text, "${1}"+line+"${2}")
				return
			}
			line := aclLine(t, text, k.name)
			for _, s := range servers {
				aclDo(t, s.Client(), "ACL SETUSER app resetchannels")
				aclDo(t, s.Client(), line)
			}
			sent := aclUse(t, k, servers)
			for _, s := range servers {
				for _, entry := range aclDenied(s) {
					t.Errorf("denied: %v", entry)
				}
			}
			var permitted []string
			for _, word := range strings.Fields(line) {
				if name, ok := strings.CutPrefix(word, "+"); ok {
					permitted = append(permitted, name)
				}
			}
			aclNames(t, servers[0].Client(), sent)
			if want := aclCommands(t, k, sent); !slices.Equal(permitted, want) {
				t.Errorf("the page permits\n%q, needed are\n%q\n(go test -run UsersOfTheACLPage . -args -acl.update writes it)", permitted, want)
			}
		})
	}
	if *updateACL && !t.Failed() {
		if err := os.WriteFile(aclPage, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// aclNames checks that of all keys that were sent only the names of the locks can be names of
// locks: whoever may choose a name must not reach what is beside another lock.
func aclNames(t *testing.T, rdb redis.UniversalClient, sent *aclSent) {
	t.Helper()
	c := locktest.NewClient(t, rdb)
	over, cancel := context.WithCancel(bg)
	cancel()
	sent.mu.Lock()
	defer sent.mu.Unlock()
	for key := range sent.keys {
		_, err := c.NewLock(key).TryLock(over)
		refused := errors.Is(err, rlock.ErrInvalidArgument)
		name, isName := strings.CutPrefix(key, "app:")
		if isName = isName && !strings.Contains(name, ":"); refused == isName {
			t.Errorf("the key %q as the name of a lock: %v", key, err)
		}
	}
	if len(sent.keys) < 2 {
		t.Errorf("only the keys %v were noted", sent.keys)
	}
}

// Who may use locks, and look for them, finds them.
func TestUserOfTheACLPageFindsLocks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(aclPage)
	if err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t)
	aclDo(t, s.Client(), "ACL SETUSER app resetchannels")
	for _, section := range []string{"SpinLock", "PriorityLock", "Client.Locks"} {
		aclDo(t, s.Client(), aclLine(t, string(page), section))
	}
	c := locktest.NewClient(t, s.Client(func(o *redis.Options) {
		o.Username, o.Password, o.DisableIdentity = "app", "password", true
	}), rlock.WithPrefix("app:"))
	locktest.MustLock(t, c.NewSpinLock("stock"))
	locktest.MustLock(t, c.NewPriorityLock("list"))
	found := map[string]string{}
	for f, err := range c.Locks(bg, "") {
		if err != nil {
			t.Fatal(err)
		}
		found[f.Name] = f.Type
	}
	if want := map[string]string{"stock": "Lock", "list": "PriorityLock"}; !maps.Equal(found, want) {
		t.Errorf("found %v", found)
	}
	for _, s := range aclDenied(s) {
		if !strings.Contains(s, "redisson_lock_queue:") && !strings.Contains(s, "redisson_lock_token:") {
			t.Errorf("denied: %v", s) // but the keys of other types
		}
	}
}

// In a cluster go-redis wants to know the nodes, and channels are sharded.
func TestUserOfTheACLPageInACluster(t *testing.T) {
	redistest.NeedSharded(t)
	t.Parallel()
	page, err := os.ReadFile(aclPage)
	if err != nil {
		t.Fatal(err)
	}
	c := redistest.StartCluster(t, 3, 0)
	for _, s := range c.Nodes {
		aclDo(t, s.Client(), "ACL SETUSER app resetchannels")
		aclDo(t, s.Client(), aclLine(t, string(page), "Lock"))
		aclDo(t, s.Client(), aclLine(t, string(page), "In a cluster"))
	}
	client := func() *rlock.Client {
		rdb := c.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = "app", "password" })
		return locktest.NewClient(t, rdb, rlock.WithPrefix("app:"), rlock.WithLongestPoll(locktest.Patient))
	}
	lease := locktest.MustLock(t, client().NewLock("stock"), rlock.WithLease(2*time.Hour))
	l := client().NewLock("stock")
	got := make(chan *rlock.Lease, 1)
	go func() { got <- locktest.MustLock(t, l) }()
	node := c.MasterOf(c.Slot("app:stock")).Client()
	locktest.Eventually(t, "it listens", func() bool {
		channel := "redisson_lock__channel:{app:stock}"
		return node.PubSubShardNumSub(bg, channel).Val()[channel] == 1
	})
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, <-got)
	for _, s := range c.Nodes {
		for _, entry := range s.Client().Do(bg, "acl", "log").Val().([]any) {
			if s := fmt.Sprint(entry); !strings.Contains(s, "client|") { // go-redis tells its name, if it may
				t.Errorf("denied: %v", s)
			}
		}
	}
}

// aclLine is the command in a section of the page.
func aclLine(t *testing.T, page, section string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+section+"\n")
	_, rest, ok2 := strings.Cut(rest, "```\n")
	line, _, ok3 := strings.Cut(rest, "\n```")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("the page has no section %q with a block of code", section)
	}
	return line
}

// aclDenied is what was denied. An old server denies go-redis the CLIENT of newer ones, where others do not know its
// subcommand.
func aclDenied(s *redistest.Server) (entries []string) {
	for _, entry := range s.Client().Do(bg, "acl", "log").Val().([]any) {
		if text := fmt.Sprint(entry); !redistest.IsOld() || !strings.Contains(text, "object:client ") {
			entries = append(entries, text)
		}
	}
	return entries
}

func aclDo(t *testing.T, rdb redis.UniversalClient, line string) {
	t.Helper()
	var args []any
	for _, word := range strings.Fields(line) {
		args = append(args, word)
	}
	if err := rdb.Do(bg, args...).Err(); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}

// aclUse does all that can be done with the locks of a type, as the user, and
// returns what was sent.
func aclUse(t *testing.T, k aclType, servers []*redistest.Server) *aclSent {
	t.Helper()
	sent := &aclSent{texts: map[string]struct{}{}, own: map[string]struct{}{}, keys: map[string]struct{}{}}
	clients := func() (all []*rlock.Client) {
		for _, s := range servers {
			rdb := s.Client(func(o *redis.Options) {
				o.Username, o.Password, o.DisableIdentity = "app", "password", true
			})
			rdb.AddHook(sent)
			opts := append([]rlock.Option{rlock.WithPrefix("app:"), rlock.WithWatchdogLease(3 * time.Second)}, k.opts...)
			all = append(all, locktest.NewClient(t, rdb, opts...))
		}
		return all
	}
	a, b := clients(), clients()
	defer func() {
		for _, c := range slices.Concat(a, b) {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	if strings.Contains(k.name, "Quarantine") {
		for _, c := range a {
			if k.nodes == 0 {
				if err := c.BootstrapServer(bg); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if k.use != nil {
		k.use(t, sent, a[0], b[0])
		return sent
	}
	if l, ok := k.open(a, "first")[0].(*rlock.RedLock); ok && strings.Contains(k.name, "Quarantine") {
		if err := l.BootstrapNodes(bg); err != nil {
			t.Fatal(err)
		}
	}
	if k.queues != nil {
		l := k.queues(a[0], "stock")
		lease := locktest.MustLock(t, l)
		var all []*locktest.Attempt
		for range 3 {
			all = append(all, locktest.Begin(t, bg, l))
			locktest.Eventually(t, "it waits", func() bool { return locktest.MustState(t, l).Waiters == len(all) })
		}
		for _, next := range all {
			locktest.MustUnlock(t, lease)
			lease = next.Held()
		}
		locktest.MustUnlock(t, lease)
	}
	if k.turns {
		mine, theirs := k.open(a, "turns")[0], k.open(b, "turns")[0]
		admin := servers[0].Client()
		listens := func(pattern string) bool { return len(admin.PubSubChannels(bg, pattern).Val()) > 0 }
		for i := range 4 {
			lease := locktest.MustLock(t, mine)
			next := locktest.Begin(t, bg, theirs)
			locktest.Eventually(t, "it listens, then for turns too, and from the third time on it stands by", func() bool {
				switch i {
				case 0:
					return listens("redisson_lock__channel:*turns*")
				case 1:
					return listens("redisson_lock__channel:*turns*:*")
				}
				return len(admin.Keys(bg, "*turns*:rlock:next").Val()) > 0
			})
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, next.Held())
		}
	}
	mine, theirs := k.open(a, "stock"), k.open(b, "stock")
	for i, l := range mine {
		l := l
		lease := locktest.MustLock(t, l)
		e, elects := l.(locktest.Electing)
		entries, again := 1, (*rlock.Lease)(nil)
		if !elects {
			entries, again = 2, locktest.MustLockCtx(t, lease.Context(bg), l)
		} else if err := e.Proclaim(bg, lease, "value"); err != nil {
			t.Error(err)
		} else if _, err := e.Candidates(bg); err != nil {
			t.Error(err)
		}
		if k.asks {
			requested := lease.ReleaseRequested()
			if asked, err := theirs[i].(rlock.ReleaseRequester).RequestRelease(bg); !asked || err != nil {
				t.Errorf("RequestRelease: %v, %v", asked, err)
			}
			<-requested
		}
		deadline := lease.Deadline()
		if err := lease.Extend(bg, 2900*time.Millisecond); err != nil {
			t.Error(err)
		}
		var wait sync.WaitGroup
		wait.Go(func() { // refused, and given up
			if lease, err := theirs[i].Lock(bg, rlock.WithWait(300*time.Millisecond)); err == nil {
				_ = lease.Unlock(bg) // beside a reader
			} else if !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable) { // which a busy machine looks like
				t.Error(err)
			}
		})
		wait.Wait()
		// Who holds it is asked for in a time that may be over on a busy machine, and then again two seconds later.
		var beside []*rlock.Lease // a reader, or other permits
		for began := time.Now(); !sent.has("getrange") && len(beside) < 3 && time.Since(began) < 10*time.Second; {
			if lease, err := theirs[i].TryLock(bg); err == nil {
				beside = append(beside, lease)
			} else {
				time.Sleep(200 * time.Millisecond)
			}
		}
		for _, lease := range beside {
			locktest.MustUnlock(t, lease)
		}
		got := make(chan *rlock.Lease, 1)
		go func() { got <- locktest.MustLock(t, theirs[i]) }()
		if l, ok := l.(locktest.AnyLock); ok {
			if held, err := l.IsLocked(bg); err != nil || !held {
				t.Errorf("IsLocked: %v, %v", held, err)
			}
			if s, err := l.State(bg); err != nil || len(s.Holders) == 0 {
				t.Errorf("State: %+v, %v", s, err)
			}
			if n, err := l.HoldCount(lease.Context(bg)); err != nil || n != entries {
				t.Errorf("HoldCount: %d, %v", n, err)
			}
			ctx, stop := context.WithCancel(bg)
			states, err := l.Watch(ctx)
			if err != nil {
				t.Error(err)
			} else {
				<-states
			}
			stop()
		}
		locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(deadline.Add(2 * time.Second)) })
		if again != nil {
			locktest.MustUnlock(t, again)
		}
		locktest.MustUnlock(t, lease)
		lease = <-got
		if l, ok := l.(locktest.AnyLock); ok {
			if freed, err := l.ForceUnlockIf(bg, lease.HoldID()); err != nil || !freed {
				t.Errorf("ForceUnlockIf: %v, %v", freed, err)
			}
			if err := lease.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
				t.Error(err)
			}
			lease = locktest.MustLock(t, theirs[i])
			if freed, err := l.ForceUnlock(bg); err != nil || !freed {
				t.Errorf("ForceUnlock: %v, %v", freed, err)
			}
			_ = lease.Unlock(bg)
		} else {
			locktest.MustUnlock(t, lease)
		}
		if l, ok := l.(*rlock.FencedLock); ok {
			if _, err := l.CurrentToken(bg); err != nil {
				t.Error(err)
			}
		}
		adoptions(t, l, b[0])
	}
	return sent
}

// adoptions has a client lengthen and adopt what the holder has left.
func adoptions(t *testing.T, l rlock.Locker, by *rlock.Client) {
	t.Helper()
	lease := locktest.MustLock(t, l)
	handle, err := lease.Detach(bg)
	if errors.Is(err, rlock.ErrInvalidArgument) {
		locktest.MustUnlock(t, lease)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	if err := by.Extend(bg, handle, 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if lease, err = by.Adopt(bg, handle); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, lease)
}

// usePermits does all that can be done with a PermitSemaphore.
func usePermits(opts ...rlock.PermitSemaphoreOption) func(t *testing.T, sent *aclSent, mine, theirs *rlock.Client) {
	return func(t *testing.T, sent *aclSent, mine, theirs *rlock.Client) {
		s, other := locktest.MustSetPermits(t, mine.NewPermitSemaphore("stock", opts...), 2), theirs.NewPermitSemaphore("stock", opts...)
		if err := s.AddPermits(bg, 1); err != nil {
			t.Error(err)
		}
		lease := locktest.MustLock(t, locktest.PermitLocker{PermitSemaphore: s, N: 3})
		deadline := lease.Deadline()
		if err := lease.Extend(bg, 2900*time.Millisecond); err != nil {
			t.Error(err)
		}
		if _, err := other.Acquire(bg, 1, rlock.WithWait(300*time.Millisecond)); !errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(bg, -1)
		cancel()
		if _, err := other.Acquire(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		got := make(chan *rlock.Lease, 1)
		go func() { got <- locktest.MustLock(t, locktest.PermitLocker{PermitSemaphore: other, N: 1}) }()
		if n, err := s.Available(bg); n != 0 || err != nil {
			t.Error(n, err)
		}
		// On a busy machine the wait above may end before its client has asked who the holder is.
		locktest.Eventually(t, "the holder's process is asked for", func() bool {
			if state, err := other.State(bg); err != nil || len(state.Holders) != 1 {
				t.Error(state, err)
			}
			return sent.has("getrange")
		})
		locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(deadline.Add(2 * time.Second)) })
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, <-got)
		anew := mine.NewPermitSemaphore("anew", append([]rlock.PermitSemaphoreOption{rlock.WithPermits(1)}, opts...)...)
		locktest.MustUnlock(t, locktest.MustLock(t, locktest.PermitLocker{PermitSemaphore: anew, N: 1}))
		if was, err := anew.Delete(bg); !was || err != nil {
			t.Error(was, err)
		}
	}
}

// aclUseOnce does all that can be done with a Once.
func aclUseOnce(t *testing.T, _ *aclSent, a, b *rlock.Client) {
	mine, theirs := a.NewOnce("job", time.Minute), b.NewOnce("job", time.Minute)
	failed := errors.New("failed")
	_, ran, err := mine.Do(bg, func(ctx context.Context) ([]byte, error) {
		none := func(context.Context) ([]byte, error) { return nil, nil }
		short, cancel := context.WithTimeout(bg, 300*time.Millisecond)
		defer cancel()
		if _, _, err := theirs.Do(short, none); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if held, err := theirs.IsLocked(bg); err != nil || !held {
			t.Error(held, err)
		}
		if n, err := mine.HoldCount(ctx); err != nil || n != 1 {
			t.Error(n, err)
		}
		watching, stop := context.WithCancel(bg)
		defer stop()
		if states, err := theirs.Watch(watching); err != nil || !(<-states).Locked() {
			t.Error(err)
		}
		time.Sleep(1500 * time.Millisecond) // it is renewed
		return nil, failed
	})
	if !ran || err != failed {
		t.Error(ran, err)
	}
	_, _, err = mine.Do(bg, func(context.Context) ([]byte, error) {
		if was, err := theirs.ForceUnlock(bg); err != nil || !was {
			t.Error(was, err)
		}
		return nil, nil
	})
	if !errors.Is(err, rlock.ErrLeaseLost) {
		t.Error(err)
	}
	for i := range 2 {
		result, ran, err := theirs.Do(bg, func(context.Context) ([]byte, error) { return []byte("result"), nil })
		if string(result) != "result" || ran != (i == 0) || err != nil {
			t.Error(result, ran, err)
		}
	}
	if result, kept, err := mine.Peek(bg); string(result) != "result" || !kept || err != nil {
		t.Error(result, kept, err)
	}
	if was, err := mine.Forget(bg); !was || err != nil {
		t.Error(was, err)
	}
}

// aclUseCron does all that can be done with a CronJob.
func aclUseCron(t *testing.T, sent *aclSent, a, b *rlock.Client) {
	mine, theirs := a.NewCronJob("job", rlock.WithTakeover()), b.NewCronJob("job", rlock.WithTakeover())
	tick := time.Now().Truncate(time.Second)
	run, err := mine.Do(bg, tick, func(ctx context.Context) error {
		locktest.Eventually(t, "the refused asks who holds it, for which a busy machine may leave no time", func() bool {
			short, cancel := context.WithTimeout(bg, 300*time.Millisecond)
			defer cancel()
			if _, err := theirs.Do(short, tick, func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return sent.has("getrange")
		})
		if run, err := b.NewCronJob("job").Do(bg, tick, func(context.Context) error { return nil }); run.Here || err != nil {
			t.Error(run, err)
		}
		time.Sleep(1500 * time.Millisecond) // it is renewed
		return nil
	})
	if !run.Here || err != nil {
		t.Error(run, err)
	}
	if run, known, err := theirs.Peek(bg, tick); !known || run.End.IsZero() || err != nil {
		t.Error(run, known, err)
	}
	if run, known, err := theirs.Last(bg); !known || run.End.IsZero() || err != nil {
		t.Error(run, known, err)
	}
	// Taken over, with a claim before it that was given up.
	tick = tick.Add(time.Second)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		defer func() { _ = recover() }()
		_, _ = mine.Do(bg, tick, func(context.Context) error { panic("on purpose") })
	}()
	<-lost
	ended, cancel := context.WithTimeout(bg, -1)
	cancel()
	if _, err := theirs.Do(ended, tick, func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if run, err := theirs.Do(bg, tick, func(context.Context) error { return nil }); !run.TakenOver || !run.Here || err != nil {
		t.Error(run, err)
	}
	// Old runs are dropped.
	for i := range rlock.MaxRuns + 2 {
		_, err := mine.Do(bg, tick.Add(time.Duration(i)*time.Second-10*time.Minute), func(context.Context) error { return nil })
		aclOK(t, err)
	}
	// Its lease is extended.
	_, err = mine.Do(bg, tick.Add(time.Second), func(ctx context.Context) error {
		lease, _ := rlock.LeaseFrom(ctx)
		aclOK(t, lease.Extend(bg, 2900*time.Millisecond))
		return nil
	})
	aclOK(t, err)
}

// aclUseDoubleBarrier does all that can be done with a DoubleBarrier.
func aclUseDoubleBarrier(t *testing.T, _ *aclSent, a, b *rlock.Client) {
	mine, theirs := a.NewDoubleBarrier("phase", 2), b.NewDoubleBarrier("phase", 2)
	if _, err := mine.Enter(bg, rlock.WithWait(2*time.Second)); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
	for _, forced := range []bool{false, true} {
		got := make(chan *rlock.Lease, 1)
		go func() {
			lease, err := theirs.Enter(bg)
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		lease, err := mine.Enter(bg)
		if err != nil {
			t.Fatal(err)
		}
		other := <-got
		deadline := lease.Deadline()
		if err := lease.Extend(bg, 2900*time.Millisecond); err != nil {
			t.Error(err)
		}
		if s, err := mine.State(bg); err != nil || len(s.Holders) != 2 {
			t.Errorf("%+v, %v", s, err)
		}
		if held, err := theirs.IsLocked(bg); err != nil || !held {
			t.Error(held, err)
		}
		watching, stop := context.WithCancel(bg)
		if states, err := theirs.Watch(watching); err != nil || !(<-states).Locked() {
			t.Error(err)
		}
		stop()
		locktest.Eventually(t, "it is renewed", func() bool { return lease.Deadline().After(deadline.Add(500 * time.Millisecond)) })
		left := make(chan error, 1)
		go func() { left <- mine.Leave(bg, lease) }()
		if forced {
			locktest.Eventually(t, "one is left", func() bool { s, err := mine.State(bg); return err == nil && len(s.Holders) == 1 })
			if was, err := theirs.ForceUnlock(bg); err != nil || !was {
				t.Error(was, err)
			}
		} else {
			locktest.MustUnlock(t, other)
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
	}
}

// aclCommands are the commands that a type needs: those that were sent, and all that
// its scripts may call.
func aclCommands(t *testing.T, k aclType, sent *aclSent) []string {
	t.Helper()
	all := map[string]struct{}{"eval": {}, "evalsha": {}}
	for _, command := range k.commands {
		all[command] = struct{}{}
	}
	sent.mu.Lock()
	defer sent.mu.Unlock()
	maps.Copy(all, sent.own)
	for text := range sent.texts {
		for _, call := range aclCall.FindAllStringSubmatch(text, -1) {
			if name := call[1]; name != "" {
				if call[2] == "shardnumsub" {
					continue // in a cluster only
				}
				if name == "pubsub" {
					name += "|" + call[2]
				}
				all[name] = struct{}{}
			} else if call[0] != "redis.pcall(how" { // publish
				t.Errorf("a script calls a command whose name is not written there: %s", call[0])
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

var aclCall = regexp.MustCompile(`redis\.p?call\((?:'([a-z]+)'(?:, '(\w+)')?|[^,)]*)`)

// aclSent are the scripts that were sent in full, as each is once, the commands for the keys of clients,
// and all keys.
type aclSent struct {
	mu    sync.Mutex // guards the rest
	texts map[string]struct{}
	own   map[string]struct{}
	keys  map[string]struct{}
}

func (s *aclSent) has(command string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.own[command]
	return has
}

func (s *aclSent) note(cmd redis.Cmder) {
	args := cmd.Args()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cmd.Name() != "eval" && cmd.Name() != "evalsha" {
		if key := fmt.Sprint(args[min(1, len(args)-1)]); locktest.IsClient(key) {
			s.own[cmd.Name()], s.keys[key] = struct{}{}, struct{}{}
		}
		return
	}
	if cmd.Name() == "eval" {
		s.texts[fmt.Sprint(args[1])] = struct{}{}
	}
	n, _ := strconv.Atoi(fmt.Sprint(args[2]))
	for _, key := range args[3 : 3+n] {
		s.keys[fmt.Sprint(key)] = struct{}{}
	}
}

func (s *aclSent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *aclSent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *aclSent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func aclOK(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func aclSemaphore(t *testing.T, _ *aclSent, a, b *rlock.Client) {
	s := a.NewSemaphore("permits")
	_, err := s.TrySetPermits(bg, 1)
	aclOK(t, err, s.AddPermits(bg, 1), s.TryAcquire(bg, 1))
	done := make(chan error, 1)
	go func() { done <- b.NewSemaphore("permits").Acquire(bg, 2) }()
	if err := s.Acquire(bg, 3, rlock.WithWait(2*time.Second)); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
	_, err = s.Available(bg)
	aclOK(t, err, s.Release(bg, 1), <-done)
	_, err = s.Drain(bg)
	aclOK(t, err, s.SetPermits(bg, 3))
	_, err = s.State(bg)
	aclOK(t, err)
	_, err = s.Delete(bg)
	aclOK(t, err)
	s = a.NewSemaphore("permits", rlock.WithPermits(1))
	aclOK(t, s.Acquire(bg, 1), s.Release(bg, 1))
}

func aclLatch(t *testing.T, _ *aclSent, a, b *rlock.Client) {
	l := a.NewCountDownLatch("latch")
	_, err := l.TrySetCount(bg, 1)
	aclOK(t, err)
	done := make(chan error, 1)
	go func() { done <- b.NewCountDownLatch("latch").Wait(bg) }()
	_, err = l.Count(bg)
	aclOK(t, err, l.CountDown(bg), <-done)
	_, err = l.Delete(bg)
	aclOK(t, err)
}

func aclBarrier(t *testing.T, _ *aclSent, a, b *rlock.Client) {
	l := a.NewBarrier("barrier")
	aclOK(t, l.Set(bg))
	done := make(chan error, 1)
	go func() { done <- b.NewBarrier("barrier").Wait(bg) }()
	aclOK(t, l.Lift(bg), <-done)
}
