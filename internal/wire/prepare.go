package wire

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// prepareEvery is how often a connection for pipelines is tried at most. go-redis closes one that was idle for half an
// hour, and what is between it and the server may drop one after a few minutes.
const prepareEvery = time.Minute

// prepared is when the connections for pipelines were tried last, by the address of their server.
type prepared struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

// isDue reports whether it is time for the next try, which it notes.
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

// Prepare has go-redis open the connection for the renewals of a hold that has just begun, with a PING in the
// background. Only if go-redis has a pool for pipelines alone: otherwise there is the connection of the acquire. A
// renewal would have to wait for the handshake, and a server that has become slow meanwhile would have to answer up to
// newConnection round trips before it.
func (d *Deployment) Prepare(key string) {
	node, err := d.NodeFor(d.ctx, key)
	if err != nil {
		return
	}
	address := "" // there is only one
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
		_ = d.askPing(ctx, node) // if it fails, the renewals open one
	})
}

// poolsApart reports whether pipelines have a pool of their own. Versions before 9.22 of go-redis know none.
func poolsApart(stats *redis.PoolStats) bool {
	of := reflect.ValueOf(stats).Elem().FieldByName("PipelineStats")
	return of.IsValid() && !of.IsNil()
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
