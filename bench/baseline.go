package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The baseline is what one gets who brings Redisson's lock to Go in the plain way: a
// hash for each lock, a channel for each lock on which releases are announced, one
// message wakes one waiter of each process, and a timer for each hold renews it. It has
// no tokens, no re-entry, and does not care about lost replies.

var (
	baselineEnter = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[1], 1)
  redis.call('pexpire', KEYS[1], ARGV[2])
  return nil
end
return redis.call('pttl', KEYS[1])`)
	baselineLeave = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], 0)
return 1`)
	baselineRenew = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  return redis.call('pexpire', KEYS[1], ARGV[2])
end
return 0`)
)

type baseline struct {
	rdb    *redis.Client
	lease  time.Duration
	id     string
	serial atomic.Int64
	losses atomic.Int64
	pubsub *redis.PubSub

	mu       sync.Mutex // guards channels
	channels map[string]*baselineChannel
}

// baselineChannel is a subscription that the waiters of one lock share.
type baselineChannel struct {
	waiters int
	on      chan struct{} // closed when it is confirmed
	wake    chan struct{} // a message for one of them
}

func openBaseline(addr string, lease time.Duration) (session, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	for _, s := range []*redis.Script{baselineEnter, baselineLeave, baselineRenew} {
		if err := s.Load(context.Background(), rdb).Err(); err != nil {
			return nil, err
		}
	}
	b := &baseline{rdb: rdb, lease: lease, id: strconv.FormatUint(rand.Uint64(), 16), pubsub: rdb.Subscribe(context.Background()), channels: map[string]*baselineChannel{}}
	go b.receive(b.pubsub.ChannelWithSubscriptions(redis.WithChannelSize(1 << 12)))
	return b, nil
}

func (b *baseline) receive(messages <-chan any) {
	for m := range messages {
		b.mu.Lock()
		switch m := m.(type) {
		case *redis.Subscription:
			if c := b.channels[m.Channel]; c != nil && m.Kind == "subscribe" {
				select {
				case <-c.on:
				default:
					close(c.on)
				}
			}
		case *redis.Message:
			if c := b.channels[m.Channel]; c != nil {
				select {
				case c.wake <- struct{}{}:
				default:
				}
			}
		}
		b.mu.Unlock()
	}
}

func (b *baseline) close() {
	_ = b.pubsub.Close()
	_ = b.rdb.Close()
}

func (b *baseline) lost([]any) int { return int(b.losses.Load()) }

func (b *baseline) handle(name string) handle {
	return &baselineHandle{b: b, name: name, channel: "channel:" + name, ms: strconv.FormatInt(b.lease.Milliseconds(), 10)}
}

func (b *baseline) hold(ctx context.Context, name string) (any, error) {
	h := b.handle(name)
	return h, h.lock(ctx)
}

type baselineHandle struct {
	b       *baseline
	name    string
	channel string
	ms      string
	owner   string

	mu    sync.Mutex // guards timer
	timer *time.Timer
}

// try returns how long the lock is held yet, or 0 if it was acquired.
func (h *baselineHandle) try(ctx context.Context) (time.Duration, error) {
	ttl, err := baselineEnter.EvalSha(ctx, h.b.rdb, []string{h.name}, h.owner, h.ms).Int64()
	if errors.Is(err, redis.Nil) {
		h.mu.Lock()
		h.timer = time.AfterFunc(h.b.lease/3, h.renew)
		h.mu.Unlock()
		return 0, nil
	}
	return max(time.Duration(ttl), 1) * time.Millisecond, err
}

func (h *baselineHandle) renew() {
	n, err := baselineRenew.EvalSha(context.Background(), h.b.rdb, []string{h.name}, h.owner, h.ms).Int()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil {
		return
	}
	if err == nil && n == 0 {
		h.b.losses.Add(1)
		return
	}
	h.timer.Reset(h.b.lease / 3)
}

func (h *baselineHandle) lock(ctx context.Context) error {
	h.owner = fmt.Sprint(h.b.id, ":", h.b.serial.Add(1))
	if ttl, err := h.try(ctx); ttl == 0 || err != nil {
		return err
	}
	c, err := h.b.join(ctx, h.channel)
	if err != nil {
		return err
	}
	defer h.b.leave(h.channel, c)
	select {
	case <-c.on:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		ttl, err := h.try(ctx)
		if ttl == 0 || err != nil {
			return err
		}
		timer := time.NewTimer(ttl)
		select {
		case <-c.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (b *baseline) join(ctx context.Context, channel string) (*baselineChannel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.channels[channel]
	if c == nil {
		c = &baselineChannel{on: make(chan struct{}), wake: make(chan struct{}, 1)}
		b.channels[channel] = c
		if err := b.pubsub.Subscribe(ctx, channel); err != nil {
			delete(b.channels, channel)
			return nil, err
		}
	}
	c.waiters++
	return c, nil
}

func (b *baseline) leave(channel string, c *baselineChannel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.waiters--; c.waiters == 0 {
		delete(b.channels, channel)
		_ = b.pubsub.Unsubscribe(context.Background(), channel)
	}
}

func (h *baselineHandle) unlock(ctx context.Context) error {
	h.mu.Lock()
	h.timer.Stop()
	h.timer = nil
	h.mu.Unlock()
	n, err := baselineLeave.EvalSha(ctx, h.b.rdb, []string{h.name, h.channel}, h.owner, h.ms).Int()
	if err == nil && n != 1 {
		return errHeld
	}
	return err
}
