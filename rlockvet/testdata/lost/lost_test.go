package lost

import (
	"context"

	"github.com/go-rlock/rlock"
)

// Tests drop leases on purpose: another owner, a dead holder.
func another(ctx context.Context, l *rlock.Lock) {
	_, _ = l.Lock(ctx)
}
