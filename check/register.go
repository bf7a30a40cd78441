package check

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// access reads a register, or writes it (ARGV[2] is the value), if no greater token than ARGV[1] has done so before. A
// register without a fence is given the token 0. Each write is kept in a list, with the value that it was computed from.
var access = redis.NewScript(`
local highest = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < highest then
  return false
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'value', ARGV[2])
  redis.call('RPUSH', KEYS[1] .. ':writes', ARGV[2] .. ' ' .. ARGV[3])
end
return redis.call('HGET', KEYS[1], 'value') or ''`)

// Registers are what the locks of a run protect. They are on a server without faults.
type Registers struct{ Store redis.UniversalClient }

// Access reads the register of a key, or writes a value that was computed from prev.
func (r Registers) Access(ctx context.Context, key string, token int64, value, prev string) (Outcome, string) {
	got, err := access.Run(ctx, r.Store, []string{key}, token, value, prev).Text()
	switch {
	case err == nil:
		return OK, got
	case errors.Is(err, redis.Nil):
		return Refused, ""
	default:
		return Unknown, ""
	}
}

// Updates counts the writes of a register, and those that were not computed from what they replaced.
func (r Registers) Updates(ctx context.Context, key string) (writes, lost int, err error) {
	entries, err := r.Store.LRange(ctx, key+":writes", 0, -1).Result()
	last := ""
	for _, entry := range entries {
		value, prev, _ := strings.Cut(entry, " ")
		if prev != last {
			lost++
		}
		last = value
	}
	return len(entries), lost, err
}
