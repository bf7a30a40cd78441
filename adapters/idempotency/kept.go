package idempotency

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
)

//go:embed kept.lua
var keptText string

var kept = redis.NewScript(keptText)

// once returns what executes a request, by the hash of all that its key is bound to.
func (m *middleware) once(name string) *rlock.Once {
	return m.client.NewOnce(lockPrefix+name, m.keep)
}

// bound notes that an answer is kept, before it is: a process that dies in between leaves a name too many, and no
// answer. It deletes the oldest answers of the principal if there are too many.
func (m *middleware) bound(ctx context.Context, principal, name string) error {
	index := m.once("kept:" + hash(m.namespace, principal)).Name()
	over, err := kept.Run(ctx, m.rdb, []string{index}, name, m.keep.Milliseconds(), m.maxKept).StringSlice()
	if err != nil {
		return fmt.Errorf("idempotency: the answer is not counted: %w", err)
	}
	for i := 0; i < len(over); i += 2 {
		if _, forgot := m.once(over[i]).Forget(ctx); forgot != nil {
			err = errors.Join(err, forgot)
		}
	}
	return err
}
