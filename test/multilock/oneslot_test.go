package multilock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// Free plain locks of one server, or of one slot of a cluster, cost one command; and so does their release.
func TestMultiLockOfOneSlotIsOneCommand(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]struct {
		on    *locktest.Backend
		names []string
	}{
		"standalone": {locktest.OnServer(t), []string{"a", "b", "c", "d"}},
		"cluster":    {locktest.OnCluster(t), []string{"{m}a", "{m}b", "{m}c", "{m}d"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := k.on
			rdb := b.Client(t)
			sent := &locktest.SentCommands{}
			// So that a reply that is late is not asked for again.
			c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(time.Minute))
			m := locktest.MultiLockOf(t, c, k.names...)
			locktest.MustUnlock(t, locktest.MustLock(t, m)) // loads the scripts, and finds the node
			rdb.AddHook(sent)
			for name, acquire := range map[string]locktest.Acquire{"Lock": locktest.Waiting(m), "TryLock": m.TryLock} {
				scripts := 0
				stats := locktest.Dialer(b.Addr)(t, nil)
				if b.Real != nil {
					scripts = locktest.CommandCount(t, stats, "evalsha")
				}
				from := sent.N.Load()
				lease, err := acquire(bg)
				if err != nil {
					t.Fatal(err)
				}
				if n := sent.N.Load() - from; n != 1 {
					t.Errorf("%s sent %d commands", name, n)
				}
				if b.Real != nil {
					if n := locktest.CommandCount(t, stats, "evalsha") - scripts; n != 1 {
						t.Errorf("%s ran %d scripts", name, n)
					}
				}
				for _, l := range lease.Members() {
					if l.Token() != lease.Token() {
						t.Errorf("token %d beside %d", l.Token(), lease.Token())
					}
				}
				from = sent.N.Load()
				locktest.MustUnlock(t, lease)
				if n := sent.N.Load() - from; n != 1 {
					t.Errorf("Unlock sent %d commands", n)
				}
			}
		})
	}
}

// Many locks are not taken or released by one script, which would hold up the server: each by its own, and a hundred at a time.
func TestMultiLockOfManyLocksHasNoLongScript(t *testing.T) {
	t.Parallel()
	const n = 250
	b := locktest.OnServer(t)
	rdb, sent := b.Client(t), &locktest.SentCommands{}
	// So that a reply that is late is not asked for again.
	c := locktest.NewClient(t, rdb, rlock.WithCommandTimeout(time.Minute), rlock.WithUnlockTimeout(time.Minute))
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("lock ", i))
	}
	m := locktest.MultiLockOf(t, c, names...)
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.MultiLockOf(t, c, names[:2]...))) // loads the scripts
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewLock(names[0])))
	rdb.AddHook(sent)
	lease := locktest.MustLock(t, m)
	if got := sent.N.Load(); got != n {
		t.Errorf("Lock sent %d commands", got)
	}
	from := sent.N.Load()
	locktest.MustUnlock(t, lease)
	if got := sent.N.Load() - from; got != 3 {
		t.Errorf("Unlock sent %d commands", got)
	}
	locktest.NothingLeft(t, rdb)
}

// Whoever looks at all keys at once never sees a part of an acquire.
func TestMultiLockOfOneSlotIsAtomic(t *testing.T) {
	t.Parallel()
	locktest.EveryRedis(t, func(t *testing.T, b *locktest.Backend) {
		names := []string{"{m}a", "{m}b", "{m}c"}
		var mu sync.Mutex // guards the rest
		leaving := map[string]bool{}
		got, seen := 0, 0
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			rdb := b.Client(t)
			c := locktest.NewClient(t, rdb)
			for range 3 {
				locks := make([]rlock.Locker, len(names))
				for i, j := range rand.Perm(len(names)) {
					locks[i] = c.NewLock(names[j])
				}
				m := locktest.NewMultiLock(t, locks...)
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						lease, err := m.TryLock(bg)
						if errors.Is(err, rlock.ErrNotAcquired) {
							continue
						} else if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						got++
						leaving[lease.HoldID()] = true // each member is released by itself
						mu.Unlock()
						if err := lease.Unlock(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		look := redis.NewScript(`local all = {} for i, k in ipairs(KEYS) do all[i] = redis.call('hkeys', k)[1] or '' end return all`)
		rdb := b.Client(t)
		for end := time.Now().Add(locktest.Patience); ; {
			owners, err := look.Run(bg, rdb, names).StringSlice()
			if err != nil {
				t.Error(err)
				break
			}
			slices.Sort(owners)
			owners = slices.Compact(owners)
			mu.Lock()
			who := owners[len(owners)-1]
			if len(owners) > 2 || len(owners) == 2 && owners[0] != "" {
				t.Errorf("two hold a part each: %q", owners)
			}
			if len(owners) == 1 && who != "" {
				seen++
			}
			part := len(owners) == 2 && owners[0] == ""
			mu.Unlock()
			if part {
				// It is leaving; that is noted before the first release is sent.
				mu.Lock()
				if !leaving[who] {
					t.Errorf("%s holds a part", who)
				}
				mu.Unlock()
			}
			mu.Lock()
			enough := got >= 30 && seen >= 3
			mu.Unlock()
			if enough {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%d acquires, of which %d were seen", got, seen)
				break
			}
		}
		close(stop)
		wg.Wait()
		locktest.NothingLeft(t, rdb)
	})
}
