package coordination

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
)

// holder is a client behind a proxy, whose holders listen.
type holder struct {
	c      *rlock.Client
	p      *faultproxy.Proxy
	events *locktest.Events
}

func behind(t *testing.T, b *locktest.Backend, opts ...rlock.Option) holder {
	t.Helper()
	h := holder{p: faultproxy.New(t, b.Addr), events: &locktest.Events{}}
	h.c = locktest.NewClient(t, locktest.Dialer(h.p.Addr())(t, nil), append(opts, rlock.WithObserver(h.events))...)
	return h
}

// looks is how often the client has looked whether it was asked.
func (h holder) looks() int {
	id := locktest.SHA("lock/asked")
	return h.p.Count(func(c faultproxy.Command) bool { return c.IsScript(id) })
}

// listens has a new holder listen, and waits until it is subscribed and has looked.
func (h holder) listens(t *testing.T, lease *rlock.Lease) {
	t.Helper()
	from := h.looks()
	deaf(t, lease)
	locktest.Eventually(t, "it is subscribed", func() bool { return h.events.Confirmations("{a}:rlock:asked") > 0 })
	locktest.Eventually(t, "it has looked", func() bool { return h.looks() > from })
}

// The subscribed connection breaks, and the request comes before the next one is there.
func TestRequestWhileTheSubscriptionIsBroken(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		h := behind(t, b, patient)
		other := b.NewClient(t).NewLock("a")
		lease := locktest.MustLock(t, h.c.NewLock("a"))
		h.listens(t, lease)
		h.p.Refuse(true)
		request(t, other, true)
		deaf(t, lease)
		h.p.Refuse(false)
		hears(t, lease)
		locktest.MustUnlock(t, lease)
	})
}

// Messages get lost without a trace, or cannot be sent: the holder looks by itself.
func TestRequestWithoutAMessage(t *testing.T) {
	t.Parallel()
	short := rlock.WithWatchdogLease(locktest.Ample(6 * time.Second))
	for name, open := range map[string]func(c *rlock.Client) rlock.Locker{
		"Lock":     func(c *rlock.Client) rlock.Locker { return c.NewLock("a") },
		"SpinLock": func(c *rlock.Client) rlock.Locker { return c.NewSpinLock("a") },
	} {
		for what, opts := range map[string][]rlock.AcquireOption{"renewed": nil, "fixed": {rlock.WithLease(time.Hour)}} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
					h := behind(t, b, short)
					h.p.DropMessages(true)
					lease := locktest.MustLock(t, open(h.c), opts...)
					h.listens(t, lease)
					// At first, when it is subscribed, and then by itself.
					locktest.Eventually(t, "it looks by itself", func() bool { return h.looks() >= 3 })
					request(t, b.NewClient(t).NewLock("a"), true)
					hears(t, lease)
					locktest.MustUnlock(t, lease)
				})
			})
		}
	}
	t.Run("may not publish", func(t *testing.T) {
		t.Parallel()
		b := locktest.OnServer(t)
		if err := b.Client(t).Do(bg, "acl", "setuser", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish").Err(); err != nil {
			t.Fatal(err)
		}
		mute := locktest.NewClient(t, locktest.Dialer(b.Addr)(t, func(o *redis.Options) { o.Username, o.Password = "mute", "secret" }))
		lease := locktest.MustLock(t, b.NewClient(t, short).NewLock("a"))
		deaf(t, lease)
		request(t, mute.NewLock("a"), true)
		hears(t, lease)
		locktest.MustUnlock(t, lease)
	})
	t.Run("may not subscribe", func(t *testing.T) {
		t.Parallel()
		b := locktest.OnServer(t)
		if err := b.Client(t).Do(bg, "acl", "setuser", "deaf", "on", ">secret", "~*", "&*", "+@all", "-subscribe").Err(); err != nil {
			t.Fatal(err)
		}
		c := locktest.NewClient(t, locktest.Dialer(b.Addr)(t, func(o *redis.Options) { o.Username, o.Password = "deaf", "secret" }), short)
		lease := locktest.MustLock(t, c.NewLock("a"))
		deaf(t, lease)
		request(t, b.NewClient(t).NewLock("a"), true)
		hears(t, lease)
		locktest.MustUnlock(t, lease)
	})
}

// The looks themselves fail for a while.
func TestLookWithoutAnAnswerIsRepeated(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	h := behind(t, b, patient, rlock.WithCommandTimeout(locktest.Ample(500*time.Millisecond)))
	id, left := locktest.SHA("lock/asked"), 4
	h.p.Handle(func(c faultproxy.Command) faultproxy.Action {
		if c.IsScript(id) && left > 0 {
			left--
			return []faultproxy.Action{faultproxy.ResetAfter, faultproxy.Error, faultproxy.ResetBefore, faultproxy.SwallowReply}[left]
		}
		return faultproxy.Pass
	})
	other := b.NewClient(t).NewLock("a")
	lease := locktest.MustLock(t, h.c.NewLock("a"))
	request(t, other, true)
	hears(t, lease)
	locktest.MustUnlock(t, lease)
}

// Whatever becomes of a request and its reply, it is known who was asked, and the next holder
// hears nothing.
func TestLostReplyToARequest(t *testing.T) {
	t.Parallel()
	locktest.EachLoss(t, "lock/request_release", func(t *testing.T, b *locktest.Backend, action faultproxy.Action) {
		other, p, _ := b.Faulty(t)
		h := behind(t, b, patient)
		l, theirs := h.c.NewLock("a"), other.NewLock("a")
		lease := locktest.MustLock(t, l)
		request(t, theirs, true) // it loads the scripts
		hears(t, lease)
		locktest.MustUnlock(t, lease)

		locktest.OnNth(t, p, "lock/request_release", 1, action)
		lease = locktest.MustLock(t, l)
		got := make(chan error, 1)
		go func() { _, err := theirs.RequestRelease(bg); got <- err }()
		hears(t, lease)
		locktest.MustUnlock(t, lease)
		next := locktest.MustLock(t, l)
		if err := <-got; err != nil {
			t.Error(err)
		}
		h.listens(t, next)
		deaf(t, next)
		locktest.MustUnlock(t, next)
	})
}

// A request that runs when its hold has ended means nothing to the next hold, whose holder
// gets the message.
func TestLateRequestIsNotForTheNextHolder(t *testing.T) {
	t.Parallel()
	for _, k := range locktest.Types {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
				other := behind(t, b, rlock.WithCommandTimeout(300*time.Millisecond))
				h := behind(t, b, patient)
				l := k.Open(h.c, "a")
				ask := k.Blocker(other.c, "a")
				if k.Shared {
					ask = map[string]rlock.Locker{
						"ReadLock":      other.c.NewReadWriteLock("a").Writer,
						"fair ReadLock": other.c.NewFairReadWriteLock("a").Writer,
					}[k.Name]
				}
				id := locktest.SHA("lock/request_release")
				locktest.LoadScripts(t, b.Client(t), "lock/request_release")
				var held atomic.Bool
				other.p.Handle(func(c faultproxy.Command) faultproxy.Action {
					if c.IsScript(id) {
						held.Store(true)
						return faultproxy.Hold
					}
					return faultproxy.Pass
				})
				lease := locktest.MustLock(t, l)
				for !held.Load() { // a busy machine may not even have sent it
					_, err := ask.(rlock.ReleaseRequester).RequestRelease(bg)
					locktest.WantErr(t, err, rlock.ErrUnreachable)
				}
				locktest.MustUnlock(t, lease)
				next := locktest.MustLock(t, l)
				h.listens(t, next)
				from := h.looks()
				if other.p.Release() == 0 {
					t.Fatal("no request was late")
				}
				locktest.Eventually(t, "it was told, and has looked", func() bool { return h.looks() > from })
				locktest.MustUnlock(t, next) // the look is answered by now, or it means nothing any more
				deaf(t, next)
				for _, key := range locktest.Keys(t, b.Client(t)) {
					if strings.Contains(key, ":rlock:asked:") && strings.HasSuffix(key, next.HoldID()) {
						t.Errorf("%s: the next holder was asked", key)
					}
				}
			})
		})
	}
}

// A lease that Shutdown has ended is still held, and renewed, but not asked for any more.
func TestRequestAfterShutdownHasBegun(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	h := behind(t, b, rlock.WithWatchdogLease(locktest.Ample(3*time.Second)))
	lease := locktest.MustLock(t, h.c.NewLock("a"))
	h.listens(t, lease)
	done := locktest.ShutDown(bg, h.c, lease)
	from := h.looks()
	request(t, b.NewClient(t).NewLock("a"), true)
	locktest.Eventually(t, "it has looked", func() bool { return h.looks() > from })
	locktest.MustUnlock(t, lease)
	if err := <-done; err != nil {
		t.Error(err)
	}
	deaf(t, lease)
}
