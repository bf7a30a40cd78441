package wire

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Master is one server of a deployment, and how to reach it alone. The client is not embedded: the compiler would
// make a method of Master for each of its several hundred.
type Master struct {
	Addr   string // empty: go-redis does not show it
	Client redis.UniversalClient
}

// FewestConnections is how many connections to a server serve a client well: as many as send single
// requests, one for another copy of a request, and one for others.
const FewestConnections = alone + 2

// mapped is what a *redis.ClusterClient, and a type that embeds one, does with all masters.
type mapped interface {
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, master *redis.Client) error) error
}

// Masters returns the masters that have slots, or the server of a deployment that is no cluster. Of a
// cluster whose client does not show the nodes it is that client.
func (d *Deployment) Masters(ctx context.Context, within time.Duration) ([]Master, error) {
	cluster, ok := d.rdb.(mapped)
	if !ok {
		return []Master{{d.Address(), d.io}}, nil
	}
	return Within(ctx, d, within, func(ctx context.Context) (all []Master, err error) {
		var mu sync.Mutex // guards all
		err = cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, Master{master.Options().Addr, master})
			return nil
		})
		slices.SortFunc(all, func(a, b Master) int { return strings.Compare(a.Addr, b.Addr) })
		return all, err
	})
}

// Within runs something that talks to Redis through go-redis, which may hang for as long as its
// timeouts. It returns when that is done, ctx ends, or the time is over.
func Within[T any](ctx context.Context, d *Deployment, within time.Duration, do func(ctx context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	done := make(chan result, 1)
	d.Go(func() {
		var r result
		if err := d.Safely(func() (err error) { r.value, err = do(bounded); return err }); err != nil {
			r.err = err
		}
		done <- r
	})
	var none T
	select {
	case r := <-done:
		switch {
		case r.err == nil:
			return r.value, nil
		case ctx.Err() != nil:
			return none, ctx.Err()
		case IsReply(r.err):
			return none, Refused(r.err)
		}
		return none, NoAnswer(within, r.err)
	case <-bounded.Done():
		if err := ctx.Err(); err != nil {
			return none, err
		}
		return none, NoAnswer(within, nil)
	}
}

// Outcome is what a function of Together has returned.
type Outcome[T any] struct {
	Value T
	Err   error
}

// Together calls functions, so many at once, and returns what they return, in their order.
func Together[T any](d *Deployment, most int, all []func() (T, error)) []Outcome[T] {
	out := make([]Outcome[T], len(all))
	slots := make(chan struct{}, most)
	var under sync.WaitGroup
	for i, fn := range all {
		slots <- struct{}{}
		under.Go(func() {
			defer func() { <-slots }()
			err := d.Safely(func() (err error) { out[i].Value, err = fn(); return err })
			out[i].Err = err
		})
	}
	under.Wait()
	return out
}
