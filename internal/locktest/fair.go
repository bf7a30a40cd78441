package locktest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// FairKeys are the keys of a fair lock in addition to its hash.
type FairKeys struct{ Lock, Queue, Deadlines, Alive, Channel string }

// FairKeysOf are the keys of the fair lock of a name.
func FairKeysOf(name string) FairKeys {
	if strings.Contains(name, "{") {
		return FairKeys{name, "redisson_lock_queue:" + name, "redisson_lock_timeout:" + name, name + ":rlock:waiters", "redisson_lock__channel:" + name + ":"}
	}
	return FairKeys{name, "redisson_lock_queue:{" + name + "}", "redisson_lock_timeout:{" + name + "}", "{" + name + "}:rlock:waiters", "redisson_lock__channel:{" + name + "}:"}
}

// FairLockState is what Redis has of a fair lock.
type FairLockState struct {
	Hold      map[string]string
	Queue     []string
	Deadlines map[string]float64
	Alive     map[string]float64
}

// FairState reads them all in one moment.
func FairState(rdb redis.UniversalClient, name string) FairLockState {
	k := FairKeysOf(name)
	v := FairLockState{Hold: map[string]string{}, Deadlines: map[string]float64{}, Alive: map[string]float64{}}
	// One script, so that it is the state of one moment.
	parts, err := rdb.Eval(bg, `return {
		redis.call('hgetall', KEYS[1]), redis.call('lrange', KEYS[2], 0, -1),
		redis.call('zrange', KEYS[3], 0, -1, 'withscores'), redis.call('zrange', KEYS[4], 0, -1, 'withscores')}`,
		[]string{k.Lock, k.Queue, k.Deadlines, k.Alive}).Slice()
	if err != nil {
		return v // the server is away; the caller polls again
	}
	lists := make([][]string, len(parts))
	for i, part := range parts {
		for _, item := range part.([]any) {
			lists[i] = append(lists[i], item.(string))
		}
	}
	for fields := range slices.Chunk(lists[0], 2) {
		v.Hold[fields[0]] = fields[1]
	}
	v.Queue = lists[1]
	for i, scores := range []map[string]float64{v.Deadlines, v.Alive} {
		for z := range slices.Chunk(lists[2+i], 2) {
			scores[z[0]], _ = strconv.ParseFloat(z[1], 64)
		}
	}
	return v
}

// ServerNow is the clock of the server, in the unit of the scores.
func ServerNow(rdb redis.UniversalClient) float64 {
	now, _ := rdb.Time(bg).Result()
	return float64(now.UnixMilli())
}

// PutFairWaiter puts a waiter of another process into the line by hand, with a sign of
// life that is good for the given time from now.
func PutFairWaiter(t testing.TB, rdb redis.UniversalClient, name, id string, alive, deadline time.Duration) {
	t.Helper()
	k, now := FairKeysOf(name), ServerNow(rdb)
	if _, err := rdb.TxPipelined(bg, func(p redis.Pipeliner) error {
		p.RPush(bg, k.Queue, id)
		p.ZAdd(bg, k.Deadlines, redis.Z{Score: now + float64(deadline.Milliseconds()), Member: id})
		p.ZAdd(bg, k.Alive, redis.Z{Score: now + float64(alive.Milliseconds()), Member: id})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// FairWaiter is a Lock that waits in a goroutine.
type FairWaiter struct {
	ID     string
	Cancel context.CancelFunc
	Done   chan struct{} // closed when it has returned
	Lease  *rlock.Lease
	Err    error
}

// Wait waits for the end of the Lock.
func (w *FairWaiter) Wait(t testing.TB) *rlock.Lease {
	t.Helper()
	select {
	case <-w.Done:
	case <-time.After(Patience):
		t.Fatalf("the waiter %s got nothing", w.ID)
	}
	if w.Err != nil {
		t.Fatal(w.Err)
	}
	return w.Lease
}

// Left waits for the end of a Lock that was canceled.
func (w *FairWaiter) Left(t testing.TB) {
	t.Helper()
	<-w.Done
	if w.Err == nil {
		t.Fatalf("the waiter %s got the lock", w.ID)
	}
}

// Waits reports whether the Lock has not returned.
func (w *FairWaiter) Waits() bool {
	select {
	case <-w.Done:
		return false
	default:
		return true
	}
}

// LineUp lets a Lock wait, and returns when it is in the queue: at its end,
// as long as the caller lets others in one by one.
func LineUp(rdb redis.UniversalClient, l *rlock.FairLock, opts ...rlock.AcquireOption) (*FairWaiter, error) {
	before := FairState(rdb, l.Name()).Queue
	ctx, cancel := context.WithTimeout(bg, 2*Patience)
	w := &FairWaiter{Cancel: cancel, Done: make(chan struct{})}
	go func() {
		defer close(w.Done)
		w.Lease, w.Err = l.Lock(ctx, opts...)
	}()
	for began := time.Now(); ; Pause(began) {
		for _, id := range FairState(rdb, l.Name()).Queue {
			if !slices.Contains(before, id) {
				w.ID = id
				return w, nil
			}
		}
		select {
		case <-w.Done:
			return w, nil // it has not had to wait
		default:
		}
		if time.Since(began) > Patience {
			cancel()
			return w, errors.New("it does not get into the queue")
		}
	}
}

// MustLineUp is LineUp for a waiter that is canceled at the end of the test.
func MustLineUp(t testing.TB, rdb redis.UniversalClient, l *rlock.FairLock, opts ...rlock.AcquireOption) *FairWaiter {
	t.Helper()
	w, err := LineUp(rdb, l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Cancel)
	if w.ID == "" {
		t.Fatalf("it has not had to wait: %v, %v", w.Lease, w.Err)
	}
	return w
}

// Parked is MustLineUp for a waiter that sleeps when it returns: it has looked at first, and
// after the confirmation of its subscription.
func Parked(t testing.TB, rdb redis.UniversalClient, m *Member, name string, opts ...rlock.AcquireOption) *FairWaiter {
	t.Helper()
	from := m.Looks.At(name)
	w := MustLineUp(t, rdb, m.NewFairLock(name), opts...)
	m.Parked(t, name, from+2)
	return w
}

// JavaFairLock is a waiter or holder of Redisson, by the rules of its wire. It is
// made of single commands: only for tests in which nothing else uses the lock.
type JavaFairLock struct {
	RDB   redis.UniversalClient
	Keys  FairKeys
	Owner string
	Wait  float64 // ms
}

func (j *JavaFairLock) score(owner string) (float64, bool) {
	s, err := j.RDB.ZScore(bg, j.Keys.Deadlines, owner).Result()
	return s, err == nil
}

func (j *JavaFairLock) head() string { return j.RDB.LIndex(bg, j.Keys.Queue, 0).Val() }

func (j *JavaFairLock) purge() {
	for {
		h := j.head()
		if s, ok := j.score(h); h == "" || !ok || s > ServerNow(j.RDB) {
			return
		}
		j.RDB.ZRem(bg, j.Keys.Deadlines, h)
		j.RDB.LPop(bg, j.Keys.Queue)
	}
}

// Try is an acquire that queues; it reports whether the lock was taken.
func (j *JavaFairLock) Try(lease time.Duration) bool {
	j.purge()
	free, h := j.RDB.Exists(bg, j.Keys.Lock).Val() == 0, j.head()
	if free && (h == "" || h == j.Owner) {
		j.RDB.LPop(bg, j.Keys.Queue)
		j.RDB.ZRem(bg, j.Keys.Deadlines, j.Owner)
		for _, other := range j.RDB.ZRange(bg, j.Keys.Deadlines, 0, -1).Val() {
			j.RDB.ZIncrBy(bg, j.Keys.Deadlines, -j.Wait, other)
		}
		j.RDB.HSet(bg, j.Keys.Lock, j.Owner, 1)
		j.RDB.PExpire(bg, j.Keys.Lock, lease)
		return true
	}
	if _, ok := j.score(j.Owner); ok {
		return false
	}
	now := ServerNow(j.RDB)
	base := float64(j.RDB.PTTL(bg, j.Keys.Lock).Val().Milliseconds())
	if s, ok := j.score(j.RDB.LIndex(bg, j.Keys.Queue, -1).Val()); ok {
		base = s - now
	}
	j.RDB.ZAdd(bg, j.Keys.Deadlines, redis.Z{Score: base + j.Wait + now, Member: j.Owner})
	j.RDB.RPush(bg, j.Keys.Queue, j.Owner)
	return false
}

// Unlock wakes the head of the queue.
func (j *JavaFairLock) Unlock() {
	j.purge()
	j.RDB.Del(bg, j.Keys.Lock)
	if h := j.head(); h != "" {
		j.RDB.Publish(bg, j.Keys.Channel+h, "0")
	}
}

// GiveUp ends the wait. It wakes no other waiter, as in Redisson.
func (j *JavaFairLock) GiveUp() {
	queue := j.RDB.LRange(bg, j.Keys.Queue, 0, -1).Val()
	for _, other := range queue[slices.Index(queue, j.Owner)+1:] {
		j.RDB.ZIncrBy(bg, j.Keys.Deadlines, -j.Wait, other)
	}
	j.RDB.ZRem(bg, j.Keys.Deadlines, j.Owner)
	j.RDB.LRem(bg, j.Keys.Queue, 1, j.Owner)
}
