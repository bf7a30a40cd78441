package wire

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Master is one server of a deployment, with a client for it. The client is not embedded: the compiler would make
// several hundred methods of Master.
type Master struct {
	Addr   string // empty if go-redis does not show it
	Client redis.UniversalClient
}

// FewestConnections is how many connections to a server a client needs to work well: as many as alone
// for single requests, one for second copies, and one for the rest.
const FewestConnections = alone + 2

// mapped is the method of *redis.ClusterClient, and of types that embed one, that visits all masters.
type mapped interface {
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, master *redis.Client) error) error
}

// Masters returns the masters that have slots, or the server of a deployment that is not a cluster. If
// the client of a cluster does not show the nodes, it returns that client.
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
		sort.Slice(all, func(i, j int) bool { return all[i].Addr < all[j].Addr })
		return all, err
	})
}

// Within calls a function that uses go-redis, and so may hang until the timeouts of go-redis end it.
// Within returns when the function does, ctx ends, or the time is over.
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

// Outcome is the result of a function of Together.
type Outcome[T any] struct {
	Value T
	Err   error
}

// Together calls functions, at most a number of them at a time, and returns their results in order.
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
