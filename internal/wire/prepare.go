package wire

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// prepareEvery is the shortest time between two checks of the connection for pipelines. go-redis closes a connection that
// was idle for half an hour, and a firewall may drop one after a few minutes.
const prepareEvery = time.Minute

// prepared records when the connections for pipelines were checked last, by the address of the server.
type prepared struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

// isDue reports whether the next check is due, and records it.
func (p *prepared) isDue(address string) bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.at[address]; ok && now.Sub(last) < prepareEvery {
		return false
	}
	if p.at == nil {
		p.at = map[string]time.Time{}
	}
	p.at[address] = now
	return true
}

// Prepare makes go-redis open the connection for renewals when a hold begins, by a PING in the background. Otherwise
// the first renewal would wait for the handshake, which takes up to newConnection round trips to a server that may have
// become slow meanwhile. Prepare does nothing if go-redis has no separate pool for pipelines: then renewals can use the
// connection of the acquire.
func (d *Deployment) Prepare(key string) {
	node, err := d.NodeFor(d.ctx, key)
	if err != nil {
		return
	}
	address := "" // there is only one server
	if one, ok := node.(*redis.Client); ok {
		address = one.Options().Addr
	}
	if !d.opened.isDue(address) {
		return
	}
	apart := false
	_ = d.Safely(func() error { apart = poolsApart(node.PoolStats()); return nil })
	if !apart {
		return
	}
	d.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, d.cfg.CommandTimeout)
		defer cancel()
		_ = d.askPing(ctx, node) // if it fails, the renewals open a connection
	})
}

// poolsApart reports whether pipelines have a separate pool. Versions of go-redis before 9.22 have none.
func poolsApart(stats *redis.PoolStats) bool {
	field := reflect.ValueOf(stats).Elem().FieldByName("PipelineStats")
	return field.IsValid() && !field.IsNil()
}

// askPing sends a PING as a pipeline.
func (d *Deployment) askPing(ctx context.Context, node redis.UniversalClient) error {
	return d.Safely(func() error {
		pipe, cmd := node.Pipeline(), once{redis.NewCmd(ctx, "ping")}
		_ = pipe.Process(ctx, cmd)
		_, _ = pipe.Exec(ctx)
		return cmd.Err()
	})
}
