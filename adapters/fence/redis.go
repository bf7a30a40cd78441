package fence

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

// TokenField is the field of a hash in which [HSet] keeps the highest token.
const TokenField = "token"

//go:embed hset.lua
var hsetText string

var hset = redis.NewScript(hsetText)

// HSet writes fields of a Redis hash, together with the token of the lease, in one atomic step, unless a higher token
// was written before: then nothing is changed, and the error matches [ErrStale]. Other fields of the hash stay.
// Without fields it only raises the token: do so before you read, if you write later what depends on it.
//
// Write to the hash by HSet only. Neither delete it nor let it expire while an earlier holder may still be alive: its
// token would go with it. If it is in the Redis of the lock, both are lost together: see docs/failover.md.
//
// A request whose answer is lost may have been executed; repeating it with the same lease, before anything else is
// written, is harmless. The token orders holders, and not the writes of one: a copy of a request that the network holds
// up until after a later HSet of the same lease sets its fields again. Fields named
// "token" and an empty key are refused with rlock.ErrInvalidArgument before anything is sent.
func HSet(ctx context.Context, rdb redis.Scripter, lease *rlock.Lease, key string, fields map[string]string) error {
	if rdb == nil {
		return invalid("the Redis client is nil")
	}
	if key == "" {
		return invalid("the key is empty")
	}
	if _, ok := fields[TokenField]; ok {
		return invalid("the field %q is that of the token", TokenField)
	}
	own, err := token(lease)
	if err != nil {
		return err
	}
	args := []any{own}
	for name, value := range fields {
		args = append(args, name, value)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = lease.Context(ctx)
	seen, err := hset.Run(ctx, rdb, []string{key}, args...).Int64()
	if err != nil {
		return because(ctx, lease, err)
	}
	if seen > own {
		return &StaleError{Resource: key, Token: own, Seen: seen}
	}
	return nil
}
