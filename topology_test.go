package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

const (
	// longPoll is the longest poll of waiters that only a message should wake,
	// and byMessage how long a busy machine may take for that.
	longPoll  = 30 * time.Second
	byMessage = 10 * time.Second
)

// member is a client of a deployment, with a view of what it does.
type member struct {
	*rlock.Client
	rdb    redis.UniversalClient
	looks  *looks
	events *events
}

func join(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *member {
	t.Helper()
	m := &member{rdb: rdb, looks: &looks{}, events: &events{}}
	rdb.AddHook(m.looks)
	opts = append([]rlock.Option{rlock.WithLongestPoll(longPoll), rlock.WithObserver(m.events)}, opts...)
	m.Client = newClientOn(t, rdb, opts...)
	return m
}

// looks counts the scripts that were answered, by their first key: for a
// waiter, how often it has looked at the lock. What goes in pipelines, as
// renewals do, is not counted.
type looks struct {
	mu    sync.Mutex // guards the rest
	byKey map[string]int
	all   int // commands, answered or not
}

func (l *looks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *looks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all++
		if args := cmd.Args(); err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			if l.byKey == nil {
				l.byKey = map[string]int{}
			}
			l.byKey[args[3].(string)]++
		}
		return err
	}
}

func (l *looks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *looks) at(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byKey[key]
}

func (l *looks) commands() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// events counts what an Observer is told.
type events struct {
	rlock.NopObserver
	mu        sync.Mutex // guards the rest
	renewed   map[string]int
	confirmed map[string]int // subscriptions, by channel
	retries   []string
}

func (e *events) Subscription(channel string, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if on {
		if e.confirmed == nil {
			e.confirmed = map[string]int{}
		}
		e.confirmed[channel]++
	}
}

func (e *events) confirmations(channel string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.confirmed[channel]
}

func (e *events) Renewed(lock, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.renewed == nil {
		e.renewed = map[string]int{}
	}
	e.renewed[lock]++
}

func (e *events) Retry(operation string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retries = append(e.retries, operation+": "+err.Error())
}

func (e *events) renewals(lock string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.renewed[lock]
}

// retried counts the retries of an operation for a reason.
func (e *events) retried(operation, reason string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.retries {
		if strings.HasPrefix(r, operation+": ") && strings.Contains(r, reason) {
			n++
		}
	}
	return n
}

// renewedAgain waits until a hold was renewed n times more.
func (m *member) renewedAgain(t testing.TB, lock string, n int) {
	t.Helper()
	from := m.events.renewals(lock)
	eventually(t, fmt.Sprintf("%q was renewed %d times", lock, n), func() bool { return m.events.renewals(lock) >= from+n })
}

// turn is a Lock under way.
type turn struct{ got chan grant }

type grant struct {
	lease *rlock.Lease
	err   error
	at    time.Time
}

// line lets a Lock wait in a goroutine.
func (m *member) line(t testing.TB, name string) *turn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := &turn{make(chan grant, 1)}
	go func() {
		lease, err := m.NewLock(name).Lock(ctx)
		w.got <- grant{lease, err, time.Now()}
	}()
	return w
}

// lineParked lets a Lock wait until it has looked twice: at first, and after
// the confirmation of its subscription. From then on it sleeps.
func (m *member) lineParked(t testing.TB, name string) *turn {
	t.Helper()
	from := m.looks.at(name)
	w := m.line(t, name)
	m.parked(t, name, from+2)
	return w
}

func (m *member) parked(t testing.TB, name string, looks int) {
	t.Helper()
	eventually(t, fmt.Sprintf("a waiter for %q has looked %d times", name, looks), func() bool { return m.looks.at(name) >= looks })
}

// lease waits for the grant and returns how long it came after since.
func (w *turn) lease(t testing.TB, since time.Time) (*rlock.Lease, time.Duration) {
	t.Helper()
	select {
	case g := <-w.got:
		if g.err != nil {
			t.Fatal(g.err)
		}
		return g.lease, g.at.Sub(since)
	case <-time.After(40 * time.Second):
		t.Fatal("a waiter got nothing")
		return nil, 0
	}
}

// wokenByMessage is lease for a waiter that would else sleep for longPoll.
func (w *turn) wokenByMessage(t testing.TB, since time.Time) (*rlock.Lease, time.Duration) {
	t.Helper()
	lease, d := w.lease(t, since)
	if d > byMessage {
		t.Errorf("woken after %v: that was no message", d)
	}
	return lease, d
}

func (w *turn) waits() bool { return len(w.got) == 0 }

// spread is the median and maximum, for logs.
func spread(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("median %v, longest %v of %d", d[len(d)/2], d[len(d)-1], len(d))
}

// nodes are clients of the single servers of a cluster.
func nodes(c *redistest.Cluster) []*redis.Client {
	var all []*redis.Client
	for _, s := range c.Nodes {
		all = append(all, s.Client(func(o *redis.Options) { o.MaxRetries = -1 }))
	}
	return all
}

// listeners sums up what PUBSUB NUMSUB or SHARDNUMSUB says on all nodes.
func listeners(t testing.TB, on []*redis.Client, command, channel string) (n int64) {
	t.Helper()
	for _, node := range on {
		r, err := node.Do(context.Background(), "pubsub", command, channel).Result()
		if err != nil {
			t.Fatal(err)
		}
		switch r := r.(type) {
		case []any:
			n += r[1].(int64)
		case map[any]any:
			n += r[channel].(int64)
		default:
			t.Fatalf("PUBSUB %s: %T", command, r)
		}
	}
	return n
}

// noSubscriptionLeft waits until no node has a channel with a subscriber.
func noSubscriptionLeft(t testing.TB, on []*redis.Client) {
	t.Helper()
	for _, command := range []string{"channels", "shardchannels"} {
		eventually(t, "PUBSUB "+strings.ToUpper(command)+" is empty", func() bool {
			for _, node := range on {
				list, err := node.Do(context.Background(), "pubsub", command).StringSlice()
				if err != nil {
					t.Fatal(err)
				}
				// Sentinels and their masters have channels of their own.
				list = slices.DeleteFunc(list, func(c string) bool { return strings.HasPrefix(c, "__") })
				if len(list) > 0 {
					return false
				}
			}
			return true
		})
	}
}

// foreignHold is a hold of a client of another kind.
func foreignHold(t testing.TB, node redis.Cmdable, name string) {
	t.Helper()
	ctx := context.Background()
	if err := node.HSet(ctx, name, "1b4e28ba-2fa1-41d2-883f-0016d3cca427:42", 1).Err(); err != nil {
		t.Fatal(err)
	}
	if err := node.PExpire(ctx, name, 5*time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
}

func knowsScript(t testing.TB, node *redis.Client, name string) bool {
	t.Helper()
	known, err := node.ScriptExists(context.Background(), sha(name)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return known[0]
}
