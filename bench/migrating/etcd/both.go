// Package accounts takes etcd's lock and ours.
package accounts

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-rlock/rlock"
	before "github.com/go-rlock/rlock/bench/migrating/etcd/before"
)

// Move moves an account under both locks.
func Move(ctx context.Context, locks *rlock.Client, client *clientv3.Client, account string, move func(context.Context) error) error {
	return rlock.Do(ctx, locks.NewFairLock("lock:account:"+account), func(ctx context.Context) error {
		err := before.Move(ctx, client, account, func(inside context.Context) error {
			return errors.Join(move(inside), inside.Err())
		})
		return err
	})
}
