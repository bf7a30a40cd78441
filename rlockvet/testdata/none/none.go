// Package none has what looks like rlock, but is of another library.
package none

import "context"

type Lease struct{}

func (*Lease) Unlock(context.Context) error { return nil }

type Lock struct{}

func (*Lock) Lock(context.Context) (*Lease, error) { return nil, nil }

func dropped(ctx context.Context, l *Lock) {
	_, _ = l.Lock(ctx)
	lease, _ := l.Lock(ctx)
	lease.Unlock(ctx)
	for {
		defer lease.Unlock(ctx)
	}
}
