package protocol

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/wire"
)

// Ping requests from the server of a key whether it grants locks. If asLock is true, it also checks whether the user
// may acquire a free Lock.
func (s *Site) Ping(key string, asLock bool) Request[Entered] {
	return newEnterRequest(s, "lock/ping", []string{key, key + ":lock"}, []any{flag(s.acks()), flag(asLock)}, readEntered)
}

// PingKeys returns a key of each master that may have locks with a prefix, in the order of the masters. A key is
// empty if none was found for the master.
func (s *Site) PingKeys(ctx context.Context, prefix string, masters []wire.Master, within time.Duration) ([]string, error) {
	key := func(i int) string { return suffixed(prefix+"rlock:ping"+strconv.Itoa(i), "rlock:ping", "") }
	keys := make([]string, len(masters))
	if len(masters) == 1 {
		keys[0] = key(0)
		return keys, nil
	}
	return wire.Within(ctx, s.Wire, within, func(ctx context.Context) ([]string, error) {
		for i, left := 0, len(masters); i < 100*len(masters) && left > 0; i++ {
			addr, _, err := s.Wire.Carrier(ctx, key(i))
			if err != nil {
				return nil, err
			}
			for j, m := range masters {
				if m.Addr == addr && keys[j] == "" {
					keys[j] = key(i)
					left--
				}
			}
			if strings.Contains(prefix, "{") {
				break // all its locks are in one slot
			}
		}
		return keys, nil
	})
}
