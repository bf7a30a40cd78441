package accounts

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Move moves an account, and waits while another process does.
func Move(ctx context.Context, client *clientv3.Client, account string,
	move func(context.Context) error) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "account/"+account)
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer func() { _ = mutex.Unlock(context.WithoutCancel(ctx)) }()
	inside, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-session.Done(): // lost
			cancel()
		case <-inside.Done():
		}
	}()
	return move(inside)
}
