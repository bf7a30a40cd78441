package locktest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

const (
	// longPoll is the longest poll of waiters that only a message should wake.
	longPoll = 45 * time.Second
	// ByMessage is how long a busy machine may take to wake one by a message.
	ByMessage = 30 * time.Second
)

// Member is a client of a deployment, with a view of what it does.
type Member struct {
	*rlock.Client
	RDB    redis.UniversalClient
	Looks  *Looks
	Events *Events
}

// Join makes a member of a go-redis client. Its waiters poll seldom.
func Join(t testing.TB, rdb redis.UniversalClient, opts ...rlock.Option) *Member {
	t.Helper()
	m := &Member{RDB: rdb, Looks: &Looks{}, Events: &Events{}}
	rdb.AddHook(m.Looks)
	opts = append([]rlock.Option{rlock.WithLongestPoll(longPoll), rlock.WithObserver(m.Events)}, opts...)
	m.Client = NewClient(t, rdb, opts...)
	return m
}

// RenewedAgain waits until a hold was renewed n times more.
func (m *Member) RenewedAgain(t testing.TB, lock string, n int) {
	t.Helper()
	from := m.Events.Renewals(lock)
	Eventually(t, fmt.Sprintf("%q was renewed %d times", lock, n), func() bool { return m.Events.Renewals(lock) >= from+n })
}

// Line lets a Lock wait in a goroutine.
func (m *Member) Line(t testing.TB, name string) *Waiter {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := &Waiter{make(chan Grant, 1)}
	go func() {
		lease, err := m.NewLock(name).Lock(ctx)
		w.Got <- Grant{lease, err, time.Now()}
	}()
	return w
}

// LineParked lets a Lock wait until it has looked twice: at first, and after
// the confirmation of its subscription. From then on it sleeps. The member must not have
// waited for the lock in the last seconds: see LooksBeforeSleep.
func (m *Member) LineParked(t testing.TB, name string) *Waiter {
	t.Helper()
	from := m.Looks.At(name)
	w := m.Line(t, name)
	m.Parked(t, name, from+2)
	return w
}

// Parked waits until a waiter has looked so often.
func (m *Member) Parked(t testing.TB, name string, looks int) {
	t.Helper()
	Eventually(t, fmt.Sprintf("a waiter for %q has looked %d times", name, looks), func() bool { return m.Looks.At(name) >= looks })
}

// Looks counts the scripts that were answered, by their first key: for a
// waiter, how often it has looked at the lock; and by their hold. In pipelines, in which renewals go too, only
// acquires and releases are counted.
type Looks struct {
	mu     sync.Mutex // guards the rest
	byKey  map[string]int
	byHold map[string]int
	all    int // commands, answered or not
}

func (l *Looks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *Looks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.count(cmd)
		return err
	}
}

func (l *Looks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if RunsForCaller(cmd) || RunsForCallers(cmd) {
				l.count(cmd)
			}
		}
		return err
	}
}

func (l *Looks) count(cmd redis.Cmder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all++
	if args := cmd.Args(); cmd.Err() == nil && strings.HasPrefix(cmd.Name(), "eval") {
		if l.byKey == nil {
			l.byKey, l.byHold = map[string]int{}, map[string]int{}
		}
		if hold := 3 + args[2].(int); hold < len(args) {
			l.byHold[fmt.Sprint(args[hold])]++ // the first argument of each script
		}
		keys, step := 1, 1
		if Runs(cmd, "lock/enter_many") {
			keys, step = args[2].(int), 3
		} else if Runs(cmd, "lock/release_many") {
			keys = args[2].(int)
		}
		for i := 0; i < keys; i += step {
			l.byKey[args[3+i].(string)]++
		}
	}
}

// At is how many had this first key.
func (l *Looks) At(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byKey[key]
}

// Of is how many were of this hold, or of who waits for it: by its id.
func (l *Looks) Of(hold string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byHold[hold]
}

// Commands is how many commands were sent, answered or not.
func (l *Looks) Commands() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// Events counts the events of an Observer.
type Events struct {
	Ignoring
	mu        sync.Mutex // guards the rest
	renewed   map[string]int
	confirmed map[string]int // subscriptions, by channel
	Retries   []string
}

func (e *Events) Subscription(s rlock.SubscriptionEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.On {
		if e.confirmed == nil {
			e.confirmed = map[string]int{}
		}
		e.confirmed[s.Channel]++
	}
}

// Confirmations is how often the subscription of a channel was confirmed.
func (e *Events) Confirmations(channel string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.confirmed[channel]
}

// Renewed counts a failed one as a retry of "renew".
func (e *Events) Renewed(_ context.Context, r rlock.RenewalEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Err != nil {
		e.Retries = append(e.Retries, "renew: "+r.Err.Error())
		return
	}
	if e.renewed == nil {
		e.renewed = map[string]int{}
	}
	e.renewed[r.Lock]++
}

func (e *Events) Retry(_ context.Context, r rlock.RetryEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Retries = append(e.Retries, r.Operation+": "+r.Err.Error())
}

// Renewals is how often the holds of a lock were renewed.
func (e *Events) Renewals(lock string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.renewed[lock]
}

// Retried counts the retries of an operation for a reason.
func (e *Events) Retried(operation, reason string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.Retries {
		if strings.HasPrefix(r, operation+": ") && strings.Contains(r, reason) {
			n++
		}
	}
	return n
}

// Waiter is a Lock under way.
type Waiter struct{ Got chan Grant }

// Lease waits for the grant and returns how long it came after since.
func (w *Waiter) Lease(t testing.TB, since time.Time) (*rlock.Lease, time.Duration) {
	t.Helper()
	select {
	case g := <-w.Got:
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		return g.Lease, g.At.Sub(since)
	case <-time.After(Patience):
		t.Fatal("a waiter got nothing")
		return nil, 0
	}
}

// WokenByMessage is Lease for a waiter that would else sleep for longPoll.
func (w *Waiter) WokenByMessage(t testing.TB, since time.Time) (*rlock.Lease, time.Duration) {
	t.Helper()
	lease, d := w.Lease(t, since)
	if d > ByMessage {
		t.Errorf("woken after %v: that was no message", d)
	}
	return lease, d
}

// Waits reports whether the Lock has not returned.
func (w *Waiter) Waits() bool { return len(w.Got) == 0 }

// Grant is what a Lock returned, and when.
type Grant struct {
	Lease *rlock.Lease
	Err   error
	At    time.Time
}
