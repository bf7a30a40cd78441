//go:build linux

package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
)

// leaks are what a library could leave behind in each round, and what the judge says of it. What a leak needs to end is
// given to its after.
var leaks = []struct {
	name string
	leak func(h *house, round int, after func(func()))
	want string
}{
	{"a goroutine", func(_ *house, _ int, after func(func())) {
		end := make(chan struct{})
		go func() { <-end }()
		after(func() { close(end) })
	}, "goroutines of github.com/go-rlock/rlock/check/soak."},
	{"a buffer", func(_ *house, _ int, after func(func())) {
		kept := make([]byte, moreHeap)
		after(func() { kept[0] = 1 })
	}, "bytes of the heap: "},
	{"records of holds", func(_ *house, _ int, after func(func())) {
		var kept []*int64
		for range moreObjects {
			kept = append(kept, new(int64))
		}
		after(func() { *kept[0] = 1 })
	}, "objects of the heap: "},
	{"a key without a name in the documents", func(h *house, round int, after func(func())) {
		h.leave(after, fmt.Sprintf("{Lock-1}:rlock:left:%d", round), 0)
	}, " keys such as "},
	{"a tombstone that lasts", func(h *house, round int, after func(func())) {
		h.leave(after, fmt.Sprintf("{Lock-1}:rlock:gone:%d", round), 0)
	}, " keys such as "},
	{"a tombstone that lasts for too long", func(h *house, round int, after func(func())) {
		h.leave(after, fmt.Sprintf("{Lock-1}:rlock:gone:%d", round), time.Hour)
	}, " keys such as "},
	{"a counter for each hold", func(h *house, round int, after func(func())) {
		for i := range names {
			h.leave(after, fmt.Sprintf("redisson_lock_token:{FencedLock-%d}", round*names+i), 0)
		}
	}, ` keys of kind "counter of a FencedLock"`},
	{"a page for each operation", func(h *house, round int, after func(func())) {
		h.leave(after, fmt.Sprintf("{Semaphore-1}:rlock:op:client:%d", (round+1)*mostPages/2), time.Minute)
	}, " pages of a client, at most "},
	{"a kept lease", func(h *house, round int, after func(func())) {
		held := locktest.MustLock(h.t, h.members[0].clients[0].NewLock(fmt.Sprint("kept-", round)))
		after(func() { locktest.MustUnlock(h.t, held) })
	}, " holds, at most 0"},
	{"a waiter", func(h *house, round int, after func(func())) {
		held := locktest.MustLock(h.t, h.members[0].clients[0].NewLock(fmt.Sprint("kept-", round)))
		ctx, cancel := context.WithCancel(bg)
		waits := locktest.Begin(h.t, ctx, h.members[1].clients[0].NewLock(fmt.Sprint("kept-", round)))
		after(func() {
			cancel()
			_ = waits.GiveUp()
			locktest.MustUnlock(h.t, held)
		})
	}, " waiters, at most 0"},
	{"a subscription", func(h *house, round int, after func(func())) {
		ctx, cancel := context.WithCancel(bg)
		after(cancel)
		if _, err := h.members[0].clients[0].NewElection(fmt.Sprint("observed-", round)).Observe(ctx); err != nil {
			h.t.Fatal(err)
		}
	}, " channels such as "},
	{"a subscribed connection", func(h *house, _ int, after func(func())) {
		for range nodes * members {
			s := h.direct[0].Subscribe(bg, "any")
			if _, err := s.Receive(bg); err != nil {
				h.t.Fatal(err)
			}
			after(func() { _ = s.Close() })
		}
	}, " subscribed connections, at most "},
	{"connections", func(h *house, _ int, after func(func())) {
		for range nodes * members * mostOfClient / leastSamples * 2 {
			rdb := redis.NewClient(&redis.Options{Addr: h.servers[0].Addr()})
			if err := rdb.Ping(bg).Err(); err != nil {
				h.t.Fatal(err)
			}
			after(func() { _ = rdb.Close() })
		}
	}, " connections, at most "},
}

// leave leaves a key.
func (h *house) leave(after func(func()), key string, ttl time.Duration) {
	h.t.Helper()
	if err := h.direct[0].Set(bg, key, 1, ttl).Err(); err != nil {
		h.t.Fatal(err)
	}
	after(func() { h.direct[0].Del(bg, key) })
}

// tries does not wait, so that nothing but a leak remains for a moment.
var tries = []use{{"Lock", func(ctx context.Context, w *worker, name string, node int) error {
	held, err := w.client(node).NewLock(name).TryLock(ctx)
	if err != nil {
		return err
	}
	return held.Unlock(bg)
}}}

// The judge of the long run notices each leak, and nothing else where there is none.
func TestLeaksAreNoticed(t *testing.T) {
	h := newHouse(t, 1, tries)
	brief := func(t *testing.T, patience time.Duration, each func(round int)) (samples []sample) {
		for round := range leastSamples {
			h.begin()
			time.Sleep(50 * time.Millisecond)
			each(round)
			h.end()
			samples = append(samples, h.sample(patience))
		}
		return samples
	}
	none := func(t *testing.T) {
		samples := brief(t, patience, func(int) {})
		for _, wrong := range judge(samples) {
			t.Error(wrong)
		}
		if t.Failed() {
			t.Log(samples)
		}
	}
	t.Run("none", none)
	for _, leak := range leaks {
		t.Run(leak.name, func(t *testing.T) {
			var after []func()
			samples := brief(t, 0, func(round int) {
				leak.leak(h, round, func(f func()) { after = append(after, f) })
			})
			for _, f := range after {
				f()
			}
			wrong := judge(samples)
			for _, one := range wrong {
				if strings.Contains(one, leak.want) {
					return
				}
			}
			t.Errorf("%q instead of %q", wrong, leak.want)
		})
	}
	t.Run("none again", none)
}

// A run of a few samples, without faults and uses, is not taken for one that has found nothing.
func TestAShortRunIsTooLittle(t *testing.T) {
	if wrong := judge(make([]sample, leastSamples-1)); len(wrong) != 1 || !strings.HasPrefix(wrong[0], "only ") {
		t.Errorf("of %d samples: %q", leastSamples-1, wrong)
	}
	h := newHouse(t, 1, tries)
	lacks := strings.Join(h.lacking(rounds/2-1), ", ")
	for _, want := range append([]string{"6 samples", "0 uses of a Lock", "0 of 112 names of a Lock"}, faults...) {
		if !strings.Contains(lacks, want) {
			t.Errorf("without %q: %q", want, lacks)
		}
	}
}

// Each part of a joined error has to be explained, and an error with its cause as a whole.
func TestFaultsExplainEachPartOfAnError(t *testing.T) {
	lost := &rlock.Error{Err: fmt.Errorf("%w: %w", rlock.ErrLeaseLost, io.EOF)}
	strange := &rlock.Error{Err: rlock.ErrInvalidArgument}
	for _, test := range []struct {
		err error
		may bool
	}{
		{lost, true},
		{strange, false},
		{errors.Join(lost, rlock.ErrUnreachable), true},
		{errors.Join(lost, strange), false},
		{errors.Join(strange, lost), false},
		{errors.Join(lost, io.EOF), false},
		{errors.Join(lost, errors.Join(lost, strange)), false},
		{fmt.Errorf("tick: %w", &rlock.Error{Err: errors.Join(lost, strange)}), false},
		{fmt.Errorf("tick: %w", &rlock.Error{Err: errors.Join(lost, lost)}), true},
	} {
		if got := mayFail(test.err); got != test.may {
			t.Errorf("%q: %v", test.err, got)
		}
	}
}

// An error of a use that no fault explains is reported.
func TestUnexpectedErrorsAreReported(t *testing.T) {
	h := newHouse(t, 1, []use{{"Lock", func(_ context.Context, w *worker, name string, node int) error {
		_, err := w.client(node).NewLock("").Lock(bg)
		return err
	}}})
	h.begin()
	time.Sleep(10 * time.Millisecond)
	h.end()
	if wrong := h.unexpected(); len(wrong) != 1 || !strings.Contains(wrong[0], rlock.ErrInvalidArgument.Error()) {
		t.Errorf("%q", wrong)
	}
}
