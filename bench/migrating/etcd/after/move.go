package accounts

import (
	"context"

	"github.com/go-rlock/rlock"
)

// Move moves an account, and waits while another process does.
func Move(ctx context.Context, locks *rlock.Client, account string,
	move func(context.Context) error) error {

	// A FairLock, because etcd grants in order too.
	return rlock.Do(ctx, locks.NewFairLock("lock:account:"+account), move)
}
