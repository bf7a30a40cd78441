// Package counting shows what the types that count do: PermitSemaphore, whose permits have
// leases (permits_*), and Semaphore with CountDownLatch and Barrier, which have none
// (semaphore_*). What is in Redis after each step, that nothing is counted twice or lost when
// replies are, who waits for how long, killed processes, and models.
package counting

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/protocol"
)

var bg = context.Background()

func TestMain(m *testing.M) { locktest.Main(m) }

// ok fails the test if a call has failed.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is checks the result of a call.
func is[T comparable](t testing.TB, want T) func(got T, err error) {
	return func(got T, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Fatalf("%v, %v, want %v", got, err, want)
		}
	}
}

// text is a string in Redis; "" if there is none.
func text(t testing.TB, rdb redis.UniversalClient, key string) string {
	t.Helper()
	v, err := rdb.Get(bg, key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

// records are the records of operations; the rest are all other keys.
func records(t testing.TB, rdb redis.UniversalClient) (records, rest []string) {
	t.Helper()
	for _, key := range locktest.Keys(t, rdb) {
		if strings.Contains(key, ":rlock:op:") {
			records = append(records, key)
		} else {
			rest = append(rest, key)
		}
	}
	slices.Sort(rest)
	return records, rest
}

// wantKeys checks that there is nothing else in Redis but records that go by themselves, and the
// numbers of all permits of semaphores.
func wantKeys(t testing.TB, rdb redis.UniversalClient, want ...string) {
	t.Helper()
	done, rest := records(t, rdb)
	rest = slices.DeleteFunc(rest, func(key string) bool {
		of, is := strings.CutSuffix(key, ":rlock:all")
		return is && (slices.Contains(want, of) || slices.Contains(want, strings.Trim(of, "{}")))
	})
	if !slices.Equal(rest, want) {
		t.Fatalf("keys %q, want %q", rest, want)
	}
	for _, key := range done {
		locktest.WantTTL(t, rdb, key, protocol.RecordTTL)
	}
}

// soon waits until a number is as it must be, for what goes on in the background.
func soon(t testing.TB, want int, get func(context.Context) (int, error)) {
	t.Helper()
	got := -1
	for began := time.Now(); ; locktest.Pause(began) {
		var err error
		if got, err = get(bg); err == nil && got == want {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%d, %v, want %d", got, err, want)
		}
	}
}

// begun calls a function in a goroutine.
func begun(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

// ended waits for what begun has begun.
func ended(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("it does not return")
		return nil
	}
}

// wait checks that calls wait.
func wait(t testing.TB, done ...<-chan error) {
	t.Helper()
	time.Sleep(50 * time.Millisecond)
	for _, d := range done {
		select {
		case err := <-d:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
	}
}

// heard is a subscription to a channel.
type heard struct {
	t  testing.TB
	ps *redis.PubSub
}

func listen(t testing.TB, rdb redis.UniversalClient, channel string) heard {
	t.Helper()
	ps := rdb.Subscribe(bg, channel)
	t.Cleanup(func() { _ = ps.Close() })
	if _, err := ps.Receive(bg); err != nil {
		t.Fatal(err)
	}
	return heard{t, ps}
}

// wants checks that these messages have come, and no other: the last one is the test's own.
func (h heard) wants(rdb redis.UniversalClient, channel string, want ...string) {
	h.t.Helper()
	ok(h.t, rdb.Publish(bg, channel, "end").Err())
	var got []string
	for {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		m, err := h.ps.ReceiveMessage(ctx)
		cancel()
		ok(h.t, err)
		if m.Payload == "end" {
			break
		}
		got = append(got, m.Payload)
	}
	if !slices.Equal(got, want) {
		h.t.Fatalf("messages %q, want %q", got, want)
	}
}

// listened waits until so many connections listen.
func listened(t testing.TB, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	channel := "redisson_sc:{" + name + "}"
	locktest.Eventually(t, "they listen", func() bool { return rdb.PubSubNumSub(bg, channel).Val()[channel] == n })
}
