package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Nothing panics for want of an argument: not a constructor, and not a method of
// what a constructor returned or did not make.
func TestNilAndZeroValuesAreRefused(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	c := b.NewClient(t)
	var noContext context.Context
	nothing := func(context.Context) error { return nil }
	wrong := func(what string, call func() error) {
		t.Helper()
		defer func() {
			t.Helper()
			if p := recover(); p != nil {
				t.Errorf("%s panics: %v", what, p)
			}
		}()
		if err := call(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	locker := func(what string, ctx context.Context, l rlock.Locker, opts ...rlock.TryOption) {
		t.Helper()
		wrong(what+": Lock", func() error { _ = l.Name(); _, err := l.Lock(ctx, locktest.Options(opts)...); return err })
		wrong(what+": TryLock", func() error { _, err := l.TryLock(ctx, opts...); return err })
		wrong(what+": Do", func() error { return rlock.Do(ctx, l, nothing, locktest.Options(opts)...) })
	}
	all := func(what string, ctx context.Context, l locktest.AnyLock) {
		t.Helper()
		locker(what, ctx, l)
		wrong(what+": State", func() error { _, err := l.State(ctx); return err })
		wrong(what+": IsLocked", func() error { _, err := l.IsLocked(ctx); return err })
		wrong(what+": HoldCount", func() error { _, err := l.HoldCount(ctx); return err })
		wrong(what+": ForceUnlock", func() error { _, err := l.ForceUnlock(ctx); return err })
		wrong(what+": ForceUnlockIf", func() error { _, err := l.ForceUnlockIf(ctx, "owner"); return err })
		wrong(what+": Watch", func() error { _, err := l.Watch(ctx); return err })
	}

	// Each constructor, of no client, of one that was not made, with a nil option,
	// and each method with a nil context.
	for _, k := range locktest.Types {
		all(k.Name+" of a nil Client", bg, k.Open(nil, "a"))
		all(k.Name+" of a zero Client", bg, k.Open(&rlock.Client{}, "a"))
		all(k.Name+" with a nil option", bg, k.Open(c, "a", nil))
		all(k.Name+" with a nil context", noContext, k.Open(c, "a"))
		locker(k.Name+" acquired with a nil option", bg, k.Open(c, "a"), nil)
	}
	// Values that no constructor made.
	for what, l := range map[string]locktest.AnyLock{
		"Lock": &rlock.Lock{}, "FairLock": &rlock.FairLock{}, "SpinLock": &rlock.SpinLock{}, "FencedLock": &rlock.FencedLock{},
		"PriorityLock": &rlock.PriorityLock{}, "RedLock": &rlock.RedLock{}, "ReadLock": rlock.ReadLock{}, "WriteLock": rlock.WriteLock{},
		"ReadWriteLock": (&rlock.ReadWriteLock{}).Reader, "FairReadWriteLock": (&rlock.FairReadWriteLock{}).Writer,
	} {
		all("zero "+what, bg, l)
		wrong("MultiLock of a zero "+what, func() error { _, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("a"), l}); return err })
	}
	_ = (&rlock.ReadWriteLock{}).Name() + (&rlock.FairReadWriteLock{}).Name() + (*rlock.ReadWriteLock)(nil).Name() + (*rlock.FairReadWriteLock)(nil).Name()
	wrong("CurrentToken", func() error { _, err := (&rlock.FencedLock{}).CurrentToken(bg); return err })
	wrong("BootstrapNodes", func() error { return (&rlock.RedLock{}).BootstrapNodes(bg) })

	// MultiLock.
	m := locktest.MultiLockOf(t, c, "a", "b")
	locker("MultiLock with a nil context", noContext, m)
	locker("MultiLock with a nil option", bg, m, nil)
	locker("zero MultiLock", bg, &rlock.MultiLock{})
	locker("nil MultiLock", bg, (*rlock.MultiLock)(nil))
	for what, l := range map[string]rlock.Locker{
		"nil": nil, "a nil Lock": (*rlock.Lock)(nil), "a nil MultiLock": (*rlock.MultiLock)(nil), "a zero MultiLock": &rlock.MultiLock{},
		"a lock of a nil Client": (*rlock.Client)(nil).NewLock("a"),
	} {
		wrong("NewMultiLock with "+what, func() error { _, err := rlock.NewMultiLock([]rlock.Locker{c.NewLock("a"), l}); return err })
	}

	// RedLock.
	for what, clients := range map[string][]*rlock.Client{"none": nil, "a nil one": {c, nil}, "a zero one": {c, {}}, "the nil one": {nil}} {
		wrong("NewRedLock with "+what, func() error { _, err := rlock.NewRedLock("a", clients); return err })
	}
	wrong("NewRedLock with a nil option", func() error { _, err := rlock.NewRedLock("a", []*rlock.Client{c}, nil); return err })
	all("RedLock with a nil context", noContext, locktest.NewRedLock(t, "a", []*rlock.Client{c}))

	// Types that are no Lockers, with a nil option.
	wrong("PermitSemaphore", func() error { _, err := c.NewPermitSemaphore("a", nil).Available(bg); return err })
	wrong("Semaphore", func() error { _, err := c.NewSemaphore("a", nil).Available(bg); return err })
	wrong("Election", func() error { _, err := c.NewElection("a", nil).Leader(bg); return err })
	wrong("Once", func() error { _, _, err := c.NewOnce("a", time.Minute, nil).Peek(bg); return err })
	wrong("CronJob", func() error { _, _, err := c.NewCronJob("a", nil).Last(bg); return err })

	// Client.
	wrong("New without a client", func() error { _, err := rlock.New(nil); return err })
	wrong("New with a nil client", func() error { _, err := rlock.New((*redis.Client)(nil)); return err })
	wrong("New with a nil option", func() error { _, err := rlock.New(b.Client(t), nil); return err })
	wrong("Shutdown with a nil context", func() error { return c.Shutdown(noContext) })
	wrong("BootstrapServer with a nil context", func() error { return c.BootstrapServer(noContext) })
	for what, none := range map[string]*rlock.Client{"nil": nil, "zero": {}} {
		wrong(what+" Client: Close", none.Close)
		wrong(what+" Client: Shutdown", func() error { return none.Shutdown(bg) })
		wrong(what+" Client: BootstrapServer", func() error { _ = none.ID(); return none.BootstrapServer(bg) })
	}

	// Do.
	wrong("Do without a lock", func() error { return rlock.Do(bg, nil, nothing) })
	wrong("Do with a nil lock", func() error { return rlock.Do(bg, (*rlock.Lock)(nil), nothing) })
	wrong("Do without a function", func() error { return rlock.Do(bg, c.NewLock("a"), nil) })
	locktest.MustBeFree(t, m) // nothing of all that has taken a lock
}

// A lease that no lock gave out has ended.
func TestNilAndZeroLeasesHaveEnded(t *testing.T) {
	t.Parallel()
	for _, l := range []*rlock.Lease{nil, {}} {
		if s := l.Name() + l.HoldID(); s != "" || l.Token() != 0 || l.Members() != nil || !l.Deadline().IsZero() {
			t.Error("it has something")
		}
		<-l.Done()
		locktest.WantErr(t, l.Err(), rlock.ErrNotHeld)
		locktest.WantErr(t, l.Unlock(bg), rlock.ErrNotHeld)
		locktest.WantErr(t, l.Extend(bg, time.Minute), rlock.ErrNotHeld)
		ctx := l.Context(bg)
		<-ctx.Done()
		locktest.WantErr(t, context.Cause(ctx), rlock.ErrNotHeld)
	}
}

// A nil context stops nobody from giving a lock back.
func TestUnlockWithANilContext(t *testing.T) {
	t.Parallel()
	l := locktest.OnMiniredis(t).NewClient(t).NewLock("a")
	var noContext context.Context
	lease := locktest.MustLockCtx(t, rlock.WithoutOwner(rlock.WithOwner(noContext)), l)
	locktest.MustUnlock(t, locktest.MustLockCtx(t, lease.Context(noContext), l))
	locktest.WantErr(t, lease.Extend(noContext, time.Minute), rlock.ErrInvalidArgument)
	if err := lease.Unlock(noContext); err != nil {
		t.Fatal(err)
	}
	locktest.MustBeFree(t, l)
}

func TestBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		hook := &locktest.CountHook{}
		rdb.AddHook(hook)
		for name, why := range map[string]string{
			"":     "no name",
			"a{b":  "hash tag",
			"{}z":  "hash tag",
			"a}b":  "hash tag",
			"a{}b": "hash tag",
			strings.Repeat("n", rlock.MaxNameLength+1): "longer than",
		} {
			l := c.NewLock(name)
			_, err := l.Lock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			if !strings.Contains(err.Error(), why) {
				t.Errorf("name %.20q: error %.200q does not say %q", name, err, why)
			}
			_, err = l.TryLock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.IsLocked(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.HoldCount(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
			_, err = l.ForceUnlock(bg)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
		l := c.NewLock("a")
		for _, opt := range []rlock.AcquireOption{
			rlock.WithLease(0), rlock.WithLease(-time.Second), rlock.WithLease(rlock.MinLease - 1), rlock.WithLease(rlock.MaxLease + 1), rlock.WithWait(-1),
		} {
			_, err := l.Lock(bg, opt)
			locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		}
		_, err := l.ForceUnlockIf(bg, "")
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		_, err = c.NewLock("a", rlock.WithMaxHold(-1)).Lock(bg)
		locktest.WantErr(t, err, rlock.ErrInvalidArgument)
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_, err = l.Lock(ctx)
		locktest.WantEnded(t, err, context.Canceled)
		if n := hook.N.Load(); n != 0 {
			t.Fatalf("%d commands were sent", n)
		}
	})
}

// No type takes a name that has the form of a key or channel beside another lock, whether it is in
// the name, in the prefix of the client, or begins in one and ends in the other.
func TestNoTypeTakesANameOfAnotherLocksKeys(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	plain := b.NewClient(t)
	const client = "0189a6c4-9f5e-8abc-8def-0123456789ab" // its version is that of our clients
	for _, named := range []struct {
		c    *rlock.Client
		name string
	}{
		{plain, "redisson_lock_queue:{victim}"},
		{plain, "redisson_sc:{tag}victim"},
		{plain, "redisson_countdownlatch__channel__{victim}"},
		{plain, "{victim}:timeout"},
		{plain, "{victim}:rlock:gone:" + client + ":7"},
		{plain, "tag{victim}:" + client + ":7:rwlock_timeout:1"},
		{plain, "{victim}:" + client},
		{plain, "{victim}:" + client + ":7"},
		{plain, "{victim}"},
		{plain, "rlock:served"},
		{plain, "rlock:red:highest"},
		{plain, "rlock:clock:{7}"},
		{b.NewClient(t, rlock.WithPrefix("redisson_lock_queue:")), "{victim}"},
		{b.NewClient(t, rlock.WithPrefix("{app}:")), "victim:timeout"},
		{b.NewClient(t, rlock.WithPrefix("{app}:rlo")), "ck:next"},
		{plain, "rlock:clock"},
		{plain, "app:rlock:served"},
		{plain, "app:rlock:red:admitted"},
		{plain, "app:rlock:clock"},
		{plain, "app:rlock:clock:{7}"},
		{b.NewClient(t, rlock.WithPrefix("app:")), "rlock:clock"},
		{b.NewClient(t, rlock.WithPrefix("app:rlock:")), "clock"},
		{b.NewClient(t, rlock.WithPrefix("rlock:")), "served"},
	} {
		c, name := named.c, named.name
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), "name") {
				t.Errorf("%s of the name %q: %v", what, name, err)
			}
		}
		for _, k := range locktest.Types {
			_, err := k.Open(c, name).TryLock(bg)
			refused(k.Name, err)
		}
		_, err := c.NewElection(name).Campaign(bg, "")
		refused("Election", err)
		_, _, err = c.NewOnce(name, time.Minute).Do(bg, func(context.Context) ([]byte, error) { return nil, nil })
		refused("Once", err)
		_, err = c.NewCronJob(name).Do(bg, time.Now().Truncate(time.Second), func(context.Context) error { return nil })
		refused("CronJob", err)
		_, err = c.NewDoubleBarrier(name, 1).Enter(bg)
		refused("DoubleBarrier", err)
		_, err = c.NewPermitSemaphore(name).TrySetPermits(bg, 1)
		refused("PermitSemaphore", err)
		_, err = c.NewPermitSemaphore(name, rlock.WithFairness()).TrySetPermits(bg, 1)
		refused("PermitSemaphore with WithFairness", err)
		_, err = c.NewSemaphore(name).TrySetPermits(bg, 1)
		refused("Semaphore", err)
		_, err = c.NewCountDownLatch(name).TrySetCount(bg, 1)
		refused("CountDownLatch", err)
		refused("Barrier", c.NewBarrier(name).Set(bg))
		_, err = rlock.NewRedLock(name, []*rlock.Client{c})
		refused("RedLock", err)
	}
	if keys := b.Client(t).Keys(bg, "*").Val(); len(keys) > 0 {
		t.Errorf("Redis has %v", keys)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := rlock.New(ring); !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), "Ring") {
		t.Fatal(err)
	}
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := rlock.New(rdb); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Fatal(err)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for i, opt := range []rlock.Option{
		rlock.WithWatchdogLease(time.Millisecond), rlock.WithWatchdogLease(25 * time.Hour),
		rlock.WithCommandTimeout(0), rlock.WithUnlockTimeout(-1), rlock.WithLongestPoll(0),
		rlock.WithDrift(-1, 0), rlock.WithDrift(math.NaN(), 0), rlock.WithDrift(0.1, -1), rlock.WithDrift(0.5, time.Hour),
		rlock.WithReplicaAck(-1, time.Second), rlock.WithReplicaAck(1, 0),
		rlock.WithPubSub("loud"), rlock.WithObserver(nil), rlock.WithLogger(nil),
		rlock.WithLabel(strings.Repeat("x", rlock.MaxLabelLength+1)), rlock.WithLabel("a\nb"), rlock.WithLabel("\xff"), rlock.WithLabel("a\u202eb"),
	} {
		if _, err := rlock.New(rdb, opt); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("option %d: %v", i, err)
		}
	}
}

// Each has a method with a name that is called, but with other parameters.
type (
	outdatedContended    struct{ locktest.Ignoring }
	outdatedRenewed      struct{ locktest.Ignoring }
	outdatedLeadership   struct{ locktest.Ignoring }
	outdatedRetry        struct{ locktest.Ignoring }
	outdatedSubscription struct{ locktest.Ignoring }
	outdatedUnpublished  struct{ locktest.Ignoring }
	outdatedDropped      struct{ locktest.Ignoring }
)

func (outdatedContended) Contended(lock string)                  {}
func (outdatedRenewed) Renewed(lock, holdID string)              {}
func (outdatedLeadership) Leadership(lock string)                {}
func (outdatedRetry) Retry(lock string)                          {}
func (outdatedSubscription) Subscription(channel string, on int) {}
func (outdatedUnpublished) Unpublished(why string)               {}
func (outdatedDropped) Dropped(events int64)                     {}

// A method that nobody would ever call is refused, and not ignored in silence.
func TestObserverWithAMethodOfOtherParametersIsRefused(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for method, o := range map[string]rlock.Observer{
		"Contended": outdatedContended{}, "Renewed": outdatedRenewed{}, "Leadership": outdatedLeadership{},
		"Retry": outdatedRetry{}, "Subscription": outdatedSubscription{}, "Unpublished": outdatedUnpublished{},
		"Dropped": outdatedDropped{},
	} {
		_, err := rlock.New(rdb, rlock.WithObserver(o))
		if want := "the method " + method + " of a rlock_test.outdated" + method; !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// What no constructor made is refused by the first call, and a lease that is none is one that has ended. Of a
// nil pointer that holds for the methods that a type declares itself. Those that it has from what it embeds
// panic, as Go has no value to call them with: most of the locks', which share them.
func TestMethodsOfNilAndZeroReceivers(t *testing.T) {
	t.Parallel()
	contexts, failures := reflect.TypeFor[context.Context](), reflect.TypeFor[error]()
	for _, typ := range []reflect.Type{
		reflect.TypeFor[rlock.Client](), reflect.TypeFor[rlock.Lock](), reflect.TypeFor[rlock.FairLock](), reflect.TypeFor[rlock.SpinLock](),
		reflect.TypeFor[rlock.FencedLock](), reflect.TypeFor[rlock.ReadWriteLock](), reflect.TypeFor[rlock.FairReadWriteLock](),
		reflect.TypeFor[rlock.ReadLock](), reflect.TypeFor[rlock.WriteLock](), reflect.TypeFor[rlock.PriorityLock](),
		reflect.TypeFor[rlock.MultiLock](), reflect.TypeFor[rlock.RedLock](), reflect.TypeFor[rlock.Semaphore](),
		reflect.TypeFor[rlock.PermitSemaphore](), reflect.TypeFor[rlock.CountDownLatch](), reflect.TypeFor[rlock.Barrier](),
		reflect.TypeFor[rlock.DoubleBarrier](), reflect.TypeFor[rlock.Election](), reflect.TypeFor[rlock.Once](), reflect.TypeFor[rlock.CronJob](), reflect.TypeFor[rlock.Lease](),
	} {
		for what, v := range map[string]reflect.Value{"nil": reflect.Zero(reflect.PointerTo(typ)), "zero": reflect.New(typ)} {
			for i := range v.NumMethod() {
				m := v.Type().Method(i)
				name := fmt.Sprintf("%s of a %s %s", m.Name, what, typ.Name())
				if _, byValue := typ.MethodByName(m.Name); byValue && what == "nil" {
					continue
				}
				call := v.Method(i)
				var args []reflect.Value
				for j := range call.Type().NumIn() {
					switch in := call.Type().In(j); {
					case call.Type().IsVariadic() && j == call.Type().NumIn()-1:
					case in == contexts:
						args = append(args, reflect.ValueOf(bg))
					case in.Kind() == reflect.Func:
						args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value { panic(name + " calls its function") }))
					case in.Kind() == reflect.String:
						args = append(args, reflect.ValueOf("a").Convert(in))
					case in.Kind() >= reflect.Int && in.Kind() <= reflect.Int64:
						args = append(args, reflect.ValueOf(1).Convert(in))
					default:
						args = append(args, reflect.Zero(in))
					}
				}
				func() {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%s panics: %v", name, p)
						}
					}()
					out := call.Call(args)
					if len(out) == 0 || !out[len(out)-1].Type().Implements(failures) || m.Name == "Err" {
						return
					}
					err, _ := out[len(out)-1].Interface().(error)
					want := rlock.ErrInvalidArgument
					if typ == reflect.TypeFor[rlock.Lease]() {
						want = rlock.ErrNotHeld
					}
					if !errors.Is(err, want) {
						t.Errorf("%s: %v", name, err)
					}
				}()
			}
		}
	}
}
