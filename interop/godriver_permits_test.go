//go:build unix

package interop

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
)

func itoa(n int) string { return strconv.Itoa(n) }

// suffixed is what Redisson makes of a name: {name}:suffix, or without braces if there are
// some.
func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// permits executes a request about a semaphore whose permits have leases; see the Java driver.
// It reports whether there is such a request.
func (w *worker) permits(ctx context.Context, verb string, args []string) (values []string, err error, ok bool) {
	number := func(i int) int {
		n, _ := strconv.Atoi(args[i])
		return n
	}
	var s *rlock.PermitSemaphore
	if len(args) > 0 {
		s = w.d.client.NewPermitSemaphore(args[0])
	}
	key := "permits\t"
	if len(args) > 0 {
		key += args[0]
	}
	switch verb {
	case "permits":
		set, err := s.TrySetPermits(ctx, number(1))
		if err == nil && !set {
			err = errNo
		}
		return nil, err, true
	case "add":
		return nil, s.AddPermits(ctx, number(1)), true
	case "available":
		free, err1 := s.Available(ctx)
		state, err2 := s.State(ctx)
		return []string{itoa(free), itoa(state.Permits)}, errors.Join(err1, err2), true
	case "take":
		lease, err := take(duration(args[2]), duration(args[3]),
			func(opts ...rlock.AcquireOption) (*rlock.Lease, error) { return s.Acquire(ctx, number(1), opts...) },
			func(opts ...rlock.TryOption) (*rlock.Lease, error) { return s.TryAcquire(ctx, number(1), opts...) })
		if errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
			return nil, errNo, true
		}
		if err == nil {
			w.leases[key] = append(w.leases[key], lease)
		}
		return nil, err, true
	case "give":
		lease, err := w.latest(key)
		if err != nil {
			return nil, err, true
		}
		w.leases[key] = w.leases[key][:len(w.leases[key])-1]
		return nil, lease.Unlock(ctx), true
	case "stints":
		return nil, w.stints(ctx, s, args[1], number(2), number(3)), true
	}
	return nil, nil, false
}

// stints takes permits n times, and sees how many are out.
func (w *worker) stints(ctx context.Context, s *rlock.PermitSemaphore, inside string, permits, n int) error {
	for i := range n {
		take := 1 + i%2
		opts := []rlock.AcquireOption{rlock.WithWait(time.Minute)}
		if i%4 < 2 {
			opts = append(opts, rlock.WithLease(20*time.Second))
		}
		lease, err := s.Acquire(ctx, take, opts...)
		if err != nil {
			return err
		}
		out, err := w.d.rdb.IncrBy(ctx, inside, int64(take)).Result()
		if err != nil || out > int64(permits) {
			return fmt.Errorf("%d permits are out (%w)", out, err)
		}
		if err := w.d.rdb.DecrBy(ctx, inside, int64(take)).Err(); err != nil {
			return err
		}
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}
