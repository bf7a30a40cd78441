package transition

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetNX is an Old: a key of SET NX with a lease, which only its own value
// frees.
type SetNX struct {
	Redis redis.UniversalClient
	Key   string
	Lease time.Duration

	value string
}

var (
	extend = redis.NewScript(`
		return redis.call('get', KEYS[1]) == ARGV[1] and
			redis.call('pexpire', KEYS[1], ARGV[2]) or 0`)
	remove = redis.NewScript(`
		return redis.call('get', KEYS[1]) == ARGV[1] and
			redis.call('del', KEYS[1]) or 0`)
)

func (s *SetNX) Lock(ctx context.Context) error {
	s.value = rand.Text()
	set := redis.SetArgs{Mode: "NX", TTL: s.Lease}
	for {
		err := s.Redis.SetArgs(ctx, s.Key, s.value, set).Err()
		if err != redis.Nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *SetNX) Extend(ctx context.Context) (bool, error) {
	keys, ms := []string{s.Key}, s.Lease.Milliseconds()
	return extend.Run(ctx, s.Redis, keys, s.value, ms).Bool()
}

func (s *SetNX) Unlock(ctx context.Context) error {
	return remove.Run(ctx, s.Redis, []string{s.Key}, s.value).Err()
}
