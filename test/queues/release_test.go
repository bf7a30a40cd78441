package queues

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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
	"github.com/go-rlock/rlock/internal/seam"
)

// orderedType is a type whose exclusive waiters Redis keeps in order.
type orderedType struct {
	locktest.OrderedType
	scripts string  // the folder of its scripts
	most    float64 // commands that a section of a crowd takes
	inside  float64 // commands that its scripts call
}

func orderedTypes() (all []orderedType) {
	for _, k := range locktest.OrderedTypes() {
		switch k.Name {
		case "fair": // each waiter subscribes to a channel of its own, and looks when that is confirmed
			all = append(all, orderedType{k, "fair", 5.5, 60})
		case "write", "priority":
			all = append(all, orderedType{k, "queue", 3.5, 50})
		}
	}
	return all
}

// holder is a client that holds a lock, and whose waiters may stand behind it.
type holder struct {
	orderedType
	b     *locktest.Backend
	rdb   redis.UniversalClient // of nobody else
	m     *locktest.Member
	l     locktest.AnyLock
	held  *rlock.Lease
	fault atomic.Pointer[func(cmd redis.Cmder, send func() error) error] // of the client
	proxy *faultproxy.Proxy
	busy  atomic.Int64                       // goroutines of the client that do not sleep
	gate  atomic.Pointer[func(point string)] // where they could be stopped
	seen  *listening
}

// listening also records to which channels the client listens.
type listening struct {
	locktest.Recorder
	mu       sync.Mutex // guards channels
	channels []string
}

func (l *listening) Subscription(e rlock.SubscriptionEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.On {
		l.channels = append(l.channels, e.Channel)
	}
}

// hears reports whether the client listens to what concerns a waiter: to a channel of its own,
// or of the client.
func (l *listening) hears(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.channels, func(c string) bool {
		return strings.HasSuffix(c, ":"+id) || strings.HasSuffix(c, ":"+id[:strings.LastIndexByte(id, ':')])
	})
}

// eachOrdered runs a scenario for each of them.
func eachOrdered(t *testing.T, scenario func(t *testing.T, h *holder), opts ...rlock.Option) {
	t.Helper()
	t.Parallel()
	for _, k := range orderedTypes() {
		for on, open := range map[string]func(t testing.TB) *locktest.Backend{
			"miniredis":  locktest.OnMiniredis,
			"standalone": func(t testing.TB) *locktest.Backend { return locktest.OnServer(t) },
		} {
			t.Run(on+" "+k.Name, func(t *testing.T) {
				if on == "miniredis" {
					locktest.Repeated(t)
				}
				t.Parallel()
				scenario(t, newHolder(t, open(t), k, opts...))
			})
		}
	}
}

func newHolder(t *testing.T, b *locktest.Backend, k orderedType, opts ...rlock.Option) *holder {
	t.Helper()
	h := &holder{orderedType: k, b: b, rdb: b.Client(t), seen: &listening{}}
	for _, verb := range []string{"enter", "release", "abandon"} {
		locktest.LoadScripts(t, h.rdb, k.scripts+"/"+verb)
	}
	h.proxy = faultproxy.New(t, b.Addr)
	rdb := locktest.Dialer(h.proxy.Addr())(t, func(o *redis.Options) {
		o.ReadTimeout /= 2 // then a second copy has been sent: who waits until nothing is under way need not wait for the first
	})
	rdb.AddHook(&locktest.ScriptHook{One: func(cmd redis.Cmder, send func() error) error {
		if fn := h.fault.Load(); fn != nil {
			return (*fn)(cmd, send)
		}
		return send()
	}})
	h.m = locktest.Join(t, rdb, append([]rlock.Option{
		rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient),
		rlock.WithObserver(h.seen),
		seam.Option(seam.Env{
			Work: func() (end func()) {
				h.busy.Add(1)
				return func() { h.busy.Add(-1) }
			},
			Gate: func(point string) {
				if stop := h.gate.Load(); stop != nil {
					(*stop)(point)
				}
			},
		}).(rlock.Option),
	}, opts...)...)
	h.l = k.Open(h.m.Client, "a")
	h.held = locktest.MustLock(t, h.l)
	return h
}

// key is the first one of the scripts about the lock.
func (h *holder) key() string {
	if h.scripts == "fair" {
		return "a"
	}
	return "{a}:rlock:" + strings.TrimSuffix(h.Signs, ":alive")
}

// join lets a waiter of the client join the queue. It sleeps then, and nothing is to come that
// would have it look again: its subscription is confirmed, and it has looked after that.
func (h *holder) join(t *testing.T, opts ...rlock.AcquireOption) (e *locktest.Attempt, id string) {
	t.Helper()
	looks := h.m.Looks.At(h.key()) + 2
	if h.seen.hears(h.m.ID() + ":any") { // to the channel of all its waiters
		looks--
	}
	e, id = h.Enqueue(t, h.rdb, h.l, opts...)
	h.sleeps(t, func() bool { return h.m.Looks.At(h.key()) >= looks && h.seen.hears(id) })
	return e, id
}

// sleeps waits until a waiter of the client has done something, and sleeps.
func (h *holder) sleeps(t *testing.T, after func() bool) {
	t.Helper()
	idle := 0 // for an instant it also seems to sleep before it stands in line
	locktest.Eventually(t, "it sleeps", func() bool {
		if idle++; !after() || h.busy.Load() > 0 {
			idle = 0
		}
		return idle == 5
	})
}

// rival is a waiter of another client.
func (h *holder) rival(t *testing.T) *locktest.Attempt {
	t.Helper()
	c := h.b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
	e, _ := h.Enqueue(t, h.rdb, h.Open(c, "a"))
	return e
}

// on has a function send the commands of the client.
func (h *holder) on(fn func(cmd redis.Cmder, send func() error) error) { h.fault.Store(&fn) }

// sent is how often the client has sent a script about the lock.
func (h *holder) sent(verb string) int {
	sha := locktest.SHA(h.scripts + "/" + verb)
	return h.proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(sha) })
}

// unlock ends a lease, and returns how many releases the client has sent for it.
func (h *holder) unlock(t *testing.T, l *rlock.Lease) int {
	t.Helper()
	before := h.sent("release")
	locktest.MustUnlock(t, l)
	return h.sent("release") - before
}

// holds checks who holds the lock, or that nobody does, and how many wait.
func (h *holder) holds(t *testing.T, l *rlock.Lease, waiters int) {
	t.Helper()
	s := locktest.MustState(t, h.Open(h.b.NewClient(t), "a"))
	switch {
	case s.Waiters != waiters, len(s.Holders) > 1, (l == nil) != (len(s.Holders) == 0):
	case l == nil || s.Holders[0].HoldID == l.HoldID() && s.Holders[0].Count == 1:
		return
	}
	t.Fatalf("%+v; want the holder %q, and %d waiters", s, l.HoldID(), waiters)
}

// free checks that the lock can be had, and that nothing is left.
func (h *holder) free(t *testing.T) {
	t.Helper()
	locktest.MustUnlock(t, locktest.MustLock(t, h.Open(h.b.NewClient(t), "a")))
	locktest.OnlyTombstones(t, h.rdb)
}

// The release of a client wakes its own next waiter as it wakes another's: by a message, after which the waiter looks.
// The one behind it does not: only the new head of a fair line looks at the lease of the holder, which is over before
// it would give its next sign of life.
func TestReleaseWakesTheNextWaiterOfTheClient(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		first, id := h.join(t)
		second, other := h.join(t, rlock.WithLease(time.Hour))
		sha := locktest.SHA(h.scripts + "/enter")
		looks := func(id string) int {
			return h.proxy.Count(func(cmd faultproxy.Command) bool { return cmd.IsScript(sha) && slices.Contains(cmd.Args, id) })
		}
		before, others, asHead := looks(id), looks(other), 0
		if h.scripts == "fair" {
			asHead = 1
		}
		if n := h.unlock(t, h.held); n != 1 {
			t.Errorf("%d releases", n)
		}
		a := first.Held()
		if n, m := looks(id)-before, looks(other)-others; n != 1 || m > asHead {
			t.Errorf("it looked %d times, and the one behind it %d times", n, m)
		}
		if a.HoldID() != id || a.Token() <= h.held.Token() || time.Until(a.Deadline()) > locktest.Lease {
			t.Errorf("%s with token %d until %v, after %d", a.HoldID(), a.Token(), a.Deadline(), h.held.Token())
		}
		h.holds(t, a, 1)
		inner := locktest.MustLockCtx(t, a.Context(bg), h.l)
		locktest.MustUnlock(t, inner)
		if err := a.Extend(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := h.unlock(t, a); n != 1 {
			t.Errorf("%d releases of the next hold", n)
		}
		b := second.Held()
		if n := looks(other) - others; n < 1 || n > 1+asHead {
			t.Errorf("the second looked %d times", n)
		}
		if b.Token() <= a.Token() || time.Until(b.Deadline()) < 50*time.Minute {
			t.Errorf("token %d until %v, after %d", b.Token(), b.Deadline(), a.Token())
		}
		h.holds(t, b, 0)
		locktest.MustUnlock(t, b)
		h.free(t)
		h.seen.Mu.Lock()
		defer h.seen.Mu.Unlock()
		for _, e := range h.seen.Acquires[1:] {
			if e.Token == 0 || e.HoldID == "" || e.Attempts == 0 || e.Attempts > 3+asHead {
				t.Errorf("%+v", e)
			}
		}
	})
}

// The message of the release is lost. The waiter of its client finds the lock free when it gives its next sign of life.
func TestWaiterOfTheClientFindsAReleaseWhoseMessageIsLost(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		h.proxy.DropMessages(true)
		locktest.MustUnlock(t, h.held)
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, second.Held())
		h.free(t)
	}, rlock.WithWaiterLease(rlock.DefaultWaiterLease/10))
}

// Between the holder and a waiter of its client is one of another client.
func TestReleaseKeepsTheOrderAmongClients(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		rival := h.rival(t)
		own, _ := h.join(t)
		locktest.MustUnlock(t, h.held)
		locktest.MustUnlock(t, rival.Held())
		locktest.MustUnlock(t, own.Held())
		h.free(t)
	})
}

// Between them is a reader of another client.
func TestReleaseLetsAReaderInBeforeAWriterOfTheClient(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		if h.Name != "write" {
			return
		}
		for _, k := range locktest.OrderedTypes() {
			if k.Name == "read" {
				c := h.b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))
				reader, _ := k.Enqueue(t, h.rdb, k.Open(c, "a"))
				own, _ := h.join(t)
				locktest.MustUnlock(t, h.held)
				locktest.MustUnlock(t, reader.Held())
				locktest.MustUnlock(t, own.Held())
			}
		}
		h.free(t)
	})
}

// unhurried leaves half of it to the second copy of a release.
var unhurried = rlock.WithUnlockTimeout(locktest.Ample(4 * time.Second))

// Each reply, or request, of the release may be lost. The waiter of the client holds the lock once, and a second copy
// ends no other hold.
func TestReleaseThatWakesAWaiterOfItsClientWithLostReply(t *testing.T) {
	t.Parallel()
	for name, action := range locktest.LossyActions {
		t.Run(name, func(t *testing.T) {
			eachOrdered(t, func(t *testing.T, h *holder) {
				next, _ := h.join(t)
				rival := h.rival(t)
				locktest.OnNth(t, h.proxy, h.scripts+"/release", 1, action)
				locktest.UnlockLossy(t, h.held, action)
				a := next.Held()
				h.holds(t, a, 1)
				if err := a.Extend(bg, time.Minute); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, a)
				locktest.MustUnlock(t, rival.Held())
				h.free(t)
			}, unhurried)
		})
	}
}

// The release is not answered at all: Unlock says so. The waiter has the lock when the release has run, be it the one
// that the client repeats later.
func TestReleaseThatWakesAWaiterWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]faultproxy.Action{"ran": faultproxy.SwallowReply, "did not run": faultproxy.ResetBefore} {
		t.Run(name, func(t *testing.T) {
			eachOrdered(t, func(t *testing.T, h *holder) {
				next, _ := h.join(t)
				sha := locktest.SHA(h.scripts + "/release")
				h.proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
					if cmd.IsScript(sha) {
						return action
					}
					return faultproxy.Pass
				})
				locktest.WantErr(t, h.held.Unlock(bg), rlock.ErrUnconfirmed, rlock.ErrUnreachable)
				h.proxy.Handle(nil)
				locktest.MustUnlock(t, next.Held())
				h.free(t)
			}, rlock.WithUnlockTimeout(2*time.Second))
		})
	}
}

// A copy of the release is held up on its way, and arrives when the waiter that it woke has
// left and others have the lock and wait.
func TestLateCopyOfAReleaseEndsNoOtherHold(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		next, _ := h.join(t)
		locktest.OnNth(t, h.proxy, h.scripts+"/release", 1, faultproxy.Hold)
		locktest.MustUnlock(t, h.held) // by the resend
		a := next.Held()
		rival := h.rival(t)
		own, _ := h.join(t)
		locktest.MustUnlock(t, a)
		b := rival.Held()
		if n := h.proxy.Release(); n != 1 {
			t.Fatalf("%d copies were late", n)
		}
		h.holds(t, b, 1)
		locktest.MustUnlock(t, b)
		locktest.MustUnlock(t, own.Held())
		h.free(t)
	}, unhurried)
}

// The waiter leaves while the release is under way: before it runs, or before it is answered.
func TestWaiterLeavesDuringTheReleaseThatWakesIt(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		t.Run(map[bool]string{true: "before", false: "after"}[before], func(t *testing.T) {
			eachOrdered(t, func(t *testing.T, h *holder) {
				next, _ := h.join(t)
				rival := h.rival(t)
				h.on(func(cmd redis.Cmder, send func() error) error {
					if locktest.Runs(cmd, h.scripts+"/enter") {
						<-next.Done // a look that the message brings about is too late
						return send()
					}
					if !locktest.Runs(cmd, h.scripts+"/release") {
						return send()
					}
					var err error
					if !before {
						err = send()
					}
					next.Cancel()
					<-next.Done
					locktest.Eventually(t, "it has abandoned its hold", func() bool { return h.sent("abandon") > 0 && h.busy.Load() <= 1 })
					if before {
						err = send()
					}
					return err
				})
				locktest.MustUnlock(t, h.held)
				<-next.Done
				locktest.WantEnded(t, next.Err, context.Canceled)
				locktest.MustUnlock(t, rival.Held())
				h.free(t)
			})
		})
	}
}

// Canceled waiters and releases race.
func TestCanceledWaiterRacesWithTheReleaseThatWakesIt(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		rounds := 20
		for i := range rounds {
			next, _ := h.join(t)
			last, _ := h.join(t)
			go func() {
				time.Sleep(time.Duration(i) * 50 * time.Microsecond)
				next.Cancel()
			}()
			locktest.MustUnlock(t, h.held)
			<-next.Done
			if next.Err == nil {
				locktest.MustUnlock(t, next.Lease)
			} else if !errors.Is(next.Err, context.Canceled) {
				t.Fatal(next.Err)
			}
			h.held = last.Held()
			h.holds(t, h.held, 0)
		}
		locktest.MustUnlock(t, h.held)
		h.free(t)
	})
}

// The waiter looks while the release is under way. Its look may run before the release, and is
// answered after it; or it runs after it, and takes the lock.
func TestWaiterLooksDuringTheReleaseThatWakesIt(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{true, false} {
		t.Run(map[bool]string{true: "runs before", false: "runs after"}[early], func(t *testing.T) {
			eachOrdered(t, func(t *testing.T, h *holder) {
				next, _ := h.join(t)
				last, _ := h.join(t)
				looking, released := make(chan struct{}), make(chan struct{})
				var once sync.Once
				h.on(func(cmd redis.Cmder, send func() error) error {
					if !locktest.Runs(cmd, h.scripts+"/enter") {
						return send()
					}
					var err error
					if early {
						err = send()
					}
					once.Do(func() { close(looking) })
					<-released
					if !early {
						err = send()
					}
					return err
				})
				<-looking // a sign of life, of the one or the other
				locktest.MustUnlock(t, h.held)
				close(released)
				a := next.Held()
				h.holds(t, a, 1)
				locktest.MustUnlock(t, a)
				locktest.MustUnlock(t, last.Held())
				h.free(t)
			}, rlock.WithWaiterLease(rlock.DefaultWaiterLease/10))
		})
	}
}

// The process is stopped when the waiter's look has run, until the lease that it granted is over.
func TestWaiterLearnsTooLateThatItHasTheLock(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		lease := locktest.Ample(300 * time.Millisecond)
		next, _ := h.join(t, rlock.WithLease(lease))
		var looks atomic.Int64
		h.on(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if locktest.Runs(cmd, h.scripts+"/enter") && looks.Add(1) == 1 {
				time.Sleep(lease + 50*time.Millisecond)
			}
			return err
		})
		unlocked := time.Now()
		locktest.MustUnlock(t, h.held)
		a := next.Held()
		if since := time.Since(unlocked); since < lease {
			t.Fatalf("it has the lock after %v", since)
		}
		s := locktest.MustState(t, h.Open(h.b.NewClient(t), "a"))
		if a.Err() == nil && (len(s.Holders) != 1 || s.Holders[0].HoldID != a.HoldID()) { // it was valid at the look
			t.Errorf("%+v; want the holder %q", s, a.HoldID())
		}
		_ = a.Unlock(bg)
		h.free(t)
	})
}

// The client begins to shut down when the release has run: before the waiter that it wakes looks, or when that look has
// taken the lock.
func TestShutdownDuringAReleaseThatWakesAWaiter(t *testing.T) {
	t.Parallel()
	for _, looks := range []bool{false, true} {
		t.Run(map[bool]string{false: "before the look", true: "after the look"}[looks], func(t *testing.T) {
			eachOrdered(t, func(t *testing.T, h *holder) {
				next, _ := h.join(t)
				rival := h.rival(t)
				began := make(chan (<-chan error), 1)
				var once sync.Once
				h.on(func(cmd redis.Cmder, send func() error) error {
					if !locktest.Runs(cmd, h.scripts+"/enter") {
						return send()
					}
					var err error
					if looks {
						err = send()
					}
					once.Do(func() {
						began <- locktest.ShutDown(bg, h.m.Client)
						<-next.Done // it does not wait for its look
					})
					if !looks {
						err = send()
					}
					return err
				})
				locktest.MustUnlock(t, h.held)
				<-next.Done
				locktest.WantErr(t, next.Err, rlock.ErrClosed)
				if err := <-<-began; err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, rival.Held())
				h.free(t)
			})
		})
	}
}

// A dead waiter is in front of that of the client.
func TestDeadWaiterInFrontOfTheNextOfTheClient(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		h.Put(t, h.rdb, "a", redistest.HoldID("dead:1"), time.Hour)
		next, _ := h.join(t)
		h.Dies(t, h.rdb, "a", redistest.HoldID("dead:1"))
		locktest.MustUnlock(t, h.held)
		locktest.MustUnlock(t, next.Held())
		h.free(t)
	})
}

// The hold is gone when it is released: the waiter does not get what another holds.
func TestReleaseOfALostHoldEndsNoOtherHold(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		rival := h.rival(t)
		next, _ := h.join(t)
		if was, err := h.Open(h.b.NewClient(t), "a").ForceUnlock(bg); !was || err != nil {
			t.Fatal(was, err)
		}
		other := rival.Held()
		locktest.WantErr(t, h.held.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrTakenOver)
		h.holds(t, other, 1)
		locktest.MustUnlock(t, other)
		locktest.MustUnlock(t, next.Held())
		h.free(t)
	})
}

// Many goroutines of one client share a lock. A section takes three commands: one joins the queue, one releases, and one
// takes the lock after the message of the release before. For a FairLock there are two more.
func TestCommandsOfACrowdInAQueue(t *testing.T) {
	t.Parallel()
	for _, k := range orderedTypes() {
		locktest.Beside(t, k.Name, func(t *testing.T) {
			b := locktest.OnServer(t)
			rdb, c := b.Client(t), b.NewClient(t)
			l := k.Open(c, "a")
			locktest.MustUnlock(t, locktest.MustLock(t, l))
			inside := func() (n int) {
				for _, calls := range locktest.ScriptCommands(t, rdb) {
					n += calls
				}
				return n
			}
			before, called := locktest.CommandCount(t, rdb, "evalsha", "subscribe", "unsubscribe"), inside()
			const goroutines, sections = 16, 40
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for range sections {
						lease, err := l.Lock(bg)
						if err == nil {
							err = lease.Unlock(bg)
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			n := float64(locktest.CommandCount(t, rdb, "evalsha", "subscribe", "unsubscribe")-before) / (goroutines * sections)
			calls := float64(inside()-called) / (goroutines * sections)
			t.Logf("a section took %.2f commands, and %.2f inside", n, calls)
			// Some look once more, as when a pause of the machine is over.
			if n > k.most || calls > k.inside+0.9 {
				t.Errorf("a section took %.2f commands, and %.2f inside", n, calls)
			}
		})
	}
}

// A reply that no script of ours gives is an error of Unlock. The waiter finds what has become of
// the lock.
func TestReleaseThatWakesAWaiterWithAReplyThatCannotBe(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		next, _ := h.join(t)
		sha := locktest.SHA(h.scripts + "/release")
		h.on(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if c, is := cmd.(interface{ SetVal(any) }); is && err == nil && len(cmd.Args()) > 1 && (cmd.Args()[1] == sha || cmd.Name() == "eval") {
				c.SetVal([]any{int64(5), int64(-1)})
			}
			return err
		})
		err := h.held.Unlock(bg)
		h.fault.Store(nil)
		locktest.WantErr(t, err, rlock.ErrUnconfirmed, nil, rlock.ErrLeaseLost)
		if !strings.HasSuffix(err.Error(), "[5 -1]") {
			t.Errorf("%v does not say what it was", err)
		}
		locktest.MustUnlock(t, next.Held())
		h.free(t)
	})
}

// The release is late, and is sent again. The answer of the copy that has done the work counts,
// whatever the other one finds.
func TestReleaseThatWakesAWaiterIsSentTwice(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		first, _ := h.join(t)
		second, _ := h.join(t)
		var sent atomic.Int64
		again := make(chan struct{})
		h.on(func(cmd redis.Cmder, send func() error) error {
			if !locktest.Runs(cmd, h.scripts+"/release") {
				return send()
			}
			switch sent.Add(1) {
			case 1:
				err := send()
				<-again
				return err
			case 2:
				close(again)
				time.Sleep(100 * time.Millisecond) // the other one is answered first
			}
			return send()
		})
		locktest.MustUnlock(t, h.held)
		if sent.Load() != 2 {
			t.Errorf("%d releases", sent.Load())
		}
		locktest.MustUnlock(t, first.Held())
		locktest.MustUnlock(t, second.Held())
		h.free(t)
	})
}

// A writer that reads on when it unlocks keeps other writers out, those of its client too.
func TestWriterThatReadsOnKeepsTheNextWriterOfItsClientOut(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		if h.Name != "write" {
			return
		}
		reader := locktest.MustLockCtx(t, h.held.Context(bg), locktest.FairRead(h.m.Client, "a"))
		next, _ := h.join(t)
		locktest.MustUnlock(t, h.held)
		h.holds(t, reader, 1)
		select {
		case <-next.Done:
			t.Fatal("a writer has come in beside a reader")
		case <-time.After(50 * time.Millisecond):
		}
		locktest.MustUnlock(t, reader)
		locktest.MustUnlock(t, next.Held())
		h.free(t)
	})
}

// Goroutines of two clients and their cancels race. Nobody is in the section beside another,
// tokens grow, and everybody gets in.
func TestCrowdsOfTwoClientsInAQueue(t *testing.T) {
	eachOrdered(t, func(t *testing.T, h *holder) {
		clients := []*rlock.Client{h.m.Client, h.b.NewClient(t, rlock.WithLongestPoll(locktest.Patient), rlock.WithWaiterLease(locktest.Patient))}
		var inside, entered, canceled atomic.Int64
		var last int64 // written inside the section
		var wg sync.WaitGroup
		for _, c := range clients {
			l := h.Open(c, "a")
			for range 8 {
				wg.Go(func() {
					for range 40 {
						ctx, cancel := context.WithCancel(bg)
						if rand.IntN(4) == 0 {
							time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
						}
						lease, err := l.Lock(ctx)
						if errors.Is(err, context.Canceled) {
							canceled.Add(1)
							cancel()
							continue
						}
						if err != nil {
							t.Error(err)
							cancel()
							return
						}
						if n := inside.Add(1); n != 1 || lease.Token() <= last {
							t.Errorf("%d are inside, token %d after %d", n, lease.Token(), last)
						}
						last = lease.Token()
						entered.Add(1)
						inside.Add(-1)
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
						cancel()
					}
				})
			}
		}
		locktest.MustUnlock(t, h.held)
		wg.Wait()
		t.Logf("%d sections, %d waiters canceled", entered.Load(), canceled.Load())
		h.free(t)
	})
}
