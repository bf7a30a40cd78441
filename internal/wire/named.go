package wire

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Named returns a go-redis client whose connections for subscriptions have a name in CLIENT LIST. It
// shares everything else with node. Named returns node itself if node already names its connections, or
// is not a client of one server.
func Named(node redis.UniversalClient, name string) redis.UniversalClient {
	one, ok := node.(*redis.Client)
	if !ok || name == "" || one.Options().ClientName != "" {
		return node
	}
	named := one.WithTimeout(one.Options().ReadTimeout)
	named.AddHook(naming(name))
	return named
}

// naming is a hook that names a connection after the handshake. With Options.ClientName, a server that
// does not permit the name would refuse each connection.
type naming string

func (naming) DialHook(next redis.DialHook) redis.DialHook { return next }

func (name naming) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil || cmd.Name() != "hello" {
			return err
		}
		if err := next(ctx, redis.NewStatusCmd(ctx, "client", "setname", string(name))); err != nil && !IsReply(err) {
			cmd.SetErr(err) // a late reply would be taken for the reply to the next command
			return err
		}
		return nil
	}
}

func (naming) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
