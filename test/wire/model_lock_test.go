package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/modeltest"
)

// Random operations of a few owners on one lock, compared after each step with
// a model that is simple enough to be read. rapid shortens what fails.

var modelRuns atomic.Int64

// lockModel is what a reentrant, exclusive lock should be: who holds it, and
// how often.
type lockModel struct {
	lock   rlock.Locker
	owners []context.Context
	holder int // index of the owner; -1: nobody
	leases []*rlock.Lease

	counter string // key of the counter that tokens come from; empty: another source
	token   int64  // its value
	// disturb, if there is one, has something happen to the next run of a script.
	disturb func(script string, action faultproxy.Action)
}

func (m *lockModel) acquire(t *rapid.T) {
	who := rapid.IntRange(0, len(m.owners)-1).Draw(t, "owner")
	lease, err := m.lock.TryLock(m.owners[who])
	if m.holder >= 0 && m.holder != who {
		if !errors.Is(err, rlock.ErrNotAcquired) {
			t.Fatalf("owner %d while %d holds the lock: %v, %v", who, m.holder, lease, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("owner %d: %v", who, err)
	}
	if len(m.leases) > 0 && (lease.HoldID() != m.leases[0].HoldID() || lease.Token() != m.leases[0].Token()) {
		t.Fatalf("a re-entry has another owner or token")
	}
	if len(m.leases) == 0 {
		m.token++ // once, however often the request was sent
	}
	if m.counter != "" && lease.Token() != m.token {
		t.Fatalf("token %d, want %d", lease.Token(), m.token)
	}
	m.holder, m.leases = who, append(m.leases, lease)
}

func (m *lockModel) unlock(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip("free")
	}
	i := rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")
	if err := locktest.Ended(m.leases[i].Unlock(bg)); err != nil {
		t.Fatal(err)
	}
	if err := m.leases[i].Unlock(bg); !errors.Is(err, rlock.ErrUnlocked) {
		t.Fatalf("unlocked twice: %v", err)
	}
	m.leases = append(m.leases[:i:i], m.leases[i+1:]...)
	if len(m.leases) == 0 {
		m.holder = -1
	}
}

// lose ends the hold from outside. The owner keeps its dead leases until it has
// unlocked them, and does not get in before.
func (m *lockModel) lose(t *rapid.T) {
	forced, err := m.lock.(interface {
		ForceUnlock(context.Context) (bool, error)
	}).ForceUnlock(bg)
	if err != nil || forced != (m.holder >= 0) {
		t.Fatalf("force unlock: %v, %v; holder %d", forced, err, m.holder)
	}
	for _, l := range m.leases {
		if err := l.Extend(bg, rlock.MinLease); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatalf("extend of a lost lease: %v", err)
		}
		if _, err := m.lock.TryLock(m.owners[m.holder]); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatalf("re-entry into a lost hold: %v", err)
		}
	}
	for _, l := range m.leases {
		if err := l.Unlock(bg); !errors.Is(err, rlock.ErrLeaseLost) {
			t.Fatalf("unlock of a lost lease: %v", err)
		}
	}
	m.holder, m.leases = -1, nil
}

// quickLosses are the ways to lose a reply, or to send a request twice, that cost
// little time.
var quickLosses = []faultproxy.Action{faultproxy.ResetAfter, faultproxy.ResetBefore, faultproxy.Duplicate, faultproxy.Error}

func (m *lockModel) loss(t *rapid.T) {
	if m.disturb == nil || rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
		return
	}
	m.disturb(rapid.SampledFrom([]string{"lock/enter", "lock/release"}).Draw(t, "script"), rapid.SampledFrom(quickLosses).Draw(t, "loss"))
}

// fields is the hash that the lock should be in Redis.
func (m *lockModel) fields() map[string]string {
	if len(m.leases) == 0 {
		return map[string]string{}
	}
	return map[string]string{m.leases[0].HoldID(): fmt.Sprint(len(m.leases))}
}

func followsLockModel(t *testing.T, rdb redis.UniversalClient, open func(name string) rlock.Locker, more ...func(*lockModel)) {
	t.Helper()
	modeltest.Check(t, 100, func(t *rapid.T) {
		name := fmt.Sprintf("model:%d", modelRuns.Add(1))
		m := &lockModel{lock: open(name), holder: -1}
		for range 3 {
			m.owners = append(m.owners, rlock.WithOwner(bg))
		}
		for _, fn := range more {
			fn(m)
		}
		// Also if rapid breaks the run off, because it had to skip too much.
		defer func() {
			for _, l := range m.leases {
				_ = l.Unlock(bg)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire,
			"unlock":  m.unlock,
			"lose":    m.lose,
			"loss":    m.loss,
			"": func(t *rapid.T) {
				if got := rdb.HGetAll(bg, name).Val(); !maps.Equal(got, m.fields()) {
					t.Fatalf("in Redis: %v, want %v", got, m.fields())
				}
				if m.counter == "" {
					return
				}
				if n, err := rdb.Get(bg, m.counter).Int64(); n != m.token || err != nil && !errors.Is(err, redis.Nil) {
					t.Fatalf("the counter is %d (%v), want %d", n, err, m.token)
				}
			},
		})
	})
}

func TestLockFollowsItsModel(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		rdb := b.Client(t)
		c := locktest.NewClient(t, rdb)
		followsLockModel(t, rdb, func(name string) rlock.Locker { return c.NewLock(name) })
		locktest.MustBeEmpty(t, rdb)
	})
}

// The types whose place in Redis is one hash, while replies are lost and requests
// run twice.
func TestTypesOfOneHashFollowTheirModelThroughLosses(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		for kind, open := range locktest.HashTypes {
			if kind == "Lock" && b.Mini != nil {
				continue // slow, and TestLockFollowsItsModel runs there
			}
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				// The usual timeouts: a machine that is busy must not make a loss
				// an outage.
				c, proxy, rdb := b.Faulty(t, rlock.WithCommandTimeout(10*time.Second), rlock.WithUnlockTimeout(10*time.Second))
				names := map[string]bool{} // others use the server as well
				followsLockModel(t, rdb, func(name string) rlock.Locker { names[name] = true; return open(c, name) }, func(m *lockModel) {
					if kind == "FencedLock" {
						m.counter = "redisson_lock_token:{" + m.lock.Name() + "}"
					}
					m.disturb = func(script string, action faultproxy.Action) {
						id := locktest.SHA(script)
						var done atomic.Bool
						proxy.Handle(func(cmd faultproxy.Command) faultproxy.Action {
							if cmd.IsScript(id) && !done.Swap(true) {
								return action
							}
							return faultproxy.Pass
						})
					}
				})
				for _, key := range locktest.Keys(t, rdb) {
					if names[key] {
						t.Fatalf("left in Redis: %q", key)
					}
				}
			})
		}
	})
}
