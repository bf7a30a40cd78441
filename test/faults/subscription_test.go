package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

func TestWaitersGetTheLockWithinThePollIfAllMessagesAreLost(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithLongestPoll(200*time.Millisecond))
		proxy.DropMessages(true)
		other := locktest.NewClient(t, rdb)
		for i := range 3 {
			name := fmt.Sprint(i)
			l, holder := c.NewLock(name), other.NewLock(name)
			lease := locktest.MustLock(t, holder)
			got := make(chan *rlock.Lease)
			go func() { got <- locktest.MustLock(t, l) }()
			locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, name) == 1 })
			locktest.MustUnlock(t, lease)
			start := time.Now()
			locktest.MustUnlock(t, <-got)
			if took := time.Since(start); took > 200*time.Millisecond+2*time.Second {
				t.Fatalf("waited %v, the longest poll is 200ms", took)
			}
		}
	})
}

func TestBlackHoledSubscriptionIsRebuilt(t *testing.T) {
	t.Parallel()
	locktest.EachRedis(t, func(t *testing.T, b *locktest.Backend) {
		c, proxy, rdb := b.Faulty(t, rlock.WithLongestPoll(locktest.Patient))
		holder := locktest.NewClient(t, rdb).NewLock("a")
		lease := locktest.MustLock(t, holder, rlock.WithLease(time.Hour))
		got := make(chan *rlock.Lease)
		go func() { got <- locktest.MustLock(t, c.NewLock("a")) }()
		locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
		// Only the connections of now: what comes later gets through.
		seen := len(proxy.Commands())
		proxy.Blackhole(true)
		locktest.MustUnlock(t, lease) // the message is lost
		if len(proxy.Commands()) < seen {
			t.Fatal("the log shrank")
		}
		// The library has to find out by itself: the connection stays open.
		locktest.Eventually(t, "it has asked for a sign of life", func() bool {
			for _, cmd := range proxy.Commands()[seen:] {
				if cmd.Name == "ping" {
					return true
				}
			}
			return false
		})
		locktest.Eventually(t, "it has dialled again", func() bool {
			for _, cmd := range proxy.Commands()[seen:] {
				if cmd.Name == "hello" {
					return true
				}
			}
			return false
		})
		proxy.Blackhole(false)
		locktest.MustUnlock(t, <-got)
	})
}

func TestHandOversSurviveKilledSubscriptions(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	rdb := b.Client(t)
	// Without a poll to save them, each hand-over needs a message, or a look
	// after the subscription was rebuilt.
	locks := []*rlock.Lock{
		locktest.NewClient(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient)).NewLock("a"),
		locktest.NewClient(t, b.Client(t), rlock.WithLongestPoll(locktest.Patient)).NewLock("a"),
	}
	stop := make(chan struct{})
	killed := make(chan int64)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		n := int64(0)
		for {
			select {
			case <-tick.C:
				k, _ := rdb.ClientKillByFilter(bg, "TYPE", "pubsub").Result()
				n += k
			case <-stop:
				killed <- n
				return
			}
		}
	}()
	const handOvers = 2000
	ctx, cancel := context.WithTimeout(bg, 5*time.Minute) // whoever misses a message waits for longer
	defer cancel()
	var wg sync.WaitGroup
	var longest time.Duration // guarded by the lock itself
	for g := range 4 {
		wg.Go(func() {
			for range handOvers / 4 {
				start := time.Now()
				lease, err := locks[g%2].Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				longest = max(longest, time.Since(start))
				time.Sleep(time.Millisecond) // a section, so that the kills fall among the hand-overs
				if err := lease.Unlock(bg); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	n := <-killed
	if n < 20 {
		t.Fatalf("only %d connections were killed", n)
	}
	t.Logf("%d hand-overs, %d subscribed connections killed, longest wait %v", handOvers, n, longest)
}

func TestWaiterSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	holder := b.NewClient(t).NewLock("a")
	l := b.NewClient(t, rlock.WithLongestPoll(locktest.Patient)).NewLock("a")
	lease := locktest.MustLock(t, holder, rlock.WithLease(time.Hour))
	got := make(chan *rlock.Lease)
	go func() { got <- locktest.MustLock(t, l) }()
	rdb := b.Client(t)
	locktest.Eventually(t, "it has subscribed", func() bool { return locktest.Subscribers(t, rdb, "a") == 1 })
	b.Real.Kill()
	b.Real.Restart() // empty: the lock is free, and nobody says so
	locktest.MustUnlock(t, <-got)
	locktest.WantErr(t, lease.Unlock(bg), rlock.ErrLeaseLost, rlock.ErrRemoved)
}

// A subscribe that the server refuses leaves polling.
func TestForbiddenChannelMeansPolling(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client()
	if err := admin.Do(bg, "acl", "setuser", "poor", "on", ">pw", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" })
	holder := locktest.NewClient(t, admin).NewLock("a")
	l := locktest.NewClient(t, rdb, rlock.WithLongestPoll(100*time.Millisecond)).NewLock("a")
	lease := locktest.MustLock(t, holder)
	got := make(chan *rlock.Lease)
	go func() { got <- locktest.MustLock(t, l) }()
	locktest.Eventually(t, "it stands in line", func() bool { return locktest.Waiters(t, l) == 1 })
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, <-got) // though it may not publish either
}

// Redis refuses a SUBSCRIBE as a whole, also when its user may not listen to one of the channels
// only: the client listens to the others.
func TestForbiddenChannelAmongOthers(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "resetchannels", "&redisson_lock__channel:{mine}*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
	t.Cleanup(func() { _ = rdb.Close() })
	c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient))
	other := b.NewClient(t)
	mine := locktest.MustLock(t, other.NewLock("mine"), rlock.WithLease(time.Hour))
	theirs := locktest.MustLock(t, other.NewLock("theirs"), rlock.WithLease(time.Hour))
	listens := func() bool { return locktest.Subscribers(t, admin, "mine") == 1 }
	next := locktest.Begin(t, bg, c.NewLock("mine"))
	locktest.Eventually(t, "it listens", listens)
	in := locktest.Begin(t, bg, c.NewLock("theirs"))
	locktest.Eventually(t, "it waits", func() bool { return locktest.Waiters(t, c.NewLock("theirs")) == 1 })
	if err := admin.ClientKillByFilter(bg, "type", "pubsub").Err(); err != nil { // both are asked for at once now
		t.Fatal(err)
	}
	locktest.Eventually(t, "it listens again", listens)
	locktest.MustUnlock(t, mine)
	locktest.MustUnlock(t, next.Held())
	_ = in.GiveUp()
	locktest.MustUnlock(t, theirs)
}

// The subscribed connection of a user who may not PING stays: an error reply is a sign of life.
func TestUserWhoMayNotPing(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "&*", "+@all", "-ping").Err(); err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, b.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), Username: "app", Password: "p"})
	t.Cleanup(func() { _ = rdb.Close() })
	said := &locktest.LogLines{}
	c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient), rlock.WithLogger(said.Logger()))
	held := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
	next := locktest.Begin(t, bg, c.NewLock("a"))
	locktest.Eventually(t, "a connection outlasts a PING", func() bool {
		pings := map[int]int{}
		for _, cmd := range proxy.Commands() {
			if cmd.Name == "ping" {
				pings[cmd.Conn]++
			}
		}
		for _, n := range pings {
			if n > 1 {
				return true
			}
		}
		return false
	})
	if said.With("refused") > 0 {
		t.Error(said)
	}
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, next.Held())
}

// A user who may listen to the channel of the lock, by its name, lacks the one by which a waiting client can be recognized.
// The log has that once, however often it waits.
func TestRefusedChannelIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "resetchannels", "&redisson_lock__channel:{a}", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
	t.Cleanup(func() { _ = rdb.Close() })
	said := &locktest.LogLines{}
	c := locktest.NewClient(t, rdb, rlock.WithLongestPoll(100*time.Millisecond), rlock.WithLogger(said.Logger()))
	held := locktest.MustLock(t, b.NewClient(t).NewLock("a"), rlock.WithLease(time.Hour))
	for range 5 {
		before := refusals(t, admin)
		next := locktest.Begin(t, bg, c.NewLock("a"))
		locktest.Eventually(t, "its client is refused the channel", func() bool { return refusals(t, admin) > before })
		locktest.WantErr(t, next.GiveUp(), context.Canceled)
	}
	locktest.Eventually(t, "the log has it", func() bool { return said.With("refused") > 0 })
	if n := said.With("refused"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, said)
	}
	locktest.MustUnlock(t, held)
}

// When its user is permitted to listen to a channel that was refused, the client does. Whoever waits for another one was not disturbed; holders that want to
// hear of requests and waiters of other types are in the same command.
func TestForbiddenChannelIsPermittedLater(t *testing.T) {
	t.Parallel()
	b := locktest.OnServer(t)
	admin := b.Client(t)
	if err := admin.Do(bg, "acl", "setuser", "app", "on", ">p", "~*", "resetchannels", "&*{mine}*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "app", Password: "p"})
	t.Cleanup(func() { _ = rdb.Close() })
	c, other := locktest.NewClient(t, rdb, rlock.WithLongestPoll(locktest.Patient)), b.NewClient(t)
	types := func(c *rlock.Client, name string) []rlock.Locker {
		return []rlock.Locker{c.NewLock(name + ":lock"), c.NewReadWriteLock(name + ":rw").Writer, c.NewPriorityLock(name + ":queue"), c.NewFairLock(name + ":fair")}
	}
	var held []*rlock.Lease
	var waiters []*locktest.Attempt
	for _, name := range []string{"{theirs}", "{mine}"} {
		for i, l := range types(other, name) {
			held = append(held, locktest.MustLock(t, l, rlock.WithLease(time.Hour)))
			waiters = append(waiters, locktest.Begin(t, bg, types(c, name)[i]))
		}
	}
	// It holds this one, and listens to requests.
	asked := locktest.MustLock(t, c.NewLock("{theirs}:asked"), rlock.WithLease(time.Hour))
	requested := asked.ReleaseRequested()
	channels := func(tag string) (n int) {
		for _, channel := range admin.PubSubChannels(bg, "*").Val() {
			if strings.Contains(channel, tag) {
				n++
			}
		}
		return n
	}
	listens := func() bool { return channels("{mine}") >= 4 }
	locktest.Eventually(t, "it listens where it may", listens)
	if err := admin.ClientKillByFilter(bg, "type", "pubsub").Err(); err != nil { // all are asked for at once now
		t.Fatal(err)
	}
	locktest.Eventually(t, "it listens again", listens)
	before := refusals(t, admin)
	locktest.Eventually(t, "it asks again, in vain", func() bool { return refusals(t, admin) > before })
	if n := channels("{theirs}"); n > 0 {
		t.Errorf("it listens to %d channels that are forbidden", n)
	}
	if err := admin.Do(bg, "acl", "setuser", "app", "&*{theirs}*").Err(); err != nil {
		t.Fatal(err)
	}
	locktest.Eventually(t, "it listens to all", func() bool { return channels("{theirs}") >= 5 && listens() })
	if ok, err := other.NewLock("{theirs}:asked").RequestRelease(bg); !ok || err != nil {
		t.Error(ok, err)
	}
	<-requested
	locktest.MustUnlock(t, asked)
	for i := range held {
		locktest.MustUnlock(t, held[i])
		locktest.MustUnlock(t, waiters[i].Held())
	}
}

// refusals is how often the server has refused somebody a channel.
func refusals(t *testing.T, admin redis.UniversalClient) (n int64) {
	t.Helper()
	for _, e := range admin.Do(bg, "acl", "log").Val().([]any) {
		if m, ok := e.(map[any]any); ok && m["reason"] == "channel" {
			n += m["count"].(int64)
		}
	}
	return n
}
